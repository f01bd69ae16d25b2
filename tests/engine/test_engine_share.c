/* Requests with the same prompt read it once. Over the runner of hashes: every text equals that of its prompt alone. */
#include "engine_support.h"

#define SLOTS 40
#define PAGES 400
#define SEQUENCES 8
#define TOKENS 256
#define CONTEXT 4096
#define CHOICES 6

typedef struct bench {
    carry_ctx *ctx;
    fake_runner *runner;
    carry_scheduler *scheduler;
    int32_t ids[CONTEXT];
    engine_text texts[CHOICES];
} bench;

/* variant: bit 0 pages, bit 1 overlapped steps, bit 2 a cache. */
static void open_bench(bench *b, int variant) {
    uint64_t random = 23;
    *b = (bench){.ctx = support_ctx(1, NULL, NULL)};
    b->runner =
        fake_runner_new(b->ctx, SLOTS, (variant & 1) != 0 ? PAGES : 0, SEQUENCES, TOKENS, CONTEXT, (variant & 2) != 0);
    const carry_scheduler_options options = {.cache = {.device_bytes = (variant & 4) != 0 ? SIZE_MAX : 0},
                                             .on_event = engine_collect};
    assert_ok(b->ctx, carry_scheduler_new(b->ctx, &b->scheduler, &b->runner->head, &options));
    engine_random_ids(&random, b->ids, CONTEXT, FAKE_VOCABULARY);
}

static void close_bench(bench *b) {
    const carry_scheduler_stats stats = carry_scheduler_statistics(b->scheduler);
    assert_int_equal(stats.active + stats.waiting + stats.states, 0);
    assert_int_equal(stats.free_slots + stats.cache.snapshots, stats.slots);
    assert_int_equal(stats.free_pages + stats.cache.pages, stats.pages);
    for (int i = 0; i < CHOICES; i++) {
        engine_text_free(&b->texts[i]);
    }
    carry_scheduler_free(b->scheduler);
    b->runner->head.ops->close(&b->runner->head);
    carry_ctx_free(b->ctx);
}

static carry_sampling sampling_of(int choice) {
    return (carry_sampling){.temperature = 1.0, .top_p = 1.0, .seed = 3 + (uint64_t)choice};
}

static void submit(bench *b, int choice, int64_t count, uint64_t shares) {
    const carry_sequence_options o = {.ids = b->ids,
                                      .count = count,
                                      .tokens = 20,
                                      .sampling = sampling_of(choice),
                                      .logprobs = -1,
                                      .shares = shares,
                                      .user = &b->texts[choice]};
    engine_add(b->scheduler, b->ctx, &b->runner->head.sizes, &o, (uint64_t)choice + 1);
}

static void assert_text(const bench *b, int choice, int64_t count) {
    int32_t expected[20];
    const carry_sampling sampling = sampling_of(choice);
    engine_expected(b->ids, count, &sampling, 0, b->runner->head.sizes.page_bytes > 0, expected, 20);
    assert_true(b->texts[choice].has_ended);
    assert_int_equal(b->texts[choice].count, 20);
    assert_memory_equal(b->texts[choice].ids, expected, sizeof expected);
}

static void test_a_shared_prompt_is_read_once(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 127, 128, 129, 192, 193, 1000, 3000};
    for (int variant = 0; variant < 8; variant++) {
        for (int l = 0; l < 8; l++) {
            bench b;
            const int64_t count = lengths[l];
            const int64_t last = count < 128 ? 0 : (count - 1) / CARRY_PAGE_TOKENS * CARRY_PAGE_TOKENS;
            open_bench(&b, variant);
            for (int i = 0; i < CHOICES; i++) {
                submit(&b, i, count, i > 0 ? 1 : 0);
            }
            engine_run(b.scheduler);
            for (int i = 0; i < CHOICES; i++) {
                assert_text(&b, i, count);
                assert_int_equal(b.texts[i].cached, i > 0 ? last : 0);
            }
            if ((variant & 2) == 0) { /* overlapped steps read one more token of an ended text */
                assert_int_equal(b.runner->tokens, last + CHOICES * (count - last + 19));
            }
            close_bench(&b);
        }
    }
}

/* When the reading request ends, the next one continues to read, and all others wait for it. */
static void test_the_end_of_the_reader_leaves_the_others(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        for (int steps = 1; steps < 8; steps++) {
            bench b;
            bool is_busy;
            open_bench(&b, variant);
            for (int i = 0; i < CHOICES; i++) {
                submit(&b, i, 1500, i > 0 ? 1 : 0);
            }
            for (int step = 0; step < steps; step++) {
                assert_int_equal(carry_scheduler_step(b.scheduler, &is_busy), CARRY_OK);
            }
            (void)carry_scheduler_cancel(b.scheduler, 1);
            (void)carry_scheduler_cancel(b.scheduler, 3);
            engine_run(b.scheduler);
            for (int i = 0; i < CHOICES; i++) {
                if (i == 0 || i == 2) {
                    assert_true(b.texts[i].has_ended);
                } else {
                    assert_text(&b, i, 1500);
                }
            }
            assert_true(b.runner->tokens < 2 * 1500 + 6 * (TOKENS + 100));
            close_bench(&b);
        }
    }
}

