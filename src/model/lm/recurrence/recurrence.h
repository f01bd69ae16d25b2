/* Ways to compute the recurrence of a delta-rule layer.

   A recurrence is a const struct of functions: chunks on this machine (carry_lm_recurrence_chunk, the default), a dense
   scan, or chunks over ranks. A mixer (mixers/delta.c) opens one for a problem and passes it, for every layer, the
   arguments of carry_delta_forward and carry_delta_backward with the meaning they have in delta.h: q and k are
   normalised inside, beta holds logits and g holds a where the problem says so. All layers of a model have the same
   problem, so they share one opened recurrence.

   kept is the layer's memory from its forward to its backward. Only open allocates. */
#ifndef CARRY_MODEL_RECURRENCE_H
#define CARRY_MODEL_RECURRENCE_H

#include "carry/delta_ranks.h"

/* A call for states that are in a pool: steps, one token of each of `batch` sequences, or a piece of one sequence. */
typedef struct carry_lm_pooled_call {
    int64_t batch, tokens; /* of this call: one of them is 1 */
    carry_tensor pool;     /* of all slots, as the states of that many sequences */
    const int32_t *slots;  /* steps: [batch], on the device; NULL: a piece */
    int64_t slot;          /* of a piece */
} carry_lm_pooled_call;

typedef struct carry_lm_recurrence {
    const char *name, *about;
    /* options are the recurrence's own, and may be NULL. */
    carry_status (*open)(carry_ctx *ctx, void **opened, const carry_delta_problem *problem, const void *options);
    void (*close)(void *opened);
    const char *(*plan)(const void *opened); /* one line: what will run and why */
    size_t (*workspace)(const void *opened); /* bytes, of forward and of backward */
    size_t (*kept)(const void *opened);      /* bytes a layer keeps */
    /* args->kept is NULL where no backward follows. States are given in generation only. */
    carry_status (*forward)(void *opened, const carry_delta_forward_args *args, void *workspace, size_t bytes);
    /* Everything is written, nothing added to: dA_log and ddt_bias too. */
    carry_status (*backward)(void *opened, const carry_delta_backward_args *args, void *workspace, size_t bytes);
    /* For tokens that are split over ranks, else NULL: the inputs before this rank's tokens ([B, W-1, channels], f32),
       and backward, as carry_halo_forward and carry_halo_backward do it, but without those of another sequence.
       cu_seqlens is that of the whole row, absent if not packed; halo_backward writes to dbefore. */
    carry_status (*halo)(void *opened, carry_tensor before, carry_tensor x, carry_tensor cu_seqlens);
    carry_status (*halo_backward)(void *opened, carry_tensor dx, carry_tensor dbefore, carry_tensor cu_seqlens);
    /* Both NULL if states cannot be in a pool. The first, once after open, makes the workspace large enough for
       steps of up to this many sequences and for pieces of up to the problem's tokens. args of the second have no
       states. */
    carry_status (*open_pooled)(void *opened, int64_t sequences);
    carry_status (*pooled)(void *opened, const carry_lm_pooled_call *call, const carry_delta_forward_args *args,
                           void *workspace, size_t bytes);
} carry_lm_recurrence;

/* carry_delta_forward, backward and step; options: the name of a method (const char *), NULL: the planner's choice.
   A head of v that is wider than CARRY_MAX_DELTA_DIM is done in slices: the columns of a state do not see each other.
   Its states are then [slices][N, HV, K, V / slices]. */
extern const carry_lm_recurrence carry_lm_recurrence_chunk;

/* The same over tokens that are split over the ranks of a communicator (delta_ranks.h); options are of this type. The
   problem's tokens are this rank's; cu_seqlens of a call is the whole row's. Every call is a collective: all ranks do
   the same layers in the same order. Needs what forward kept; no states. */
typedef struct carry_lm_ranks_options {
    carry_comm *comm; /* outlives the recurrence */
    carry_delta_ranks_options delta;
} carry_lm_ranks_options;
extern const carry_lm_recurrence carry_lm_recurrence_ranks;

/* Gated linear attention, S <- e^g S + beta k v^T: the same layer without the delta rule, for comparison.
   For models whose config has use_delta_rule false. It is not in the table, whose entries compute the delta rule. */
extern const carry_lm_recurrence carry_lm_recurrence_linear;

/* The recurrences that need no ranks: chunk, and the dense scans cyclic, scan (hillis_steele), blelloch and sequential
   (scan.c; no options). NULL past the end, and for an unknown name. */
const carry_lm_recurrence *carry_lm_recurrence_at(int index);
const carry_lm_recurrence *carry_lm_recurrence_named(const char *name);

/* How many slices a value head of this width has: the fewest of equal width; 0 when it cannot be cut so. */
int64_t carry_lm_recurrence_slices(int64_t value);

#endif
