/* KDA, with a gate for each key channel: gradients equal float64 and finite differences, with and without memory kept
   by forward, for packed sequences and over ranks. */
#include "delta_reference.h"

static const int64_t borders[] = {0, 0, 15, 80, 81, 150};

static const carry_delta_problem problems[] = {
    {.batch = 1, .tokens = 1, .heads = 1, .value_heads = 1, .key = 1, .value = 1},
    {.batch = 2, .tokens = 33, .heads = 1, .value_heads = 3, .key = 5, .value = 7, .scale = 0.7f},
    {.batch = 1, .tokens = 131, .heads = 2, .value_heads = 4, .key = 33, .value = 17, .l2norm = true},
    {.batch = 1, .tokens = 150, .heads = 2, .value_heads = 2, .key = 16, .value = 20, .sequences = 5, .l2norm = true},
    {.batch = 1, .tokens = 70, .heads = 1, .value_heads = 1, .key = 128, .value = 64, .l2norm = true},
    {.batch = 1, .tokens = 40, .heads = 1, .value_heads = 2, .key = 24, .value = 512, .l2norm = true},
};

static whole make_keys(carry_ctx *ctx, size_t i) {
    carry_delta_problem p = problems[i];
    p.gate = CARRY_DELTA_KEY_GATE;
    whole w = make_whole(ctx, p, p.sequences > 0 ? borders : NULL);
    for (int64_t j = 0; j < w.count[7]; j++) {
        w.g[j] *= 10.0f; /* 0.2 on average, up to about 0.8 */
    }
    return w;
}

/* f32 sums of K + V + C terms through a solve, then sums over tokens: some ten times the observed error. */
static void expect_exact(const recurrence *exact, const whole *w, const char *what, size_t problem) {
    for (int r = 0; r < REFERENCED; r++) {
        double off = error_of(exact, r, w->got[r], NULL);
        if (!(off <= 1e-5)) {
            fail_msg("problem %zu by %s: %s is off by %.3g of its largest", problem, what, result_name[r], off);
        }
    }
}

static void run_again(carry_ctx *ctx, whole *w, const char *method) {
    carry_delta_plan *plan;
    assert_ok(ctx, carry_delta_plan_new(ctx, &plan, &w->p,
                                        &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method}));
    size_t bytes = carry_delta_backward_workspace(plan);
    unsigned char *workspace = malloc(bytes + 8);
    assert_non_null(workspace);
    memset(workspace, 0xff, bytes);
    memset(workspace + bytes, 0x5a, 8);
    call c;
    make_call(&c, w, w->got, 0, w->p.tokens, NULL); /* nothing was kept */
    assert_ok(ctx, carry_delta_backward(plan, &c.backward, workspace, bytes));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(workspace[bytes + (size_t)i], 0x5a);
    }
    free(workspace);
    carry_delta_plan_free(plan);
}

static void poison(whole *w) {
    for (int r = 0; r < REFERENCED; r++) {
        memset(w->got[r], 0xff, (size_t)w->count[r] * sizeof(float));
    }
}

static void gradients_equal_float64(void **unused) {
    (void)unused;
    for (int threads = support_cases(1, 3); threads <= 3; threads += 2) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
            whole w = make_keys(ctx, i);
            recurrence exact = recur_whole(&w, false);
            for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
                if (!support_takes((int)i + m, 3)) {
                    continue;
                }
                poison(&w);
                run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
                expect_exact(&exact, &w, carry_delta_name(0, m), i);
                for (int r = 2; r < REFERENCED; r++) {
                    memset(w.got[r], 0xff, (size_t)w.count[r] * sizeof(float));
                }
                run_again(ctx, &w, carry_delta_name(0, m));
                expect_exact(&exact, &w, "forward again", i);
            }
            discard_recurrence(&exact);
            discard_whole(&w);
        }
        carry_ctx_free(ctx);
    }
}

