/* A scheduler over a runner of hashes, for the tests of kept states and of the tiers of cached prefixes. */
#ifndef CARRY_TESTS_STATE_BENCH_H
#define CARRY_TESTS_STATE_BENCH_H

#include "core/file.h"
#include "engine/scheduler_internal.h"
#include "engine_support.h"

#define SLOTS 24
#define PAGES 120
#define SEQUENCES 4
#define CONTEXT 2048

typedef struct bench {
    carry_ctx *ctx;
    fake_runner *runner;
    carry_scheduler *scheduler;
    int warnings;
} bench;

static inline void count_warnings(void *user, carry_log_level level, const char *line) {
    (void)line;
    ((bench *)user)->warnings += level == CARRY_LOG_WARNING;
}

static inline void open_bench(bench *b, bool has_pages, bool overlaps, const carry_prefix_options *cache) {
    *b = (bench){0};
    assert_int_equal(carry_ctx_new(&b->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                 .log = count_warnings, .log_user = b}),
                     CARRY_OK);
    b->runner = fake_runner_new(b->ctx, SLOTS, has_pages ? PAGES : 0, SEQUENCES, 256, CONTEXT, overlaps);
    const carry_scheduler_options options = {.cache = *cache, .snapshot_every = 128, .on_event = engine_collect};
    assert_ok(b->ctx, carry_scheduler_new(b->ctx, &b->scheduler, &b->runner->head, &options));
}

static inline void close_bench(bench *b) {
    carry_scheduler_free(b->scheduler);
    b->runner->head.ops->close(&b->runner->head);
    carry_ctx_free(b->ctx);
}

static const carry_sampling sampling = {.temperature = 0.5, .top_p = 1.0, .seed = 9};

/* Runs one request, which continues from `state` if that is not 0. */
static inline engine_text run(bench *b, const int32_t *ids, int64_t count, int64_t tokens, uint64_t state, bool keeps) {
    engine_text text = {0};
    const carry_sequence_options o = {.ids = ids,
                                      .count = count,
                                      .tokens = tokens,
                                      .sampling = sampling,
                                      .logprobs = -1,
                                      .state = state,
                                      .keeps = keeps,
                                      .user = &text};
    engine_add(b->scheduler, b->ctx, &b->runner->head.sizes, &o, 1);
    engine_run(b->scheduler);
    assert_true(text.has_ended);
    return text;
}

static inline void assert_text(const bench *b, const engine_text *text, const int32_t *ids, int64_t count) {
    int32_t expected[CONTEXT];
    engine_expected(ids, count, &sampling, 0, b->runner->head.sizes.page_bytes > 0, expected, text->count);
    assert_memory_equal(text->ids, expected, (size_t)text->count * sizeof *expected);
}

static const carry_prefix_options cached = {.device_bytes = SIZE_MAX};

static inline void temporary(bench *b, char path[CARRY_FILE_PATH], const char *name) {
    char folder[CARRY_FILE_PATH];
    assert_ok(b->ctx, carry_file_temporary_folder(b->ctx, folder, "carry-engine"));
    assert_ok(b->ctx, carry_file_in(b->ctx, path, folder, name));
}

#endif
