/* Softmax attention over keys in contiguous runs of rows.

       o[t,h] = sum_j p[j] v[j,h],   p = softmax over j of (scale q[t,h].k[j,h] + bias(j))

   Keys and values are in buffers of S rows, such as a cache. A call lists the runs of rows to attend to, each with a
   bias that the kernel adds to the scores of its keys. A ring buffer that wraps is two runs; a window that weakens old
   frames is three; no mask tensor is needed. The order of keys does not matter to softmax.

   In a causal call the queries are the last T of the S tokens: query t sees rows up to S - T + t; with a window it sees
   only the last `window` of these.

   q, o: [T, H, D]; k, v: [S, HK, D], where HK divides H and query head h reads key head h HK / H; D from 1 to 256, or
   to 640 on the CPU. The last index is contiguous; rows and heads may have any strides, so heads may be slices of a
   wider row. All are f32, bf16 or f16, of one type; scores and sums are f32. o does not overlap the inputs. lse [H, T],
   f32, is log(sum of exp(score)) minus the largest bias among the runs, so that a bias common to all keys does not cost
   precision. Backward needs lse; otherwise it may be absent (data NULL).

   All tensors are on the CPU or on one GPU. A GPU has fast forward kernels for bf16 with D = 64 or 128, or D = 256
   without runs, if scale is not negative, data is aligned to 16 bytes, and row and head strides are positive multiples
   of 8 elements; a causal mask or HK < H is fast only without runs. Everything else uses plain kernels.

   NaN and infinity in k and v do not reach queries that do not see them, neither forward nor backward; one kernel does
   not guarantee it: forward on Hopper GPUs with D = 256 and as many queries as keep the GPU busy.

   Nothing is allocated. The workspace has carry_attention_workspace(args) bytes on the same device (CARRY_EWORKSPACE,
   CARRY_EALIGN); few queries may need more than many. Results do not depend on the number of threads. A query for which
   every bias is -infinity gets zeros, with lse -infinity. CARRY_ESHAPE, CARRY_EDTYPE and CARRY_EDEVICE name the tensor;
   CARRY_ERANGE names a run outside the S rows, or a bias that is NaN or +infinity. */
#ifndef CARRY_ATTENTION_H
#define CARRY_ATTENTION_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_MAX_KEY_RUNS 64

typedef struct carry_key_run {
    int64_t first, count; /* rows of k and v; count may be 0 */
    float bias;
} carry_key_run;

typedef struct carry_attention_args {
    carry_tensor o, lse;
    carry_tensor q, k, v;
    const carry_key_run *run; /* runs must not overlap */
    int runs;                 /* up to CARRY_MAX_KEY_RUNS; 0: all rows, without bias */
    float scale;              /* 0: D^-1/2 */
    bool causal;
    int64_t window; /* causal calls: rows that a query sees, including its own; 0: all up to its own */
} carry_attention_args;

CARRY_API size_t carry_attention_workspace(const carry_attention_args *args);
CARRY_API carry_status carry_attention(carry_ctx *ctx, const carry_attention_args *args, void *workspace,
                                       size_t workspace_bytes);

/* Gradients of q, k and v, given that of o. dq is overwritten; dk and dv are accumulated, only in the rows of the runs,
   so that calls with different queries over the same keys add up. The same inputs give the same bits.

   A GPU has fast kernels for causal calls in bf16 and f16 with D = 64, 128 or 256, without runs and without a window
   that hides keys, if data and strides of all tensors are as above; `carry plan attention:...:backward` names the
   kernels. Everything else uses plain kernels. */
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
