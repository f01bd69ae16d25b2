/* The gated delta rule: DeltaNet, Gated DeltaNet, KDA.

   Per value head the state S is K x V, and one token does

       S <- e^g S;   u = beta (v - S^T k);   S <- S + k u^T;   o = scale S^T q

   with g <= 0 the logarithm of the decay (none for DeltaNet; one number a head for Gated DeltaNet; one a key channel
   for KDA, where e^g scales the rows of S) and beta in (0, 1), or (0, 2) where negative eigenvalues are wanted.

   Layouts are flash-linear-attention's:

       q, k: [B, T, H, K]     v, o: [B, T, HV, V]     beta: [B, T, HV]     g: [B, T, HV], or [B, T, HV, K] by key
       states: [N, HV, K, V], f32; or [N, HV, V, K] with state_transposed

   HV is a multiple of H; value head j belongs to head j / (HV/H). N is B; with packed sequences B is 1 and N sequences
   lie one after the other, sequence i being tokens cu_seqlens[i]..cu_seqlens[i+1]-1 (it may be empty).

   A chunk of C tokens is done as matrix products (the WY form) and only differences of the cumulative gate, summed in
   double, that are <= 0 are exponentiated: deep decay and no decay are both safe. A gate of -inf erases the state, as
   does any whose e^g is 0 in f32; its gradient is 0. Inputs are f32, bf16 or f16; states and sums are f32.
   For a fixed plan results depend neither on the number of threads nor on the neighbours in the batch. Calls allocate
   nothing.

   On a GPU (device of the problem; sm_80 or later) every tensor, the workspace and what is kept are of that device,
   except for cu_seqlens, which stays on the CPU: it is checked there before anything runs. Calls put their work into
   the stream of the context (carry_ctx_set_stream) and return; cu_seqlens may be changed or freed after the return. The
   same inputs give the same bits in every run. */
#ifndef CARRY_DELTA_H
#define CARRY_DELTA_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_DELTA_MAX_DIM 256 /* of K and of V */

typedef enum carry_delta_gate {
    CARRY_DELTA_NO_GATE,   /* DeltaNet: g is absent */
    CARRY_DELTA_HEAD_GATE, /* Gated DeltaNet */
    CARRY_DELTA_KEY_GATE,  /* KDA */
} carry_delta_gate;

typedef struct carry_delta_problem {
    int64_t batch, tokens, heads, value_heads, key, value;
    int64_t sequences; /* 0: as many as batch; else packed, batch being 1, and cu_seqlens is given to every call */
    carry_dtype dtype; /* of q, k, v, o and their gradients; g and beta may be f32 besides */
    carry_delta_gate gate;
    float scale; /* 0: K^-0.5 (so a scale of zero is not possible) */
    bool state_transposed;
    bool l2norm;            /* q and k are divided by sqrt(sum of squares + 1e-6) first */
    bool gate_inside;       /* g holds a: the gate is -exp(A_log) softplus(a + dt_bias), both [HV], f32 */
    bool beta_sigmoid;      /* beta holds logits */
    float beta_factor;      /* after the sigmoid: 0 and 1: (0, 1); 2: (0, 2). Only with beta_sigmoid */
    int64_t snapshot_every; /* > 0: snapshot i is the state after min(length, (i+1) every) tokens of the sequence */
    int64_t snapshot_last;  /* > 0: snapshot i is the state after max(0, length - last + 1 + i) tokens, i < last */
    int device;             /* 0: the CPU; else a GPU of carry/device.h */
} carry_delta_problem;

/* The list of methods ("recurrent", "chunk16", "chunk32", ...) that the CPU has; NULL past the end. And those of a
   device, of which all GPUs have the same; none where this build has no CUDA. */
CARRY_API const char *carry_delta_name(int index);
CARRY_API const char *carry_delta_about(int index);
CARRY_API const char *carry_delta_name_on(int device, int index);
CARRY_API const char *carry_delta_about_on(int device, int index);

typedef struct carry_delta_plan carry_delta_plan;

typedef struct carry_delta_options {
    const char *method; /* NULL: the planner's choice */
} carry_delta_options;

/* options may be NULL. The plan uses ctx, so it is freed first. */
CARRY_API carry_status carry_delta_plan_new(carry_ctx *ctx, carry_delta_plan **plan, const carry_delta_problem *problem,
                                            const carry_delta_options *options);
CARRY_API void carry_delta_plan_free(carry_delta_plan *plan);
CARRY_API const char *carry_delta_plan_about(const carry_delta_plan *plan); /* one line: what will run and why */
CARRY_API const char *carry_delta_plan_method(const carry_delta_plan *plan);

