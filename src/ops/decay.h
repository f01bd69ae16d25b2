/* Decays of KDA, one for each channel of a key: g = -exp(A_log[h]) softplus(a + dt_bias) or, if bound is not 0,
   bound * sigmoid(exp(A_log[h]) (a + dt_bias)). a is [T, n D] for n heads; A_log [n] and dt_bias [n D] are f32; g
   has the shape of a and is f32. */
#ifndef CARRY_OPS_DECAY_H
#define CARRY_OPS_DECAY_H

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

carry_status carry_decay_gate(carry_ctx *ctx, carry_tensor g, carry_tensor a, carry_tensor A_log, carry_tensor dt_bias,
                              float bound);
/* Given dg (f32), da is written; dA_log and ddt_bias are accumulated. */
typedef struct carry_decay_gate_backward_args {
    carry_tensor da, dA_log, ddt_bias;
    carry_tensor dg, a, A_log, dt_bias;
    float bound;
} carry_decay_gate_backward_args;
carry_status carry_decay_gate_backward(carry_ctx *ctx, const carry_decay_gate_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
