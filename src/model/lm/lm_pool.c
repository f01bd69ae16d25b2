/* Pools of states: the types of their parts, and their pages. */
#include <inttypes.h>
#include <stdlib.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/lm_pass.h"
#include "ops/pool.h"

carry_status carry_lm_pool_types_check(const carry_lm *lm, const carry_lm_pool_types *types) {
    const carry_dtype caches = types->caches;
    if (types->states != CARRY_F32 && types->states != CARRY_BF16) {
        return carry_fail(lm->ctx, CARRY_EUNSUPPORTED, "states of recurrences in %s: expected f32 or bf16",
                          carry_dtype_name(types->states));
    }
    if (!carry_dtype_is_real(types->activations) || (!carry_dtype_is_real(caches) && caches != CARRY_F8)) {
        return carry_fail(lm->ctx, CARRY_EUNSUPPORTED,
                          "keys and values in %s, activations in %s: expected f32, bf16, f16 or (keys and values) fp8",
                          carry_dtype_name(caches), carry_dtype_name(types->activations));
    }
    if (lm->own.device != 0 && caches != CARRY_F8 && caches != types->activations) {
        return carry_fail(
            lm->ctx, CARRY_EUNSUPPORTED, "keys and values in %s with activations in %s on a GPU: expected %s or fp8",
            carry_dtype_name(caches), carry_dtype_name(types->activations), carry_dtype_name(types->activations));
    }
    return CARRY_OK;
}

carry_dtype carry_lm_pool_part_type(const carry_lm_state_part *about, const carry_lm_pool_types *types) {
    return about->is_scale ? CARRY_I8 : about->grows ? types->caches : carry_lm_state_fixed_type(about, types);
}

void carry_lm_pool_describe(const carry_lm *lm, int64_t layer, const carry_lm_pool_types *types,
                            carry_lm_state_part about[CARRY_LM_STATE_PARTS]) {
    for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
        about[i] = (carry_lm_state_part){0};
    }
    (void)lm->layer[layer].mixer.part->state(&lm->config, about);
    for (int i = 0; i < CARRY_LM_STATE_PARTS / 2 && types->caches == CARRY_F8; i++) {
        if (about[i].grows) {
            about[i + 2] = (carry_lm_state_part){
                .rank = 2, .shape = {0, about[i].shape[1]}, .slices = 1, .grows = true, .is_scale = true};
        }
    }
}

/* Allocates the pages of one part. */
static carry_status make_pages(carry_lm_state *state, int64_t layer, int i, int64_t pages) {
    carry_lm_state_part paged = state->about[layer][i];
    const carry_dtype dtype = carry_lm_pool_part_type(&paged, &state->types);
    void *data = NULL;
    size_t bytes;
    paged.shape[0] = CARRY_POOL_PAGE;
    const int64_t sizes[] = {pages, carry_lm_state_part_count(&paged)};
    if (!carry_size_product(&bytes, sizes, 2, carry_dtype_size(dtype)) ||
        carry_device_alloc(state->ctx, &data, state->device, bytes) != CARRY_OK) {
        return carry_fail(state->ctx, CARRY_EMEMORY,
                          "out of memory: %" PRId64 " pages of %d tokens of keys and values in layer %" PRId64, pages,
                          CARRY_POOL_PAGE, layer);
    }
    state->part[layer][i] = carry_lm_state_part_on(state, data, &paged, dtype);
    state->part[layer][i].shape[0] = pages;
    return carry_device_fill(state->ctx, data, state->device, 0, bytes, carry_ctx_stream(state->ctx, state->device));
}

/* Memory in which states in bf16 are f32 while a layer computes. */
static carry_status make_wide(carry_lm_state *state, int64_t sequences) {
    carry_ctx *ctx = state->ctx;
    carry_stream *stream = carry_ctx_stream(ctx, state->device);
    int64_t most = 0;
    size_t bytes;
    void *data = NULL;
    for (int64_t layer = 0; layer < state->layers; layer++) {
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            const carry_lm_state_part *about = &state->about[layer][i];
            const int64_t count = about->narrows ? carry_lm_state_part_count(about) : 0;
            most = count > most ? count : most;
        }
    }
    if (most == 0 || state->types.states == CARRY_F32) {
        return CARRY_OK;
    }
    int32_t *numbers = calloc((size_t)sequences, sizeof *numbers);
    if (numbers == NULL || !carry_size_product(&bytes, (const int64_t[]){most, sequences}, 2, sizeof(float))) {
        free(numbers);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: states of %" PRId64 " sequences in f32", sequences);
    }
    for (int64_t i = 0; i < sequences; i++) {
        numbers[i] = (int32_t)i;
    }
    const size_t list = (size_t)sequences * sizeof *numbers;
    carry_status status = carry_device_alloc(ctx, &data, state->device, bytes);
    state->wide = data;
    data = NULL;
    status = status == CARRY_OK ? carry_device_alloc(ctx, &data, state->device, list) : status;
    state->wide_slots = data;
    status = status == CARRY_OK ? carry_device_copy(ctx, data, state->device, numbers, 0, list, stream) : status;
    status = status == CARRY_OK ? carry_stream_wait(ctx, state->device, stream) : status;
    free(numbers);
    return status;
}

static carry_status make_parts(carry_lm_state *state, int64_t pages) {
    for (int64_t layer = 0; layer < state->layers; layer++) {
        carry_lm_pool_describe(state->lm, layer, &state->types, state->about[layer]);
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            CARRY_TRY(state->about[layer][i].grows ? make_pages(state, layer, i, pages) : CARRY_OK);
        }
    }
    return make_wide(state, state->types.sequences);
}

carry_status carry_lm_pool_new(carry_lm *lm, carry_lm_state **made, int64_t slots, int64_t pages,
                               const carry_lm_pool_types *types) {
    *made = NULL;
    CARRY_TRY(carry_lm_pool_types_check(lm, types));
    CARRY_TRY(carry_lm_state_make(lm, made, slots, types));
    carry_lm_state *state = *made;
    state->pages = pages;
    state->dtype = types->caches;
    const carry_status status = make_parts(state, pages);
    if (status != CARRY_OK) {
        carry_lm_state_free(state);
        *made = NULL;
    }
    return status;
}
