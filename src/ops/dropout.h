/* Dropout by counters: y[i] = x[i] / (1 - share), or 0 with probability `share`. Whether element i is dropped
   depends only on seed, stream and i, on every device alike, so the backward pass calls carry_dropout again with the
   gradient. x and y are f32, bf16 or f16, packed, and have one type and count; y may be x. */
#ifndef CARRY_OPS_DROPOUT_H
#define CARRY_OPS_DROPOUT_H

#include <stdint.h>

#include "carry/tensor.h"

carry_status carry_dropout(carry_ctx *ctx, carry_tensor y, carry_tensor x, double share, uint64_t seed,
                           uint64_t stream);

/* Elements whose random word is below this are dropped. */
static inline uint32_t carry_dropout_bound(double share) {
    return (uint32_t)(share * 4294967296.0);
}

#endif
