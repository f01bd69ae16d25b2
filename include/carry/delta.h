/* The gated delta rule: DeltaNet, Gated DeltaNet, KDA.

   Each value head has a K x V state S, and each token updates it:

       S <- e^g S;   u = beta (v - S^T k);   S <- S + k u^T;   o = scale S^T q

   where g <= 0 is the logarithm of the decay (absent for DeltaNet; one number per head for Gated DeltaNet; one per key
   channel for KDA, where e^g scales the rows of S) and beta is in (0, 1), or in (0, 2) to allow negative eigenvalues.

   Layouts are those of flash-linear-attention:

       q, k: [B, T, H, K]     v, o: [B, T, HV, V]     beta: [B, T, HV]     g: [B, T, HV], or [B, T, HV, K] by key
       states: [N, HV, K, V], f32; or [N, HV, V, K] with state_transposed

   HV is a multiple of H; value head j uses q and k of head j / (HV/H). N equals B, unless sequences are packed: then B
   is 1 and the N sequences follow one another; sequence i is tokens cu_seqlens[i]..cu_seqlens[i+1]-1 and may be empty.

   A chunk of C tokens is computed with matrix products (the WY form). Only differences of the cumulative gate, summed
   in double, that are <= 0 are exponentiated, so strong decay and no decay are both safe. A gate of -inf, or any g for
   which e^g is 0 in f32, erases the state; its gradient is 0. The error was checked with these gates: 0, -0.001 to -10,
   -20, -50, -1000, -1e6 and -inf, alone and mixed, and bounded gates, -5 sigmoid(x). On the CPU with a gate a head,
   every algorithm is within ten times the error of the recurrence in f32; on a GPU in bf16, o and the states are within
   0.4 % and gradients within 0.9 % of a recurrence in f64 (root mean squares). No algorithm needs a bound of the gates
   or uses one. Inputs are f32, bf16 or f16; states and sums are f32. For a fixed plan, results depend neither on the
   number of threads nor on the rest of the batch. Calls allocate nothing.

   On a GPU (problem.device; sm_80 or later) all tensors, the workspace and the kept memory are on that device, except
   cu_seqlens, which is in CPU memory and is checked before anything runs. Calls enqueue their work on the context's
   stream (carry_ctx_set_stream) and return; cu_seqlens may then be changed or freed. The same inputs give the same bits
   in every run. */
#ifndef CARRY_DELTA_H
#define CARRY_DELTA_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_MAX_DELTA_DIM 256   /* the largest K */
#define CARRY_MAX_DELTA_VALUE 512 /* the largest V */

typedef enum carry_delta_gate {
    CARRY_DELTA_NO_GATE,   /* DeltaNet: g is absent */
    CARRY_DELTA_HEAD_GATE, /* Gated DeltaNet */
    CARRY_DELTA_KEY_GATE,  /* KDA */
} carry_delta_gate;

typedef struct carry_delta_problem {
    int64_t batch, tokens, heads, value_heads, key, value;
    int64_t sequences; /* 0: sequences are not packed; else their number: batch is 1, and every call needs cu_seqlens */
    carry_dtype dtype; /* type of q, k, v, o and their gradients; g and beta may also be f32 */
    carry_delta_gate gate;
    float scale; /* 0 means K^-0.5 (a scale of zero is not possible) */
    bool state_transposed;
    bool l2norm;            /* q and k are divided by sqrt(sum of squares + 1e-6) first */
    bool gate_inside;       /* g holds a: the gate is -exp(A_log) softplus(a + dt_bias), both [HV], f32 */
    bool beta_sigmoid;      /* beta holds logits */
    float beta_factor;      /* multiplies the sigmoid: 0 or 1: beta in (0, 1); 2: in (0, 2). Only with beta_sigmoid */
    int64_t snapshot_every; /* > 0: snapshot i is the state after min(length, (i+1) * every) tokens of the sequence */
    int64_t snapshot_last;  /* > 0: snapshot i is the state after max(0, length - last + 1 + i) tokens, i < last */
    int device;             /* 0: the CPU; else a GPU, numbered as in carry/device.h */
} carry_delta_problem;

