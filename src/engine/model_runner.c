/* The runner of a model: opening, steps, closing. */
#include "engine/model_runner.h"

#include <inttypes.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/hash.h"
#include "core/span.h"
#include "core/tensor.h"
#include "engine/model_runner_inside.h"
#include "model/host.h"

/* Guesses of one text use the chain of kernels (chain.h) up to this hidden size, and recorded passes
   (model_runner_graph.c) above it. Tokens/s with the chain and with passes: 2,086 and 1,773 at 1024 (0.8B), 741 and 795
   at 2560 (4B); four guesses, three right, H200. */
#define CHAIN_GUESSES 2048
/* Packed weights (ops/product/few.c) are faster for steps of at least PACKED_ROWS rows and for prompts. One such step
   saves about as much time as STEP_GAINS tokens of a prompt: with 0.8B on one core, a step of 8 rows takes 43 ms less,
   and 512 tokens of a prompt take 100 ms less. */
#define PACKED_ROWS 5
#define STEP_GAINS 256

static void close_runner(carry_runner *runner) {
    carry_model_runner *r = (carry_model_runner *)runner;
    carry_ctx *ctx = r->head.ctx;
    if (r->device != 0) {
        (void)carry_stream_wait(ctx, r->device, carry_ctx_stream(ctx, r->device));
        carry_model_runner_close_graphs(r);
        carry_model_runner_close_device(r);
        carry_host_free(ctx, r->host_logits);
        carry_host_free(ctx, r->host);
        free(r->single);
    } else {
        free(r->host);
    }
    if (r->stream != NULL) {
        (void)carry_ctx_set_stream(ctx, r->device, NULL);
        carry_stream_free(ctx, r->device, r->stream);
    }
    carry_model_runner_close_samplers(r);
    carry_model_runner_close_rings(r);
    carry_model_runner_close_scores(r);
    carry_model_runner_close_heads(r);
    for (int i = 0; i < CARRY_MODEL_RUNNER_PENDING; i++) {
        free(r->pending[i].results);
    }
    carry_device_free(ctx, r->device, r->there);
    carry_device_free(ctx, r->device, r->logits_memory);
    carry_device_free(ctx, r->device, r->memory);
    carry_lm_pass_free(r->pass);
    carry_lm_state_free(r->pool);
    free(r->starts);
    free(r->borders);
    free(r->wave);
    free(r->order);
    free(r->row_of);
    free(r->last);
    free(r);
}

static void take_logits(carry_model_runner *r, carry_arena *arena) {
    const int64_t shape[] = {r->head.sizes.sequences, r->head.sizes.vocabulary};
    r->wide = carry_arena_tensor(arena, r->device, CARRY_F32, 2, shape);
    r->logits = r->dtype == CARRY_F32 ? r->wide : carry_arena_tensor(arena, r->device, r->dtype, 2, shape);
}

static carry_status open_logits(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    carry_arena count = carry_arena_over(NULL, 0);
    const int64_t sizes[] = {r->head.sizes.sequences, r->head.sizes.vocabulary};
    size_t bytes;
    size_t wide;
    take_logits(r, &count);
    if (!carry_arena_total(&count, &bytes) || !carry_size_product(&wide, sizes, 2, sizeof(float))) {
        return carry_fail(ctx, CARRY_ESIZE, "the logits of %" PRId64 " sequences are too large", sizes[0]);
    }
    CARRY_TRY(carry_device_alloc(ctx, &r->logits_memory, r->device, bytes));
    carry_arena arena = carry_arena_over(r->logits_memory, bytes);
    take_logits(r, &arena);
    if (r->device == 0) {
        r->host_logits = r->wide.data;
        return CARRY_OK;
    }
    void *pinned;
    CARRY_TRY(carry_host_alloc(ctx, &pinned, wide));
    r->host_logits = pinned;
    return CARRY_OK;
}

