/* States of sequences. */
#include <inttypes.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/hash.h"
#include "core/tensor.h"
#include "model/lm/lm_pass.h"
#include "model/lm/mixers/rings.h"
#include "ops/pool.h"

#define FIRST_ROOM 256 /* initial capacity of a cache in tokens */
#define ROOM_UNIT 64   /* capacities are multiples of this: whole pages (engine/runner.h) */

carry_tensor carry_lm_state_part_on(const carry_lm_state *state, void *data, const carry_lm_state_part *about,
                                    carry_dtype dtype) {
    int64_t shape[5] = {state->batch};
    for (int i = 0; i < about->rank; i++) {
        shape[i + 1] = about->shape[i];
    }
    return carry_view_on(state->device, data, dtype, about->rank + 1, shape);
}

int64_t carry_lm_state_part_count(const carry_lm_state_part *about) {
    int64_t count = about->rank > 0 ? 1 : 0;
    for (int i = 0; i < about->rank; i++) {
        count *= about->shape[i];
    }
    return count;
}

carry_dtype carry_lm_state_fixed_type(const carry_lm_state_part *about, const carry_lm_pool_types *types) {
    return about->narrows ? types->states : CARRY_F32;
}

/* Places the parts of fixed size. */
static void place(carry_lm_state *state, carry_arena *arena) {
    for (int64_t layer = 0; layer < state->layers; layer++) {
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            const carry_lm_state_part *about = &state->about[layer][i];
            const int64_t count = carry_lm_state_part_count(about);
            if (count > 0 && !about->grows) {
                const carry_dtype dtype = carry_lm_state_fixed_type(about, &state->types);
                void *data = carry_arena_take(arena, (size_t)state->batch, (size_t)count * carry_dtype_size(dtype));
                state->part[layer][i] = carry_lm_state_part_on(state, data, about, dtype);
            }
        }
    }
}

static carry_status make(carry_lm_state *state) {
    const carry_lm *lm = state->lm;
    size_t bytes = 0;
    state->length = calloc((size_t)state->batch, sizeof *state->length);
    state->ids = calloc((size_t)state->batch, sizeof *state->ids);
    state->part = calloc((size_t)state->layers, sizeof *state->part);
    state->about = calloc((size_t)state->layers, sizeof *state->about);
    if (state->length != NULL && state->ids != NULL && state->part != NULL && state->about != NULL) {
        for (int64_t layer = 0; layer < state->layers; layer++) {
            (void)lm->layer[layer].mixer.part->state(&lm->config, state->about[layer]);
        }
        carry_arena arena = carry_arena_over(NULL, 0);
        place(state, &arena);
        if (carry_arena_total(&arena, &bytes)) {
            (void)carry_device_alloc(lm->ctx, &state->memory, state->device, bytes); /* on failure it is NULL */
        }
    }
    if (state->memory == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: the states of %" PRId64 " sequences, %zu bytes",
                          state->batch, bytes);
    }
    carry_arena arena = carry_arena_over(state->memory, bytes);
    place(state, &arena);
    return carry_device_fill(lm->ctx, state->memory, state->device, 0, bytes, carry_ctx_stream(lm->ctx, state->device));
}

carry_status carry_lm_state_make(carry_lm *lm, carry_lm_state **made, int64_t batch, const carry_lm_pool_types *types) {
    *made = NULL;
    if (batch < 1) {
        return carry_fail(lm->ctx, CARRY_ESIZE, "a state of %" PRId64 " sequences cannot be made", batch);
    }
    carry_lm_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: a state");
    }
    state->ctx = lm->ctx;
    state->types = *types;
    state->lm = lm;
    state->device = lm->own.device;
    state->batch = batch;
    state->layers = lm->config.num_hidden_layers;
    carry_status status = make(state);
    if (status != CARRY_OK) {
        carry_lm_state_free(state);
        return status;
    }
    *made = state;
    return CARRY_OK;
}

carry_status carry_lm_state_new(carry_lm *lm, carry_lm_state **made, int64_t batch) {
    return carry_lm_state_make(lm, made, batch, &(carry_lm_pool_types){.states = CARRY_F32});
}