static void test_failed_steps_of_the_reader_leave_the_others(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        bench b;
        open_bench(&b, variant);
        b.runner->fail_step = 2;
        for (int i = 0; i < CHOICES; i++) {
            submit(&b, i, 1500, i > 0 ? 1 : 0);
        }
        engine_run(b.scheduler);
        assert_int_equal(b.texts[0].outcome, CARRY_OUTCOME_FAILED);
        for (int i = 1; i < CHOICES; i++) {
            assert_text(&b, i, 1500);
        }
        close_bench(&b);
    }
}

/* A step leaves wrong states and fails when its results are read; by then others have copied these states. */
static void test_states_of_failed_results_are_not_used(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        for (int64_t step = 0; step < 10; step++) {
            bench b;
            bool is_busy = true;
            open_bench(&b, variant);
            b.runner->bad_step = step;
            for (int i = 0; i < 3; i++) {
                submit(&b, i, 1500, i > 0 ? 1 : 0);
            }
            for (int i = 0; i < 8 && is_busy; i++) {
                assert_int_equal(carry_scheduler_step(b.scheduler, &is_busy), CARRY_OK);
            }
            submit(&b, 3, 1480, 0); /* finds cached prefixes */
            for (int i = 0; i < 3; i++) {
                assert_int_equal(carry_scheduler_step(b.scheduler, &is_busy), CARRY_OK);
            }
            submit(&b, 4, 1500, 0);
            engine_run(b.scheduler);
            submit(&b, 5, 1500, 0);
            engine_run(b.scheduler);
            for (int i = 0; i < CHOICES; i++) {
                int32_t expected[20];
                const carry_sampling sampling = sampling_of(i);
                engine_expected(b.ids, i == 3 ? 1480 : 1500, &sampling, 0, (variant & 1) != 0, expected, 20);
                assert_true(b.texts[i].has_ended);
                assert_memory_equal(b.texts[i].ids, expected, (size_t)b.texts[i].count * sizeof *expected);
                assert_true(b.texts[i].count == 20 || strstr(b.texts[i].message, "injected") != NULL);
            }
            assert_text(&b, 5, 1500);
            close_bench(&b);
        }
    }
}

/* A step that fails after it has begun ends all its requests; texts beside a prompt too. */
static void test_states_of_steps_that_fail_midway_are_not_used(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        for (int64_t step = 0; step < 20; step++) {
            bench b;
            bool is_busy;
            open_bench(&b, variant);
            b.runner->fail_step = step;
            b.runner->fails_midway = true;
            submit(&b, 0, 100, 0);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(carry_scheduler_step(b.scheduler, &is_busy), CARRY_OK);
            }
            submit(&b, 1, 1500, 0);
            submit(&b, 2, 1500, 2);
            engine_run(b.scheduler);
            submit(&b, 3, 1500, 0);
            engine_run(b.scheduler);
            for (int i = 0; i < 3; i++) {
                int32_t expected[20];
                const carry_sampling sampling = sampling_of(i);
                engine_expected(b.ids, i == 0 ? 100 : 1500, &sampling, 0, (variant & 1) != 0, expected, 20);
                assert_true(b.texts[i].has_ended);
                assert_memory_equal(b.texts[i].ids, expected, (size_t)b.texts[i].count * sizeof *expected);
            }
            assert_text(&b, 3, 1500);
            close_bench(&b);
        }
    }
}

static void test_other_prompts_are_not_shared(void **state) {
    (void)state;
    bench b;
    open_bench(&b, 1);
    submit(&b, 0, 600, 0);
    submit(&b, 1, 601, 1);  /* longer */
    submit(&b, 2, 600, 99); /* of an unknown request */
    submit(&b, 3, 600, 0);
    engine_run(b.scheduler);
    for (int i = 0; i < 4; i++) {
        assert_text(&b, i, i == 1 ? 601 : 600);
        assert_int_equal(b.texts[i].cached, 0);
    }
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_shared_prompt_is_read_once),
        cmocka_unit_test(test_the_end_of_the_reader_leaves_the_others),
        cmocka_unit_test(test_failed_steps_of_the_reader_leave_the_others),
        cmocka_unit_test(test_states_of_failed_results_are_not_used),
        cmocka_unit_test(test_states_of_steps_that_fail_midway_are_not_used),
        cmocka_unit_test(test_other_prompts_are_not_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