/* The algorithms of a device ("recurrent", "chunk16", "chunk32", ...); NULL past the end. All GPUs have the same list,
   which is empty in a build without CUDA. */
CARRY_API const char *carry_delta_name(int device, int index);
CARRY_API const char *carry_delta_about(int device, int index);

typedef struct carry_delta_plan carry_delta_plan;

typedef struct carry_delta_options {
    size_t size;           /* CARRY_INIT */
    const char *algorithm; /* NULL: chosen by the planner */
} carry_delta_options;

/* options may be NULL. Free the plan before ctx. */
CARRY_API carry_status carry_delta_plan_new(carry_ctx *ctx, carry_delta_plan **plan, const carry_delta_problem *problem,
                                            const carry_delta_options *options);
CARRY_API void carry_delta_plan_free(carry_delta_plan *plan);
CARRY_API const char *carry_delta_plan_about(const carry_delta_plan *plan); /* one line: what will run and why */
CARRY_API const char *carry_delta_plan_algorithm(const carry_delta_plan *plan);

/* Bytes of workspace for a call; and bytes of `kept`, which the forward pass fills for the backward pass (the state at
   the start of every chunk, and the corrected values; by chunk64 on a GPU the prepared chunks, unless backward works in
   rounds). The caller owns `kept` and preserves it between the two. On the CPU and by chunk64, results have the same
   bits with and without it. On a GPU backward needs at most 1.5 times the bytes of q, k, v and d_o, or 32 MB, by
   working in rounds; where one head alone needs more, carry_delta_plan_about states by how much. */
CARRY_API size_t carry_delta_forward_workspace(const carry_delta_plan *plan);
CARRY_API size_t carry_delta_backward_workspace(const carry_delta_plan *plan);
CARRY_API size_t carry_delta_kept_bytes(const carry_delta_plan *plan);
/* Snapshots per sequence: ceil(T / snapshot_every), where T is problem.tokens, or snapshot_last; 0 if none were
   requested. */
CARRY_API int64_t carry_delta_snapshots(const carry_delta_plan *plan);
/* Operations of the last call. */
typedef struct carry_delta_counts {
    size_t size;  /* CARRY_INIT */
    double flops; /* additions and multiplications */
} carry_delta_counts;

CARRY_API carry_status carry_delta_counted(const carry_delta_plan *plan, carry_delta_counts *counts);

/* Outputs first. Strides over B, T and heads may be any (elements of outputs must not overlap); the last index of
   tensors with four indices is contiguous; states, snapshots, A_log, dt_bias and cu_seqlens (i64, [N+1]) are packed.
   The caller must ensure that o overlaps no input. final_state may be initial_state. CARRY_ESHAPE and similar errors
   name the tensor and the sizes, before anything is written. A NaN or infinity in the input of a token reaches the
   outputs of that token and of later ones, never of earlier ones. */
typedef struct carry_delta_forward_args {
    carry_tensor o;
    carry_tensor final_state;
    carry_tensor snapshots; /* [N, snapshots, HV, K, V], f32 */
    void *kept;             /* carry_delta_kept_bytes(plan) bytes, or NULL; cannot be combined with snapshots */
    carry_tensor q, k, v, beta;
    carry_tensor g;
    carry_tensor initial_state; /* absent: zero */
    carry_tensor cu_seqlens;
    carry_tensor A_log, dt_bias; /* for gate_inside */
} carry_delta_forward_args;

CARRY_API carry_status carry_delta_forward(carry_delta_plan *plan, const carry_delta_forward_args *args,
                                           void *workspace, size_t workspace_bytes);

/* Exact reverse mode. d_o is the gradient of o, dfinal_state that of the final state (absent: zero). kept was filled by
   the forward pass; NULL: the forward pass is repeated in the workspace. */
