/* Speculative tokens in the scheduler, over a runner of hashes: texts equal those without speculation, whatever is
   guessed. */
#include "core/memory.h"
#include "engine_support.h"

#define SLOTS 60
#define PAGES 200
#define TEXTS 4
#define DRAFT 4
#define PROMPT 70
#define LONGEST 600

/* Guesses the true next tokens, each wrong with probability wrong / 16. */
typedef struct oracle {
    carry_sampling sampling;
    bool has_pages;
    uint64_t wrong, random;
    int64_t calls;
} oracle;

static int64_t guess(void *user, const int32_t *ids, int64_t count, int32_t *to, int64_t most) {
    oracle *o = user;
    int32_t text[LONGEST + CARRY_DRAFT_MOST];
    engine_expected(ids, PROMPT, &o->sampling, 0, o->has_pages, text, count - PROMPT + most);
    const int64_t some = (int64_t)(engine_random(&o->random) % (uint64_t)(most + 1));
    for (int64_t i = 0; i < some; i++) {
        const bool is_wrong = engine_random(&o->random) % 16 < o->wrong;
        to[i] = is_wrong ? (int32_t)(engine_random(&o->random) % FAKE_VOCABULARY) : text[count - PROMPT + i];
    }
    o->calls++;
    return some;
}

typedef struct bench {
    carry_ctx *ctx;
    fake_runner *runner;
    carry_scheduler *scheduler;
    oracle oracle;
} bench;

static void open_bench(bench *b, int variant, size_t cache) {
    const bool has_pages = (variant & 1) != 0;
    *b = (bench){.ctx = support_ctx(1, NULL, NULL)};
    b->oracle = (oracle){.sampling = {.temperature = (variant & 2) != 0 ? 1.0 : 0.0, .top_p = 1.0, .seed = 3},
                         .has_pages = has_pages,
                         .wrong = (variant & 4) != 0 ? 8 : 2,
                         .random = (uint64_t)variant};
    b->runner = fake_runner_new(b->ctx, SLOTS, has_pages ? PAGES : 0, TEXTS + 3 * DRAFT, 128, 1024, (variant & 8) != 0);
    const carry_scheduler_options options = {.cache = {.device_bytes = cache},
                                             .texts = TEXTS,
                                             .draft = guess,
                                             .draft_user = &b->oracle,
                                             .draft_tokens = DRAFT,
                                             .on_event = engine_collect};
    assert_ok(b->ctx, carry_scheduler_new(b->ctx, &b->scheduler, &b->runner->head, &options));
}

static void close_bench(bench *b) {
    carry_scheduler_free(b->scheduler);
    b->runner->head.ops->close(&b->runner->head);
    carry_ctx_free(b->ctx);
}

static void fill_prompt(int32_t ids[PROMPT], int number) {
    uint64_t random = (uint64_t)number * 17 + 3;
    engine_random_ids(&random, ids, PROMPT, FAKE_VOCABULARY);
}

static carry_sequence_options options_of(const bench *b, const int32_t *ids, int64_t tokens, engine_text *text) {
    return (carry_sequence_options){
        .ids = ids, .count = PROMPT, .tokens = tokens, .sampling = b->oracle.sampling, .logprobs = -1, .user = text};
}

static void assert_text(const bench *b, const int32_t *ids, const engine_text *text, int64_t count) {
    int32_t expected[LONGEST];
    assert_int_equal(text->count, count);
    engine_expected(ids, PROMPT, &b->oracle.sampling, 0, b->oracle.has_pages, expected, count);
    assert_memory_equal(text->ids, expected, (size_t)count * sizeof *expected);
}

static void all_is_free(const bench *b) {
    const carry_scheduler_stats stats = carry_scheduler_statistics(b->scheduler);
    assert_int_equal(stats.active + stats.waiting + stats.states, 0);
    assert_int_equal(stats.free_slots + stats.cache.snapshots, stats.slots);
    assert_int_equal(stats.free_pages + stats.cache.pages, stats.pages);
}

static void test_texts_are_those_without_guesses(void **state) {
    (void)state;
    for (int variant = 0; variant < 32; variant++) {
        bench b;
        open_bench(&b, variant, (variant & 16) != 0 ? SIZE_MAX : 0);
        int32_t ids[6][PROMPT];
        engine_text texts[6] = {0};
        for (int i = 0; i < 6; i++) {
            fill_prompt(ids[i], i);
            const carry_sequence_options o = options_of(&b, ids[i], 40 + 31 * i, &texts[i]);
            engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, (uint64_t)i + 1);
        }
        engine_run(b.scheduler);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(texts[i].outcome, CARRY_OUTCOME_LENGTH);
            assert_text(&b, ids[i], &texts[i], 40 + 31 * i);
            engine_text_free(&texts[i]);
        }
        const carry_scheduler_stats stats = carry_scheduler_statistics(b.scheduler);
        assert_true(stats.accepted_tokens > 50 && stats.accepted_tokens < stats.drafted_tokens);
        all_is_free(&b);
        close_bench(&b);
    }
}

