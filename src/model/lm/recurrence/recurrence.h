/* Methods to compute the recurrence of a delta-rule layer.

   A recurrence is a const struct of functions: chunks on this machine (carry_lm_recurrence_chunk, the default), a dense
   scan, or chunks over ranks. A mixer (mixers/delta.c) opens one for a problem and passes it, for every layer, the
   arguments of carry_delta_forward and carry_delta_backward with the meaning they have in delta.h: q and k are
   normalised inside, beta may hold logits (beta_sigmoid of the problem), and g may hold the gate's input (gate_inside).
   All layers of a model have the same problem, so they share one opened recurrence.

   kept is the layer's memory from its forward to its backward. Only open and open_pooled allocate. */
#ifndef CARRY_MODEL_RECURRENCE_H
#define CARRY_MODEL_RECURRENCE_H

#include "carry/delta_ranks.h"

#define CARRY_LM_RING CARRY_MAX_DELTA_RING /* tokens of a ring (mixers/rings.h) */

/* The arguments for states in a pool. The call has steps (one token of each of `batch` sequences), a piece (`tokens`
   tokens of one sequence), or packed pieces (`tokens` tokens of several sequences). */
typedef struct carry_lm_pooled_call {
    int64_t batch, tokens;  /* one of them is 1 */
    int64_t packed;         /* number of packed pieces; 0: not packed */
    const int64_t *borders; /* packed pieces: their borders, as cu_seqlens, in host memory */
    carry_tensor pool;      /* the states of all slots; their number takes the place of the number of sequences */
    const int32_t *slots;   /* steps and packed pieces: the slot of each sequence, on the device; NULL: a piece */
    int64_t slot;           /* slot of a piece's sequence */
    void *ring;             /* steps: the rings of all slots (mixers/rings.h); NULL: every step writes the states */
} carry_lm_pooled_call;

typedef struct carry_lm_recurrence {
    const char *name, *about;
    /* `options` has the type of the recurrence, and may be NULL. */
    carry_status (*open)(carry_ctx *ctx, void **opened, const carry_delta_problem *problem, const void *options);
    void (*close)(void *opened);
    const char *(*plan)(const void *opened); /* one line: what will run and why */
    size_t (*workspace)(const void *opened); /* bytes: the larger of forward and backward */
    size_t (*kept)(const void *opened);      /* bytes a layer keeps */
    /* args->kept is NULL if no backward follows. args have states only in generation. */
    carry_status (*forward)(void *opened, const carry_delta_forward_args *args, void *workspace, size_t bytes);
    /* All gradients are overwritten, none is added to, including dA_log and ddt_bias. */
    carry_status (*backward)(void *opened, const carry_delta_backward_args *args, void *workspace, size_t bytes);
    /* Only for tokens that are split over ranks, else NULL. halo gets the inputs before this rank's tokens ([B, W-1,
       channels], f32); halo_backward is its gradient. They work like carry_halo_forward and carry_halo_backward, but
       leave out the inputs of another sequence. cu_seqlens is that of the whole row, or absent if it is not packed;
       halo_backward changes dbefore. */
    carry_status (*halo)(void *opened, carry_tensor before, carry_tensor x, carry_tensor cu_seqlens);
    carry_status (*halo_backward)(void *opened, carry_tensor dx, carry_tensor dbefore, carry_tensor cu_seqlens);
    /* Both NULL if states cannot be in a pool. open_pooled is called once after open and makes the workspace large
       enough for steps of up to this many sequences and for pieces of up to the problem's tokens in all. The args of
       pooled have no states. packs: pooled takes packed pieces; NULL: it does not. */
    carry_status (*open_pooled)(void *opened, int64_t sequences);
    carry_status (*pooled)(void *opened, const carry_lm_pooled_call *call, const carry_delta_forward_args *args,
                           void *workspace, size_t bytes);
    bool (*packs)(const void *opened);
    /* Both NULL if steps cannot have rings. ring_bytes: memory of the rings of `slots` states, which starts zeroed; 0
       if these sizes are not supported. fold: adds the tokens of a slot's ring, or of all if slot is -1, to the states
       of a pool. */
    size_t (*ring_bytes)(void *opened, int64_t slots);
    carry_status (*fold)(void *opened, carry_tensor pool, void *ring, int64_t slot);
} carry_lm_recurrence;

/* carry_delta_forward, backward and step. options: the name of a method (const char *), or NULL for the planner's
   choice. A value head wider than CARRY_MAX_DELTA_DIM is computed in slices, since the columns of a state are
   independent. Its states are then [slices][N, HV, K, V / slices]. */
extern const carry_lm_recurrence carry_lm_recurrence_chunk;

/* The same for tokens that are split over the ranks of a communicator (delta_ranks.h); options have this type. The
   problem's tokens are this rank's; cu_seqlens of a call is the whole row's. Every call is a collective: all ranks must
   run the same layers in the same order. Backward needs the memory that forward kept; states are not supported. */
typedef struct carry_lm_ranks_options {
    carry_comm *comm; /* must outlive the recurrence */
    carry_delta_ranks_options delta;
} carry_lm_ranks_options;
extern const carry_lm_recurrence carry_lm_recurrence_ranks;

/* Gated linear attention, S <- e^g S + beta k v^T: the same layer without the delta rule, for comparison. It is for
   models whose config has use_delta_rule false, and is not in the table, whose entries compute the delta rule. */
extern const carry_lm_recurrence carry_lm_recurrence_linear;

/* The recurrences that need no ranks: chunk, and the dense scans cyclic, scan (hillis_steele), blelloch and sequential
   (scan.c; no options). Both return NULL, past the end and for an unknown name. */
const carry_lm_recurrence *carry_lm_recurrence_at(int index);
const carry_lm_recurrence *carry_lm_recurrence_named(const char *name);

/* The number of slices of a value head of this width: the smallest number of equal slices of at most
   CARRY_MAX_DELTA_DIM columns. value: at least 1. */
int64_t carry_lm_recurrence_slices(int64_t value);

#endif