/* Bytes of workspace that a call needs; and of what a forward pass keeps for the backward one (the state
   that enters every chunk, and the corrected values), which the caller keeps between the two. */
CARRY_API size_t carry_delta_forward_workspace(const carry_delta_plan *plan);
CARRY_API size_t carry_delta_backward_workspace(const carry_delta_plan *plan);
CARRY_API size_t carry_delta_kept(const carry_delta_plan *plan);
/* Snapshots a sequence: ceil(T / every), or last; 0 when none were asked for. T is the whole of tokens. */
CARRY_API int64_t carry_delta_snapshots(const carry_delta_plan *plan);
/* Additions and multiplications of the last call. */
CARRY_API double carry_delta_flops(const carry_delta_plan *plan);

/* Outputs first. Strides over B, T and heads are free (elements of what is
   written do not overlap), the last index of those with four is packed; states, snapshots, A_log, dt_bias and
   cu_seqlens (i64, [N+1]) are packed. o overlaps no input, which is the caller's duty. final_state may be
   initial_state. CARRY_ESHAPE and the like name the tensor and the sizes, before anything is written. A NaN
   reaches what depends on it: outputs of its token and of later ones, never of earlier ones; by the methods of a GPU's
   tensor cores (chunk64, tiles64) also earlier tokens of its chunk. */
typedef struct carry_delta_forward_args {
    carry_tensor o;
    carry_tensor final_state;
    carry_tensor snapshots; /* [N, snapshots, HV, K, V], f32 */
    void *kept;             /* carry_delta_kept(plan) bytes, or NULL; not together with snapshots */
    carry_tensor q, k, v, beta;
    carry_tensor g;
    carry_tensor initial_state; /* absent: zero */
    carry_tensor cu_seqlens;
    carry_tensor A_log, dt_bias; /* gate_inside */
} carry_delta_forward_args;

CARRY_API carry_status carry_delta_forward(carry_delta_plan *plan, const carry_delta_forward_args *args,
                                           void *workspace, size_t workspace_bytes);

/* Exact reverse mode. d_o is the gradient of o, dfinal_state of the final state (absent: zero). kept is what forward
   kept; NULL: forward is done again, into the workspace. */
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

/* One token for each of batch sequences (tokens is 1): o from q, k, v, beta, g as above, and the state in place. The
   plan is any plan of such a problem; needs carry_delta_forward_workspace bytes. */
CARRY_API carry_status carry_delta_step(carry_delta_plan *plan, carry_tensor o, carry_tensor state,
                                        const carry_delta_forward_args *inputs, void *workspace,
                                        size_t workspace_bytes);

/* Steps that leave the state alone: the last tokens wait in a ring of `length` (1 to CARRY_DELTA_RING_MOST) and go into
   the state together, with the token that fills it; the results are those of carry_delta_step but for rounding. A step
   then reads the state, and writes it once in `length` steps. carry_delta_ring_length is what the plan would take; 0:
   carry_delta_step is faster, or there is none (states transposed; on a GPU, V not a multiple of 4). A ring is
   carry_delta_ring_bytes of the plan's device, aligned to 16, and zero bytes are an empty one; state and ring together
   are the state of the sequences, and a copy of both is a snapshot. carry_delta_ring_flush puts all that waits into the
   state, for a snapshot of the state alone or for other calls. */
#define CARRY_DELTA_RING_MOST 8
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

/* What a range of tokens does to a state: S -> M S + L, M [B, HV, K, K] and L [B, HV, K, V], f32, packed. For use
   across ranks: neighbouring ranges combine as steps of a dense scan do. Not for packed sequences; o and states are not
   read. */
CARRY_API carry_status carry_delta_range(carry_delta_plan *plan, carry_tensor M, carry_tensor L,
                                         const carry_delta_forward_args *inputs, void *workspace,
                                         size_t workspace_bytes);
CARRY_API size_t carry_delta_range_workspace(const carry_delta_plan *plan);

/* The specification: the recurrence in float64, token by token, from the stored inputs; o packed [B, T, HV, V], states
   packed [N, HV, K, V] whatever state_transposed says for the inputs. final_state may be NULL. */
CARRY_API carry_status carry_delta_reference(carry_ctx *ctx, double *o, double *final_state,
                                             const carry_delta_problem *problem,
                                             const carry_delta_forward_args *inputs);

#ifdef __cplusplus
}
#endif
#endif
