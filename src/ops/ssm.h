/* The state space layer of Mamba-2. For every head, with a state S [P, N], a = clamp(softplus(dt + dt_bias)) and
   A = -exp(A_log):

       S[t] = e^(a[t] A) S[t-1] + a[t] x[t] B[t]^T;    y[t] = S[t] C[t] + D x[t]

   x, B and C are columns of xbc [B, T, n P + 2 G N]: n heads of P, then G groups of N for B and as many for C; head h
   has group h G / n. dt [B, T, n], before the bias; A_log, dt_bias, D [n], f32. y [B, T, n P]. States are [B, n, P, N],
   f32; `initial` absent: zeros; `final` may be absent, or be `initial`. With cu_seqlens ([sequences + 1], i64, on the
   device of xbc, checked on the CPU; B is then 1) every sequence starts from zeros. With `slots` ([B], on that device;
   T is then 1) `initial` and `final` are one tensor [slots, n, P, N], and row i of the batch has state slots[i].

   Tokens are computed in chunks by products of matrices: decays enter as e^(G[i] - G[j]) of sums G of a A, which never
   overflow, so any A and dt are exact to rounding. */
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

/* Given dy: dxbc and ddt are overwritten; dA_log, ddt_bias and dD ([n], f32) are accumulated. States are not
   supported. */
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
