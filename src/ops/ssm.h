/* The state space layer of Mamba-2. For every head, with a state S [P, N], a = softplus(dt + dt_bias), limited to
   least..most, and A = -exp(A_log):

       S[t] = e^(a[t] A) S[t-1] + a[t] x[t] B[t]^T;    y[t] = S[t] C[t] + D x[t]

   x, B and C are columns of xbc [batch, T, n P + 2 G N]: n heads of P, then G groups of N for B and as many for C; head
   h has group h G / n. dt [batch, T, n], before the bias; A_log, dt_bias, D [n], f32. y [batch, T, n P]. States are
   [batch, n, P, N], f32; `initial` absent: zeros; `final` may be absent, or be `initial`. With cu_seqlens
   ([sequences + 1], i64, on the device of xbc; entries are checked only on the CPU) the batch is 1, every sequence
   starts from zeros, and `initial` and `final` are absent. With `slots` ([batch], on that device; T is then 1)
   `initial` and `final` are one tensor [R, n, P, N], and row i of the batch has state slots[i].

   Tokens are computed in chunks by products of matrices. The decay from token j to token i is the exponential of the
   sum of a A over the tokens after j up to i, which is never above 0: nothing overflows, and any A and dt are exact to
   rounding. */
#ifndef CARRY_OPS_SSM_H
#define CARRY_OPS_SSM_H

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_SSM_MAX_DIM 512 /* of P and N */

typedef struct carry_ssm_args {
    carry_tensor y, final;
    carry_tensor xbc, dt, A_log, dt_bias, D, initial, cu_seqlens;
    int64_t heads, groups, state; /* n, G, N */
    float least, most;            /* limits of a; an a at a limit passes no gradient to dt */
    const int32_t *slots;         /* NULL: states are in the order of the batch */
} carry_ssm_args;

size_t carry_ssm_workspace(const carry_ctx *ctx, const carry_ssm_args *args);
carry_status carry_ssm(carry_ctx *ctx, const carry_ssm_args *args, void *workspace, size_t workspace_bytes);

/* Given dy: dxbc and ddt are overwritten; dA_log, ddt_bias and dD ([n], f32) are accumulated. `initial` and `final`
   must be absent. */
typedef struct carry_ssm_backward_args {
    carry_tensor dxbc, ddt, dA_log, ddt_bias, dD;
    carry_tensor dy;
    carry_ssm_args forward;
} carry_ssm_backward_args;

size_t carry_ssm_backward_workspace(const carry_ctx *ctx, const carry_ssm_args *args);
carry_status carry_ssm_backward(carry_ctx *ctx, const carry_ssm_backward_args *args, void *workspace,
                                size_t workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