/* Allocates the lists, in host memory and on the device. */
static carry_status open_lists(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    carry_arena count = carry_arena_over(NULL, 0);
    carry_model_runner_lists none;
    size_t bytes;
    carry_model_runner_take_lists(r, &count, &none);
    size_t all;
    if (!carry_arena_total(&count, &bytes) || bytes > SIZE_MAX / CARRY_MODEL_RUNNER_PENDING) {
        return carry_fail(ctx, CARRY_ESIZE, "the lists of a step are too large");
    }
    all = bytes * CARRY_MODEL_RUNNER_PENDING;
    if (r->device != 0) {
        CARRY_TRY(carry_host_alloc(ctx, &r->host, all));
        CARRY_TRY(carry_device_alloc(ctx, &r->there, r->device, bytes));
    } else {
        r->host = malloc(all);
    }
    if (r->host == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the lists of a step, %zu bytes", bytes);
    }
    for (int i = 0; i < CARRY_MODEL_RUNNER_PENDING; i++) {
        carry_arena host = carry_arena_over((unsigned char *)r->host + (size_t)i * bytes, bytes);
        carry_model_runner_take_lists(r, &host, &r->lists[i]);
    }
    r->list = r->lists[0];
    r->listed = r->list;
    if (r->device != 0) {
        carry_arena there = carry_arena_over(r->there, bytes);
        carry_model_runner_take_lists(r, &there, &r->listed);
    }
    r->places = (carry_lm_places){.pool = r->pool,
                                  .starts = r->starts,
                                  .borders = r->device != 0 ? r->borders : NULL,
                                  .slots = r->list.slots,
                                  .lengths = r->list.lengths,
                                  .offsets = r->list.offsets,
                                  .there = {.slots = r->listed.slots,
                                            .offsets = r->listed.offsets,
                                            .pages = r->listed.pages,
                                            .lengths = r->listed.lengths,
                                            .positions = r->listed.positions,
                                            .rows = r->listed.rows,
                                            .wanted = r->listed.wanted}};
    return CARRY_OK;
}

static carry_status open_host(carry_model_runner *r) {
    const size_t sequences = (size_t)r->head.sizes.sequences;
    bool made = true;
    for (int i = 0; i < CARRY_MODEL_RUNNER_PENDING; i++) {
        r->pending[i].results = calloc(sequences, sizeof *r->pending[i].results);
        made = made && r->pending[i].results != NULL;
    }
    r->starts = calloc(sequences + 1, sizeof *r->starts);
    r->borders = calloc(sequences + 1, sizeof *r->borders);
    r->wave = calloc(sequences + 1, sizeof *r->wave);
    r->order = calloc(sequences, sizeof *r->order);
    r->row_of = calloc(sequences, sizeof *r->row_of);
    r->last = malloc((size_t)r->head.sizes.slots * sizeof *r->last);
    if (!made || r->starts == NULL || r->borders == NULL || r->wave == NULL || r->order == NULL || r->row_of == NULL ||
        r->last == NULL) {
        return carry_fail(r->head.ctx, CARRY_EMEMORY, "out of memory: a runner of %" PRId64 " slots",
                          r->head.sizes.slots);
    }
    for (int64_t i = 0; i < r->head.sizes.slots; i++) {
        r->last[i] = -1;
    }
    return CARRY_OK;
}

carry_lm_pass_options carry_model_runner_pass_options(const carry_model_runner *r) {
    return (carry_lm_pass_options){.batch = 1,
                                   .tokens = r->head.sizes.tokens,
                                   .pooled = r->head.sizes.sequences,
                                   .context = r->head.sizes.context,
                                   .same_bits = r->same_bits && r->device == 0,
                                   .dtype = r->dtype,
                                   .f8_caches = r->types.kv == CARRY_F8,
                                   .forward_only = true};
}

