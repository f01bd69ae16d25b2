/* The CUDA entries of the table of operators, one file each; matmul.cu has the table itself. A C header. */
#ifndef CARRY_OPS_CUDA_H
#define CARRY_OPS_CUDA_H

#include "ops/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* elementwise.cu */
carry_status carry_cuda_map(carry_ctx *ctx, const carry_device_map *map);
carry_status carry_cuda_fill(carry_ctx *ctx, int ordinal, void *to, const unsigned char *bits, size_t size,
                             int64_t count, carry_stream *stream);

/* rows.cu */
carry_status carry_cuda_norm(carry_ctx *ctx, const carry_device_norm *norm);
carry_status carry_cuda_turn(carry_ctx *ctx, const carry_device_turn *turn);

/* blaslt.cu: a product through cuBLASLt, which is looked for at the first call. *done is false when the library is not
   here (a warning says so once per context) or has no way for this shape; then nothing happened. */
carry_status carry_cuda_blaslt(carry_ctx *ctx, const carry_device_product *product, bool *done);

#ifdef __cplusplus
}
#endif
#endif
