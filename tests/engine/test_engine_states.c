/* Kept states: forked, rolled back, moved, saved and loaded, over a runner of hashes. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "state_bench.h"

static void test_states_are_forked_rolled_back_and_continued(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bench b;
        open_bench(&b, (variant & 1) != 0, (variant & 2) != 0, &cached);
        int32_t ids[CONTEXT];
        uint64_t random = 5;
        uint64_t fork;
        int64_t length;
        engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
        for (int64_t prompt = 50; prompt < 300; prompt += 37) {
            for (int64_t back = 0; back <= CARRY_ROLL_BACK; back += 4) {
                int32_t all[CONTEXT];
                engine_text text = run(&b, ids, prompt, 40, 0, true);
                assert_true(text.state != 0);
                assert_ok(b.ctx, carry_scheduler_state_length(b.scheduler, text.state, &length));
                assert_int_equal(length, prompt + 40);
                assert_ok(b.ctx, carry_scheduler_state_fork(b.scheduler, text.state, &fork));
                assert_ok(b.ctx, carry_scheduler_state_roll_back(b.scheduler, text.state, back));
                const uint64_t states[] = {text.state, fork};
                const int64_t kept[] = {40 - back, 40};
                for (int i = 0; i < 2; i++) { /* the state that was rolled back, and the fork, which was not */
                    memcpy(all, ids, (size_t)prompt * sizeof *all);
                    memcpy(all + prompt, text.ids, (size_t)kept[i] * sizeof *all);
                    memcpy(all + prompt + kept[i], ids + 900, 5 * sizeof *all);
                    engine_text more = run(&b, ids + 900, 5, 30, states[i], false);
                    assert_int_equal(more.count, 30);
                    assert_text(&b, &more, all, prompt + kept[i] + 5);
                    engine_text_free(&more);
                }
                assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, text.state));
                assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, fork));
                engine_text_free(&text);
            }
        }
        const carry_scheduler_stats stats = carry_scheduler_statistics(b.scheduler);
        assert_int_equal(stats.states, 0);
        assert_int_equal(stats.free_slots + stats.cache.snapshots, SLOTS);
        assert_int_equal(stats.free_pages + stats.cache.pages, stats.pages);
        close_bench(&b);
    }
}

/* In host memory a state takes no slot and no page; its next use, in this engine or another, continues from it. */
static void test_states_move_to_host_memory_and_other_engines(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 5;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int variant = 0; variant < 2; variant++) {
        bench b;
        bench other;
        const carry_prefix_options none = {0};
        open_bench(&b, variant == 1, false, &none);
        open_bench(&other, variant == 1, false, &none);
        const carry_scheduler_stats before = carry_scheduler_statistics(b.scheduler);
        engine_text text = run(&b, ids, 200, 30, 0, true);
        uint64_t fork;
        uint64_t made;
        assert_ok(b.ctx, carry_scheduler_state_fork(b.scheduler, text.state, &fork)); /* shares its pages */
        assert_ok(b.ctx, carry_scheduler_state_to_host(b.scheduler, text.state));
        assert_ok(b.ctx, carry_scheduler_state_to_host(b.scheduler, fork));
        assert_ok(b.ctx, carry_scheduler_state_to_host(b.scheduler, fork)); /* it is there */
        carry_scheduler_stats stats = carry_scheduler_statistics(b.scheduler);
        assert_int_equal(stats.states, 2);
        assert_int_equal(stats.free_slots, before.free_slots);
        assert_int_equal(stats.free_pages, before.free_pages);
        int32_t whole[235];
        memcpy(whole, ids, 200 * sizeof *ids);
        memcpy(whole + 200, text.ids, 30 * sizeof *ids);
        memcpy(whole + 230, ids + 900, 5 * sizeof *ids);
        engine_text more = run(&b, ids + 900, 5, 30, text.state, false);
        assert_text(&b, &more, whole, 235);
        engine_text_free(&more);
        assert_ok(b.ctx, carry_scheduler_state_roll_back(b.scheduler, fork, 7));
        memcpy(whole + 223, ids + 900, 5 * sizeof *ids);
        more = run(&b, ids + 900, 5, 30, fork, false);
        assert_text(&b, &more, whole, 228);
        engine_text_free(&more);
        assert_ok(b.ctx, carry_scheduler_state_move(b.scheduler, fork, other.scheduler, &made));
        assert_refused(b.ctx, CARRY_ENOTFOUND, "there is no state", carry_scheduler_state_drop(b.scheduler, fork));
        more = run(&other, ids + 900, 5, 30, made, false);
        assert_text(&other, &more, whole, 228);
        engine_text_free(&more);
        other.runner->model = 43;
        assert_refused(b.ctx, CARRY_EARGUMENT, "another model",
                       carry_scheduler_state_move(b.scheduler, text.state, other.scheduler, &made));
        assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, text.state));
        stats = carry_scheduler_statistics(b.scheduler);
        assert_int_equal(stats.free_slots, before.free_slots);
        assert_int_equal(stats.free_pages, before.free_pages);
        engine_text_free(&text);
        close_bench(&other);
        close_bench(&b);
    }
}