typedef struct carry_delta_backward_args {
    carry_tensor dq, dk, dv, dbeta;
    carry_tensor dg;
    carry_tensor dinitial_state;
    carry_tensor dA_log, ddt_bias; /* [HV], f32 */
    carry_tensor d_o;
    carry_tensor dfinal_state;
    const void *kept;
    carry_tensor q, k, v, beta;
    carry_tensor g;
    carry_tensor initial_state;
    carry_tensor cu_seqlens;
    carry_tensor A_log, dt_bias;
} carry_delta_backward_args;

CARRY_API carry_status carry_delta_backward(carry_delta_plan *plan, const carry_delta_backward_args *args,
                                            void *workspace, size_t workspace_bytes);

/* One token for each sequence of the batch: computes o from q, k, v, beta and g as above, and updates the state in
   place. The plan is any plan of a problem with tokens = 1; the workspace has carry_delta_forward_workspace bytes. */
CARRY_API carry_status carry_delta_step(carry_delta_plan *plan, carry_tensor o, carry_tensor state,
                                        const carry_delta_forward_args *inputs, void *workspace,
                                        size_t workspace_bytes);

/* Steps that write the state only once in `length` steps. The most recent tokens are kept in a ring of `length` (1 to
   CARRY_MAX_DELTA_RING) tokens; the token that fills the ring adds all of them to the state. Results equal those of
   carry_delta_step except for rounding. carry_delta_ring_length returns the length that the plan recommends; 0 means
   that carry_delta_step is faster, or that rings are not supported (transposed states; V > 256; on a GPU, V % 4 >
   0). A ring is carry_delta_ring_bytes of memory on the plan's device, aligned to 16 bytes; an empty ring is all zero
   bytes. State and ring together hold the state of the sequences: copy both for a snapshot. carry_delta_ring_flush adds
   all tokens of the ring to the state, before a snapshot of the state alone or before other calls. */
#define CARRY_MAX_DELTA_RING 16
typedef struct carry_delta_ring_memory {
    void *data;
    int64_t length; /* tokens */
} carry_delta_ring_memory;

CARRY_API int64_t carry_delta_ring_length(const carry_delta_plan *plan);
CARRY_API size_t carry_delta_ring_bytes(const carry_delta_plan *plan, int64_t length);
CARRY_API carry_status carry_delta_step_ring(carry_delta_plan *plan, carry_tensor o, carry_tensor state,
                                             carry_delta_ring_memory ring, const carry_delta_forward_args *inputs,
                                             void *workspace, size_t workspace_bytes);
CARRY_API carry_status carry_delta_ring_flush(carry_delta_plan *plan, carry_tensor state, carry_delta_ring_memory ring);

/* The first carry_delta_ring_count_bytes of a ring count its tokens. Copying them back drops the tokens of all
   sequences since the copy was made, as long as no ring was filled or flushed in between. */
CARRY_API size_t carry_delta_ring_count_bytes(const carry_delta_plan *plan);

/* The effect of a range of tokens on a state, S -> M S + L: M [B, HV, K, K] and L [B, HV, K, V], f32, packed. For use
   across ranks: neighbouring ranges combine like the steps of a dense scan. Packed sequences are not supported; o and
   states are not read. */
CARRY_API carry_status carry_delta_range(carry_delta_plan *plan, carry_tensor M, carry_tensor L,
                                         const carry_delta_forward_args *inputs, void *workspace,
                                         size_t workspace_bytes);
CARRY_API size_t carry_delta_range_workspace(const carry_delta_plan *plan);

/* The specification: the recurrence in float64, token by token, from the inputs as stored. o is packed [B, T, HV, V]
   and final_state packed [N, HV, K, V], even with state_transposed. final_state may be NULL. */
CARRY_API carry_status carry_delta_reference(carry_ctx *ctx, double *o, double *final_state,
                                             const carry_delta_problem *problem,
                                             const carry_delta_forward_args *inputs);

#ifdef __cplusplus
}
#endif
#endif
