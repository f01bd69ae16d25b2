/* Guesses by the multi-token heads of a checkpoint (model/lm/lm_heads.h).

   To read a token, the heads need the hidden state of the token before it. `hidden` is a table of hidden states: first
   one row for each slot, that of the last token read into the slot, then one for each row of a call. The rows of slots
   are copied and saved with the slots, and the heads' keys and values with the pages. After each call the heads read
   its tokens, which computes only their keys and values. A guess runs the heads' layer and the model's head once; its
   keys and values are overwritten when the step reads the true tokens. */
#include <inttypes.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "engine/model_runner_inside.h"
#include "model/host.h"
#include "ops/pool.h"

static void take_tables(carry_model_runner *r, carry_arena *arena) {
    const int64_t width = r->lm->config.hidden_size;
    const carry_runner_sizes *sizes = &r->head.sizes;
    const int64_t hidden[] = {sizes->slots + 1 + sizes->tokens, width};
    const int64_t before[] = {sizes->tokens, width};
    r->heads.hidden = carry_arena_tensor(arena, r->device, r->dtype, 2, hidden);
    r->heads.before = carry_arena_tensor(arena, r->device, r->dtype, 2, before);
}

static carry_status open_tables(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    carry_arena count = carry_arena_over(NULL, 0);
    size_t bytes;
    take_tables(r, &count);
    if (!carry_arena_total(&count, &bytes)) {
        return carry_fail(ctx, CARRY_ESIZE, "the hidden states of %" PRId64 " slots are too large",
                          r->head.sizes.slots);
    }
    CARRY_TRY(carry_device_alloc(ctx, &r->heads.tables, r->device, bytes));
    carry_arena arena = carry_arena_over(r->heads.tables, bytes);
    take_tables(r, &arena);
    return carry_device_fill(ctx, r->heads.tables, r->device, 0, bytes, carry_ctx_stream(ctx, r->device));
}

carry_status carry_model_runner_open_heads(carry_model_runner *r) {
    const carry_runner_sizes *sizes = &r->head.sizes;
    const carry_lm_pass_options options = carry_model_runner_pass_options(r);
    carry_lm *lm = r->heads.lm;
    if (r->same_bits && r->device != 0) {
        return carry_fail(r->head.ctx, CARRY_EUNSUPPORTED, "multi-token heads with same_bits need the CPU");
    }
    const carry_lm_pool_types types = carry_state_types_of_pool(&r->types, r->dtype, sizes->sequences);
    CARRY_TRY(carry_lm_pool_new(lm, &r->heads.pool, sizes->slots + 1, sizes->pages + 1, &types));
    CARRY_TRY(carry_lm_pass_new(lm, &r->heads.pass, &options));
    CARRY_TRY(carry_lm_pass_take(r->heads.pass, &r->heads.memory));
    r->heads.drafts = calloc((size_t)sizes->sequences, sizeof *r->heads.drafts);
    r->heads.results = calloc((size_t)sizes->sequences, sizeof *r->heads.results);
    if (r->heads.drafts == NULL || r->heads.results == NULL) {
        return carry_fail(r->head.ctx, CARRY_EMEMORY, "out of memory: guesses of %" PRId64 " texts", sizes->sequences);
    }
    if (r->device != 0) {
        CARRY_TRY(
            carry_device_sampler_open(&r->heads.sampling, r->head.ctx, r->device, sizes->sequences, sizes->vocabulary));
    }
    return open_tables(r);
}

void carry_model_runner_close_heads(carry_model_runner *r) {
    carry_device_sampler_close(r->heads.sampling);
    carry_device_free(r->head.ctx, r->device, r->heads.tables);
    carry_device_free(r->head.ctx, r->device, r->heads.memory);
    carry_lm_pass_free(r->heads.pass);
    carry_lm_state_free(r->heads.pool);
    free(r->heads.drafts);
    free(r->heads.results);
}

/* The row of `hidden` for a row of the call. */
static int64_t row_of_call(const carry_model_runner *r, int64_t row) {
    return r->head.sizes.slots + 1 + row;
}

void carry_model_runner_list_heads(carry_model_runner *r, int64_t first) {
    carry_model_runner_lists *l = &r->list;
    for (int64_t i = first; i < r->places.sequences; i++) {
        const int64_t before = carry_lm_place_before(&r->places, i);
        l->before[r->starts[i]] = before >= 0 ? row_of_call(r, r->starts[before]) : l->slots[i];
        for (int64_t row = r->starts[i] + 1; row < r->starts[i + 1]; row++) {
            l->before[row] = row_of_call(r, row - 1);
        }
        l->last_rows[i] = row_of_call(r, r->starts[i + 1] - 1);
        l->slot_rows[i] = l->slots[i];
    }
}

/* Rows of the call in `hidden`. */
carry_tensor carry_model_runner_hidden(const carry_model_runner *r, int64_t rows) {
    return carry_slice(r->heads.hidden, row_of_call(r, 0), rows);
}

/* Copies rows of `hidden` to the start of `before`, by a list of the call. */
static carry_status take_rows(carry_model_runner *r, carry_tensor *to, int64_t *rows, int64_t count) {
    *to = carry_slice(r->heads.before, 0, count);
    return carry_embed(r->head.ctx, *to, r->heads.hidden, carry_view_on(r->device, rows, CARRY_I64, 1, &count));
}

