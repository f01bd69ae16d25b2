/* The host side of sampling on a GPU: rows and words are uploaded in one copy, results come back in pinned memory. */
#include "engine/sample_device.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "device/backend.h"

#if defined(CARRY_HAVE_CUDA)
extern const carry_sample_kernel carry_sample_cuda;
#endif

static const carry_sample_kernel *const kernels[] = {
#if defined(CARRY_HAVE_CUDA)
    &carry_sample_cuda,
#endif
    NULL,
};

/* One call in progress. */
typedef struct sample_step {
    void *pinned, *device; /* rows, then words */
    size_t bytes;
    carry_run_result *results; /* pinned */
    carry_event *done;
    int64_t count; /* runs of the call */
} sample_step;

struct carry_device_sampler {
    carry_ctx *ctx;
    int device, ordinal;
    int64_t sequences, vocabulary;
    const carry_sample_kernel *kernel;
    sample_step step[CARRY_SAMPLE_STEPS];
    unsigned newest, oldest; /* number of calls so far; number of calls whose results were read */
};

static const carry_sample_kernel *kernel_of(int device, int *ordinal, int64_t vocabulary) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    for (int i = 0; backend != NULL && kernels[i] != NULL; i++) {
        if (strcmp(kernels[i]->backend, backend->name) == 0 && kernels[i]->works(*ordinal, vocabulary)) {
            return kernels[i];
        }
    }
    return NULL;
}

/* Reserves memory for `bytes` of rows and words. The step must not be running. */
static carry_status reserve(carry_device_sampler *s, sample_step *step, size_t bytes) {
    if (bytes <= step->bytes) {
        return CARRY_OK;
    }
    carry_host_free(s->ctx, step->pinned);
    carry_device_free(s->ctx, s->device, step->device);
    step->pinned = step->device = NULL;
    step->bytes = 0;
    CARRY_TRY(carry_host_alloc(s->ctx, &step->pinned, bytes));
    CARRY_TRY(carry_device_alloc(s->ctx, &step->device, s->device, bytes));
    step->bytes = bytes;
    return CARRY_OK;
}

static carry_status open_steps(carry_device_sampler *s) {
    for (int i = 0; i < CARRY_SAMPLE_STEPS; i++) {
        sample_step *step = &s->step[i];
        void *results;
        CARRY_TRY(reserve(s, step, (size_t)s->sequences * sizeof(carry_sample_row)));
        CARRY_TRY(carry_host_alloc(s->ctx, &results, (size_t)s->sequences * sizeof *step->results));
        step->results = results;
        CARRY_TRY(carry_event_new(s->ctx, &step->done, s->device));
    }
    return CARRY_OK;
}

void carry_device_sampler_close(carry_device_sampler *s) {
    if (s == NULL) {
        return;
    }
    (void)carry_stream_wait(s->ctx, s->device, carry_ctx_stream(s->ctx, s->device));
    for (int i = 0; i < CARRY_SAMPLE_STEPS; i++) {
        carry_host_free(s->ctx, s->step[i].pinned);
        carry_device_free(s->ctx, s->device, s->step[i].device);
        carry_host_free(s->ctx, s->step[i].results);
        carry_event_free(s->ctx, s->device, s->step[i].done);
    }
    free(s);
}

carry_status carry_device_sampler_open(carry_device_sampler **made, carry_ctx *ctx, int device, int64_t sequences,
                                       int64_t vocabulary) {
    *made = NULL;
    int ordinal = 0;
    const carry_sample_kernel *kernel = kernel_of(device, &ordinal, vocabulary);
    if (kernel == NULL) {
        return CARRY_OK;
    }
    if (sequences < 1 || sequences > INT32_MAX / (int64_t)sizeof(carry_sample_row)) {
        return carry_fail(ctx, CARRY_ESIZE, "tokens of %" PRId64 " sequences cannot be sampled at once", sequences);
    }
    carry_device_sampler *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the sampler");
    }
    *s = (carry_device_sampler){.ctx = ctx,
                                .device = device,
                                .ordinal = ordinal,
                                .sequences = sequences,
                                .vocabulary = vocabulary,
                                .kernel = kernel};
    const carry_status status = open_steps(s);
    if (status != CARRY_OK) {
        carry_device_sampler_close(s);
        return status;
    }
    *made = s;
    return CARRY_OK;
}

/* The number of 4-byte words that a run adds to those of the call. */
static int64_t words_of(const carry_device_sampler *s, const carry_run *run) {
    int64_t words = 0;
    if (run->wants_token) {
        const double penalty = run->sampling->repetition;
        words += penalty != 0.0 && penalty != 1.0 ? run->seen_count : 0;
        words += run->allowed != NULL ? (s->vocabulary + 31) / 32 : 0;
        words += run->bias != NULL ? s->vocabulary : 0;
    }
    return words;
}

/* Appends words and returns the index of the first. */
static int32_t put_words(uint32_t *words, int64_t *used, const void *from, int64_t count) {
    const int64_t at = *used;
    memcpy(words + at, from, (size_t)count * sizeof *words);
    *used += count;
    return (int32_t)at;
}