/* A text that ends in the middle of right guesses: at an end token, by a cancellation or by a failure. */
static void test_ends_among_guesses(void **state) {
    (void)state;
    for (int end = 1; end < 30; end++) {
        bench b;
        int32_t ids[PROMPT];
        int32_t whole[40];
        engine_text text[2] = {0};
        open_bench(&b, end % 4, SIZE_MAX);
        b.oracle.wrong = 0;
        fill_prompt(ids, 1);
        engine_expected(ids, PROMPT, &b.oracle.sampling, 0, b.oracle.has_pages, whole, 40);
        carry_sequence_options o = options_of(&b, ids, 40, &text[0]);
        o.ends = &whole[end];
        o.end_count = 1;
        engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, 1);
        engine_run(b.scheduler);
        assert_int_equal(text[0].outcome, CARRY_OUTCOME_TOKEN);
        int first = 0;
        while (whole[first] != whole[end]) {
            first++;
        }
        assert_text(&b, ids, &text[0], first);
        o = options_of(&b, ids, 40, &text[1]);
        engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, 2);
        bool is_busy = true;
        for (int i = 0; i < end && is_busy; i++) {
            b.runner->fail_results = end % 5 == 0 && i == end / 2 ? 0 : b.runner->fail_results;
            assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
        }
        (void)carry_scheduler_cancel(b.scheduler, 2);
        engine_run(b.scheduler);
        assert_true(text[1].has_ended);
        assert_text(&b, ids, &text[1], text[1].count);
        engine_text_free(&text[0]);
        engine_text_free(&text[1]);
        all_is_free(&b);
        close_bench(&b);
    }
}

/* The state after a text with guesses continues and rolls back as without them. */
static void test_kept_states_have_their_tokens(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        bench b;
        int32_t ids[PROMPT];
        int32_t whole[LONGEST];
        engine_text text[2] = {0};
        open_bench(&b, variant, 0);
        b.oracle.sampling.temperature = 0.0; /* so that a continued text has the tokens of the whole */
        fill_prompt(ids, 9);
        engine_expected(ids, PROMPT, &b.oracle.sampling, 0, b.oracle.has_pages, whole, 120);
        carry_sequence_options o = options_of(&b, ids, 60, &text[0]);
        o.keeps = true;
        engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, 1);
        engine_run(b.scheduler);
        assert_true(text[0].state != 0);
        assert_text(&b, ids, &text[0], 60);
        for (int back = 0; back <= 16; back += 8) {
            uint64_t fork;
            assert_ok(b.ctx, carry_scheduler_state_fork(b.scheduler, text[0].state, &fork));
            assert_ok(b.ctx, carry_scheduler_state_roll_back(b.scheduler, fork, back));
            o = options_of(&b, whole + 60 - back, 50, &text[1]);
            o.count = 1;
            o.state = fork;
            engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, 2);
            engine_run(b.scheduler);
            assert_int_equal(text[1].count, 50);
            assert_memory_equal(text[1].ids, whole + 61 - back, 50 * sizeof *whole);
            engine_text_free(&text[1]);
            assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, fork));
        }
        assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, text[0].state));
        engine_text_free(&text[0]);
        all_is_free(&b);
        close_bench(&b);
    }
}

static void test_right_guesses_save_steps(void **state) {
    (void)state;
    bench b;
    int32_t ids[PROMPT];
    engine_text text = {0};
    open_bench(&b, 1, 0);
    b.oracle.wrong = 0;
    fill_prompt(ids, 2);
    const carry_sequence_options o = options_of(&b, ids, 300, &text);
    engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, 1);
    engine_run(b.scheduler);
    const carry_scheduler_stats stats = carry_scheduler_statistics(b.scheduler);
    assert_int_equal(stats.accepted_tokens, stats.drafted_tokens);
    assert_true(b.runner->steps < 130); /* on average half of the possible guesses: three tokens a step */
    engine_text_free(&text);
    close_bench(&b);
}

static void test_lookup_finds_the_longest_repetition(void **state) {
    (void)state;
    int32_t to[8];
    const int32_t text[] = {5, 1, 2, 3, 4, 9, 1, 2, 3, 7, 8, 6, 2, 3};
    assert_int_equal(carry_draft_ngram(NULL, text, 14, to, 3), 3); /* uses the last of two matches of two tokens */
    assert_memory_equal(to, ((const int32_t[]){7, 8, 6}), 3 * sizeof *to);
    const int32_t longer[] = {1, 2, 3, 4, 9, 2, 3, 7, 8, 1, 2, 3};
    assert_int_equal(carry_draft_ngram(NULL, longer, 12, to, 2), 2);
    assert_memory_equal(to, ((const int32_t[]){4, 9}), 2 * sizeof *to);
    const int32_t periodic[] = {1, 2, 1, 2, 1, 2};
    assert_int_equal(carry_draft_ngram(NULL, periodic, 6, to, 5), 5); /* continues beyond the end */
    assert_memory_equal(to, ((const int32_t[]){1, 2, 1, 2, 1}), 5 * sizeof *to);
    const int32_t different[] = {1, 2, 3, 4, 5};
    assert_int_equal(carry_draft_ngram(NULL, different, 5, to, 4), 0);
    assert_int_equal(carry_draft_ngram(NULL, different, 1, to, 4), 0);
    assert_int_equal(carry_draft_ngram(NULL, different, 0, to, 4), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_are_those_without_guesses),     cmocka_unit_test(test_ends_among_guesses),
        cmocka_unit_test(test_kept_states_have_their_tokens),       cmocka_unit_test(test_right_guesses_save_steps),
        cmocka_unit_test(test_lookup_finds_the_longest_repetition),
    };
    return cmocka_run_group_tests_name("engine/speculation", tests, NULL, NULL);
}
