/* Guessed tokens: several tokens of a text in one step leave the states and log probabilities that single steps leave,
   and texts with guesses are those without. */
#include "runner_support.h"

#define DRAFTS 5

static void open_case(runner_case *c, carry_lm *lm, bool same_bits) {
    const carry_runner_sizes sizes = {.slots = RUNNER_SEQUENCES + 1 + 2 * DRAFTS,
                                      .pages = RUNNER_SEQUENCES * RUNNER_PAGES,
                                      .sequences = RUNNER_SEQUENCES + 2 * DRAFTS,
                                      .tokens = 128,
                                      .context = RUNNER_TOKENS};
    c->ctx = lm->ctx;
    c->lm = lm;
    c->random = 5;
    c->wants_all = true;
    assert_ok(c->ctx, carry_model_runner_new_with(lm, &c->runner, &sizes, CARRY_F32,
                                                  &(carry_model_runner_options){.same_bits = same_bits}));
    runner_fill(c);
}

/* The run of a sequence and `guesses` more after it, all but the first `right` wrong; their number. */
static int64_t guess(const runner_case *c, int s, int64_t guesses, int64_t right, int32_t *wrong, carry_run *runs) {
    runs[0] = runner_run(c, s, 1);
    for (int64_t i = 1; i <= guesses; i++) {
        wrong[i] = (c->ids[s][c->length[s] + i] + 1) % RUNNER_VOCABULARY;
        runs[i] = runner_run(c, s, 1);
        runs[i].slot = (int32_t)(RUNNER_SEQUENCES + s * DRAFTS + i);
        runs[i].length += i;
        runs[i].ids = i <= right ? runs[0].ids + i : wrong + i;
        runs[i].follows = true;
    }
    return guesses + 1;
}

/* Sequence 0 has four guesses, three of them right; sequence 1 two, both wrong; sequence 2 none; sequence 3 reads a
   piece beside them. */
static void step_with_guesses(runner_case *c, int64_t piece) {
    carry_run runs[RUNNER_SEQUENCES + 2 * DRAFTS];
    carry_run_result results[RUNNER_SEQUENCES + 2 * DRAFTS];
    int32_t wrong[2][DRAFTS];
    int64_t n = guess(c, 0, 4, 3, wrong[0], runs);
    runs[n++] = runner_run(c, 3, piece);
    const int64_t second = n;
    n += guess(c, 1, 2, 0, wrong[1], runs + n);
    runs[n++] = runner_run(c, 2, 1);
    assert_ok(c->ctx, c->runner->ops->step(c->runner, runs, n));
    assert_ok(c->ctx, c->runner->ops->results(c->runner, results, n));
    for (int i = 0; i < 4; i++) {
        c->length[0]++;
        runner_keep(c, 0, &results[i]);
    }
    c->length[1]++;
    runner_keep(c, 1, &results[second]);
    c->length[2]++;
    runner_keep(c, 2, &results[n - 1]);
    c->length[3] += piece;
    runner_keep(c, 3, &results[5]);
    assert_ok(c->ctx, c->runner->ops->copy_slot(c->runner, c->slot[0], runs[3].slot)); /* the last right one */
}

static void guesses_leave_every_state(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    static runner_case plain;
    for (int i = 0; i < 2 * RUNNER_MODELS; i++) {
        const bool same_bits = i % 2 == 1;
        carry_lm *lm = model(ctx, runner_model(i / 2));
        open_case(&c, lm, same_bits);
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){61, 30, 2, 9});
        step_with_guesses(&c, 20);
        step_with_guesses(&c, 1); /* across the end of a page */
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
    open_case(&c, lm, false);
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){10, 10});
    carry_run runs[DRAFTS];
    int32_t wrong[DRAFTS];
    (void)guess(&c, 0, 1, 1, wrong, runs);
    runs[1].length++;
    assert_refused(ctx, CARRY_EARGUMENT, "in turn", c.runner->ops->step(c.runner, runs, 2));
    (void)guess(&c, 0, 1, 1, wrong, runs);
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