void carry_lm_state_free(carry_lm_state *state) {
    if (state != NULL) {
        for (int64_t i = 0; state->part != NULL && state->about != NULL && i < state->layers * CARRY_LM_STATE_PARTS;
             i++) {
            const int64_t layer = i / CARRY_LM_STATE_PARTS;
            const int64_t part = i % CARRY_LM_STATE_PARTS;
            if (state->about[layer][part].grows) {
                carry_device_free(state->ctx, state->device, state->part[layer][part].data);
            }
        }
        carry_device_free(state->ctx, state->device, state->memory);
        carry_device_free(state->ctx, state->device, state->wide);
        carry_device_free(state->ctx, state->device, state->wide_slots);
        carry_lm_rings_close(state);
        free(state->length);
        free(state->ids);
        free(state->part);
        free(state->about);
        free(state);
    }
}

int64_t carry_lm_state_length(const carry_lm_state *state, int64_t sequence) {
    return state->length[sequence];
}

/* The first `tokens` rows of a sequence's cache, as [tokens, row]. */
static carry_tensor cache_rows(const carry_tensor *part, int64_t sequence, int64_t tokens) {
    const int64_t row = carry_tensor_count(part) / part->shape[0] / part->shape[1];
    const carry_tensor all = carry_reshape_2d(*part, part->shape[0] * part->shape[1], row);
    return carry_slice(all, sequence * part->shape[1], tokens);
}

/* Replaces one cache by a larger one and copies the tokens read so far. */
static carry_status grow(carry_lm_state *state, int64_t layer, int i, int64_t room, carry_dtype dtype) {
    const carry_lm_state_part *about = &state->about[layer][i];
    carry_tensor *part = &state->part[layer][i];
    carry_lm_state_part wider = *about;
    void *data = NULL;
    size_t bytes;
    wider.shape[0] = room;
    const int64_t sizes[] = {state->batch, room, carry_lm_state_part_count(&wider) / room};
    if (!carry_size_product(&bytes, sizes, 3, carry_dtype_size(dtype)) ||
        carry_device_alloc(state->ctx, &data, state->device, bytes) != CARRY_OK) {
        return carry_fail(state->ctx, CARRY_EMEMORY,
                          "out of memory: keys and values of %" PRId64 " tokens of %" PRId64 " sequences", room,
                          state->batch);
    }
    const carry_tensor grown = carry_lm_state_part_on(state, data, &wider, dtype);
    carry_status status = CARRY_OK;
    for (int64_t b = 0; status == CARRY_OK && part->data != NULL && b < state->batch; b++) {
        if (state->length[b] > 0) {
            status =
                carry_copy(state->ctx, cache_rows(&grown, b, state->length[b]), cache_rows(part, b, state->length[b]));
        }
    }
    carry_device_free(state->ctx, state->device, part->data);
    *part = grown;
    return status;
}

/* Caches are grown one after the other, so that only one of them exists twice at a time. */
static carry_status grow_all(carry_lm_state *state, int64_t needed, carry_dtype dtype) {
    int64_t longest = 0;
    for (int64_t b = 0; b < state->batch; b++) {
        longest = state->length[b] > longest ? state->length[b] : longest;
    }
    if (longest > 0 && dtype != state->dtype) {
        return carry_fail(state->ctx, CARRY_EDTYPE, "the state has keys and values in %s: it cannot be continued in %s",
                          carry_dtype_name(state->dtype), carry_dtype_name(dtype));
    }
    if (needed <= state->room && dtype == state->dtype) {
        return CARRY_OK;
    }
    if (dtype != state->dtype) {
        state->room = 0; /* if one of them cannot grow, the others already have the new type */
    }
    const int64_t half_more = state->room + state->room / 2;
    const int64_t least = needed > FIRST_ROOM ? needed : FIRST_ROOM;
    const int64_t room = ((half_more > least ? half_more : least) + ROOM_UNIT - 1) / ROOM_UNIT * ROOM_UNIT;
    for (int64_t layer = 0; layer < state->layers; layer++) {
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            if (state->about[layer][i].grows) {
                CARRY_TRY(grow(state, layer, i, room, dtype));
            }
        }
    }
    state->room = room;
    state->dtype = dtype;
    return CARRY_OK;
}

