/* The gated delta rule over ranks: one long sequence, or a packed row of sequences, split along its tokens.

   Rank p holds tokens first[p]..first[p]+n[p]-1 of every sequence of the batch (or of the packed row); n[p] may differ
   between ranks and may be 0. Outputs and gradients equal those of a single rank that holds all tokens, within
   rounding.

   For each head, a local pass computes the effect S -> M S + L of the rank's own tokens; All-Scan (all_scan.h) then
   gives the state at the start of the rank's tokens, and the forward pass starts from it. Heads are processed in
   groups: while the states of one group travel, the local pass of the next group and the forward pass of the previous
   one run, which hides most of the exchange (carry_delta_ranks_last_exposed measures the rest). Backward does the same
   from the last rank to the first, with M^T.

   Packed sequences: cu_seqlens describes the whole row and is the same on every rank. A sequence that starts inside a
   rank cuts the chain. initial_state is [N, HV, K, V] for all N sequences and is read on the rank where a sequence
   starts; final_state is written on the rank where a sequence ends and not touched elsewhere; the same holds for their
   gradients. Without packing, all sequences of the batch start on the first rank that has tokens and end on the last. A
   sequence without tokens starts and ends on the rank where its first token would be (past the last token: the last
   rank that has tokens, or rank 0 if none has).

   On a GPU the problem's device must be that of the communicator (of a GPU kind, comm.h). All heads form one group.
   Calls return once their work is in the context's stream, but they wait for the CPUs of other ranks. */
#ifndef CARRY_DELTA_RANKS_H
#define CARRY_DELTA_RANKS_H

#include "carry/all_scan.h"
#include "carry/delta.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_delta_ranks_options {
    size_t size;                    /* CARRY_INIT */
    const char *algorithm;          /* algorithm of the delta rule; NULL: chosen by the planner */
    const char *all_scan_algorithm; /* NULL: chosen by the planner of All-Scan */
    carry_dtype wire;               /* type of messages: f32 (0) or bf16 */
    int64_t groups;                 /* of heads; 0: chosen automatically */
    int first_tag;                  /* the plan uses up to 34 tags, from this one on */
} carry_delta_ranks_options;

typedef struct carry_delta_ranks_plan carry_delta_ranks_plan;

/* A collective call. problem describes this rank: tokens may be 0 and may differ between ranks; everything else must be
   equal and is compared. Transposed states and snapshots are not supported. options NULL: the defaults. */
CARRY_API carry_status carry_delta_ranks_plan_new(carry_comm *comm, carry_delta_ranks_plan **plan,
                                                  const carry_delta_problem *problem,
                                                  const carry_delta_ranks_options *options);
CARRY_API void carry_delta_ranks_plan_free(carry_delta_ranks_plan *plan);
CARRY_API const char *carry_delta_ranks_plan_about(const carry_delta_ranks_plan *plan);
CARRY_API size_t carry_delta_ranks_forward_workspace(const carry_delta_ranks_plan *plan);
CARRY_API size_t carry_delta_ranks_backward_workspace(const carry_delta_ranks_plan *plan);
CARRY_API size_t carry_delta_ranks_kept_bytes(const carry_delta_ranks_plan *plan); /* from forward to backward */

/* Collective calls, with the tensors of this rank's tokens (carry_delta_forward_args: [B, n, ...]). kept has
   carry_delta_ranks_kept_bytes bytes, and backward requires it. dA_log and ddt_bias cover the tokens of this rank only:
   add them over ranks for the gradient. */
CARRY_API carry_status carry_delta_ranks_forward(carry_delta_ranks_plan *plan, const carry_delta_forward_args *args,
                                                 void *workspace, size_t workspace_bytes);
CARRY_API carry_status carry_delta_ranks_backward(carry_delta_ranks_plan *plan, const carry_delta_backward_args *args,
                                                  void *workspace, size_t workspace_bytes);

/* Duration of the last call in seconds, and the part of it in which this rank only waited for others. On a GPU both are
   measured with events on the stream, and these functions wait for the stream. */
CARRY_API double carry_delta_ranks_last_seconds(carry_delta_ranks_plan *plan);
CARRY_API double carry_delta_ranks_last_exposed(carry_delta_ranks_plan *plan);

/* The halo of a causal convolution of width W: `before` ([B, W-1, channels], packed, f32) receives the W-1 tokens
   before the first token of this rank, from as many ranks as necessary, with zeros before the start of the sequence. x
   is [B, n, channels]. Packed sequences use the same halo: the convolution itself stops at the start of a sequence.
   Backward: dbefore is the gradient of those tokens from this rank's outputs; it is added to dx on the ranks that hold
   them. Both are collective calls and use the last tag. */
CARRY_API carry_status carry_halo_forward(carry_comm *comm, carry_tensor before, carry_tensor x);
CARRY_API carry_status carry_halo_backward(carry_comm *comm, carry_tensor dx, carry_tensor dbefore);

#ifdef __cplusplus
}
#endif
#endif