static carry_status open_runner(carry_model_runner *r, int64_t rings) {
    const carry_runner_sizes *sizes = &r->head.sizes;
    carry_lm_pass_options options = carry_model_runner_pass_options(r);
    options.scores = r->scores;
    CARRY_TRY(open_host(r));
    if (r->device != 0 && carry_ctx_stream(r->head.ctx, r->device) == NULL) {
        CARRY_TRY(carry_stream_wait(r->head.ctx, r->device, NULL));
        CARRY_TRY(carry_stream_new(r->head.ctx, &r->stream, r->device));
        CARRY_TRY(carry_ctx_set_stream(r->head.ctx, r->device, r->stream));
    }
    const carry_lm_pool_types types = carry_state_types_of_pool(&r->types, r->dtype, sizes->sequences);
    CARRY_TRY(carry_lm_pool_new(r->lm, &r->pool, sizes->slots + 1, sizes->pages + 1, &types));
    CARRY_TRY(carry_lm_pass_new(r->lm, &r->pass, &options));
    CARRY_TRY(carry_lm_pass_take(r->pass, &r->memory));
    CARRY_TRY(open_lists(r));
    if (r->scores) {
        CARRY_TRY(carry_model_runner_open_scores(r));
        return carry_lm_pack(r->lm, r->dtype, 0);
    }
    CARRY_TRY(open_logits(r));
    CARRY_TRY(r->heads.lm != NULL ? carry_model_runner_open_heads(r) : CARRY_OK);
    carry_model_runner_open_graphs(r);
    CARRY_TRY(carry_model_runner_open_device(r));
    CARRY_TRY(carry_model_runner_open_rings(r, rings));
    CARRY_TRY(carry_model_runner_open_samplers(r));
    return carry_lm_pack(r->lm, r->dtype, 0);
}

carry_status carry_model_runner_enqueue(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    const int64_t rows = r->starts[r->places.sequences];
    const int64_t wanted = r->places.wanted_count;
    carry_lm_args args = {.ids = carry_view_on(r->device, r->listed.ids, CARRY_I64, 2, (const int64_t[]){1, rows}),
                          .last_logits = true,
                          .places = &r->places};
    if (wanted > 0) {
        args.logits = carry_slice(r->logits, 0, wanted);
    }
    const bool is_chained = r->places.waves == 0 || r->same_bits || r->lm->config.hidden_size < CHAIN_GUESSES;
    if (r->chain != NULL && is_chained && r->places.steps == r->places.sequences && wanted == rows &&
        wanted <= carry_chain_sequences(r->chain)) {
        return carry_chain_run(r->chain, args.logits, wanted, r->places.wave, r->places.waves);
    }
    if (r->sampling != NULL && r->places.steps > 0) {
        CARRY_TRY(
            carry_device_sampler_fill_ids(r->sampling, r->listed.ids, r->listed.slots, r->last_there, r->places.steps));
    }
    if (r->heads.lm != NULL) {
        args.normed = carry_model_runner_hidden(r, rows);
    }
    CARRY_TRY(carry_lm_run(r->pass, &args, r->memory, carry_lm_pass_memory(r->pass)));
    CARRY_TRY(r->heads.lm != NULL ? carry_model_runner_note(r) : CARRY_OK);
    const bool is_read = r->dtype == CARRY_F32 || (r->dtype == CARRY_BF16 && r->sampling != NULL);
    return wanted > 0 && !is_read ? carry_convert(ctx, carry_slice(r->wide, 0, wanted), args.logits) : CARRY_OK;
}

