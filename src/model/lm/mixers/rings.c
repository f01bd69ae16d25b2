/* Rings of the delta rule's states in a pool. */
#include "model/lm/mixers/rings.h"

#include <stdlib.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/tensor.h"
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