static void test_a_state_with_no_text_is_kept(void **state) {
    (void)state;
    bench b;
    open_bench(&b, true, true, &cached);
    int32_t ids[CONTEXT];
    uint64_t random = 7;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    engine_text text = run(&b, ids, 200, 0, 0, true);
    assert_int_equal(text.outcome, CARRY_OUTCOME_LENGTH);
    engine_text more = run(&b, ids + 200, 100, 20, text.state, false);
    assert_text(&b, &more, ids, 300);
    engine_text_free(&more);
    engine_text_free(&text);
    close_bench(&b);
}

static void test_states_that_cannot_be_used_are_refused(void **state) {
    (void)state;
    bench b;
    open_bench(&b, true, false, &cached);
    int32_t ids[CONTEXT] = {0};
    uint64_t made;
    int64_t length;
    assert_refused(b.ctx, CARRY_ENOTFOUND, "there is no state 7",
                   carry_scheduler_state_length(b.scheduler, 7, &length));
    assert_refused(b.ctx, CARRY_ENOTFOUND, "there is no state 7", carry_scheduler_state_drop(b.scheduler, 7));
    engine_text text = run(&b, ids, 5, 5, 7, false);
    assert_int_equal(text.outcome, CARRY_OUTCOME_FAILED);
    assert_non_null(strstr(text.message, "there is no state 7"));
    engine_text_free(&text);
    text = run(&b, ids, 30, 20, 0, true);
    assert_refused(b.ctx, CARRY_ERANGE, "cannot go back 17",
                   carry_scheduler_state_roll_back(b.scheduler, text.state, 17));
    engine_text more = run(&b, ids, CONTEXT - 20, 5, text.state, false);
    assert_int_equal(more.outcome, CARRY_OUTCOME_FAILED);
    assert_non_null(strstr(more.message, "exceed the context of 2048"));
    engine_text_free(&more);
    for (int i = 0; carry_scheduler_state_fork(b.scheduler, text.state, &made) == CARRY_OK; i++) {
        assert_true(i < SLOTS);
    }
    assert_refused(b.ctx, CARRY_EMEMORY, "slots are in use",
                   carry_scheduler_state_fork(b.scheduler, text.state, &made));
    engine_text_free(&text);
    text = run(&b, ids, 5, 5, 0, false); /* a request without a free slot fails instead of waiting for ever */
    assert_int_equal(text.status, CARRY_EMEMORY);
    assert_non_null(strstr(text.message, "kept states hold"));
    engine_text_free(&text);
    close_bench(&b);
}

