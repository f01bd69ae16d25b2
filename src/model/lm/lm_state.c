/* States of sequences, and generation: a prompt through a pass of many tokens, then a pass of one token a step. Both
   read and leave the same states. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/lm/lm_pass.h"

#define PIECE 512 /* tokens of a prompt at a time: bounds the memory that a long one takes */

static void place_state(carry_lm_state *state, const carry_lm_config *c, carry_arena *arena) {
    int64_t channels[] = {c->key_width, c->key_width, c->value_width};
    int64_t before = c->use_short_conv ? c->conv_size - 1 : 0;
    for (int64_t layer = 0; layer < state->layers; layer++) {
        for (int i = 0; i < 3 && before > 0; i++) {
            int64_t shape[] = {state->batch, before, channels[i]};
            size_t count = 0;
            arena->overflowed = arena->overflowed || !carry_size_product(&count, shape, 3, 1);
            state->conv[layer][i] = carry_view(carry_arena_take(arena, count, sizeof(float)), CARRY_F32, 3, shape);
        }
        int64_t shape[] = {state->batch, c->value_heads, c->key, c->value};
        size_t count = 0;
        arena->overflowed = arena->overflowed || !carry_size_product(&count, shape, 4, 1);
        state->delta[layer] = carry_view(carry_arena_take(arena, count, sizeof(float)), CARRY_F32, 4, shape);
    }
}

carry_status carry_lm_state_new(const carry_lm *lm, carry_lm_state **made, int64_t batch) {
    *made = NULL;
    if (batch < 1) {
        return carry_fail(lm->ctx, CARRY_ESIZE, "a state of %" PRId64 " sequences cannot be made", batch);
    }
    carry_lm_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "no memory for a state");
    }
    state->ctx = lm->ctx;
    state->batch = batch;
    state->layers = lm->config.num_hidden_layers;
    state->slices = carry_lm_mixer_slices(lm->config.value);
    state->conv = calloc((size_t)state->layers, sizeof *state->conv);
    state->delta = calloc((size_t)state->layers, sizeof *state->delta);
    size_t bytes = 0;
    if (state->conv != NULL && state->delta != NULL) {
        carry_arena arena = carry_arena_over(NULL, 0);
        place_state(state, &lm->config, &arena);
        state->memory = carry_arena_total(&arena, &bytes) ? carry_aligned_new(bytes) : NULL;
    }
    if (state->memory == NULL) {
        carry_lm_state_free(state);
        return carry_fail(lm->ctx, CARRY_EMEMORY, "no memory for the states of %" PRId64 " sequences", batch);
    }
    memset(state->memory, 0, bytes);
    carry_arena arena = carry_arena_over(state->memory, bytes);
    place_state(state, &lm->config, &arena);
    *made = state;
    return CARRY_OK;
}

void carry_lm_state_free(carry_lm_state *state) {
    if (state != NULL) {
        free(state->conv);
        free(state->delta);
        free(state->memory);
        free(state);
    }
}

/* One sequence of a tensor whose first index is the sequence; from NULL: zeros. */
static void put_sequence(const carry_tensor *to, int64_t i, const carry_tensor *from, int64_t j, int64_t slices) {
    size_t part = to->data != NULL ? (size_t)(carry_tensor_count(to) / to->shape[0] / slices) : 0;
    for (int64_t slice = 0; slice < slices && part > 0; slice++) {
        float *into = (float *)to->data + (size_t)(slice * to->shape[0] + i) * part;
        if (from != NULL) {
            memmove(into, (const float *)from->data + (size_t)(slice * from->shape[0] + j) * part, part * sizeof *into);
        } else {
            memset(into, 0, part * sizeof *into);
        }
    }
}

static void put_all(carry_lm_state *state, int64_t to, const carry_lm_state *other, int64_t from) {
    for (int64_t layer = 0; layer < state->layers; layer++) {
        for (int i = 0; i < 3; i++) {
            put_sequence(&state->conv[layer][i], to, other != NULL ? &other->conv[layer][i] : NULL, from, 1);
        }
        put_sequence(&state->delta[layer], to, other != NULL ? &other->delta[layer] : NULL, from, state->slices);
    }
}

void carry_lm_state_clear(carry_lm_state *state, int64_t sequence) {
    if (sequence >= 0 && sequence < state->batch) {
        put_all(state, sequence, NULL, 0);
    }
}

carry_status carry_lm_state_copy(carry_lm_state *state, int64_t to, const carry_lm_state *other, int64_t from) {
    if (to < 0 || to >= state->batch || from < 0 || from >= other->batch || state->layers != other->layers) {
        return carry_fail(state->ctx, CARRY_EARGUMENT,
                          "sequence %" PRId64 " of %" PRId64 " cannot become sequence %" PRId64 " of %" PRId64, to,
                          state->batch, from, other->batch);
    }
    put_all(state, to, other, from);
    return CARRY_OK;
}

struct carry_lm_generator {
    carry_lm *lm;
    int64_t batch;
    carry_dtype dtype;
    carry_lm_state *state;
    carry_lm_state *one; /* of a prompt that is being read */
    carry_lm_pass *step;
    void *memory;
    void *logits; /* in the activations' type */
    int64_t *ids;
};