/* One gate for each head, with the largest K and V. */
static void the_largest_heads_equal_float64(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const carry_delta_problem p = {.batch = 1,
                                   .tokens = 35,
                                   .heads = 1,
                                   .value_heads = 1,
                                   .key = CARRY_MAX_DELTA_DIM,
                                   .value = CARRY_MAX_DELTA_VALUE,
                                   .gate = CARRY_DELTA_HEAD_GATE,
                                   .l2norm = true};
    whole w = make_whole(ctx, p, NULL);
    recurrence exact = recur_whole(&w, false);
    for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
        poison(&w);
        run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
        expect_exact(&exact, &w, carry_delta_name(0, m), 0);
    }
    discard_recurrence(&exact);
    discard_whole(&w);
    carry_ctx_free(ctx);
}

/* L = <o, do> + <final, dfinal>, with carry_delta_reference in float64. */
static double loss(carry_ctx *ctx, const whole *w, double *o, double *final) {
    call c;
    make_call(&c, w, w->got, 0, w->p.tokens, NULL);
    assert_ok(ctx, carry_delta_reference(ctx, o, final, &w->p, &c.forward));
    double sum = 0.0;
    for (int64_t i = 0; i < w->count[0]; i++) {
        sum += o[i] * (double)w->grad_o[i];
    }
    for (int64_t i = 0; i < w->count[1]; i++) {
        sum += final[i] * (double)w->dfinal[i];
    }
    return sum;
}

/* Central differences of every input, some elements each. Steps of 2^-9 leave an error of 2^-18 times the third
   derivative, beside elements of about 1. */
static void gradients_equal_finite_differences(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    whole w = make_keys(ctx, 2);
    double *o = malloc((size_t)w.count[0] * sizeof *o);
    double *final = malloc((size_t)w.count[1] * sizeof *final);
    assert_true(o != NULL && final != NULL);
    run_method(ctx, &w, "chunk32", w.got, false, false);
    const struct {
        float *at;
        int result;
    } inputs[] = {{w.q, 2}, {w.k, 3}, {w.v, 4}, {w.beta, 5}, {w.initial, 6}, {w.g, 7}};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        int r = inputs[i].result;
        double largest = 0.0;
        for (int64_t j = 0; j < w.count[r]; j++) {
            const double size = fabs((double)w.got[r][j]); /* with fmax, gcc 12 for ARM crashes at -O3 */
            largest = size > largest ? size : largest;
        }
        for (uint64_t n = 0; n < (uint64_t)support_cases(12, 2); n++) {
            int64_t at = (int64_t)(draw(3, i, n) % (uint32_t)w.count[r]);
            float kept = inputs[i].at[at];
            float up = kept + 0x1p-9f;
            float down = kept - 0x1p-9f;
            inputs[i].at[at] = up;
            double above = loss(ctx, &w, o, final);
            inputs[i].at[at] = down;
            double below = loss(ctx, &w, o, final);
            inputs[i].at[at] = kept;
            double difference = (above - below) / ((double)up - (double)down);
            if (!(fabs(difference - (double)w.got[r][at]) <= 1e-4 * fmax(largest, 1.0))) {
                fail_msg("%s[%lld] is %g, by differences %g", result_name[r], (long long)at, (double)w.got[r][at],
                         difference);
            }
        }
    }
    free(o);
    free(final);
    discard_whole(&w);
    carry_ctx_free(ctx);
}

static void ranks_equal_one(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 1; i < 4; i++) {
        whole w = make_keys(ctx, i);
        run_whole(ctx, &w, false, false);
        for (int ranks = 2; ranks <= 5; ranks += support_cases(1, 3)) {
            split s = {.w = &w};
            cut_evenly(&s, ranks);
            compare_split(&s, ranks, 0.0, "key gates");
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_float64),
        cmocka_unit_test(the_largest_heads_equal_float64),
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(ranks_equal_one),
    };
    take_filter();
    return cmocka_run_group_tests_name("delta/kda", tests, NULL, NULL);
}
