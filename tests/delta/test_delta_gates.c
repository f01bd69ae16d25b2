/* Deep gates: no method is worse than the recurrence, forward, backward and over ranks, for any order of gates; and a
   NaN in one token reaches only the results that it reaches in the recurrence. */
#include "delta_reference.h"

static const float depths[] = {0.0f, -1e-3f, -1.0f, -50.0f, -1e3f, -1e6f, -INFINITY};

/* Form 0: gates of all depths. Other forms: a rare deep gate among shallow ones. */
static void draw_gates(whole *w, uint64_t seed, int form) {
    for (int64_t i = 0; i < w->count[7]; i++) {
        uint32_t any = draw(seed, 11, (uint64_t)i);
        w->g[i] = form == 0 ? depths[any % 7] : any % 40 == 0 ? depths[3 + form] : depths[any % 2 + (any % 8 == 2)];
    }
}

static const carry_delta_problem problems[] = {
    {.batch = 1, .tokens = 150, .heads = 1, .value_heads = 2, .key = 24, .value = 20, .gate = CARRY_DELTA_HEAD_GATE},
    {.batch = 2,
     .tokens = 77,
     .heads = 2,
     .value_heads = 2,
     .key = 9,
     .value = 33,
     .gate = CARRY_DELTA_HEAD_GATE,
     .l2norm = true},
};

/* Allows ten times the error of the recurrence in f32, or ten times 2^-24 of the largest element if that is more. */
static void expect_close(const recurrence *exact, const recurrence *plain, const whole *w, const char *what, int form) {
    for (int r = 0; r < REFERENCED; r++) {
        double allowed = 10.0 * fmax(error_of(exact, r, NULL, plain->to[r]), 0x1p-24);
        double off = error_of(exact, r, w->got[r], NULL);
        if (!(off <= allowed)) {
            fail_msg("%s, gates of form %d: %s is off by %.3g of its largest, %.3g is allowed", what, form,
                     result_name[r], off, allowed);
        }
    }
}

static void no_method_is_worse_than_the_recurrence(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        for (int form = 0; form < 4; form++) {
            if (!support_takes((int)i * 4 + form, 3)) {
                continue;
            }
            whole w = make_whole(ctx, problems[i], NULL);
            draw_gates(&w, i, form);
            recurrence exact = recur_whole(&w, false);
            recurrence plain = recur_whole(&w, true);
            for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
                run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
                expect_close(&exact, &plain, &w, carry_delta_name(0, m), form);
            }
            discard_recurrence(&exact);
            discard_recurrence(&plain);
            discard_whole(&w);
        }
    }
    carry_ctx_free(ctx);
}

/* The same with a gate for each key channel. */
static void key_gates_are_no_worse_either(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 4; form += support_cases(1, 3)) {
        carry_delta_problem p = problems[form % 2];
        p.gate = CARRY_DELTA_KEY_GATE;
        whole w = make_whole(ctx, p, NULL);
        draw_gates(&w, 5, form);
        recurrence exact = recur_whole(&w, false);
        recurrence plain = recur_whole(&w, true);
        for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
            run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
            expect_close(&exact, &plain, &w, carry_delta_name(0, m), form);
        }
        discard_recurrence(&exact);
        discard_recurrence(&plain);
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

