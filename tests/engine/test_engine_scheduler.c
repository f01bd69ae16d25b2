/* The scheduler over a runner of hashes: every text equals the one that its prompt gives alone, whatever runs beside
   it. */
#include "core/memory.h"
#include "engine_support.h"

#define SLOTS 40
#define PAGES 400
#define SEQUENCES 8
#define TOKENS 512
#define CONTEXT 4096

typedef struct bench {
    carry_ctx *ctx;
    fake_runner *runner;
    carry_scheduler *scheduler;
} bench;

static double fake_clock(void *user) {
    return ((const bench *)user)->runner->seconds;
}

static bench open_bench_with(bool has_pages, bool overlaps, size_t cache, int64_t cut_from) {
    bench b = {.ctx = support_ctx(1, NULL, NULL)};
    b.runner = fake_runner_new(b.ctx, SLOTS, has_pages ? PAGES : 0, SEQUENCES, TOKENS, CONTEXT, overlaps);
    const carry_scheduler_options options = {
        .cache = {.device_bytes = cache}, .queue = 2000, .cut_from = cut_from, .on_event = engine_collect};
    assert_ok(b.ctx, carry_scheduler_new(b.ctx, &b.scheduler, &b.runner->head, &options));
    return b;
}

static bench open_bench(bool has_pages, bool overlaps, size_t cache) {
    return open_bench_with(has_pages, overlaps, cache, 0);
}

static void close_bench(bench *b) {
    carry_scheduler_free(b->scheduler);
    b->runner->head.ops->close(&b->runner->head);
    carry_ctx_free(b->ctx);
}

static carry_sequence_options options_of(const int32_t *ids, int64_t count, int64_t tokens, engine_text *text) {
    return (carry_sequence_options){.ids = ids,
                                    .count = count,
                                    .tokens = tokens,
                                    .sampling = {.temperature = 1.0, .top_p = 1.0, .seed = 3},
                                    .logprobs = -1,
                                    .user = text};
}

static void submit(bench *b, const carry_sequence_options *o, uint64_t request) {
    engine_add(b->scheduler, b->ctx, &b->runner->head.sizes, o, request);
}

static void assert_text(const bench *b, const engine_text *text, const int32_t *ids, int64_t count,
                        const carry_sampling *sampling) {
    int32_t expected[CONTEXT];
    engine_expected(ids, count, sampling, 0, b->runner->head.sizes.page_bytes > 0, expected, text->count);
    assert_memory_equal(text->ids, expected, (size_t)text->count * sizeof *expected);
}

static void all_is_free(const bench *b) {
    const carry_scheduler_stats stats = carry_scheduler_statistics(b->scheduler);
    assert_int_equal(stats.active + stats.waiting + stats.states, 0);
    assert_int_equal(stats.free_slots + stats.cache.snapshots, stats.slots);
    assert_int_equal(stats.free_pages + stats.cache.pages, stats.pages);
}

static void test_texts_are_those_of_their_prompts_alone(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 63, 64, 65, 127, 128, 129, 500, 1023, 1024, 1025, 3000};
    int32_t ids[CONTEXT];
    for (int variant = 0; variant < 32; variant++) {
        bench b = open_bench_with((variant & 1) != 0, (variant & 2) != 0, (variant & 4) != 0 ? SIZE_MAX : 0,
                                  (variant & 8) != 0 ? 600 : 0);
        b.runner->head.reads_singly = (variant & 16) != 0;
        engine_text texts[12] = {0};
        uint64_t random = 5;
        engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
        for (int round = 0; round < 3; round++) { /* cached from the second round on */
            for (int i = 0; i < 12; i++) {
                const carry_sequence_options o = options_of(ids, lengths[i], 1 + 7 * i, &texts[i]);
                submit(&b, &o, (uint64_t)i + 1);
            }
            engine_run(b.scheduler);
            for (int i = 0; i < 12; i++) {
                const carry_sequence_options o = options_of(ids, lengths[i], 1 + 7 * i, &texts[i]);
                assert_true(texts[i].has_ended);
                assert_int_equal(texts[i].outcome, CARRY_OUTCOME_LENGTH);
                assert_int_equal(texts[i].count, 1 + 7 * i);
                assert_text(&b, &texts[i], ids, lengths[i], &o.sampling);
                assert_true((variant & 12) != 4 || round == 0 || lengths[i] < 129 ||
                            texts[i].cached >= lengths[i] - 64);
                engine_text_free(&texts[i]);
            }
        }
        all_is_free(&b);
        close_bench(&b);
    }
}

