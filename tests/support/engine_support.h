/* A runner whose states are hashes of the tokens that were read. A slot holds the number of its tokens and their hash;
   a page holds a hash for each of its tokens and positions. The next token is a function of slot, all pages and the
   sampling, so that a slot or page that is mixed up, shared by mistake, not copied or not restored shows as a wrong
   token. engine_expected computes the same from the tokens alone. Time is simulated: a step takes a fixed time and a
   time for each token. */
#ifndef CARRY_TESTS_ENGINE_SUPPORT_H
#define CARRY_TESTS_ENGINE_SUPPORT_H

#include "core/context.h"
#include "core/rng.h"
#include "engine/scheduler.h"
#include "support.h"

#define FAKE_VOCABULARY 1000
#define FAKE_FAULT 0x8000000000000000ull /* in a seed: token number (seed & 15) fails */
#define FAKE_DEPTH 4

typedef struct fake_slot {
    uint64_t length, hash;
    int64_t sampled;
} fake_slot;

typedef struct fake_page {
    uint64_t hash[CARRY_PAGE_TOKENS];
} fake_page;

typedef struct fake_runner {
    carry_runner head;
    fake_slot *slots;
    fake_page *pages;
    carry_run_result *results[FAKE_DEPTH];
    int64_t counts[FAKE_DEPTH];
    int first, pending;
    uint64_t model;
    /* Simulated time: the host's clock, when the device finishes each step and the last one, and the cost of a step and
       of a token. */
    double seconds, done[FAKE_DEPTH], device_done, step_s, token_s;
    int64_t steps, tokens;
    int64_t most_pieces;  /* the most prompt tokens in one step that also had texts */
    int64_t fail_step;    /* the number of the step that fails, or -1 */
    int64_t fail_results; /* the same for its results */
    bool fails_midway;    /* the step that fails has changed states */
    int64_t bad_step;     /* the number of the step that leaves wrong states and whose results fail, or -1 */
    bool is_bad[FAKE_DEPTH];
} fake_runner;

static inline uint64_t fake_mix(uint64_t a, uint64_t b) {
    const carry_words w = carry_philox(a, b, 7);
    return (uint64_t)w.word[0] << 32 | w.word[1];
}

static inline int32_t fake_sample(uint64_t slot, uint64_t pages, const carry_sampling *sampling, uint64_t stream,
                                  uint64_t at) {
    uint64_t h = fake_mix(slot, pages);
    if (sampling->temperature > 0.0) {
        h = fake_mix(h, sampling->seed ^ fake_mix(stream, at));
    }
    return (int32_t)(h % FAKE_VOCABULARY);
}

/* The expected text after a prompt, `count` tokens. */
static inline void engine_expected(const int32_t *prompt, int64_t length, const carry_sampling *sampling,
                                   uint64_t stream, bool has_pages, int32_t *text, int64_t count) {
    uint64_t slot = 0;
    uint64_t pages = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < length + count - 1 || i < length; i++) {
        const uint64_t id = (uint64_t)(i < length ? prompt[i] : text[i - length]);
        slot = fake_mix(slot, id);
        pages += has_pages ? fake_mix(id, (uint64_t)i) : 0;
        if (i >= length - 1 && at < count) {
            text[at] = fake_sample(slot, pages, sampling, stream, (uint64_t)at);
            at++;
        }
    }
}

static inline uint64_t fake_attend(const fake_runner *f, const int32_t *pages, int64_t length) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < length && f->head.sizes.page_bytes > 0; i++) {
        sum += f->pages[pages[i / CARRY_PAGE_TOKENS]].hash[i % CARRY_PAGE_TOKENS];
    }
    return sum;
}

static inline void fake_run(fake_runner *f, const carry_run *run, carry_run_result *result) {
    fake_slot *slot = &f->slots[run->slot];
    *result = (carry_run_result){.token = -1};
    if (run->follows) {
        assert_true(run->count == 1 && run[-1].count == 1 && run[-1].pages == run->pages);
        *slot = f->slots[run[-1].slot];
    }
    assert_int_equal(slot->length, run->length);
    for (int64_t i = 0; i < run->count; i++) {
        const int64_t at = run->length + i;
        const uint64_t id = (uint64_t)(run->ids != NULL ? run->ids[i] : slot->sampled);
        assert_true(id < FAKE_VOCABULARY);
        slot->hash = fake_mix(slot->hash, id);
        slot->length++;
        if (f->head.sizes.page_bytes > 0) {
            f->pages[run->pages[at / CARRY_PAGE_TOKENS]].hash[at % CARRY_PAGE_TOKENS] = fake_mix(id, (uint64_t)at);
        }
    }
    if (run->wants_token) {
        const uint64_t fault = run->sampling->seed & FAKE_FAULT;
        result->is_failed = fault != 0 && run->at == (run->sampling->seed & 15);
        result->token = fake_sample(slot->hash, fake_attend(f, run->pages, run->length + run->count), run->sampling,
                                    run->stream, run->at);
        slot->sampled = result->token;
    }
}

