/* Sequences of a call whose states are in a pool (carry_lm_pool_new), and the groups of rows that an operator with a
   state processes together.

   The first `steps` sequences of a call have one token each, rows 0 to steps - 1; the others have pieces of any length,
   one after the other. A mixer computes its products for all rows together, and operators with a state group by group:
   the steps are one group of `steps` sequences of one token, and every piece is a group of one sequence, or all pieces
   are one group of packed sequences (carry_lm_group_pack).

   Several steps may be consecutive tokens of one text, the later ones being guesses (draft tokens, engine/draft.h).
   Each has its own slot, so that the state after every token is kept. Such steps are ordered in waves: wave 0 has the
   first token of every text, wave 1 the second token of each text that has one, and so on. Entry i of a wave continues
   from the slot of entry i of the wave before. Each wave is a group. */
#ifndef CARRY_MODEL_LM_PLACES_H
#define CARRY_MODEL_LM_PLACES_H

#include "model/lm/lm_pass.h"
#include "ops/pool.h"

/* Lists are in host memory. Those in `there` are on the model's device, which may be the CPU. */
typedef struct carry_lm_places {
    carry_lm_state *pool;
    int64_t sequences, steps;
    int64_t waves;          /* number of waves of steps; 0 or 1: all steps are of different texts */
    const int64_t *wave;    /* [waves + 1]: index of the first sequence of each wave */
    const int64_t *starts;  /* [sequences + 1]: index of the first row of each sequence */
    const int64_t *borders; /* [sequences - steps + 1]: the same for pieces, from the first row of the first piece on;
                               NULL: every piece is a group */
    const int32_t *slots;   /* [sequences] */
    const int64_t *lengths; /* [sequences]: number of tokens that were read before */
    const int32_t *offsets; /* [sequences]: index in `pages` of its first page */
    const int64_t *wanted;  /* [wanted_count]: rows whose logits are computed, ascending; NULL: all rows */
    int64_t wanted_count;
    bool rings; /* steps use the rings of the pool (mixers/rings.h) */
    struct {
        const int32_t *slots, *offsets, *pages;
        const int64_t *lengths;
        const int64_t *positions; /* [rows]: position of each token in its sequence */
        const int64_t *rows;      /* [rows]: the row of the pool that gets the token's keys and values */
        const int64_t *wanted;
    } there;
} carry_lm_places;

/* Fails if the call does not fit the pass. */
carry_status carry_lm_places_check(const carry_lm_pass *pass, const carry_lm_places *places);
/* The number of rows whose logits are wanted. */
int64_t carry_lm_places_wanted(const carry_lm_places *places);

/* batch * tokens consecutive rows of a call, starting at row `first`. */
typedef struct carry_lm_group {
    int64_t first, batch, tokens;
    int64_t sequence; /* index of its first sequence in places; -1: a call without places */
    int64_t packed;   /* number of pieces that are packed as one item of tokens; 0: not packed */
} carry_lm_group;

/* Gets group `index` of a call; false past the last. A call without places is one group. */
bool carry_lm_group_at(const carry_lm_pass *pass, const carry_lm_args *args, int64_t index, carry_lm_group *group);

/* If `group` is the first of several pieces and the call has borders, extends it to all remaining pieces and returns
   true. It is then the last group of the call. */
bool carry_lm_group_pack(const carry_lm_args *args, carry_lm_group *group);

/* A view of a group's rows as [batch, tokens, ...]. `rows` is [tokens of the pass, width]; `shape` has the `rank` sizes
   after the first two. */
carry_tensor carry_lm_group_rows(const carry_lm_group *group, carry_tensor rows, int rank, const int64_t *shape);
/* The same as [batch * tokens, width]. */
carry_tensor carry_lm_group_flat(const carry_lm_group *group, carry_tensor rows);

/* True if a group consists of single tokens of a call with places. */
bool carry_lm_group_is_steps(const carry_lm_args *args, const carry_lm_group *group);
/* y = activation(conv(x)) for each of `count` inputs, for all groups. Input i continues from part i of the layer's
   state and updates it. x and y are rows of the pass. */
typedef struct carry_lm_conv {
    carry_tensor y, x, w;
    carry_activation activation;
} carry_lm_conv;
carry_status carry_lm_convolve(const carry_lm_call *call, const carry_lm_conv *convs, int count);

/* The arguments of a recurrence for a group. `part` is the part of the pool that has the states. */
carry_lm_pooled_call carry_lm_pooled(const carry_lm_call *call, const carry_lm_group *group, int part);

/* The index of the sequence whose state a sequence of a later wave continues from; -1: it continues from its own
   slot. */
int64_t carry_lm_place_before(const carry_lm_places *places, int64_t sequence);
/* Call before a group of a later wave: copies its states in part `part`, which has a fixed size, from the slots of the
   wave before. */
carry_status carry_lm_follow(const carry_lm_call *call, const carry_lm_group *group, int part);

/* Copies the rows of all tokens of the call, `from` [rows, ...], into the pages of a part that grows, in its type. */
carry_status carry_lm_pages_put(const carry_lm_call *call, int part, carry_tensor from);

#endif