static void ranks_are_no_worse_than_the_recurrence(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int form = 0; form < 4; form += support_cases(1, 3)) {
        carry_delta_problem p = problems[0];
        p.gate = form % 2 == 0 ? CARRY_DELTA_HEAD_GATE : CARRY_DELTA_KEY_GATE;
        whole w = make_whole(ctx, p, NULL);
        draw_gates(&w, 3, form);
        recurrence exact = recur_whole(&w, false);
        recurrence plain = recur_whole(&w, true);
        for (int ranks = 2; ranks <= 3; ranks++) {
            split s = {.w = &w};
            cut_evenly(&s, ranks);
            if (has_ranks(ranks)) {
                run_on_ranks(&s, ranks, "deep gates");
                expect_close(&exact, &plain, &w, "ranks", form);
            }
        }
        discard_recurrence(&exact);
        discard_recurrence(&plain);
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

/* A gate that lets nothing through has a gradient of exactly 0, and so have the inputs that the gate is computed
   from. */
static void gates_that_erase_have_no_gradient(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int inside = 0; inside < 2; inside++) {
        carry_delta_problem p = problems[0];
        p.gate_inside = inside != 0;
        whole w = make_whole(ctx, p, NULL);
        for (int64_t i = 0; i < w.count[7]; i += 7) {
            w.g[i] = inside != 0 ? INFINITY : i % 2 == 0 ? -INFINITY : -1e6f;
        }
        run_method(ctx, &w, "chunk32", w.got, false, false);
        for (int r = 0; r < (inside != 0 ? RESULTS : REFERENCED); r++) {
            for (int64_t i = 0; i < w.count[r]; i++) {
                assert_true(isfinite(w.got[r][i]));
                assert_true(r != 7 || i % 7 != 0 || w.got[r][i] == 0.0f);
            }
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

/* The rows before token `at`, or those after it, have the same bits as without the NaN. */
static void expect_untouched(const whole *w, int result, int64_t at, bool before, const char *what) {
    const carry_delta_problem *p = &w->p;
    int64_t row = w->count[result] / (p->batch * p->tokens);
    for (int64_t i = 0; i < w->count[result]; i++) {
        if (before ? i / row < at : i / row > at) {
            if (memcmp(&w->got[result][i], &w->wanted[result][i], sizeof(float)) != 0) {
                fail_msg("NaN in %s of token %lld: %s of token %lld is %g and was %g", what, (long long)at,
                         result_name[result], (long long)(i / row), (double)w->got[result][i],
                         (double)w->wanted[result][i]);
            }
        }
    }
}

static void a_nan_reaches_no_earlier_token(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_delta_problem p = problems[0];
    p.heads = p.value_heads = 1;
    p.tokens = support_cases(150, 90); /* numbers that are not finite take many times longer under qemu */
    whole w = make_whole(ctx, p, NULL);
    const struct {
        const char *name;
        float *at;
        int64_t size;
    } inputs[] = {{"q", w.q, p.key},   {"k", w.k, p.key}, {"v", w.v, p.value},
                  {"beta", w.beta, 1}, {"g", w.g, 1},     {"do", w.grad_o, p.value}};
    for (int m = 0; carry_delta_name(0, m) != NULL; m += support_cases(1, 3)) {
        run_method(ctx, &w, carry_delta_name(0, m), w.wanted, false, false);
        for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
            for (int64_t at = support_cases(5, 70); at < p.tokens; at += support_cases(26, 78)) {
                const bool infinite = (at / 26 + (int64_t)i) % 2 != 0; /* each in turn */
                float *x = &inputs[i].at[at * inputs[i].size + inputs[i].size / 2];
                float kept = *x;
                *x = infinite && inputs[i].at != w.g ? INFINITY : NAN;
                run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
                *x = kept;
                bool gradient = inputs[i].at == w.grad_o;
                expect_untouched(&w, 0, gradient ? p.tokens : at, true, inputs[i].name);
                expect_untouched(&w, 2, at, true, inputs[i].name); /* dq[t] depends on tokens up to t */
                for (int r = 2; gradient && r < REFERENCED; r++) { /* results that depend on `do` of tokens from t on */
                    if (r != 6) {
                        expect_untouched(&w, r, at, false, inputs[i].name);
                    }
                }
                if (!gradient && inputs[i].at != w.q && inputs[i].at != w.g) {
                    assert_true(!isfinite(w.got[0][(p.tokens - 1) * p.value + p.value / 2]));
                }
            }
        }
    }
    discard_whole(&w);
    carry_ctx_free(ctx);
}

/* The gradient of a state does not depend on v, and dg[t] is computed from it and S[t-1]. So a NaN in v[s] may reach
   dq, dk and dbeta of tokens from s on, dg of tokens after s, and no dv. The other dg equal those without the NaN
   except for rounding, since chunk methods then sum in another order. */
static void a_nan_of_v_reaches_no_earlier_gradient(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int keys = 0; keys < 2; keys++) {
        carry_delta_problem p = problems[0];
        p.heads = p.value_heads = 1;
        p.tokens = support_cases(150, 90);
        p.gate = keys != 0 ? CARRY_DELTA_KEY_GATE : CARRY_DELTA_HEAD_GATE;
        whole w = make_whole(ctx, p, NULL);
        const int64_t row = keys != 0 ? p.key : 1;
        for (int m = 0; carry_delta_name(0, m) != NULL; m += support_cases(1, 3)) {
            run_method(ctx, &w, carry_delta_name(0, m), w.wanted, false, false);
            float largest = 0.0f;
            for (int64_t i = 0; i < w.count[7]; i++) {
                largest = fabsf(w.wanted[7][i]) > largest ? fabsf(w.wanted[7][i]) : largest;
            }
            for (int64_t at = 0; at < p.tokens; at += support_cases(37, 74)) {
                float *x = &w.v[at * p.value + 3];
                const float kept = *x;
                *x = NAN;
                run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
                *x = kept;
                expect_untouched(&w, 4, p.tokens, true, "v"); /* dv */
                for (int r = 2; r < REFERENCED; r++) {
                    if (r == 2 || r == 3 || r == 5) {
                        expect_untouched(&w, r, at, true, "v");
                    }
                }
                for (int64_t i = 0; i < (at + 1) * row; i++) {
                    if (!(fabsf(w.got[7][i] - w.wanted[7][i]) <= 1e-5f * largest)) {
                        fail_msg("%s: NaN in v of token %lld: dg of token %lld is %g and was %g",
                                 carry_delta_name(0, m), (long long)at, (long long)(i / row), (double)w.got[7][i],
                                 (double)w.wanted[7][i]);
                    }
                }
                assert_true(at + 1 >= p.tokens || !isfinite(w.got[7][(at + 1) * row]));
            }
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

/* Gates computed inside the call: the gradients of their parameters are sums of dg over all tokens, in which large
   terms cancel. Allows 2e-5, or ten times the error of the recurrence in f32. */
static void parameters_of_the_gate_are_no_worse_either(void **unused) {
    (void)unused;
    static const struct {
        int64_t tokens, key, value;
        float level, spread; /* of a */
        bool l2norm;
    } cases[] = {{155, 24, 16, 2.0f, 4.0f, false}, {260, 32, 4, 4.0f, 0.1f, true},  {264, 64, 24, 4.0f, 4.0f, true},
                 {300, 16, 64, 4.0f, 4.0f, false}, {142, 96, 64, 4.0f, 1.0f, true}, {280, 24, 24, 0.0f, 4.0f, false}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!support_takes((int)i, 3)) {
            continue;
        }
        const carry_delta_problem p = {.batch = 2,
                                       .tokens = cases[i].tokens,
                                       .heads = 1,
                                       .value_heads = 2,
                                       .key = cases[i].key,
                                       .value = cases[i].value,
                                       .gate = CARRY_DELTA_HEAD_GATE,
                                       .gate_inside = true,
                                       .l2norm = cases[i].l2norm};
        whole w = make_whole(ctx, p, NULL);
        for (int64_t j = 0; j < w.count[7]; j++) {
            w.g[j] = (w.g[j] + 4.0f) * cases[i].spread + cases[i].level; /* make_whole's mean is -4 */
        }
        memset(w.dfinal, 0, (size_t)w.count[6] * sizeof(float));
        recurrence exact = recur_whole(&w, false);
        recurrence plain = recur_whole(&w, true);
        for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
            run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
            for (int r = REFERENCED; r < RESULTS; r++) {
                const double allowed = fmax(10.0 * error_of(&exact, r, NULL, plain.to[r]), 2e-5);
                const double off = error_of(&exact, r, w.got[r], NULL);
                if (!(off <= allowed)) {
                    fail_msg("%s, case %zu: %s is off by %.3g of its largest, %.3g is allowed", carry_delta_name(0, m),
                             i, result_name[r], off, allowed);
                }
            }
        }
        discard_recurrence(&exact);
        discard_recurrence(&plain);
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

/* The largest error of a channel's sum of dg [tokens, channels] over all tokens, as a fraction of the largest sum. Such
   a sum is the gradient of a gate's bias. The values are in `got` or, if it is NULL, in `also`. */
static double error_of_sums(const double *exact, const float *got, const double *also, int64_t tokens,
                            int64_t channels) {
    double off = 0.0, largest = 0.0;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0.0, difference = 0.0;
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t at = t * channels + c;
            difference += (got != NULL ? (double)got[at] : also[at]) - exact[at];
            sum += exact[at];
        }
        off = fmax(off, fabs(difference));
        largest = fmax(largest, fabs(sum));
    }
    return off / largest;
}

/* Allows seven times the error of the recurrence in f32, and ten times for the longest chunks, in which the two signs
   of a pair of tokens come from two products of f32. */
static void sums_of_key_gates_are_no_worse_either(void **unused) {
    (void)unused;
    static const struct {
        int64_t tokens, key, value;
        float level; /* of -g, on average */
        bool l2norm;
    } cases[] = {{155, 24, 16, 1e-3f, false},
                 {300, 16, 64, 0.2f, false},
                 {142, 96, 64, 1e-2f, true},
                 {280, 24, 24, 1e-4f, false},
                 {512, 32, 32, 1e-2f, true}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!support_takes((int)i, 3)) {
            continue;
        }
        const carry_delta_problem p = {.batch = 2,
                                       .tokens = cases[i].tokens,
                                       .heads = 1,
                                       .value_heads = 2,
                                       .key = cases[i].key,
                                       .value = cases[i].value,
                                       .gate = CARRY_DELTA_KEY_GATE,
                                       .l2norm = cases[i].l2norm};
        const int64_t channels = p.value_heads * p.key;
        whole w = make_whole(ctx, p, NULL);
        for (int64_t j = 0; j < w.count[7]; j++) {
            w.g[j] = -cases[i].level * (float)(draw(i, 77, (uint64_t)j) % 1000) / 500.0f;
        }
        memset(w.dfinal, 0, (size_t)w.count[6] * sizeof(float));
        recurrence exact = recur_whole(&w, false);
        recurrence plain = recur_whole(&w, true);
        const double lost = error_of_sums(exact.to[7], NULL, plain.to[7], p.batch * p.tokens, channels);
        for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
            const double allowed = (strcmp(carry_delta_name(0, m), "chunk128") == 0 ? 10.0 : 7.0) * fmax(lost, 0x1p-23);
            run_method(ctx, &w, carry_delta_name(0, m), w.got, false, false);
            const double off = error_of_sums(exact.to[7], w.got[7], NULL, p.batch * p.tokens, channels);
            if (!(off <= allowed)) {
                fail_msg("%s, case %zu: sums of dg are off by %.3g of the largest, %.3g is allowed",
                         carry_delta_name(0, m), i, off, allowed);
            }
        }
        discard_recurrence(&exact);
        discard_recurrence(&plain);
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

/* Training and generation must not differ: keeping memory for the backward pass changes no bit of the results, and
   gradients are the same whether the memory was kept or is recomputed. */
static void kept_memory_changes_no_bit(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 3; form++) {
        carry_delta_problem p = problems[form % 2];
        p.gate = form == 2 ? CARRY_DELTA_KEY_GATE : p.gate;
        whole w = make_whole(ctx, p, NULL);
        for (int m = 0; carry_delta_name(0, m) != NULL; m++) {
            carry_delta_plan *plan;
            call c;
            run_method(ctx, &w, carry_delta_name(0, m), w.wanted, false, false);
            assert_ok(ctx, carry_delta_plan_new(ctx, &plan, &p,
                                                &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                                                       .algorithm = carry_delta_name(0, m)}));
            size_t bytes = carry_delta_backward_workspace(plan) + carry_delta_forward_workspace(plan);
            void *workspace = malloc(bytes);
            assert_non_null(workspace);
            make_call(&c, &w, w.got, 0, p.tokens, NULL);
            assert_ok(ctx, carry_delta_forward(plan, &c.forward, workspace, bytes));
            assert_ok(ctx, carry_delta_backward(plan, &c.backward, workspace, bytes));
            for (int r = 0; r < REFERENCED; r++) {
                if (memcmp(w.got[r], w.wanted[r], (size_t)w.count[r] * sizeof(float)) != 0) {
                    fail_msg("%s, form %d: %s has other bits without kept memory", carry_delta_name(0, m), form,
                             result_name[r]);
                }
            }
            free(workspace);
            carry_delta_plan_free(plan);
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_method_is_worse_than_the_recurrence),
        cmocka_unit_test(key_gates_are_no_worse_either),
        cmocka_unit_test(parameters_of_the_gate_are_no_worse_either),
        cmocka_unit_test(sums_of_key_gates_are_no_worse_either),
        cmocka_unit_test(kept_memory_changes_no_bit),
        cmocka_unit_test(ranks_are_no_worse_than_the_recurrence),
        cmocka_unit_test(gates_that_erase_have_no_gradient),
        cmocka_unit_test(a_nan_reaches_no_earlier_token),
        cmocka_unit_test(a_nan_of_v_reaches_no_earlier_gradient),
    };
    take_filter();
    return cmocka_run_group_tests_name("delta/gates", tests, NULL, NULL);
}