static inline carry_status fake_step(carry_runner *runner, const carry_run *runs, int64_t count) {
    fake_runner *f = (fake_runner *)runner;
    int64_t pieces = 0;
    int64_t singles = 0;
    assert_in_range(count, 1, f->head.sizes.sequences);
    f->head.has_begun = false;
    if (f->steps++ == f->fail_step) {
        for (int64_t i = 0; i < count && f->fails_midway; i++) {
            f->slots[runs[i].slot].hash ^= 1;
            f->head.has_begun = true;
        }
        return carry_fail(runner->ctx, CARRY_EMEMORY, "out of device memory (injected)");
    }
    assert_true(f->pending < FAKE_DEPTH);
    const int at = (f->first + f->pending++) % FAKE_DEPTH;
    f->counts[at] = count;
    for (int64_t i = 0; i < count; i++) {
        pieces += runs[i].count > 1 ? runs[i].count : 0;
        singles += runs[i].count == 1;
        fake_run(f, &runs[i], &f->results[at][i]);
    }
    assert_true(pieces + singles <= f->head.sizes.tokens);
    f->is_bad[at] = f->steps - 1 == f->bad_step;
    for (int64_t i = 0; i < count && f->is_bad[at]; i++) {
        f->slots[runs[i].slot].hash ^= 1;
    }
    f->tokens += pieces + singles;
    f->most_pieces = singles > 0 && pieces > f->most_pieces ? pieces : f->most_pieces;
    const double begin = f->seconds > f->device_done ? f->seconds : f->device_done;
    f->done[at] = f->device_done = begin + f->step_s + f->token_s * (double)pieces;
    f->seconds = f->head.overlaps ? f->seconds : f->device_done;
    return CARRY_OK;
}

static inline carry_status fake_results(carry_runner *runner, carry_run_result *results, int64_t count) {
    fake_runner *f = (fake_runner *)runner;
    assert_true(f->pending > 0 && f->counts[f->first] == count);
    const bool is_bad = f->is_bad[f->first];
    memcpy(results, f->results[f->first], (size_t)count * sizeof *results);
    f->seconds = f->done[f->first] > f->seconds ? f->done[f->first] : f->seconds;
    f->first = (f->first + 1) % FAKE_DEPTH;
    f->pending--;
    if (f->fail_results == 0 || is_bad) {
        f->fail_results = -1;
        return carry_fail(runner->ctx, CARRY_EDEVICE, "the device reported an error (injected)");
    }
    return CARRY_OK;
}

static inline carry_status fake_clear(carry_runner *runner, int32_t slot) {
    ((fake_runner *)runner)->slots[slot] = (fake_slot){0};
    return CARRY_OK;
}

static inline carry_status fake_copy_slot(carry_runner *runner, int32_t to, int32_t from) {
    fake_runner *f = (fake_runner *)runner;
    f->slots[to] = f->slots[from];
    f->slots[to].sampled = -1; /* only the original slot has its last token */
    return CARRY_OK;
}

static inline carry_status fake_copy_page(carry_runner *runner, int32_t to, int32_t from) {
    fake_runner *f = (fake_runner *)runner;
    f->pages[to] = f->pages[from];
    return CARRY_OK;
}

static inline carry_status fake_read_slot(carry_runner *runner, void *to, int32_t slot) {
    memcpy(to, &((fake_runner *)runner)->slots[slot], sizeof(fake_slot));
    return CARRY_OK;
}

static inline carry_status fake_write_slot(carry_runner *runner, int32_t slot, const void *from) {
    memcpy(&((fake_runner *)runner)->slots[slot], from, sizeof(fake_slot));
    return CARRY_OK;
}

static inline carry_status fake_read_page(carry_runner *runner, void *to, int32_t page) {
    memcpy(to, &((fake_runner *)runner)->pages[page], sizeof(fake_page));
    return CARRY_OK;
}

static inline carry_status fake_write_page(carry_runner *runner, int32_t page, const void *from) {
    memcpy(&((fake_runner *)runner)->pages[page], from, sizeof(fake_page));
    return CARRY_OK;
}

