/* Steps with guessed tokens through a runner. */
#ifndef CARRY_TESTS_DRAFT_SUPPORT_H
#define CARRY_TESTS_DRAFT_SUPPORT_H

#include "runner_support.h"

#define DRAFT_GUESSES 5

static inline void draft_open(runner_case *c, carry_lm *lm, carry_dtype dtype, bool same_bits) {
    const carry_runner_sizes sizes = {.slots = RUNNER_SEQUENCES + 1 + 2 * DRAFT_GUESSES,
                                      .pages = RUNNER_SEQUENCES * RUNNER_PAGES,
                                      .sequences = RUNNER_SEQUENCES + 2 * DRAFT_GUESSES,
                                      .tokens = 128,
                                      .context = RUNNER_TOKENS};
    c->ctx = lm->ctx;
    c->lm = lm;
    c->random = 5;
    c->wants_all = true;
    assert_ok(c->ctx, carry_model_runner_new_with(lm, &c->runner, &sizes, dtype,
                                                  &(carry_model_runner_options){.same_bits = same_bits}));
    runner_fill(c);
}

/* Writes the run of a sequence and `guesses` more after it, of which the first `right` are right; returns the number of
   runs. */
static inline int64_t draft_guess(const runner_case *c, int s, int64_t guesses, int64_t right, int32_t *wrong,
                                  carry_run *runs) {
    runs[0] = runner_run(c, s, 1);
    for (int64_t i = 1; i <= guesses; i++) {
        wrong[i] = (c->ids[s][c->length[s] + i] + 1) % RUNNER_VOCABULARY;
        runs[i] = runner_run(c, s, 1);
        runs[i].slot = (int32_t)(RUNNER_SEQUENCES + s * DRAFT_GUESSES + i);
        runs[i].length += i;
        runs[i].ids = i <= right ? runs[0].ids + i : wrong + i;
        runs[i].follows = true;
    }
    return guesses + 1;
}

/* Sequence 0 has four guesses, three of them right; sequence 1 two, both wrong; sequence 2 none; sequence 3 reads a
   piece beside them. */
static inline void draft_step(runner_case *c, int64_t piece) {
    carry_run runs[RUNNER_SEQUENCES + 2 * DRAFT_GUESSES];
    carry_run_result results[RUNNER_SEQUENCES + 2 * DRAFT_GUESSES];
    int32_t wrong[2][DRAFT_GUESSES];
    int64_t n = draft_guess(c, 0, 4, 3, wrong[0], runs);
    runs[n++] = runner_run(c, 3, piece);
    const int64_t second = n;
    n += draft_guess(c, 1, 2, 0, wrong[1], runs + n);
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

#endif
