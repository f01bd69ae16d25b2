/* Guessed tokens on a GPU against the full forward pass of the same model in f32 on the CPU, launched and recorded. */
/* labels: gpu */
#include "draft_support.h"
#include "gpu_model_support.h"

/* False: some operator of the model is for the CPU only. */
static bool is_on_device(runner_case *c) {
    const carry_run run = runner_run(c, 0, 2);
    carry_run_result result;
    const carry_status status = c->runner->ops->step(c->runner, &run, 1);
    if (status == CARRY_EUNSUPPORTED) {
        print_message("left out: %s\n", carry_ctx_error(c->ctx));
        return false;
    }
    assert_ok(c->ctx, status);
    assert_ok(c->ctx, c->runner->ops->results(c->runner, &result, 1));
    assert_ok(c->ctx, c->runner->ops->clear_slot(c->runner, run.slot));
    return true;
}

/* Devices differ in the order of sums: 2e-4 is twenty times the observed difference. */
static void guesses_in_f32_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < RUNNER_MODELS - 1; i++) { /* the last is for the CPU only */
        const carry_lm_config config = runner_model(i);
        if (!carry_lm_family_describe(config.family).on_cuda) {
            continue;
        }
        carry_lm *lm = model(ctx, config);
        carry_lm *there = gpu_moved_to(ctx, lm, 1);
        draft_open(&c, there, CARRY_F32, false);
        if (is_on_device(&c)) {
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){61, 30, 2, 9});
            draft_step(&c, 20);
            draft_step(&c, 1);
            runner_finish(&c, false);
            runner_compare(&c, lm, 2e-4);
        }
        c.runner->ops->close(c.runner);
        carry_lm_free(there);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Four guesses after one token of sequence 0, of which three are right. */
static void guess_alone(runner_case *c) {
    carry_run runs[DRAFT_GUESSES];
    carry_run_result results[DRAFT_GUESSES];
    int32_t wrong[DRAFT_GUESSES];
    const int64_t n = draft_guess(c, 0, 4, 3, wrong, runs);
    assert_ok(c->ctx, c->runner->ops->step(c->runner, runs, n));
    assert_ok(c->ctx, c->runner->ops->results(c->runner, results, n));
    for (int i = 0; i < 4; i++) {
        c->length[0]++;
        runner_keep(c, 0, &results[i]);
    }
    assert_ok(c->ctx, c->runner->ops->copy_slot(c->runner, c->slot[0], runs[3].slot));
}

static void guesses_in_bf16_are_recorded_and_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *there = gpu_moved_to(ctx, lm, 1);
    static runner_case c;
    draft_open(&c, there, CARRY_BF16, false);
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){30, 3, 20, 5});
    for (int i = 0; i < 12; i++) { /* recorded from the second time on */
        guess_alone(&c);
        if (i % 4 == 3) {
            draft_step(&c, 1 + i % 3);
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, 1, 1, 1});
        }
    }
    runner_finish(&c, false);
    runner_compare(&c, lm, 3e-2);
    c.runner->ops->close(c.runner);
    carry_lm_free(there);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* Compares the results of c with those of single tokens, up to `tokens` of each sequence; returns their number. */
static int64_t compare_with_single_tokens(const runner_case *c, carry_lm *there, int tokens) {
    static runner_case plain;
    int64_t compared = 0;
    runner_open(&plain, there, CARRY_BF16, true, 3);
    plain.wants_all = true;
    for (int i = 0; i < tokens; i++) {
        runner_step(&plain, (const int64_t[RUNNER_SEQUENCES]){1, 1, 1, 1});
    }
    for (int at = 0; at < RUNNER_SEQUENCES * RUNNER_TOKENS; at++) {
        const int s = at / RUNNER_TOKENS;
        const int t = at % RUNNER_TOKENS;
        if (c->has[s][t]) {
            assert_true(plain.has[s][t]);
            assert_memory_equal(c->got[s][t], plain.got[s][t], sizeof c->got[s][t]);
            compared++;
        }
    }
    plain.runner->ops->close(plain.runner);
    return compared;
}

/* Small enough for compute-sanitizer's racecheck. */
static void few_guesses_have_the_bits_of_single_tokens(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *there = gpu_moved_to(ctx, lm, 1);
    static runner_case c;
    draft_open(&c, there, CARRY_BF16, true);
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){2, 1, 1, 2});
    draft_step(&c, 1);
    assert_true(compare_with_single_tokens(&c, there, 6) >= 10);
    c.runner->ops->close(c.runner);
    carry_lm_free(there);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void guesses_have_the_bits_of_single_tokens(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *there = gpu_moved_to(ctx, lm, 1);
    static runner_case c;
    draft_open(&c, there, CARRY_BF16, true);
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){30, 3, 20, 5});
    for (int i = 0; i < 6; i++) {
        guess_alone(&c);
        if (i % 2 == 1) {
            draft_step(&c, 1 + 4 * (i % 3));
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, 1, 1, 1});
        }
    }
    runner_finish(&c, false);
    runner_compare(&c, lm, 3e-2);
    assert_true(compare_with_single_tokens(&c, there, RUNNER_TOKENS) > 40);
    c.runner->ops->close(c.runner);
    carry_lm_free(there);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_in_f32_equal_the_cpu),
        cmocka_unit_test(guesses_in_bf16_are_recorded_and_equal_the_cpu),
        cmocka_unit_test(few_guesses_have_the_bits_of_single_tokens),
        cmocka_unit_test(guesses_have_the_bits_of_single_tokens),
    };
    return cmocka_run_group_tests_name("engine_drafts_gpu", tests, NULL, NULL);
}