static inline carry_status fake_hash(carry_runner *runner, uint64_t *hash) {
    *hash = ((fake_runner *)runner)->model;
    return CARRY_OK;
}

static inline void fake_close(carry_runner *runner) {
    fake_runner *f = (fake_runner *)runner;
    for (int i = 0; i < FAKE_DEPTH; i++) {
        free(f->results[i]);
    }
    free(f->slots);
    free(f->pages);
    free(f);
}

static const carry_runner_ops fake_ops = {.close = fake_close,
                                          .step = fake_step,
                                          .results = fake_results,
                                          .clear_slot = fake_clear,
                                          .copy_slot = fake_copy_slot,
                                          .copy_page = fake_copy_page,
                                          .read_slot = fake_read_slot,
                                          .write_slot = fake_write_slot,
                                          .read_page = fake_read_page,
                                          .write_page = fake_write_page,
                                          .hash = fake_hash};

/* pages 0: a model without attention. */
static inline fake_runner *fake_runner_new(carry_ctx *ctx, int64_t slots, int64_t pages, int64_t sequences,
                                           int64_t tokens, int64_t context, bool overlaps) {
    fake_runner *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->head = (carry_runner){.ops = &fake_ops,
                             .ctx = ctx,
                             .overlaps = overlaps,
                             .sizes = {.slots = slots,
                                       .pages = pages,
                                       .sequences = sequences,
                                       .tokens = tokens,
                                       .context = context,
                                       .vocabulary = FAKE_VOCABULARY,
                                       .slot_bytes = sizeof(fake_slot),
                                       .page_bytes = pages > 0 ? sizeof(fake_page) : 0}};
    f->slots = calloc((size_t)slots, sizeof *f->slots);
    f->pages = calloc((size_t)pages + 1, sizeof *f->pages);
    for (int i = 0; i < FAKE_DEPTH; i++) {
        f->results[i] = calloc((size_t)sequences, sizeof *f->results[i]);
    }
    f->model = 42;
    f->step_s = 0.001;
    f->token_s = 0.00001;
    f->fail_step = f->fail_results = f->bad_step = -1;
    for (int64_t i = 0; i < slots; i++) { /* not zero, so that a slot that is not cleared shows */
        f->slots[i] = (fake_slot){.length = 77, .hash = 5};
    }
    return f;
}

/* The result of a request. */
typedef struct engine_text {
    int32_t *ids;
    int64_t count, room, prompt, cached;
    carry_outcome outcome;
    carry_status status;
    uint64_t state;
    bool has_ended;
    char message[256];
} engine_text;

/* sequence->options.user is an engine_text. */
static inline void engine_collect(void *user, const carry_sequence_event *event) {
    (void)user;
    engine_text *t = event->sequence->options.user;
    assert_false(t->has_ended);
    if (event->result != NULL) {
        if (t->count == t->room) {
            t->room = 2 * t->room + 16;
            t->ids = realloc(t->ids, (size_t)t->room * sizeof *t->ids);
            assert_non_null(t->ids);
        }
        t->ids[t->count++] = event->result->token;
        return;
    }
    t->has_ended = true;
    t->outcome = event->sequence->outcome;
    t->status = event->sequence->status;
    t->cached = event->sequence->cached;
    t->state = event->state;
    (void)snprintf(t->message, sizeof t->message, "%s", event->sequence->message);
    assert_int_equal(t->count, event->sequence->written);
}

static inline void engine_text_free(engine_text *t) {
    free(t->ids);
    *t = (engine_text){0};
}

static inline uint64_t engine_random(uint64_t *state) {
    *state = fake_mix(*state, 99);
    return *state;
}

static inline void engine_random_ids(uint64_t *state, int32_t *ids, int64_t count, int32_t below) {
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (int32_t)(engine_random(state) % (uint64_t)below);
    }
}

static inline void engine_run(carry_scheduler *s) {
    for (bool is_busy = true; is_busy;) {
        assert_int_equal(carry_scheduler_step(s, &is_busy), CARRY_OK);
    }
}

/* Adds a request or fails the test; the text is collected into `text`. */
static inline void engine_add(carry_scheduler *s, carry_ctx *ctx, const carry_runner_sizes *sizes,
                              const carry_sequence_options *options, uint64_t request) {
    carry_sequence *q;
    assert_ok(ctx, carry_sequence_new(ctx, &q, sizes, options));
    assert_ok(ctx, carry_scheduler_add(s, q, request));
}

#endif
