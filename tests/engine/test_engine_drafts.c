/* Guessed tokens: several tokens of a text in one step leave the same states and log probabilities as single steps, and
   texts with guesses equal those without. */
#include "draft_support.h"

static void guesses_leave_every_state(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    static runner_case plain;
    for (int i = 0; i < 2 * RUNNER_MODELS; i++) {
        const bool same_bits = i % 2 == 1;
        carry_lm *lm = model(ctx, runner_model(i / 2));
        draft_open(&c, lm, CARRY_F32, same_bits);
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){61, 30, 2, 9});
        draft_step(&c, 20);
        draft_step(&c, 1); /* across the end of a page */
        runner_finish(&c, false);
        runner_compare(&c, lm, 1e-5);
        if (same_bits) {
            runner_open(&plain, lm, CARRY_F32, true, 3);
            plain.wants_all = true;
            runner_finish(&plain, true);
            for (int at = 0; at < RUNNER_SEQUENCES * RUNNER_TOKENS; at++) {
                const int s = at / RUNNER_TOKENS;
                const int t = at % RUNNER_TOKENS;
                assert_true(!c.has[s][t] || !plain.has[s][t] ||
                            memcmp(c.got[s][t], plain.got[s][t], sizeof c.got[s][t]) == 0);
            }
            plain.runner->ops->close(plain.runner);
        }
        c.runner->ops->close(c.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void guesses_out_of_order_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static runner_case c;
    carry_lm *lm = model(ctx, runner_model(0));
    draft_open(&c, lm, CARRY_F32, false);
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){10, 10});
    carry_run runs[DRAFT_GUESSES];
    int32_t wrong[DRAFT_GUESSES];
    (void)draft_guess(&c, 0, 1, 1, wrong, runs);
    runs[1].length++;
    assert_refused(ctx, CARRY_EARGUMENT, "in turn", c.runner->ops->step(c.runner, runs, 2));
    (void)draft_guess(&c, 0, 1, 1, wrong, runs);
    runs[1].slot = runs[0].slot;
    assert_refused(ctx, CARRY_EARGUMENT, "both have slot", c.runner->ops->step(c.runner, runs, 2));
    runs[0] = runner_run(&c, 0, 2);
    runs[1].slot = (int32_t)RUNNER_SEQUENCES + 1;
    assert_refused(ctx, CARRY_EARGUMENT, "in turn", c.runner->ops->step(c.runner, runs, 2));
    runs[0] = runs[1];
    assert_refused(ctx, CARRY_EARGUMENT, "in turn", c.runner->ops->step(c.runner, runs, 1));
    c.runner->ops->close(c.runner);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_leave_every_state),
        cmocka_unit_test(guesses_out_of_order_are_refused),
    };
    return cmocka_run_group_tests_name("engine/drafts", tests, NULL, NULL);
}