carry_status carry_model_runner_note(carry_model_runner *r) {
    const int64_t rows = r->starts[r->places.sequences];
    CARRY_SPAN(r->head.ctx, "model", "heads");
    carry_lm_places places = r->places;
    places.pool = r->heads.pool;
    carry_lm_args args = {.ids = carry_view_on(r->device, r->listed.ids, CARRY_I64, 2, (const int64_t[]){1, rows}),
                          .last_logits = true,
                          .places = &places};
    carry_tensor last;
    CARRY_TRY(take_rows(r, &args.before, r->listed.before, rows));
    CARRY_TRY(carry_lm_run(r->heads.pass, &args, r->heads.memory, carry_lm_pass_memory(r->heads.pass)));
    CARRY_TRY(take_rows(r, &last, r->listed.last_rows, places.sequences));
    return carry_put_rows(r->head.ctx, r->heads.hidden, last, r->listed.slot_rows);
}

/* The likeliest token of each of `count` rows of logits. */
static carry_status find_likeliest(carry_model_runner *r, int64_t count, carry_tensor logits) {
    carry_ctx *ctx = r->head.ctx;
    const int64_t vocabulary = r->head.sizes.vocabulary;
    if (r->heads.sampling != NULL) {
        CARRY_TRY(carry_device_sampler_run(r->heads.sampling, logits, r->row_of, r->heads.drafts, count, NULL));
        return carry_device_sampler_results(r->heads.sampling, r->heads.results, count);
    }
    const carry_tensor wide = carry_slice(r->wide, 0, count);
    CARRY_TRY(r->dtype != CARRY_F32 ? carry_convert(ctx, wide, logits) : CARRY_OK);
    CARRY_TRY(r->device != 0 ? carry_read(ctx, carry_view_2d(r->host_logits, CARRY_F32, count, vocabulary), wide)
                             : CARRY_OK);
    for (int64_t i = 0; i < count; i++) {
        const float *row = r->host_logits + r->row_of[i] * vocabulary;
        int64_t best = 0;
        for (int64_t j = 1; j < vocabulary; j++) {
            best = row[j] > row[best] ? j : best;
        }
        r->heads.results[i].token = (int32_t)best;
    }
    return CARRY_OK;
}

/* One guess for each of heads.drafts. `again`: the hidden states are those of the previous guess. */
static carry_status guess_once(carry_model_runner *r, int64_t count, bool again) {
    carry_ctx *ctx = r->head.ctx;
    CARRY_TRY(carry_model_runner_check(r, r->heads.drafts, count));
    CARRY_TRY(carry_model_runner_list(r, r->heads.drafts, count));
    for (int64_t i = 0; again && i < count; i++) {
        r->list.before[i] = row_of_call(r, i);
    }
    if (r->device != 0) {
        CARRY_TRY(carry_device_copy(ctx, r->listed.slots, r->device, r->list.slots, 0, r->list_bytes,
                                    carry_ctx_stream(ctx, r->device)));
    }
    carry_lm_places places = r->places;
    places.pool = r->heads.pool;
    carry_lm_args args = {.ids = carry_view_on(r->device, r->listed.ids, CARRY_I64, 2, (const int64_t[]){1, count}),
                          .logits = carry_slice(r->logits, 0, count),
                          .last_logits = true,
                          .normed = carry_model_runner_hidden(r, count),
                          .places = &places};
    CARRY_TRY(take_rows(r, &args.before, r->listed.before, count));
    CARRY_TRY(carry_lm_run(r->heads.pass, &args, r->heads.memory, carry_lm_pass_memory(r->heads.pass)));
    return find_likeliest(r, count, args.logits);
}

carry_status carry_model_runner_draft(carry_runner *runner, const carry_run *runs, int64_t count, int64_t most,
                                      int32_t *guesses) {
    static const carry_sampling greedy = {.top_p = 1.0};
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_SPAN(r->head.ctx, "model", "draft");
    if (r->heads.lm == NULL || count < 1 || count > r->head.sizes.sequences) {
        return carry_fail(r->head.ctx, CARRY_EUNSUPPORTED,
                          "guesses of %" PRId64 " texts: expected up to %" PRId64
                          ", and a runner with multi-token heads",
                          count, r->head.sizes.sequences);
    }
    for (int64_t i = 0; i < count; i++) {
        if (runs[i].count != 1 || runs[i].ids == NULL || runs[i].follows) {
            return carry_fail(r->head.ctx, CARRY_EARGUMENT, "run %" PRId64 ": guesses follow one known token", i);
        }
        r->heads.drafts[i] = (carry_run){.slot = runs[i].slot,
                                         .pages = runs[i].pages,
                                         .length = runs[i].length,
                                         .ids = runs[i].ids,
                                         .count = 1,
                                         .wants_token = true,
                                         .sampling = &greedy,
                                         .logprobs = -1};
    }
    for (int64_t at = 0; at < most; at++) {
        CARRY_TRY(guess_once(r, count, at > 0));
        for (int64_t i = 0; i < count; i++) {
            const int32_t token = r->heads.results[i].token;
            guesses[i * most + at] = token >= 0 && !r->heads.results[i].is_failed ? token : 0;
            r->heads.drafts[i].ids = &guesses[i * most + at];
            r->heads.drafts[i].length++;
        }
    }
    return CARRY_OK;
}
