/* Softmax attention over keys that lie in runs of rows.

       o[t,h] = sum_j p[j] v[j,h],   p = softmax over j of (scale q[t,h].k[j,h] + bias(j))

   Keys and values lie in buffers of S rows, a cache for instance; a call names the runs of rows that are seen, each
   with a bias that is added to the scores of its keys inside the kernel: a ring that wraps is two runs, a window with
   weaker old frames is three, and no mask is ever made. Softmax is not changed by the order of keys.

   A causal call has the last T of S tokens as its queries: query t sees rows up to S - T + t, and with a window only
   the last so many of those.

   q, o: [T, H, D]; k, v: [S, HK, D], where HK divides H and head h reads head h HK / H of the keys; the last index is
   contiguous, rows and heads may be any strides apart (so heads may be slices of a wider row). f32, bf16 or f16, one
   type for all; scores and sums are f32. lse [H, T], f32: the logarithm of the sum of exp(score), less the largest bias
   of a run that is seen, so that a bias that all keys have takes no digits from it; backward needs it; absent (data
   NULL) when not wanted. o does not overlap the inputs. D from 1 to 256. On the CPU, or all on one GPU: bf16 with D of
   64 or 128, or of 256 without runs, a scale above 0, and rows and heads a multiple of 8 elements apart, forwards, from
   16 bytes on, is fast there, with a causal mask or HK < H where there are no runs; the rest goes through plain
   kernels.

   Nothing is allocated: workspace is carry_attention_workspace(args) bytes, of the same device
   (CARRY_EWORKSPACE, CARRY_EALIGN); fewer queries may need more than many. Results do not depend on the number of
   threads. A query for which every bias is -infinity gets zeros, and -infinity as lse. CARRY_ESHAPE, CARRY_EDTYPE,
   CARRY_EDEVICE name the tensor; CARRY_ERANGE a run that is not inside S, or a bias that is NaN or +infinity. */
#ifndef CARRY_ATTENTION_H
#define CARRY_ATTENTION_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_KEY_RUNS 64

typedef struct carry_key_run {
    int64_t first, count; /* rows of k and v; count may be 0 */
    float bias;
} carry_key_run;

typedef struct carry_attention_args {
    carry_tensor o, lse;
    carry_tensor q, k, v;
    const carry_key_run *run; /* no row in two of them */
    int runs;                 /* up to CARRY_KEY_RUNS; 0: all rows, without bias */
    float scale;              /* 0: D^-1/2 */
    bool causal;
    int64_t window; /* of a causal call: rows that a query sees, its own among them; 0: all up to it */
} carry_attention_args;

CARRY_API size_t carry_attention_workspace(const carry_attention_args *args);
CARRY_API carry_status carry_attention(carry_ctx *ctx, const carry_attention_args *args, void *workspace,
                                       size_t workspace_bytes);

/* Gradients of q, k, v from that of o. dq is written; dk and dv are added to, in the rows of the runs alone (several
   calls with other queries over the same keys add up). On a GPU by plain kernels. */
typedef struct carry_attention_backward_args {
    carry_tensor dq, dk, dv;
    carry_tensor d_o;
    carry_attention_args forward; /* o and lse as forward left them */
} carry_attention_backward_args;

CARRY_API size_t carry_attention_backward_workspace(const carry_attention_backward_args *args);
CARRY_API carry_status carry_attention_backward(carry_ctx *ctx, const carry_attention_backward_args *args,
                                                void *workspace, size_t workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
