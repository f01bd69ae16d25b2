/* Rings of the delta rule's states in a pool. */
#include "model/lm/mixers/rings.h"

#include <stdlib.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/tensor.h"
#include "delta/ring.h"
#include "model/lm/mixers/delta.h"
#include "model/lm/mixers/kda.h"
#include "model/lm/mixers/mixer.h"

#define STATES 3 /* the part of a layer's state that the delta rule has */

/* The opened recurrence of a layer's mixer, and its method; NULL: the layer has no rings. */
static void *recurrence_of(const carry_lm_pass *pass, int64_t layer, const carry_lm_recurrence **method) {
    const carry_lm_sublayer *mixer = &pass->lm->layer[layer].mixer;
    void *opened = pass->part[mixer->kind].opened;
    void *recurrence = NULL;
    *method = NULL;
    if (mixer->part == &carry_lm_mixer_delta) {
        *method = ((const carry_lm_delta *)opened)->method;
        recurrence = ((const carry_lm_delta *)opened)->recurrence;
    } else if (mixer->part == &carry_lm_mixer_kda) {
        *method = &carry_lm_recurrence_chunk;
        recurrence = ((const carry_lm_kda *)opened)->recurrence;
    }
    return *method != NULL && (*method)->fold != NULL ? recurrence : NULL;
}

carry_lm_ring_sizes carry_lm_rings_measure(const carry_lm *lm) {
    const carry_lm_pool_types types = {
        .activations = CARRY_F32, .caches = CARRY_F32, .states = CARRY_F32, .sequences = 1};
    carry_lm_ring_sizes sizes = {.pays = true};
    for (int64_t layer = 0; layer < lm->config.num_hidden_layers; layer++) {
        const carry_lm_part *part = lm->layer[layer].mixer.part;
        carry_lm_state_part about[CARRY_LM_STATE_PARTS];
        const bool is_delta = part == &carry_lm_mixer_delta && lm->config.delta.use_delta_rule;
        carry_lm_pool_describe(lm, layer, &types, about);
        const int64_t *shape = about[STATES].shape; /* heads, K, V */
        if ((!is_delta && part != &carry_lm_mixer_kda) || shape[2] > CARRY_MAX_DELTA_DIM) {
            continue;
        }
        const int64_t decays = part == &carry_lm_mixer_kda ? shape[1] : 1;
        sizes.bytes +=
            4 * (size_t)(shape[0] * (CARRY_DELTA_RING_COUNTS + CARRY_LM_RING * (shape[1] + decays + shape[2])));
        sizes.pays = sizes.pays && shape[1] == 128 && shape[2] == 128;
    }
    sizes.pays = sizes.pays && sizes.bytes > 0;
    return sizes;
}

static carry_status open_layer(const carry_lm_pass *pass, carry_lm_state *pool, int64_t layer) {
    const carry_lm_recurrence *method;
    void *recurrence = recurrence_of(pass, layer, &method);
    const carry_tensor *states = &pool->part[layer][STATES];
    const size_t bytes =
        recurrence != NULL && states->dtype == CARRY_F32 ? method->ring_bytes(recurrence, states->shape[0]) : 0;
    if (bytes == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_device_alloc(pool->ctx, &pool->ring[layer], pool->device, bytes));
    return carry_device_fill(pool->ctx, pool->ring[layer], pool->device, 0, bytes,
                             carry_ctx_stream(pool->ctx, pool->device));
}

carry_status carry_lm_rings_open(const carry_lm_pass *pass, carry_lm_state *pool, bool *made) {
    *made = false;
    pool->ring = calloc((size_t)pool->layers, sizeof *pool->ring);
    if (pool->ring == NULL) {
        return carry_fail(pool->ctx, CARRY_EMEMORY, "out of memory: the rings of a pool");
    }
    for (int64_t layer = 0; layer < pool->layers; layer++) {
        CARRY_TRY(open_layer(pass, pool, layer));
        *made = *made || pool->ring[layer] != NULL;
    }
    return CARRY_OK;
}

void carry_lm_rings_close(carry_lm_state *pool) {
    for (int64_t layer = 0; pool->ring != NULL && layer < pool->layers; layer++) {
        carry_device_free(pool->ctx, pool->device, pool->ring[layer]);
    }
    free(pool->ring);
    pool->ring = NULL;
}

carry_status carry_lm_rings_fold(const carry_lm_pass *pass, const carry_lm_state *pool, int64_t slot) {
    for (int64_t layer = 0; layer < pool->layers; layer++) {
        const carry_lm_recurrence *method;
        if (pool->ring[layer] != NULL) {
            void *recurrence = recurrence_of(pass, layer, &method);
            CARRY_TRY(method->fold(recurrence, pool->part[layer][STATES], pool->ring[layer], slot));
        }
    }
    return CARRY_OK;
}