/* A short prompt is one piece; its state is cached at its end, from which a conversation continues. */
static void test_short_prompts_are_not_cut(void **state) {
    (void)state;
    static const int64_t lengths[] = {127, 128, 130, 192, 400, 511, 512};
    int32_t ids[CONTEXT];
    uint64_t random = 29;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int variant = 0; variant < 4; variant++) {
        for (int i = 0; i < 7; i++) {
            bench b = open_bench_with((variant & 1) != 0, (variant & 2) != 0, SIZE_MAX, 1024);
            engine_text texts[2] = {0};
            const carry_sequence_options o = options_of(ids, lengths[i], 5, &texts[0]);
            submit(&b, &o, 1);
            engine_run(b.scheduler);
            assert_int_equal(b.runner->steps, 5);
            assert_text(&b, &texts[0], ids, lengths[i], &o.sampling);
            const carry_sequence_options more = options_of(ids, lengths[i] + 50, 9, &texts[1]); /* another answer */
            submit(&b, &more, 2);
            engine_run(b.scheduler);
            assert_text(&b, &texts[1], ids, lengths[i] + 50, &more.sampling);
            assert_int_equal(texts[1].cached, lengths[i] < 128 ? 0 : lengths[i]);
            engine_text_free(&texts[0]);
            engine_text_free(&texts[1]);
            all_is_free(&b);
            close_bench(&b);
        }
    }
}

static void test_end_tokens_and_the_context_end_texts(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    int32_t expected[64];
    uint64_t random = 11;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        bench b = open_bench(true, overlaps != 0, SIZE_MAX);
        engine_text texts[2] = {0};
        carry_sequence_options o = options_of(ids, 100, 64, &texts[0]);
        engine_expected(ids, 100, &o.sampling, 0, true, expected, 64);
        o.ends = &expected[20];
        o.end_count = 1;
        submit(&b, &o, 1);
        o = options_of(ids, CONTEXT - 5, 64, &texts[1]);
        submit(&b, &o, 2);
        engine_run(b.scheduler);
        int64_t first = 0;
        while (expected[first] != expected[20]) {
            first++;
        }
        assert_int_equal(texts[0].outcome, CARRY_OUTCOME_TOKEN);
        assert_int_equal(texts[0].count, first);
        assert_int_equal(texts[1].outcome, CARRY_OUTCOME_CONTEXT);
        assert_int_equal(texts[1].count, 5);
        assert_text(&b, &texts[1], ids, CONTEXT - 5, &o.sampling);
        engine_text_free(&texts[0]);
        engine_text_free(&texts[1]);
        all_is_free(&b);
        close_bench(&b);
    }
}

static void test_a_conversation_of_20_turns_is_cached(void **state) {
    (void)state;
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        bench b = open_bench(true, overlaps != 0, SIZE_MAX);
        int32_t ids[CONTEXT];
        int64_t count = 1500; /* instructions and tools */
        int64_t prompts = 0;
        int64_t cached = 0;
        uint64_t random = 17;
        engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
        for (int turn = 0; turn < 20; turn++) {
            engine_text text = {0};
            const carry_sequence_options o = options_of(ids, count, 60, &text);
            submit(&b, &o, (uint64_t)turn + 1);
            engine_run(b.scheduler);
            assert_text(&b, &text, ids, count, &o.sampling);
            prompts += turn > 0 ? count : 0;
            cached += text.cached;
            memcpy(ids + count, text.ids, (size_t)text.count * sizeof *ids); /* the answer, then a message of 40 */
            count += text.count + 40;
            engine_text_free(&text);
        }
        assert_true((double)cached >= 0.95 * (double)prompts);
        const carry_scheduler_stats stats = carry_scheduler_statistics(b.scheduler);
        assert_int_equal(stats.cached_tokens, cached);
        close_bench(&b);
    }
}