/* Runs the call whose lists are filled in; gives its logits in host memory. */
static carry_status run_call(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    const int64_t rows = r->starts[r->places.sequences];
    const int64_t wanted = r->places.wanted_count;
    const bool has_prompts = rows > r->places.steps;
    if (has_prompts || rows >= PACKED_ROWS) {
        CARRY_TRY(carry_lm_pack(r->lm, r->dtype, has_prompts ? rows : STEP_GAINS));
    }
    r->head.has_begun = true;
    if (r->device == 0) {
        return carry_model_runner_enqueue(r);
    }
    if (r->records && rows == r->places.steps && wanted == rows) {
        CARRY_TRY(carry_model_runner_replay(r));
    } else {
        CARRY_TRY(carry_device_copy(ctx, r->listed.slots, r->device, r->list.slots, 0, r->list_bytes,
                                    carry_ctx_stream(ctx, r->device)));
        CARRY_TRY(carry_model_runner_enqueue(r));
    }
    return wanted > 0 ? carry_read(ctx, carry_view_2d(r->host_logits, CARRY_F32, wanted, r->wide.shape[1]),
                                   carry_slice(r->wide, 0, wanted))
                      : carry_stream_wait(ctx, r->device, carry_ctx_stream(ctx, r->device));
}

static carry_status step(carry_runner *runner, const carry_run *runs, int64_t count) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_SPAN(r->head.ctx, "model", "step");
    r->head.has_begun = false;
    if (r->waiting == CARRY_MODEL_RUNNER_PENDING) {
        return carry_fail(r->head.ctx, CARRY_EARGUMENT, "the results of %d steps were not read: read them first",
                          r->waiting);
    }
    CARRY_TRY(carry_model_runner_check(r, runs, count));
    CARRY_TRY(carry_model_runner_list(r, runs, count));
    CARRY_TRY(carry_model_runner_begin_rings(r, runs, count));
    if (r->scores) {
        CARRY_TRY(carry_model_runner_score(r, count));
    } else if (r->sampling != NULL) {
        r->head.has_begun = true;
        CARRY_TRY(carry_model_runner_run_there(r, runs, count));
    } else {
        CARRY_TRY(run_call(r));
    }
    carry_model_runner_pending *pending = &r->pending[(r->oldest + r->waiting) % CARRY_MODEL_RUNNER_PENDING];
    if (r->sampling == NULL && !r->scores) {
        carry_model_runner_sample(r, runs, count, pending->results);
    }
    pending->count = count;
    r->waiting++;
    r->steps++;
    return CARRY_OK;
}

static carry_status router_nan(carry_runner *runner, int64_t *layer) {
    int64_t row;
    return carry_lm_router_nan(((carry_model_runner *)runner)->pass, layer, &row);
}

static carry_status results(carry_runner *runner, carry_run_result *to, int64_t count) {
    carry_model_runner *r = (carry_model_runner *)runner;
    const carry_model_runner_pending *pending = &r->pending[r->oldest];
    if (r->scores || r->waiting == 0 || pending->count != count) {
        return carry_fail(r->head.ctx, CARRY_EARGUMENT,
                          "results of %" PRId64 " runs: the oldest step has %" PRId64 " that were not read", count,
                          r->waiting > 0 ? pending->count : 0);
    }
    const carry_status status = r->sampling != NULL ? carry_device_sampler_results(r->sampling, to, count) : CARRY_OK;
    for (int64_t i = 0; r->sampling == NULL && i < count; i++) {
        to[i] = pending->results[i];
    }
    r->oldest = (r->oldest + 1) % CARRY_MODEL_RUNNER_PENDING;
    r->waiting--;
    return status;
}

/* With multi-token heads a state has more parts: it is the state of another model. */
static carry_status hash(carry_runner *runner, uint64_t *value) {
    const carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(carry_lm_hash(r->lm, value));
    if (r->heads.lm != NULL) {
        uint64_t heads;
        CARRY_TRY(carry_lm_hash(r->heads.lm, &heads));
        *value = carry_hash(*value, &heads, sizeof heads);
    }
    return CARRY_OK;
}

static const carry_runner_ops operations = {
    .close = close_runner,
    .step = step,
    .results = results,
    .scores = carry_model_runner_scores,
    .clear_slot = carry_model_runner_clear_slot,
    .copy_slot = carry_model_runner_copy_slot,
    .copy_page = carry_model_runner_copy_page,
    .read_slot = carry_model_runner_read_slot,
    .write_slot = carry_model_runner_write_slot,
    .read_page = carry_model_runner_read_page,
    .write_page = carry_model_runner_write_page,
    .hash = hash,
    .draft = carry_model_runner_draft,
    .router_nan = router_nan,
};