static void test_a_failed_roll_back_leaves_the_state(void **state) {
    (void)state;
    bench b;
    open_bench(&b, true, true, &cached);
    int32_t ids[CONTEXT];
    uint64_t random = 19;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    engine_text text = run(&b, ids, 100, 37, 0, true);
    for (int64_t at = 0; at < 3; at++) {
        b.runner->fail_step = b.runner->steps + at;
        assert_refused(b.ctx, CARRY_EMEMORY, "injected", carry_scheduler_state_roll_back(b.scheduler, text.state, 10));
    }
    memcpy(ids + 100, text.ids, 37 * sizeof *ids);
    engine_text more = run(&b, ids + 137, 3, 30, text.state, false);
    assert_text(&b, &more, ids, 140);
    engine_text_free(&text);
    engine_text_free(&more);
    close_bench(&b);
}

/* Another process saves a state and is killed; this one loads it and continues. */
static void test_a_state_is_saved_by_a_killed_process(void **state) {
    (void)state;
    bench b;
    char path[CARRY_FILE_PATH];
    int32_t ids[CONTEXT];
    uint64_t random = 29;
    uint64_t made;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "state");
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bench other;
        open_bench(&other, true, false, &cached);
        engine_text text = run(&other, ids, 333, 21, 0, true);
        if (carry_scheduler_state_save(other.scheduler, text.state, path) == CARRY_OK) {
            (void)kill(getpid(), SIGKILL);
        }
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    engine_expected(ids, 333, &sampling, 0, true, ids + 333, 21);
    assert_ok(b.ctx, carry_scheduler_state_load(b.scheduler, &made, path));
    engine_text more = run(&b, ids + 500, 7, 40, made, false);
    memmove(ids + 354, ids + 500, 7 * sizeof *ids);
    assert_text(&b, &more, ids, 361);
    engine_text_free(&more);
    assert_ok(b.ctx, carry_scheduler_state_roll_back(b.scheduler, made, 16));
    more = run(&b, ids + 600, 7, 40, made, false);
    memmove(ids + 338, ids + 600, 7 * sizeof *ids);
    assert_text(&b, &more, ids, 345);
    engine_text_free(&more);
    b.runner->model++;
    assert_refused(b.ctx, CARRY_EARGUMENT, "is a state of another model",
                   carry_scheduler_state_load(b.scheduler, &made, path));
    b.runner->model--;
    assert_refused(b.ctx, CARRY_ENOTFOUND, "nowhere", carry_scheduler_state_load(b.scheduler, &made, "/nowhere"));
    int file = open(path, O_RDWR);
    assert_int_equal(pwrite(file, "\x7f", 1, 4000), 1);
    (void)close(file);
    assert_refused(b.ctx, CARRY_EFORMAT, "is damaged", carry_scheduler_state_load(b.scheduler, &made, path));
    assert_int_equal(made, 0);
    close_bench(&b);
}

/* A request that is cancelled at any step leaves either a state that has read its prompt, and continues from it, or
   none. The cache has only prefixes that were read. Half of the requests wait for another one to read their prompt. */
static void test_cancelled_requests_keep_only_whole_states(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        int64_t kept = 0;
        for (int steps = 0; steps < 16; steps++) {
            bench b;
            int32_t ids[CONTEXT];
            uint64_t random = 67;
            engine_text texts[2] = {0};
            bool is_busy = true;
            engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
            open_bench(&b, (variant & 1) != 0, (variant & 2) != 0, &cached);
            for (int i = 0; i < 2; i++) {
                const carry_sequence_options o = {.ids = ids,
                                                  .count = 900,
                                                  .tokens = (variant & 4) != 0 ? 0 : 6,
                                                  .sampling = sampling,
                                                  .logprobs = -1,
                                                  .shares = (uint64_t)i,
                                                  .keeps = true,
                                                  .user = &texts[i]};
                engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, (uint64_t)i + 1);
            }
            for (int i = 0; i < steps && is_busy; i++) {
                assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
            }
            for (uint64_t i = 2; i > 0; i--) { /* first the one that waits */
                (void)carry_scheduler_cancel(b.scheduler, i);
            }
            engine_run(b.scheduler);
            for (int i = 0; i < 2; i++) {
                assert_true(texts[i].has_ended);
                if (texts[i].state != 0) {
                    int64_t length;
                    assert_ok(b.ctx, carry_scheduler_state_length(b.scheduler, texts[i].state, &length));
                    assert_in_range(length, 900, 900 + texts[i].count);
                    const carry_kept *k = carry_scheduler_state(b.scheduler, texts[i].state);
                    assert_true(k->track.length >= 900);
                    for (int64_t j = 0; j < texts[i].count; j++) {
                        ids[900 + j] = texts[i].ids[j];
                    }
                    memcpy(ids + length, ids + 1800, 5 * sizeof *ids);
                    engine_text more = run(&b, ids + 1800, 5, 10, texts[i].state, false);
                    assert_text(&b, &more, ids, length + 5);
                    engine_text_free(&more);
                    kept++;
                }
                engine_text_free(&texts[i]);
            }
            engine_text more = run(&b, ids, 880, 10, 0, false);
            assert_text(&b, &more, ids, 880);
            engine_text_free(&more);
            close_bench(&b);
        }
        assert_true(kept > 0);
    }
}

