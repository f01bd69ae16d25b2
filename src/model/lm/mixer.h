/* What mixes tokens in a layer: the recurrence between the convolutions and the output norm.

   A mixer is a way of running the delta rule: by chunks on this machine (carry_lm_mixer_chunk, the default), as a dense
   scan, over ranks. The model gives it a problem once, and for every layer the arguments of carry_delta_forward and
   carry_delta_backward with the meaning they have there (delta.h): q and k are normalised inside, beta holds logits and
   g holds a where the problem says so. All layers have the same problem, so they share one opened mixer.

   kept is the layer's own memory, from its forward to its backward. Nothing but open allocates. */
#ifndef CARRY_MODEL_MIXER_H
#define CARRY_MODEL_MIXER_H

#include "carry/delta_ranks.h"

typedef struct carry_lm_mixer {
    const char *name, *about;
    /* options are the mixer's own, and may be NULL. */
    carry_status (*open)(carry_ctx *ctx, void **mixing, const carry_delta_problem *problem, const void *options);
    void (*close)(void *mixing);
    const char *(*plan)(const void *mixing); /* one line: what will run and why */
    size_t (*workspace)(const void *mixing); /* bytes, of forward and of backward */
    size_t (*kept)(const void *mixing);      /* bytes a layer keeps */
    /* args->kept is NULL where no backward follows. States are given in generation only. */
    carry_status (*forward)(void *mixing, const carry_delta_forward_args *args, void *workspace, size_t bytes);
    /* Everything is written, nothing added to: dA_log and ddt_bias too. */
    carry_status (*backward)(void *mixing, const carry_delta_backward_args *args, void *workspace, size_t bytes);
    /* For tokens that are split over ranks, else NULL: what stands before this rank's tokens ([B, W-1, channels], f32),
       and the way back, as carry_halo_forward and carry_halo_backward have it; but nothing of another sequence.
       cu_seqlens is the whole row's, absent where not packed; halo_backward writes to dbefore. */
    carry_status (*halo)(void *mixing, carry_tensor before, carry_tensor x, carry_tensor cu_seqlens);
    carry_status (*halo_backward)(void *mixing, carry_tensor dx, carry_tensor dbefore, carry_tensor cu_seqlens);
} carry_lm_mixer;

/* carry_delta_forward, backward and step; options: the name of a method (const char *), NULL: the planner's choice.
   A head of v that is wider than CARRY_DELTA_MAX_DIM is done in slices: the columns of a state do not see each other.
   Its states are then [slices][N, HV, K, V / slices]. */
extern const carry_lm_mixer carry_lm_mixer_chunk;

/* The same over tokens that are split over the ranks of a communicator (delta_ranks.h); options are of this type. The
   problem's tokens are this rank's; cu_seqlens of a call is the whole row's. Every call is a collective: all ranks do
   the same layers in the same order. Needs what forward kept; no states. */
typedef struct carry_lm_ranks_options {
    carry_comm *comm; /* outlives the mixer */
    carry_delta_ranks_options delta;
} carry_lm_ranks_options;
extern const carry_lm_mixer carry_lm_mixer_ranks;

/* Another recurrence, S <- e^g S + beta k v^T: gated linear attention, the same layer without the delta rule, for
   comparison with it. It is for models whose config says so (use_delta_rule), and stands in no list: what stands there
   is one recurrence in many ways. */
extern const carry_lm_mixer carry_lm_mixer_linear;

/* The mixers that need no ranks: chunk, and the recurrence as a dense scan by cyclic, scan (hillis_steele), blelloch or
   sequential (mixer_scan.c; no options). NULL past the end, and where there is none of that name. */
const carry_lm_mixer *carry_lm_mixer_at(int index);
const carry_lm_mixer *carry_lm_mixer_named(const char *name);

/* How many slices a value head of this width has: the fewest of equal width; 0 when it cannot be cut so. */
int64_t carry_lm_mixer_slices(int64_t value);

#endif