/* Conversations that share prefixes, continue from any of their turns, and compete for few slots and pages. */
static void test_random_conversations_are_the_same_with_the_cache(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bench b = open_bench((variant & 1) != 0, (variant & 2) != 0, SIZE_MAX);
        const int conversations = support_cases(200, 40);
        static int32_t ids[SEQUENCES][CONTEXT];
        uint64_t random = 23;
        int64_t cached = 0;
        for (int c = 0; c < conversations; c += SEQUENCES) {
            int64_t count[SEQUENCES];
            for (int i = 0; i < SEQUENCES; i++) { /* one of four beginnings */
                uint64_t start = engine_random(&random) % 4;
                engine_random_ids(&start, ids[i], 700, FAKE_VOCABULARY);
                count[i] = 10 + (int64_t)(engine_random(&random) % 690);
            }
            for (int turn = 0; turn < 4; turn++) {
                engine_text texts[SEQUENCES] = {0};
                for (int i = 0; i < SEQUENCES; i++) {
                    const int64_t tokens = 1 + (int64_t)(engine_random(&random) % 80);
                    const carry_sequence_options o = options_of(ids[i], count[i], tokens, &texts[i]);
                    submit(&b, &o, (uint64_t)i + 1);
                }
                engine_run(b.scheduler);
                for (int i = 0; i < SEQUENCES; i++) {
                    const carry_sequence_options o = options_of(ids[i], count[i], 1, NULL);
                    assert_text(&b, &texts[i], ids[i], count[i], &o.sampling);
                    cached += texts[i].cached;
                    const int64_t kept = (int64_t)(engine_random(&random) % (uint64_t)(texts[i].count + 1));
                    memcpy(ids[i] + count[i], texts[i].ids, (size_t)kept * sizeof(int32_t));
                    count[i] += kept;
                    const int64_t more = 1 + (int64_t)(engine_random(&random) % 100);
                    engine_random_ids(&random, ids[i] + count[i], more, FAKE_VOCABULARY);
                    count[i] += more;
                    engine_text_free(&texts[i]);
                }
            }
        }
        assert_true(cached > 0);
        all_is_free(&b);
        close_bench(&b);
    }
}