/* Requests that go on from a state without a limit of tokens wait until their pages are free. */
static void test_requests_without_a_limit_wait_for_pages(void **state) {
    (void)state;
    bench b;
    int32_t ids[CONTEXT];
    uint64_t random = 73;
    engine_text texts[4] = {0};
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    engine_text text = run(&b, ids, 100, 1, 0, true);
    for (int i = 0; i < 4; i++) { /* of 33 of 120 pages each */
        const carry_sequence_options o = {.ids = ids,
                                          .count = 100,
                                          .tokens = INT64_MAX,
                                          .sampling = sampling,
                                          .logprobs = -1,
                                          .state = text.state,
                                          .user = &texts[i]};
        engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, (uint64_t)i + 2);
    }
    engine_run(b.scheduler);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(texts[i].outcome, CARRY_OUTCOME_CONTEXT);
        assert_int_equal(texts[i].count, CONTEXT - 201);
        engine_text_free(&texts[i]);
    }
    engine_text_free(&text);
    close_bench(&b);
}

/* Logits that are not numbers: the state is not kept, also if the request was cancelled in the same step. */
static void test_states_of_failed_tokens_are_not_kept(void **state) {
    (void)state;
    for (int is_cancelled = 0; is_cancelled < 2; is_cancelled++) {
        bench b;
        int32_t ids[CONTEXT];
        uint64_t random = 71;
        bool is_busy = true;
        engine_text text = {0};
        engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
        open_bench(&b, true, true, &cached);
        const carry_sequence_options o = {.ids = ids,
                                          .count = 200,
                                          .tokens = 20,
                                          .sampling = {.temperature = 0.5, .top_p = 1.0, .seed = FAKE_FAULT | 3},
                                          .logprobs = -1,
                                          .keeps = true,
                                          .user = &text};
        engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, 1);
        for (int after = 0; is_busy;) {
            assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
            after += text.count == 3;
            if (is_cancelled != 0 && after == 2) { /* the failing step is enqueued */
                assert_true(carry_scheduler_cancel(b.scheduler, 1));
            }
        }
        assert_int_equal(text.outcome, is_cancelled != 0 ? CARRY_OUTCOME_CANCELLED : CARRY_OUTCOME_FAILED);
        assert_int_equal(text.state, 0);
        assert_int_equal(text.count, 3);
        assert_int_equal(carry_scheduler_statistics(b.scheduler).cache.snapshots, 0);
        engine_text_free(&text);
        close_bench(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_are_forked_rolled_back_and_continued),
        cmocka_unit_test(test_a_state_with_no_text_is_kept),
        cmocka_unit_test(test_states_move_to_host_memory_and_other_engines),
        cmocka_unit_test(test_states_that_cannot_be_used_are_refused),
        cmocka_unit_test(test_a_failed_roll_back_leaves_the_state),
        cmocka_unit_test(test_a_state_is_saved_by_a_killed_process),
        cmocka_unit_test(test_cancelled_requests_keep_only_whole_states),
        cmocka_unit_test(test_requests_without_a_limit_wait_for_pages),
        cmocka_unit_test(test_states_of_failed_tokens_are_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
