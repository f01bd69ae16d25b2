/* Rings (model/lm/mixers/rings.h): steps of many sequences write the states of the delta rule once in CARRY_LM_RING
   tokens. The runner knows which slots may have tokens in their rings, and folds them into the states before anything
   but such a step reads or writes these. */
#include <stdlib.h>

#include "core/context.h"
#include "engine/chain_ops.h"
#include "engine/model_runner_inside.h"
#include "model/lm/mixers/rings.h"

/* A call without rings that has this many slots to fold folds all slots instead, in one launch a layer. */
#define FOLD_ALL 3
/* Steps of this many sequences were measured to gain on an H200: 8 % with 32, a quarter with 256
   (docs/attempts/delta-cuda.md). */
#define RINGS_LEAST 17

size_t carry_model_runner_ring_bytes(const carry_lm *lm, const carry_model_runner_options *o, int64_t sequences) {
    const carry_lm_ring_sizes sizes = carry_lm_rings_measure(lm);
    /* The chain of kernels takes more sequences with quantised matrices, and has no rings. */
    const int64_t least = lm->own.quantised > 0 ? CARRY_CHAIN_SEQUENCES + 1 : RINGS_LEAST;
    const bool gains = lm->own.device != 0 && sizes.pays && sequences >= least;
    const bool can =
        o->heads == NULL && !o->same_bits && !o->scores && (o->types == NULL || o->types->state == CARRY_F32);
    return can && (o->rings > 0 ? sequences >= o->rings : o->rings == 0 && gains) ? sizes.bytes : 0;
}

carry_status carry_model_runner_open_rings(carry_model_runner *r, int64_t least) {
    bool made = false;
    /* Other kernels run the steps of few sequences, and write the states of each. */
    const int64_t decode = r->decode != NULL ? carry_decode_sequences(r->decode) : 0;
    const int64_t chain = r->chain != NULL ? carry_chain_sequences(r->chain) : 0;
    const int64_t others = decode > chain ? decode : chain;
    const carry_model_runner_options options = {
        .same_bits = r->same_bits, .scores = r->scores, .heads = r->heads.lm, .types = &r->types, .rings = least};
    least = least > 0 ? least : RINGS_LEAST;
    r->ring_least = least > others ? least : others + 1;
    if (r->head.sizes.sequences < r->ring_least ||
        carry_model_runner_ring_bytes(r->lm, &options, r->head.sizes.sequences) == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_lm_rings_open(r->pass, r->pool, &made));
    if (!made) {
        return CARRY_OK;
    }
    r->in_ring = calloc((size_t)r->head.sizes.slots, sizeof *r->in_ring);
    if (r->in_ring == NULL) {
        return carry_fail(r->head.ctx, CARRY_EMEMORY, "out of memory: the rings of a runner");
    }
    return CARRY_OK;
}

void carry_model_runner_close_rings(carry_model_runner *r) {
    free(r->in_ring);
}

carry_status carry_model_runner_fold(carry_model_runner *r, int32_t slot) {
    if (r->in_ring == NULL || !r->in_ring[slot]) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_lm_rings_fold(r->pass, r->pool, slot));
    r->in_ring[slot] = false;
    return CARRY_OK;
}

/* True if the run is a step that uses rings. */
static bool has_ring(const carry_model_runner *r, const carry_run *run) {
    return r->places.rings && run->count == 1;
}

/* All rows that pad a call have the runner's own slot. They add the tokens of its rings to its state several times
   over, so the state grows; it is set to zero before that matters. */
static carry_status refresh_padding(carry_model_runner *r) {
    const int32_t own = (int32_t)r->head.sizes.slots;
    if (++r->padded_steps % CARRY_LM_RING != 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_lm_rings_fold(r->pass, r->pool, own));
    return r->copies != NULL ? carry_model_runner_copy_there(r, false, own, -1) : carry_lm_state_clear(r->pool, own);
}

carry_status carry_model_runner_begin_rings(carry_model_runner *r, const carry_run *runs, int64_t count) {
    int64_t waiting = 0;
    r->places.rings = false;
    if (r->in_ring == NULL) {
        return CARRY_OK;
    }
    const bool all_steps = r->places.steps == count && r->places.wanted_count == count;
    const int64_t rows = all_steps ? carry_model_runner_padded(r) : r->places.steps;
    r->places.rings = r->places.waves == 0 && rows >= r->ring_least;
    for (int64_t i = 0; i < count; i++) {
        waiting += !has_ring(r, &runs[i]) && r->in_ring[runs[i].slot];
    }
    if (!r->places.rings && waiting >= FOLD_ALL) {
        CARRY_TRY(carry_lm_rings_fold(r->pass, r->pool, -1));
        for (int64_t slot = 0; slot < r->head.sizes.slots; slot++) {
            r->in_ring[slot] = false;
        }
    }
    CARRY_TRY(r->places.rings && rows > count ? refresh_padding(r) : CARRY_OK);
    for (int64_t i = 0; i < count; i++) {
        if (has_ring(r, &runs[i])) {
            r->in_ring[runs[i].slot] = true;
        } else {
            CARRY_TRY(carry_model_runner_fold(r, runs[i].slot));
        }
    }
    return CARRY_OK;
}