/* Requests of random lengths from a few prompts; a third is cancelled at random, some fail. */
static void run_random_requests(bench *b, int count, uint64_t seed, double *grown) {
    enum { UNDER_WAY = 64 };
    static int32_t ids[CONTEXT];
    engine_text texts[UNDER_WAY] = {0};
    int64_t lengths[UNDER_WAY] = {0};
    carry_sampling samplings[UNDER_WAY] = {0};
    bool is_cancelled[UNDER_WAY] = {0};
    int64_t whole = 0;
    double held = 0.0;
    int submitted = 0;
    uint64_t random = seed;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (bool is_busy = true; is_busy || submitted < count;) {
        for (int i = 0; i < UNDER_WAY && submitted < count; i++) {
            if (texts[i].ids == NULL && lengths[i] == 0) {
                lengths[i] = 1 + (int64_t)(engine_random(&random) % 300);
                carry_sequence_options o =
                    options_of(ids, lengths[i], 1 + (int64_t)(engine_random(&random) % 60), &texts[i]);
                o.sampling.seed = engine_random(&random) >> 1;
                o.sampling.seed |= submitted % 10 == 7 ? FAKE_FAULT : 0;
                o.is_uncached = submitted % 11 == 5;
                samplings[i] = o.sampling;
                is_cancelled[i] = submitted % 3 == 0;
                submit(b, &o, (uint64_t)submitted * UNDER_WAY + (uint64_t)i);
                submitted++;
                is_busy = true;
            }
        }
        assert_ok(b->ctx, carry_scheduler_step(b->scheduler, &is_busy));
        for (int i = 0; i < UNDER_WAY; i++) {
            if (is_cancelled[i] && !texts[i].has_ended && engine_random(&random) % 20 == 0) {
                for (int n = submitted - UNDER_WAY < 0 ? 0 : submitted - UNDER_WAY; n < submitted; n++) {
                    (void)carry_scheduler_cancel(b->scheduler, (uint64_t)n * UNDER_WAY + (uint64_t)i);
                }
            }
            if (texts[i].has_ended) {
                assert_text(b, &texts[i], ids, lengths[i], &samplings[i]);
                assert_true(texts[i].outcome != CARRY_OUTCOME_CANCELLED || is_cancelled[i]);
                if (texts[i].outcome == CARRY_OUTCOME_FAILED) {
                    assert_true((samplings[i].seed & FAKE_FAULT) != 0 && texts[i].status == CARRY_ERANGE);
                    assert_int_equal(texts[i].count, samplings[i].seed & 15);
                }
                whole += texts[i].outcome == CARRY_OUTCOME_LENGTH;
                engine_text_free(&texts[i]);
                lengths[i] = 0;
            }
        }
        if (held == 0.0 && submitted > count / 10) {
            held = carry_resident_bytes();
        }
    }
    assert_true(whole > count / 2);
    *grown = carry_resident_bytes() - held;
}

static void test_cancelled_and_failed_requests_leave_others_unchanged(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bench b = open_bench((variant & 1) != 0, (variant & 2) != 0, SIZE_MAX);
        double grown;
        run_random_requests(&b, 1000, 31 + (uint64_t)variant, &grown);
        all_is_free(&b);
        close_bench(&b);
    }
}

static void test_memory_does_not_grow(void **state) {
    (void)state;
    bench b = open_bench(true, true, SIZE_MAX);
    double grown;
    run_random_requests(&b, support_cases(100000, 3000), 77, &grown);
    all_is_free(&b);
    if (!SUPPORT_SANITIZED) {
        assert_true(grown < 4e6); /* the tree has at most a node for each page: 400 of 400 bytes */
    }
    close_bench(&b);
}

/* A runner that reads token by token keeps texts waiting for the longest piece of a step. */
static void test_pieces_read_singly_are_short_beside_texts(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 43;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int singly = 0; singly < 2; singly++) {
        bench b = open_bench(true, true, 0);
        b.runner->head.reads_singly = singly != 0;
        engine_text texts[2] = {0};
        const carry_sequence_options first = options_of(ids, 3, 200, &texts[0]);
        const carry_sequence_options second = options_of(ids, 300, 5, &texts[1]);
        bool is_busy = true;
        submit(&b, &first, 1);
        while (texts[0].count < 10) {
            assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
        }
        submit(&b, &second, 2);
        engine_run(b.scheduler);
        assert_true(singly ? b.runner->most_pieces <= 8 : b.runner->most_pieces >= 64);
        assert_text(&b, &texts[0], ids, 3, &first.sampling);
        assert_text(&b, &texts[1], ids, 300, &second.sampling);
        engine_text_free(&texts[0]);
        engine_text_free(&texts[1]);
        all_is_free(&b);
        close_bench(&b);
    }
}

