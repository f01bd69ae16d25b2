/* The gated delta rule over ranks: one long sequence, or a packed row of sequences, split along its tokens.

   Rank p holds tokens first[p]..first[p]+n[p]-1 of every sequence of the batch (or of the packed row); n[p] may differ
   from rank to rank and may be 0. Outputs and gradients are those of one rank that holds all of them, within rounding.

   Per head, the rank's own tokens do S -> M S + L to the state (local pass); All-Scan gives the state that enters
   (all_scan.h); the forward pass then runs with it. Heads are done in groups: while the states of one group travel, the
   next group's local pass and the last one's forward pass run, so that little of the exchange is seen
   (carry_delta_ranks_exposed). Backward is the same from the last rank to the first, with M^T.

   Packed sequences: cu_seqlens is that of the whole row, the same on every rank. A sequence that starts inside a rank
   cuts the chain. initial_state is [N, HV, K, V] for all N sequences, read where a sequence starts; final_state is
   written where one ends and left alone elsewhere; of their gradients likewise. Not packed: the batch's sequences all
   start in the first rank that has tokens and end in the last one. A sequence that has no tokens starts and ends in
   the rank where its first token would be (behind all tokens: the last rank that has any; rank 0 when there are none at
   all).

   On a GPU the problem's device is the communicator's ("peer", "staged" or "nccl", comm.h), all heads are one group,
   and calls return when their work is in the context's stream, except that they wait for other ranks' CPUs. */
#ifndef CARRY_DELTA_RANKS_H
#define CARRY_DELTA_RANKS_H

#include "carry/all_scan.h"
#include "carry/delta.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_delta_ranks_options {
    const char *method;    /* of the delta rule; NULL: the planner's choice */
    const char *algorithm; /* of All-Scan; NULL: its planner's */
    carry_dtype wire;      /* f32 (0) or bf16 */
    int64_t groups;        /* of heads; 0: its own choice */
    int first_tag;         /* it uses up to 34 tags from here */
} carry_delta_ranks_options;

typedef struct carry_delta_ranks_plan carry_delta_ranks_plan;

/* A collective. problem is this rank's: tokens may be 0 and differ, all else is compared. Not for transposed
   states or snapshots. options NULL: all of them chosen. */
CARRY_API carry_status carry_delta_ranks_plan_new(carry_comm *comm, carry_delta_ranks_plan **plan,
                                                  const carry_delta_problem *problem,
                                                  const carry_delta_ranks_options *options);
CARRY_API void carry_delta_ranks_plan_free(carry_delta_ranks_plan *plan);
CARRY_API const char *carry_delta_ranks_plan_about(const carry_delta_ranks_plan *plan);
CARRY_API size_t carry_delta_ranks_workspace(const carry_delta_ranks_plan *plan); /* of forward and of backward */
CARRY_API size_t carry_delta_ranks_kept(const carry_delta_ranks_plan *plan);      /* from forward for backward */

/* Collectives, with the tensors of this rank's tokens (carry_delta_forward_args: [B, n, ...]). kept is
   carry_delta_ranks_kept bytes; backward needs what forward kept. dA_log and ddt_bias are of this rank's
   tokens: their sum over ranks is the gradient. */
CARRY_API carry_status carry_delta_ranks_forward(carry_delta_ranks_plan *plan, const carry_delta_forward_args *args,
                                                 void *workspace, size_t workspace_bytes);
CARRY_API carry_status carry_delta_ranks_backward(carry_delta_ranks_plan *plan, const carry_delta_backward_args *args,
                                                  void *workspace, size_t workspace_bytes);

/* Seconds of the last call, and of those the ones in which this rank waited for others and had nothing to do. On a GPU
   both are of its stream, by events, and wait for it. */
CARRY_API double carry_delta_ranks_seconds(carry_delta_ranks_plan *plan);
CARRY_API double carry_delta_ranks_exposed(carry_delta_ranks_plan *plan);

/* The halo of a causal convolution of width W: `before` ([B, W-1, channels], packed, f32) gets the last W-1 tokens
   before this rank's, over as many ranks as that takes, zeros before the beginning; x is [B, n, channels]. Packed
   sequences need no other halo: the convolution itself stops at a sequence's start. Backward: dbefore is what this
   rank's outputs give to those tokens; it is added to dx of the ranks that hold them. Collectives, both, with the last
   tag. */
CARRY_API carry_status carry_halo_forward(carry_comm *comm, carry_tensor before, carry_tensor x);
CARRY_API carry_status carry_halo_backward(carry_comm *comm, carry_tensor dx, carry_tensor dbefore);

#ifdef __cplusplus
}
#endif
#endif