carry_status carry_lm_state_reserve(carry_lm_state *state, int64_t tokens, carry_dtype dtype) {
    int64_t longest = 0;
    for (int64_t b = 0; b < state->batch; b++) {
        longest = state->length[b] > longest ? state->length[b] : longest;
    }
    return state->lm->config.has_attention ? grow_all(state, longest + tokens, dtype) : CARRY_OK;
}

carry_status carry_lm_state_fit(carry_lm_state *state, int64_t tokens, carry_dtype dtype) {
    return grow_all(state, tokens, dtype);
}

void carry_lm_state_tell(carry_lm_state *state, const int64_t *ids, int64_t tokens) {
    for (int64_t b = 0; b < state->batch; b++) {
        state->ids[b].hash = carry_hash_ids(state->ids[b].hash, ids + b * tokens, tokens);
        state->ids[b].count += tokens;
    }
}

void carry_lm_state_advance(carry_lm_state *state, int64_t tokens) {
    for (int64_t b = 0; b < state->batch; b++) {
        state->length[b] += tokens;
    }
}

/* Copies one sequence of a tensor whose first index is the sequence. If from is NULL, writes zeros. */
static carry_status put_sequence(carry_ctx *ctx, const carry_tensor *to, int64_t i, const carry_tensor *from, int64_t j,
                                 int64_t slices) {
    const int64_t n = to->shape[0];
    const int64_t part = to->data != NULL ? carry_tensor_count(to) / n / slices : 0;
    for (int64_t slice = 0; slice < slices && part > 0; slice++) {
        const carry_tensor into = carry_slice(carry_reshape_2d(*to, slices * n, part), slice * n + i, 1);
        if (from == NULL) {
            CARRY_TRY(carry_zero(ctx, into));
        } else {
            const int64_t row = slice * from->shape[0] + j;
            CARRY_TRY(
                carry_copy(ctx, into, carry_slice(carry_reshape_2d(*from, slices * from->shape[0], part), row, 1)));
        }
    }
    return CARRY_OK;
}

static carry_status put_all(carry_lm_state *state, int64_t to, const carry_lm_state *other, int64_t from) {
    const int64_t tokens = other != NULL ? other->length[from] : 0;
    for (int64_t layer = 0; layer < state->layers; layer++) {
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            const carry_tensor *here = &state->part[layer][i];
            const carry_tensor *there = other != NULL ? &other->part[layer][i] : NULL;
            if (!state->about[layer][i].grows) {
                CARRY_TRY(put_sequence(state->ctx, here, to, there, from, state->about[layer][i].slices));
            } else if (tokens > 0) {
                CARRY_TRY(carry_copy(state->ctx, cache_rows(here, to, tokens), cache_rows(there, from, tokens)));
            }
        }
    }
    state->length[to] = tokens;
    state->ids[to] = other != NULL ? other->ids[from] : (carry_lm_state_ids){0};
    return CARRY_OK;
}

carry_status carry_lm_state_clear(carry_lm_state *state, int64_t sequence) {
    return sequence >= 0 && sequence < state->batch ? put_all(state, sequence, NULL, 0) : CARRY_OK;
}

carry_status carry_lm_state_copy(carry_lm_state *state, int64_t to, const carry_lm_state *other, int64_t from) {
    if (to < 0 || to >= state->batch || from < 0 || from >= other->batch || state->layers != other->layers) {
        return carry_fail(state->ctx, CARRY_EARGUMENT,
                          "sequence %" PRId64 " of %" PRId64 " cannot become sequence %" PRId64 " of %" PRId64, to,
                          state->batch, from, other->batch);
    }
    if (state == other && to == from) {
        return CARRY_OK;
    }
    if (state->lm->config.has_attention && other->length[from] > 0) {
        state->length[to] = 0; /* it is replaced: its tokens need not be copied when caches grow */
        CARRY_TRY(grow_all(state, other->length[from], other->dtype));
    }
    return put_all(state, to, other, from);
}