/* Time is simulated: 1 ms for a step, 10 us for each token of a prompt. */
static void test_a_long_prompt_leaves_texts_half_their_rate(void **state) {
    (void)state;
    enum { LONG = 100000, TEXTS = 4, WRITTEN = 2000 };
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        bench b = {.ctx = support_ctx(1, NULL, NULL)};
        b.runner = fake_runner_new(b.ctx, SLOTS, 0, SEQUENCES, 4096, 2 * LONG, overlaps != 0);
        const carry_scheduler_options options = {
            .cache = {.device_bytes = SIZE_MAX}, .clock = fake_clock, .user = &b, .on_event = engine_collect};
        assert_ok(b.ctx, carry_scheduler_new(b.ctx, &b.scheduler, &b.runner->head, &options));
        int32_t *ids = malloc(LONG * sizeof *ids);
        engine_text texts[TEXTS] = {0};
        engine_text long_text = {0};
        uint64_t random = 41;
        engine_random_ids(&random, ids, LONG, FAKE_VOCABULARY);
        for (int i = 0; i < TEXTS; i++) {
            const carry_sequence_options o = options_of(ids, 10 + i, WRITTEN, &texts[i]);
            submit(&b, &o, (uint64_t)i + 1);
        }
        bool is_busy = true;
        while (texts[TEXTS - 1].count < 50) {
            assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
        }
        const carry_sequence_options o = options_of(ids, LONG, 1, &long_text);
        submit(&b, &o, 99);
        const double begun = b.runner->seconds;
        const int64_t before = texts[0].count;
        while (!long_text.has_ended && !texts[0].has_ended) {
            assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
        }
        const double rate = (double)(texts[0].count - before) / (b.runner->seconds - begun);
        assert_true(long_text.has_ended); /* the prompt progressed as well: its tokens take 1,000 steps of texts */
        assert_true(rate >= 0.49 / b.runner->step_s);
        engine_run(b.scheduler);
        for (int i = 0; i < TEXTS; i++) {
            engine_text_free(&texts[i]);
        }
        engine_text_free(&long_text);
        free(ids);
        close_bench(&b);
    }
}

static void test_short_prompts_pass_long_ones(void **state) {
    (void)state;
    bench b = open_bench(true, false, 0);
    int32_t ids[CONTEXT];
    engine_text texts[2] = {0};
    uint64_t random = 43;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    carry_sequence_options o = options_of(ids, 4000, 1, &texts[0]);
    submit(&b, &o, 1);
    o = options_of(ids, 100, 1, &texts[1]);
    submit(&b, &o, 2);
    bool is_busy;
    while (!texts[1].has_ended) {
        assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
        assert_false(texts[0].has_ended);
    }
    engine_run(b.scheduler);
    engine_text_free(&texts[0]);
    engine_text_free(&texts[1]);
    close_bench(&b);
}

/* Prompts that come together end one after the other, not all at the end. */
static void test_equal_prompts_end_in_turn(void **state) {
    enum { EQUALS = 8, EACH = 2000 };
    (void)state;
    bench b = open_bench(true, false, 0);
    int32_t ids[CONTEXT];
    engine_text texts[EQUALS] = {0};
    int64_t ended_at[EQUALS] = {0};
    uint64_t random = 53;
    for (int i = 0; i < EQUALS; i++) {
        engine_random_ids(&random, ids, EACH, FAKE_VOCABULARY);
        const carry_sequence_options o = options_of(ids, EACH, 1, &texts[i]);
        submit(&b, &o, (uint64_t)i + 1);
    }
    int64_t steps = 0;
    for (bool is_busy = true; is_busy; steps++) {
        assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
        for (int i = 0; i < EQUALS; i++) {
            ended_at[i] = ended_at[i] == 0 && texts[i].has_ended ? steps : ended_at[i];
        }
    }
    assert_true(ended_at[0] < steps / 4);
    assert_true(ended_at[EQUALS / 2 - 1] < 2 * steps / 3);
    for (int i = 0; i < EQUALS; i++) {
        engine_text_free(&texts[i]);
    }
    close_bench(&b);
}