static carry_status check_sizes(const carry_lm *lm, const carry_runner_sizes *w, bool has_pages) {
    const int64_t most = INT32_MAX / 2;
    if (w->slots < 1 || w->slots > most || w->pages < 0 || w->pages > most / CARRY_PAGE_TOKENS || w->sequences < 1 ||
        w->sequences > w->slots || w->tokens < w->sequences || w->tokens > most || w->context < 1 ||
        w->context > most || (has_pages && w->pages < 1)) {
        return carry_fail(
            lm->ctx, CARRY_ESIZE,
            "a runner of %" PRId64 " slots, %" PRId64 " pages, steps of %" PRId64 " sequences and %" PRId64
            " tokens, a context of %" PRId64 ": expected 1 or more%s, sequences up to slots and tokens",
            w->slots, w->pages, w->sequences, w->tokens, w->context, has_pages ? "" : " (pages may be 0)");
    }
    return CARRY_OK;
}

/* A type that no part of the model's states has is "none": files of its states fit every choice of it. */
static void name_types(carry_model_runner *r, bool has_pages) {
    const carry_state_types wide = {.kv = r->dtype, .state = CARRY_F32};
    const carry_state_types narrow = {.kv = r->dtype, .state = CARRY_BF16};
    size_t slot[2];
    size_t page;
    carry_model_runner_measure(r->lm, NULL, r->dtype, &wide, &slot[0], &page);
    carry_model_runner_measure(r->lm, NULL, r->dtype, &narrow, &slot[1], &page);
    r->head.sizes.kv_type = has_pages ? carry_state_types_name(r->types.kv) : "none";
    r->head.sizes.state_type = slot[0] != slot[1] ? carry_state_types_name(r->types.state) : "none";
}

carry_status carry_model_runner_new_with(carry_lm *lm, carry_runner **made, const carry_runner_sizes *wanted,
                                         carry_dtype dtype, const carry_model_runner_options *options) {
    *made = NULL;
    const bool same_bits = options != NULL && options->same_bits;
    size_t slot;
    size_t page;
    carry_lm *heads = options != NULL ? options->heads : NULL;
    const carry_state_types *types = options != NULL ? options->types : NULL;
    carry_model_runner_measure(lm, heads, dtype, types, &slot, &page);
    CARRY_TRY(check_sizes(lm, wanted, page > 0));
    carry_model_runner *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: a runner");
    }
    r->head = (carry_runner){.ops = &operations, .ctx = lm->ctx, .sizes = *wanted};
    r->head.sizes.pages = page > 0 ? wanted->pages : 0;
    r->head.sizes.slot_bytes = slot;
    r->head.sizes.page_bytes = page;
    r->head.sizes.vocabulary = lm->config.vocab_size;
    r->lm = lm;
    r->device = lm->own.device;
    r->dtype = dtype;
    r->types = types != NULL ? *types : (carry_state_types){.kv = dtype, .state = CARRY_F32};
    name_types(r, page > 0);
    r->same_bits = same_bits;
    r->heads.lm = heads;
    r->scores = options != NULL && options->scores;
    r->page_list = r->head.sizes.pages > 0 ? (wanted->context + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS : 0;
    const carry_status status = open_runner(r, options != NULL ? options->rings : 0);
    if (status != CARRY_OK) {
        close_runner(&r->head);
        return status;
    }
    *made = &r->head;
    return CARRY_OK;
}

carry_status carry_model_runner_new(carry_lm *lm, carry_runner **made, const carry_runner_sizes *wanted,
                                    carry_dtype dtype) {
    return carry_model_runner_new_with(lm, made, wanted, dtype, NULL);
}
