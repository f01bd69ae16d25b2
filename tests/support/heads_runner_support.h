/* A runner with multi-token heads: steps with pieces, single tokens and guesses, after each of which the heads' guesses
   are compared with plain loops. */
#ifndef CARRY_TESTS_HEADS_RUNNER_SUPPORT_H
#define CARRY_TESTS_HEADS_RUNNER_SUPPORT_H

#include "heads_support.h"

#include "engine/model_runner.h"
#include "model/lm/lm_heads.h"

enum { HEADS_MOST = 3, HEADS_TEXT = 150, HEADS_TEXTS = 2 };

typedef struct heads_bench {
    heads_case model;
    carry_lm *lm, *heads;
    carry_runner *runner;
    int32_t ids[HEADS_TEXTS][HEADS_TEXT], pages[HEADS_TEXTS][3], slot[HEADS_TEXTS];
    int64_t length[HEADS_TEXTS];
    int64_t compared;
} heads_bench;

static inline void heads_bench_open(heads_bench *b, carry_ctx *ctx, int device, bool same_bits) {
    const carry_runner_sizes sizes = {.slots = 8, .pages = 7, .sequences = 6, .tokens = 80, .context = HEADS_TEXT};
    uint64_t random = 3;
    memset(b, 0, sizeof *b);
    heads_open(&b->model, ctx, false);
    assert_ok(ctx, carry_lm_open(ctx, &b->lm, b->model.folder, device));
    assert_ok(ctx, carry_lm_heads_open(b->lm, &b->heads));
    assert_ok(ctx,
              carry_model_runner_new_with(b->lm, &b->runner, &sizes, CARRY_F32,
                                          &(carry_model_runner_options){.same_bits = same_bits, .heads = b->heads}));
    for (int32_t t = 0; t < HEADS_TEXTS; t++) {
        b->slot[t] = 2 * t + 1;
        for (int32_t i = 0; i < 3; i++) {
            b->pages[t][i] = (5 * (3 * t + i) + 2) % 7;
        }
        for (int i = 0; i < HEADS_TEXT; i++) {
            b->ids[t][i] = (int32_t)((heads_random(&random) + 0.5f) * HEADS_H) % HEADS_H;
        }
        assert_ok(ctx, b->runner->ops->clear_slot(b->runner, b->slot[t]));
    }
}

static inline void heads_bench_close(heads_bench *b) {
    b->runner->ops->close(b->runner);
    carry_lm_free(b->heads);
    carry_lm_free(b->lm);
    heads_close(&b->model);
}

static inline carry_run heads_run(const heads_bench *b, int t, int64_t count) {
    static const carry_sampling greedy = {.top_p = 1.0};
    return (carry_run){.slot = b->slot[t],
                       .pages = b->pages[t],
                       .length = b->length[t],
                       .ids = b->ids[t] + b->length[t],
                       .count = count,
                       .wants_token = true,
                       .sampling = &greedy,
                       .logprobs = -1};
}

/* Reads tokens of both texts; and `guesses` of text 0, of which the first `right` are right. */
static inline void heads_step(heads_bench *b, int64_t first, int64_t second, int64_t guesses, int64_t right) {
    carry_run runs[6];
    carry_run_result results[6];
    int32_t wrong[6];
    int64_t n = 0;
    carry_ctx *ctx = b->model.ctx;
    runs[n++] = heads_run(b, 0, first);
    for (int64_t i = 1; i <= guesses; i++) {
        runs[n] = heads_run(b, 0, 1);
        wrong[i] = (b->ids[0][b->length[0] + i] + 1) % HEADS_H;
        runs[n].ids = i <= right ? runs[0].ids + i : wrong + i;
        runs[n].slot = (int32_t)(3 + i);
        runs[n].length += i;
        runs[n++].follows = true;
    }
    runs[n++] = heads_run(b, 1, second);
    assert_ok(ctx, b->runner->ops->step(b->runner, runs, n));
    assert_ok(ctx, b->runner->ops->results(b->runner, results, n));
    b->length[0] += first + right;
    b->length[1] += second;
    if (right > 0) {
        assert_ok(ctx, b->runner->ops->copy_slot(b->runner, b->slot[0], (int32_t)(3 + right)));
    }
}

/* Compares guesses after the next token of each text with the plain loops. Logits of f32 differ by less than 1e-4. */
static inline void heads_compare(heads_bench *b) {
    carry_run runs[HEADS_TEXTS];
    int32_t got[HEADS_TEXTS * HEADS_MOST];
    int32_t wanted[HEADS_MOST];
    for (int t = 0; t < HEADS_TEXTS; t++) {
        runs[t] = heads_run(b, t, 1);
    }
    assert_ok(b->model.ctx, b->runner->ops->draft(b->runner, runs, HEADS_TEXTS, HEADS_MOST, got));
    for (int t = 0; t < HEADS_TEXTS; t++) {
        const double apart_least = heads_guess(&b->model, b->ids[t], b->length[t] + 1, HEADS_MOST, wanted);
        if (apart_least > 1e-3) {
            assert_memory_equal(got + t * HEADS_MOST, wanted, sizeof wanted);
            b->compared++;
        }
    }
}

/* Runs texts with all kinds of steps on a device, in f32. */
static inline void heads_run_texts(carry_ctx *ctx, int device, bool same_bits) {
    static heads_bench bench;
    heads_bench *b = &bench;
    heads_bench_open(b, ctx, device, same_bits);
    heads_compare(b); /* of texts without a token before */
    heads_step(b, 10, 1, 0, 0);
    heads_compare(b);
    heads_compare(b); /* guesses change no state */
    heads_step(b, 1, 60, 3, 2);
    heads_compare(b);
    heads_step(b, 1, 1, 2, 0);
    heads_compare(b);
    heads_step(b, 61, 3, 0, 0); /* across the end of a page */
    heads_compare(b);
    /* The state through host memory, in another slot. */
    unsigned char *state = malloc(b->runner->sizes.slot_bytes);
    assert_non_null(state);
    assert_ok(ctx, b->runner->ops->read_slot(b->runner, state, b->slot[0]));
    assert_ok(ctx, b->runner->ops->clear_slot(b->runner, b->slot[0]));
    b->slot[0] = 7;
    assert_ok(ctx, b->runner->ops->write_slot(b->runner, b->slot[0], state));
    free(state);
    heads_compare(b);
    heads_step(b, 1, 2, 3, 3);
    heads_compare(b);
    print_message("%d of %d guesses compared\n", (int)b->compared, 16);
    assert_true(b->compared >= 12);
    heads_bench_close(b);
}

#endif