void carry_lm_generator_free(carry_lm_generator *g) {
    if (g != NULL) {
        carry_lm_state_free(g->state);
        carry_lm_state_free(g->one);
        carry_lm_pass_free(g->step);
        free(g->memory);
        free(g->logits);
        free(g->ids);
        free(g);
    }
}

carry_status carry_lm_generator_new(carry_lm *lm, carry_lm_generator **made, int64_t batch, carry_dtype dtype) {
    *made = NULL;
    carry_lm_generator *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "no memory to generate");
    }
    g->lm = lm;
    g->batch = batch;
    g->dtype = dtype;
    const carry_lm_pass_options options = {.batch = batch, .tokens = 1, .dtype = dtype, .forward_only = true};
    carry_status status = carry_lm_pass_new(lm, &g->step, &options);
    status = status == CARRY_OK ? carry_lm_state_new(lm, &g->state, batch) : status;
    status = status == CARRY_OK ? carry_lm_state_new(lm, &g->one, 1) : status;
    if (status == CARRY_OK) {
        const int64_t sizes[] = {batch, lm->config.vocab_size};
        size_t bytes;
        bool fits = carry_size_product(&bytes, sizes, 2, carry_dtype_size(dtype));
        g->memory = carry_aligned_new(carry_lm_pass_memory(g->step));
        g->logits = fits ? carry_aligned_new(bytes) : NULL;
        g->ids = malloc((size_t)batch * sizeof *g->ids);
        if (g->memory == NULL || g->logits == NULL || g->ids == NULL) {
            status = carry_fail(lm->ctx, CARRY_EMEMORY, "no memory to generate %" PRId64 " sequences", batch);
        }
    }
    if (status != CARRY_OK) {
        carry_lm_generator_free(g);
        return status;
    }
    *made = g;
    return CARRY_OK;
}

carry_lm_state *carry_lm_generator_state(carry_lm_generator *g) {
    return g->state;
}

/* The next piece of a prompt. */
static carry_status read_piece(carry_lm_generator *g, const int64_t *ids, int64_t count, bool last) {
    carry_lm_pass *pass = NULL;
    const carry_lm_pass_options options = {.batch = 1, .tokens = count, .dtype = g->dtype, .forward_only = true};
    CARRY_TRY(carry_lm_pass_new(g->lm, &pass, &options));
    void *memory = carry_aligned_new(carry_lm_pass_memory(pass));
    carry_lm_args args = {
        .ids = carry_view_2d((void *)(uintptr_t)ids, CARRY_I64, 1, count), .last_logits = true, .state = g->one};
    if (last) {
        args.logits = carry_view_2d(g->logits, g->dtype, 1, g->lm->config.vocab_size);
    }
    carry_status status;
    if (memory == NULL) {
        status = carry_fail(g->lm->ctx, CARRY_EMEMORY, "no memory for %" PRId64 " tokens of a prompt", count);
    } else {
        status = carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass));
    }
    free(memory);
    carry_lm_pass_free(pass);
    return status;
}

carry_status carry_lm_generator_prompt(carry_lm_generator *g, int64_t sequence, const int64_t *ids, int64_t count,
                                       float *logits) {
    carry_ctx *ctx = g->lm->ctx;
    CARRY_SPAN(ctx, "model", "prompt");
    if (sequence < 0 || sequence >= g->batch || count < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a prompt of %" PRId64 " tokens for sequence %" PRId64 " of %" PRId64 " cannot be read",
                          count, sequence, g->batch);
    }
    CARRY_TRY(carry_lm_state_copy(g->one, 0, g->state, sequence));
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t some = count - at < PIECE ? count - at : PIECE;
        CARRY_TRY(read_piece(g, ids + at, some, at + some == count));
    }
    CARRY_TRY(carry_lm_state_copy(g->state, sequence, g->one, 0));
    int64_t vocabulary = g->lm->config.vocab_size;
    return carry_convert(ctx, carry_view_1d(logits, CARRY_F32, vocabulary),
                         carry_view_1d(g->logits, g->dtype, vocabulary));
}

carry_status carry_lm_generator_step(carry_lm_generator *g, const int64_t *ids, float *logits) {
    carry_ctx *ctx = g->lm->ctx;
    CARRY_SPAN(ctx, "model", "step");
    int64_t vocabulary = g->lm->config.vocab_size;
    memcpy(g->ids, ids, (size_t)g->batch * sizeof *ids);
    const carry_lm_args args = {.ids = carry_view_2d(g->ids, CARRY_I64, g->batch, 1),
                                .logits = carry_view_2d(g->logits, g->dtype, g->batch, vocabulary),
                                .last_logits = true,
                                .state = g->state};
    CARRY_TRY(carry_lm_run(g->step, &args, g->memory, carry_lm_pass_memory(g->step)));
    return carry_convert(ctx, carry_view_2d(logits, CARRY_F32, g->batch, vocabulary),
                         carry_view_2d(g->logits, g->dtype, g->batch, vocabulary));
}
