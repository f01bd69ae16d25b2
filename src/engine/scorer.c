/* Calls of an evaluation. */
#include "engine/scorer.h"

#include <inttypes.h>

#include "carry/nn.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/memory.h"

static carry_status open_gpu(carry_scorer *s, int device, size_t slot) {
    void *pinned = NULL;
    CARRY_TRY(carry_device_alloc(s->ctx, &s->there, device, slot + 2 * sizeof(double)));
    s->total = carry_view_on(device, (char *)s->there + slot, CARRY_F64, 1, (const int64_t[]){2});
    CARRY_TRY(carry_host_alloc(s->ctx, &pinned, 2 * sizeof(double)));
    s->sums = pinned;
    if (carry_ctx_stream(s->ctx, device) != NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_stream_wait(s->ctx, device, NULL)); /* what was begun on the default stream */
    CARRY_TRY(carry_stream_new(s->ctx, &s->stream, device));
    return carry_ctx_set_stream(s->ctx, device, s->stream);
}

carry_status carry_scorer_open(carry_lm *lm, carry_scorer *s, const carry_scorer_options *options) {
    *s = (carry_scorer){.ctx = lm->ctx, .lm = lm, .dtype = options->dtype, .most = options->most};
    s->repeat.off = options->no_graph;
    const int64_t sizes[] = {2, options->most};
    size_t slot;
    if (options->most < 1 || !carry_size_product(&slot, sizes, 2, sizeof(int64_t))) {
        return carry_fail(s->ctx, CARRY_ESIZE, "calls of %" PRId64 " tokens: 1 or more, and no more than memory holds",
                          options->most);
    }
    for (int i = 0; i < CARRY_SCORER_SLOTS; i++) {
        void *pinned = NULL;
        CARRY_TRY(carry_host_alloc(s->ctx, &pinned, slot));
        s->slot[i] = pinned;
    }
    if (lm->own.device != 0) {
        CARRY_TRY(open_gpu(s, lm->own.device, slot));
    }
    return options->has_state ? carry_lm_state_new(lm, &s->state, 1) : CARRY_OK;
}

void carry_scorer_close(carry_scorer *s) {
    if (s->lm == NULL) {
        return;
    }
    const int device = s->lm->own.device;
    (void)carry_stream_wait(s->ctx, device, carry_ctx_stream(s->ctx, device));
    carry_lm_repeat_end(&s->repeat, s->lm);
    carry_device_free(s->ctx, device, s->memory);
    carry_device_free(s->ctx, device, s->there);
    carry_lm_pass_free(s->pass);
    carry_lm_state_free(s->state);
    for (int i = 0; i < CARRY_SCORER_SLOTS; i++) {
        carry_host_free(s->ctx, s->slot[i]);
    }
    carry_host_free(s->ctx, s->sums);
    if (s->stream != NULL) {
        (void)carry_ctx_set_stream(s->ctx, device, NULL);
        carry_stream_free(s->ctx, device, s->stream);
    }
    *s = (carry_scorer){0};
}

/* A pass of this shape, and memory for it. All calls but those at the end of a text have the same. */
static carry_status want_pass(carry_scorer *s, int64_t rows, int64_t length) {
    if (s->pass != NULL && s->rows == rows && s->length == length) {
        return CARRY_OK;
    }
    carry_lm_repeat_end(&s->repeat, s->lm);
    carry_lm_pass_free(s->pass);
    s->pass = NULL;
    const carry_lm_pass_options options = {.batch = rows, .tokens = length, .dtype = s->dtype, .forward_only = true};
    CARRY_TRY(carry_lm_pass_new(s->lm, &s->pass, &options));
    s->rows = rows;
    s->length = length;
    if (carry_lm_pass_memory(s->pass) > s->memory_bytes) {
        carry_lm_pass_give(s->pass, s->memory);
        s->memory = NULL;
        s->memory_bytes = 0;
        CARRY_TRY(carry_lm_pass_take(s->pass, &s->memory));
        s->memory_bytes = carry_lm_pass_memory(s->pass);
    }
    return CARRY_OK;
}

void carry_scorer_rows(carry_scorer *s, int64_t **input, int64_t **label) {
    *input = s->slot[s->next];
    *label = s->slot[s->next] + s->most;
}

static carry_status run_on_cpu(carry_scorer *s, carry_tensor ids, carry_tensor labels) {
    const carry_lm_args args = {
        .ids = ids, .labels = labels, .state = s->state, .loss = &s->loss, .counted = &s->counted};
    return carry_lm_run(s->pass, &args, s->memory, s->memory_bytes);
}

/* Ids and labels go up, the sums come back; the host waits for neither. */
static carry_status run_on_gpu(carry_scorer *s, carry_tensor ids, carry_tensor labels) {
    const int device = s->lm->own.device;
    const int64_t vocabulary = s->lm->config.vocab_size;
    carry_lm_args args = {.state = s->state, .total = s->total, .scale = 1.0f};
    args.ids = carry_view_on(device, s->there, CARRY_I64, 2, ids.shape);
    args.labels = carry_view_on(device, (int64_t *)s->there + s->most, CARRY_I64, 2, ids.shape);
    CARRY_TRY(carry_check_ids(s->ctx, ids, vocabulary));
    CARRY_TRY(carry_check_targets(s->ctx, &s->counted, labels, vocabulary));
    CARRY_TRY(carry_copy(s->ctx, args.ids, ids));
    CARRY_TRY(carry_copy(s->ctx, args.labels, labels));
    CARRY_TRY(carry_zero(s->ctx, s->total));
    CARRY_TRY(carry_lm_repeat_run(&s->repeat, s->pass, &args, s->memory, s->memory_bytes));
    return carry_copy(s->ctx, carry_view_1d(s->sums, CARRY_F64, 2), s->total);
}

carry_status carry_scorer_run(carry_scorer *s, int64_t rows, int64_t length) {
    if (s->is_pending || rows < 1 || length < 1 || rows > s->most / length) {
        return carry_fail(s->ctx, CARRY_EARGUMENT,
                          "%" PRId64 " rows of %" PRId64 " tokens, calls have %" PRId64 " at most%s", rows, length,
                          s->most, s->is_pending ? "; the call before was not taken" : "");
    }
    CARRY_TRY(want_pass(s, rows, length));
    int64_t *input;
    int64_t *label;
    carry_scorer_rows(s, &input, &label);
    const carry_tensor ids = carry_view_2d(input, CARRY_I64, rows, length);
    const carry_tensor labels = carry_view_2d(label, CARRY_I64, rows, length);
    CARRY_TRY(s->lm->own.device != 0 ? run_on_gpu(s, ids, labels) : run_on_cpu(s, ids, labels));
    s->is_pending = true;
    s->next = (s->next + 1) % CARRY_SCORER_SLOTS;
    return CARRY_OK;
}

carry_status carry_scorer_take(carry_scorer *s, bool *is_there, double *loss, int64_t *counted) {
    const int device = s->lm->own.device;
    *is_there = s->is_pending;
    if (!s->is_pending) {
        return CARRY_OK;
    }
    if (device != 0) {
        CARRY_TRY(carry_stream_wait(s->ctx, device, carry_ctx_stream(s->ctx, device)));
        s->loss = s->sums[0];
    }
    *loss = s->loss;
    *counted = s->counted;
    s->is_pending = false;
    return CARRY_OK;
}