/* A long prompt completes while short ones keep arriving. */
static void test_long_prompts_end_beside_short_ones(void **state) {
    enum { LONG_ONE = 4000, SHORT_ONES = 600 };
    (void)state;
    bench b = open_bench(true, false, 0);
    int32_t ids[CONTEXT];
    static engine_text texts[SHORT_ONES + 1];
    memset(texts, 0, sizeof texts);
    uint64_t random = 59;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    carry_sequence_options o = options_of(ids, LONG_ONE, 1, &texts[SHORT_ONES]);
    submit(&b, &o, SHORT_ONES + 1);
    int sent = 0;
    while (sent < SHORT_ONES && !texts[SHORT_ONES].has_ended) {
        bool is_busy;
        for (int i = 0; i < 3 && sent < SHORT_ONES; i++, sent++) {
            engine_random_ids(&random, ids, 300, FAKE_VOCABULARY);
            o = options_of(ids, 300, 1, &texts[sent]);
            submit(&b, &o, (uint64_t)sent + 1);
        }
        assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
    }
    assert_true(texts[SHORT_ONES].has_ended);
    engine_run(b.scheduler);
    for (int i = 0; i <= SHORT_ONES; i++) {
        engine_text_free(&texts[i]);
    }
    close_bench(&b);
}

static void test_requests_wait_for_pages_and_slots(void **state) {
    (void)state;
    bench b = {.ctx = support_ctx(1, NULL, NULL)};
    b.runner = fake_runner_new(b.ctx, 3, 20, 8, TOKENS, CONTEXT, true); /* 1,280 tokens in all */
    const carry_scheduler_options options = {
        .cache = {.device_bytes = SIZE_MAX}, .queue = 6, .on_event = engine_collect};
    assert_ok(b.ctx, carry_scheduler_new(b.ctx, &b.scheduler, &b.runner->head, &options));
    int32_t ids[CONTEXT];
    engine_text texts[6] = {0};
    uint64_t random = 47;
    carry_sequence *q;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int i = 0; i < 6; i++) {
        const carry_sequence_options o = options_of(ids + 3 * i, 500, 100, &texts[i]);
        submit(&b, &o, (uint64_t)i + 1);
    }
    carry_sequence_options o = options_of(ids, 10, 10, NULL);
    assert_ok(b.ctx, carry_sequence_new(b.ctx, &q, &b.runner->head.sizes, &o));
    assert_refused(b.ctx, CARRY_ESIZE, "the queue is full: 6 requests wait", carry_scheduler_add(b.scheduler, q, 7));
    carry_sequence_free(q);
    bool is_busy = true;
    while (is_busy) {
        assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
        assert_true(carry_scheduler_statistics(b.scheduler).active <= 1); /* 10 and 1 of 20 pages each */
    }
    for (int i = 0; i < 6; i++) {
        const carry_sequence_options asked = options_of(ids, 500, 100, NULL);
        assert_int_equal(texts[i].count, 100);
        assert_text(&b, &texts[i], ids + 3 * i, 500, &asked.sampling);
        engine_text_free(&texts[i]);
    }
    o = options_of(ids, 1200, 100, NULL);
    assert_refused(b.ctx, CARRY_ESIZE, "need 22 pages of memory and there are 20",
                   carry_sequence_new(b.ctx, &q, &b.runner->head.sizes, &o));
    all_is_free(&b);
    close_bench(&b);
}

static void test_failed_steps_end_only_their_requests(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 53;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int64_t at = 0; at < 12; at++) {
        for (int of_results = 0; of_results < 2; of_results++) {
            bench b = open_bench(true, true, SIZE_MAX);
            engine_text texts[4] = {0};
            for (int i = 0; i < 4; i++) {
                const carry_sequence_options o = options_of(ids, 30 + 200 * i, 20, &texts[i]);
                submit(&b, &o, (uint64_t)i + 1);
            }
            bool is_busy = true;
            for (int64_t i = 0; is_busy; i++) {
                b.runner->fail_step = of_results == 0 ? at : -1;
                b.runner->fail_results = of_results != 0 && i == at ? 0 : b.runner->fail_results;
                assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
            }
            for (int i = 0; i < 4; i++) {
                const carry_sequence_options o = options_of(ids, 30 + 200 * i, 20, NULL);
                assert_true(texts[i].has_ended);
                assert_true(texts[i].outcome == CARRY_OUTCOME_LENGTH || strstr(texts[i].message, "injected") != NULL);
                assert_text(&b, &texts[i], ids, o.count, &o.sampling);
                engine_text_free(&texts[i]);
            }
            const carry_sequence_options o = options_of(ids, 777, 20, &texts[0]); /* nothing is left behind */
            submit(&b, &o, 9);
            engine_run(b.scheduler);
            assert_int_equal(texts[0].outcome, CARRY_OUTCOME_LENGTH);
            assert_text(&b, &texts[0], ids, 777, &o.sampling);
            engine_text_free(&texts[0]);
            all_is_free(&b);
            close_bench(&b);
        }
    }
}