static carry_sample_row make_row(const carry_device_sampler *s, const carry_run *run, int64_t index, uint32_t *words,
                                 int64_t *used) {
    const carry_sampling *sampling = run->sampling;
    const bool is_greedy = sampling->temperature == 0.0 || sampling->top_k == 1;
    carry_sample_row row = {
        .unit = carry_sample_unit(sampling->seed, run->stream, run->at),
        .top_p = sampling->top_p,
        .min_p = sampling->min_p,
        .penalty = sampling->repetition,
        .top_k = sampling->top_k < s->vocabulary ? sampling->top_k : 0,
        .rate = is_greedy ? 0.0f : (float)fmin(1.0 / sampling->temperature, 1e30),
        .slot = run->slot,
        .result = (int32_t)index,
        .logprobs = run->logprobs < CARRY_RUN_LOGPROBS ? run->logprobs : CARRY_RUN_LOGPROBS,
        .seen = -1,
        .allowed = -1,
        .bias = -1,
    };
    if (row.penalty != 0.0 && row.penalty != 1.0 && run->seen_count > 0) {
        row.seen = put_words(words, used, run->seen, run->seen_count);
        row.seen_count = (int32_t)run->seen_count;
    }
    if (run->allowed != NULL) {
        row.allowed = put_words(words, used, run->allowed, (s->vocabulary + 31) / 32);
    }
    if (run->bias != NULL) {
        row.bias = put_words(words, used, run->bias, s->vocabulary);
    }
    return row;
}

static bool is_plain(const carry_sample_row *row) {
    return row->rate == 0.0f && row->logprobs < 0 && row->seen < 0 && row->allowed < 0 && row->bias < 0;
}

static carry_status check(carry_device_sampler *s, carry_tensor logits, const carry_run *runs, int64_t count,
                          int64_t *rows, int64_t *words) {
    if (s->newest - s->oldest >= CARRY_SAMPLE_STEPS || count < 1 || count > s->sequences) {
        return carry_fail(s->ctx, CARRY_EARGUMENT,
                          "sampling for %" PRId64 " sequences with %u steps under way: at most %" PRId64 " and %d",
                          count, s->newest - s->oldest, s->sequences, CARRY_SAMPLE_STEPS - 1);
    }
    *rows = *words = 0;
    for (int64_t i = 0; i < count; i++) {
        *rows += runs[i].wants_token ? 1 : 0;
        *words += words_of(s, &runs[i]);
    }
    if (*words > INT32_MAX || (logits.dtype != CARRY_F32 && logits.dtype != CARRY_BF16) ||
        (*rows > 0 && (logits.rank != 2 || logits.shape[0] < *rows || logits.shape[1] != s->vocabulary))) {
        return carry_fail(s->ctx, CARRY_ESIZE, "logits of %" PRId64 " rows of %" PRId64 " tokens are needed", *rows,
                          s->vocabulary);
    }
    return CARRY_OK;
}

carry_status carry_device_sampler_run(carry_device_sampler *s, carry_tensor logits, const int64_t *row_of,
                                      const carry_run *runs, int64_t count, int32_t *last) {
    int64_t rows;
    int64_t words;
    CARRY_TRY(check(s, logits, runs, count, &rows, &words));
    sample_step *step = &s->step[s->newest % CARRY_SAMPLE_STEPS];
    carry_stream *stream = carry_ctx_stream(s->ctx, s->device);
    const size_t row_bytes = (size_t)s->sequences * sizeof(carry_sample_row);
    CARRY_TRY(reserve(s, step, row_bytes + (size_t)words * sizeof(uint32_t)));
    carry_sample_row *row = step->pinned;
    uint32_t *word = (uint32_t *)((char *)step->pinned + row_bytes);
    int64_t used = 0;
    int64_t at = 0;
    bool is_greedy = true;
    for (int64_t i = 0; i < count; i++) {
        step->results[i] = (carry_run_result){.token = -1};
        for (int j = 0; j < CARRY_RUN_LOGPROBS; j++) {
            step->results[i].top[j] = -1;
        }
        if (runs[i].wants_token) {
            row[at] = make_row(s, &runs[i], i, word, &used);
            row[at].row = (int32_t)row_of[i];
            is_greedy = is_greedy && is_plain(&row[at]);
            at++;
        }
    }
    if (rows > 0) {
        const size_t bytes = used > 0 ? row_bytes + (size_t)used * sizeof *word : (size_t)rows * sizeof *row;
        const carry_sample_call call = {.logits = logits.data,
                                        .is_bf16 = logits.dtype == CARRY_BF16,
                                        .is_greedy = is_greedy,
                                        .stride = logits.stride[0],
                                        .rows = (int)rows,
                                        .vocabulary = (int)s->vocabulary,
                                        .row = step->device,
                                        .words = (uint32_t *)((char *)step->device + row_bytes),
                                        .last = last,
                                        .results = step->results};
        CARRY_TRY(carry_device_copy(s->ctx, step->device, s->device, step->pinned, 0, bytes, stream));
        CARRY_TRY(s->kernel->launch(s->ctx, s->ordinal, stream, &call));
    }
    CARRY_TRY(carry_event_record(s->ctx, s->device, step->done, stream));
    step->count = count;
    s->newest++;
    return CARRY_OK;
}

carry_status carry_device_sampler_fill_ids(carry_device_sampler *s, int64_t *ids, const int32_t *slots,
                                           const int32_t *last, int64_t count) {
    return s->kernel->fill_ids(s->ctx, s->ordinal, carry_ctx_stream(s->ctx, s->device), ids, slots, last, count);
}

carry_status carry_device_sampler_results(carry_device_sampler *s, carry_run_result *results, int64_t count) {
    sample_step *step = &s->step[s->oldest % CARRY_SAMPLE_STEPS];
    if (s->oldest == s->newest || count != step->count) {
        return carry_fail(s->ctx, CARRY_EARGUMENT, "results of %" PRId64 " runs are not under way", count);
    }
    CARRY_TRY(carry_event_wait(s->ctx, s->device, step->done));
    memcpy(results, step->results, (size_t)count * sizeof *results);
    s->oldest++;
    return CARRY_OK;
}
