/* Sequences of a call whose states are in a pool (carry_lm_pool_new), and groups of rows that an operator with a state
   takes at once.

   The first `steps` sequences of a call have one token each, rows 0 to steps - 1; the others have pieces of any length,
   one after the other. A mixer does its products for all rows together, and what depends on a state group by group: the
   steps are one group of `steps` sequences of one token, every piece is a group of one sequence.

   Steps can be several tokens of one text, of which later ones are guesses: each has a slot, so that the state after
   every token remains. They come in waves: wave 0 has the first token of every text, wave 1 the second one of those
   that have more, and so on; entry i of a wave goes on from the slot of entry i of the wave before. Each wave is a
   group. */
#ifndef CARRY_MODEL_LM_PLACES_H
#define CARRY_MODEL_LM_PLACES_H

#include "model/lm/lm_pass.h"
#include "ops/pool.h"

/* Lists are in host memory; those of `there` are on the model's device, which may be the same. */
typedef struct carry_lm_places {
    carry_lm_state *pool;
    int64_t sequences, steps;
    int64_t waves;          /* of steps; 0 and 1: all steps are of different texts */
    const int64_t *wave;    /* [waves + 1]: the first sequence of each */
    const int64_t *starts;  /* [sequences + 1]: the first row of each */
    const int32_t *slots;   /* [sequences] */
    const int64_t *lengths; /* [sequences]: tokens that were read before */
    const int32_t *offsets; /* [sequences]: where its pages begin in `pages` */
    const int64_t *wanted;  /* [wanted_count]: rows whose logits are wanted, ascending; NULL: all rows */
    int64_t wanted_count;
    struct {
        const int32_t *slots, *offsets, *pages;
        const int64_t *lengths;
        const int64_t *positions; /* [rows]: of each token in its sequence */
        const int64_t *rows;      /* [rows]: of the pool, where its keys and values go */
        const int64_t *wanted;
    } there;
} carry_lm_places;

/* Fails unless the call fits the pass. */
carry_status carry_lm_places_check(const carry_lm_pass *pass, const carry_lm_places *places);
/* Rows whose logits are wanted. */
int64_t carry_lm_places_wanted(const carry_lm_places *places);

/* batch * tokens rows from `first` on. */
typedef struct carry_lm_group {
    int64_t first, batch, tokens;
    int64_t sequence; /* of places, the first; -1: a call without places */
} carry_lm_group;

/* Group `index` of a call; false past the last. A call without places is one group. */
bool carry_lm_group_at(const carry_lm_pass *pass, const carry_lm_args *args, int64_t index, carry_lm_group *group);

/* The rows of a group as [batch, tokens, ...], rows being [tokens of the pass, width]: shape has the indices after
   those two. */
carry_tensor carry_lm_group_rows(const carry_lm_group *group, carry_tensor rows, int rank, const int64_t *shape);
/* The same as [batch * tokens, width]. */
carry_tensor carry_lm_group_flat(const carry_lm_group *group, carry_tensor rows);

/* True if a group is single tokens of a call with places. */
bool carry_lm_group_is_steps(const carry_lm_args *args, const carry_lm_group *group);
/* y = activation(conv(x)) for each of `count` inputs of all groups; input i is continued from and left in part i of the
   layer's state. x and y are rows of the pass. */
typedef struct carry_lm_conv {
    carry_tensor y, x, w;
    carry_activation activation;
} carry_lm_conv;
carry_status carry_lm_convolve(const carry_lm_call *call, const carry_lm_conv *convs, int count);

/* The arguments of a recurrence for a group whose states are in part `part`. */
carry_lm_pooled_call carry_lm_pooled(const carry_lm_call *call, const carry_lm_group *group, int part);

/* The sequence whose state a sequence of a later wave goes on from; -1: its own slot has the state. */
int64_t carry_lm_place_before(const carry_lm_places *places, int64_t sequence);
/* Before a group of a later wave: copies its states in a part of fixed size from the slots of the wave before. */
carry_status carry_lm_follow(const carry_lm_call *call, const carry_lm_group *group, int part);

/* Row `slot` of a part of fixed size and one slice: [1, ...]. */
carry_tensor carry_lm_pool_row(const carry_lm_state *pool, int64_t layer, int part, int64_t slot);

/* Puts rows of all tokens of the call into the pages of a part that grows: from [rows, ...]. */
carry_status carry_lm_pages_put(const carry_lm_call *call, int part, carry_tensor from);

#endif