static void test_bad_requests_are_refused_by_name(void **state) {
    (void)state;
    bench b = open_bench(true, false, 0);
    const carry_runner_sizes *sizes = &b.runner->head.sizes;
    int32_t ids[CONTEXT + 1] = {0};
    carry_sequence *q;
    carry_sequence_options o = options_of(ids, 0, 1, NULL);
    assert_refused(b.ctx, CARRY_EARGUMENT, "the prompt is empty", carry_sequence_new(b.ctx, &q, sizes, &o));
    o = options_of(ids, CONTEXT, 1, NULL);
    assert_refused(b.ctx, CARRY_ESIZE, "longer than the context of 4096", carry_sequence_new(b.ctx, &q, sizes, &o));
    o = options_of(ids, 5, 0, NULL);
    assert_refused(b.ctx, CARRY_EARGUMENT, "tokens is 0", carry_sequence_new(b.ctx, &q, sizes, &o));
    ids[3] = FAKE_VOCABULARY;
    o = options_of(ids, 5, 1, NULL);
    assert_refused(b.ctx, CARRY_ERANGE, "token 3 of the prompt is 1000", carry_sequence_new(b.ctx, &q, sizes, &o));
    ids[3] = -1;
    assert_refused(b.ctx, CARRY_ERANGE, "token 3 of the prompt is -1", carry_sequence_new(b.ctx, &q, sizes, &o));
    ids[3] = 0;
    o.sampling.top_p = 0.0;
    assert_refused(b.ctx, CARRY_EARGUMENT, "top-p", carry_sequence_new(b.ctx, &q, sizes, &o));
    o = options_of(ids, 5, 1, NULL);
    o.logprobs = 21;
    assert_refused(b.ctx, CARRY_ERANGE, "logprobs is 21", carry_sequence_new(b.ctx, &q, sizes, &o));
    o = options_of(ids, 5, 1, NULL);
    o.ends = (const int32_t[]){FAKE_VOCABULARY};
    o.end_count = 1;
    assert_refused(b.ctx, CARRY_ERANGE, "end token 1000", carry_sequence_new(b.ctx, &q, sizes, &o));
    assert_false(carry_scheduler_cancel(b.scheduler, 5));
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_are_those_of_their_prompts_alone),
        cmocka_unit_test(test_short_prompts_are_not_cut),
        cmocka_unit_test(test_end_tokens_and_the_context_end_texts),
        cmocka_unit_test(test_a_conversation_of_20_turns_is_cached),
        cmocka_unit_test(test_random_conversations_are_the_same_with_the_cache),
        cmocka_unit_test(test_cancelled_and_failed_requests_leave_others_unchanged),
        cmocka_unit_test(test_memory_does_not_grow),
        cmocka_unit_test(test_pieces_read_singly_are_short_beside_texts),
        cmocka_unit_test(test_a_long_prompt_leaves_texts_half_their_rate),
        cmocka_unit_test(test_short_prompts_pass_long_ones),
        cmocka_unit_test(test_equal_prompts_end_in_turn),
        cmocka_unit_test(test_long_prompts_end_beside_short_ones),
        cmocka_unit_test(test_requests_wait_for_pages_and_slots),
        cmocka_unit_test(test_failed_steps_end_only_their_requests),
        cmocka_unit_test(test_bad_requests_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
