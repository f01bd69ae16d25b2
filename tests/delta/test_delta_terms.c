/* Chunk products of bf16 problems by terms (delta/terms.h), with emulated AMX and with the processor's AMX if it has
   it, against float64 and against the f32 path: for every chunk, gate and option; the same bits for every number of
   threads; a NaN or an infinity reaches the results that it reaches in f32. */
#include <math.h>

#include "support.h"

#include "bench/family/delta_set.h"
#include "core/tensor.h"
#include "ops/kernels/bf16.h"

enum { RESULTS = 8, RUNS = 4 };
static const char *const result_name[RESULTS] = {"o", "final", "dq", "dk", "dv", "dbeta", "dg", "dinitial"};
static const char *const chunks[] = {"chunk32", "chunk64", "chunk128"};

typedef struct results {
    float *of[RESULTS];
    int64_t count[RESULTS];
} results;

static results copy_results(const carry_delta_set *s) {
    const carry_tensor *all[RESULTS] = {&s->o, &s->final, &s->dq, &s->dk, &s->dv, &s->dbeta, &s->dg, &s->dstate};
    results made = {0};
    for (int r = 0; r < RESULTS; r++) {
        made.count[r] = all[r]->data != NULL ? carry_tensor_count(all[r]) : 0;
        made.of[r] = calloc((size_t)made.count[r] + 1, sizeof(float));
        assert_non_null(made.of[r]);
        for (int64_t i = 0; i < made.count[r]; i++) {
            made.of[r][i] = (float)carry_tensor_at(all[r], i);
        }
    }
    return made;
}

static void free_results(results *r) {
    for (int i = 0; i < RESULTS; i++) {
        free(r->of[i]);
    }
}

static carry_delta_set make_set(carry_ctx *ctx, const carry_delta_problem *p, const char *gates) {
    carry_delta_set s;
    assert_ok(ctx, carry_delta_set_new(ctx, &s, p, true, 5, 0));
    carry_delta_set_gates(&s, gates);
    carry_tensor *rows[] = {&s.q, &s.k};
    for (int i = 0; !p->l2norm && i < 2; i++) { /* scales them to a length of about 1 */
        uint16_t *bits = rows[i]->data;
        for (int64_t j = 0; j < carry_tensor_count(rows[i]); j++) {
            bits[j] = carry_bf16_from_f32((float)carry_tensor_at(rows[i], j) / sqrtf((float)p->key));
        }
    }
    return s;
}

/* Forward, which keeps, and backward. */
static results run(carry_ctx *ctx, const carry_delta_problem *p, carry_delta_set *s, const char *method, bool keep) {
    carry_delta_plan *plan;
    assert_ok(ctx, carry_delta_plan_new(ctx, &plan, p,
                                        &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method}));
    size_t forward = carry_delta_forward_workspace(plan);
    size_t backward = carry_delta_backward_workspace(plan);
    unsigned char *workspace = malloc((forward > backward ? forward : backward) + 8);
    void *kept = malloc(carry_delta_kept_bytes(plan));
    assert_true(workspace != NULL && kept != NULL);
    assert_ok(ctx, carry_delta_set_poison(ctx, s, s));
    carry_delta_forward_args args = carry_delta_set_forward(s, p, true);
    args.kept = keep ? kept : NULL;
    memset(workspace + forward, 0x5a, 8);
    assert_ok(ctx, carry_delta_forward(plan, &args, workspace, forward));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(workspace[forward + (size_t)i], 0x5a);
    }
    carry_delta_backward_args back = carry_delta_set_backward(s, p, true, keep ? kept : NULL);
    memset(workspace + backward, 0x5a, 8);
    assert_ok(ctx, carry_delta_backward(plan, &back, workspace, backward));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(workspace[backward + (size_t)i], 0x5a);
    }
    results made = copy_results(s);
    free(workspace);
    free(kept);
    carry_delta_plan_free(plan);
    return made;
}

static double largest_of(const float *x, int64_t count) {
    double largest = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, isfinite(x[i]) ? fabs((double)x[i]) : 0.0);
    }
    return largest;
}

/* Bounds relative to the largest element. 16-bit results may round to the next number; the state and its gradient have
   f32's accuracy; dbeta and dg are f32 sums of products of two terms, 2^-15 of their parts, which cancel. A result must
   not be finite where `wanted` is not. */
static void expect_close(const results *got, const results *wanted, const char *what) {
    static const double allowed[RESULTS] = {0x1p-8, 4e-6, 0x1p-7, 0x1p-7, 0x1p-7, 2e-4, 2e-4, 1e-5};
    for (int r = 0; r < RESULTS; r++) {
        double largest = largest_of(wanted->of[r], wanted->count[r]);
        for (int64_t i = 0; i < wanted->count[r]; i++) {
            double have = (double)got->of[r][i];
            double want = (double)wanted->of[r][i];
            bool right = isfinite(want) ? fabs(have - want) <= allowed[r] * largest : !isfinite(have);
            if (!right) {
                fail_msg("%s: %s[%lld] is %.9g and should be %.9g, of at most %.3g", what, result_name[r], (long long)i,
                         have, want, largest);
            }
        }
    }
}

/* The same bits; any NaN is a NaN. */
static void expect_same(const results *got, const results *wanted, const char *what) {
    for (int r = 0; r < RESULTS; r++) {
        for (int64_t i = 0; i < wanted->count[r]; i++) {
            const float *a = &got->of[r][i];
            const float *b = &wanted->of[r][i];
            if (memcmp(a, b, sizeof *a) != 0 && !(isnan(*a) && isnan(*b))) {
                fail_msg("%s: %s[%lld] is %.9g and %.9g with other threads", what, result_name[r], (long long)i,
                         (double)*a, (double)*b);
            }
        }
    }
}

static void expect_reference(carry_ctx *ctx, const carry_delta_problem *p, carry_delta_set *s, const results *got,
                             const char *what) {
    double *o = calloc((size_t)got->count[0], sizeof *o);
    double *final = calloc((size_t)got->count[1], sizeof *final);
    assert_true(o != NULL && final != NULL);
    carry_delta_forward_args args = carry_delta_set_forward(s, p, true);
    assert_ok(ctx, carry_delta_reference(ctx, o, final, p, &args));
    const double *wanted[] = {o, final};
    const double allowed[] = {0x1p-8, 64.0 * 0x1p-24};
    for (int r = 0; r < 2; r++) {
        double largest = 1e-30;
        for (int64_t i = 0; i < got->count[r]; i++) {
            largest = fmax(largest, fabs(wanted[r][i]));
        }
        for (int64_t i = 0; i < got->count[r]; i++) {
            if (!(fabs((double)got->of[r][i] - wanted[r][i]) <= allowed[r] * largest)) {
                fail_msg("%s: %s[%lld] is %.9g and should be %.9g, of at most %.3g", what, result_name[r], (long long)i,
                         (double)got->of[r][i], wanted[r][i], largest);
            }
        }
    }
    free(o);
    free(final);
}

/* Contexts of 1, 2 and 3 threads with emulated tiles, then one with the processor's, or NULL. */
static carry_ctx *by_terms[RUNS];
static carry_ctx *in_f32;

static int open_contexts(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        by_terms[i] = support_ctx(i + 1, "amx-emulated", NULL);
    }
    const carry_bf16 *amx = carry_bf16_named("amx");
    by_terms[3] = amx != NULL && amx->missing() == NULL ? support_ctx(2, "amx", NULL) : NULL;
    if (by_terms[3] == NULL) {
        print_message("skipped: amx: %s\n", amx != NULL ? amx->missing() : "not for this processor");
    }
    carry_ctx *usual = support_ctx(1, NULL, NULL);
    in_f32 = support_ctx(2, carry_ctx_kernels(usual), NULL);
    carry_ctx_free(usual);
    return 0;
}

static int close_contexts(void **state) {
    (void)state;
    for (int i = 0; i < RUNS; i++) {
        carry_ctx_free(by_terms[i]);
    }
    carry_ctx_free(in_f32);
    return 0;
}

static void check_problem(const carry_delta_problem *p, const char *gates, const char *method, bool finite,
                          void (*spoil)(carry_delta_set *s)) {
    char what[160];
    (void)snprintf(what, sizeof what, "%s T=%lld H=%lld HV=%lld K=%lld V=%lld gate %d %s l2norm %d", method,
                   (long long)p->tokens, (long long)p->heads, (long long)p->value_heads, (long long)p->key,
                   (long long)p->value, (int)p->gate, gates, (int)p->l2norm);
    carry_delta_set s = make_set(in_f32, p, gates);
    if (spoil != NULL) {
        spoil(&s);
    }
    results plain = run(in_f32, p, &s, method, true);
    results first = {0};
    for (int i = 0; i < RUNS && by_terms[i] != NULL; i++) {
        if (i == 1 && support_cases(0, 1) != 0) {
            continue; /* three threads cover what two do */
        }
        results got = run(by_terms[i], p, &s, method, i != support_cases(1, 2));
        if (i == 0) {
            first = got;
            expect_close(&first, &plain, what);
            if (finite) {
                expect_reference(in_f32, p, &s, &first, what);
            }
            continue;
        }
        if (spoil == NULL) {
            expect_same(&got, &first, what);
        } else { /* columns beside a number that is not finite use f32, and threads split columns */
            expect_close(&got, &plain, what);
        }
        free_results(&got);
    }
    free_results(&first);
    free_results(&plain);
    carry_delta_set_free(in_f32, &s);
}

/* Forms to pass over. */
static int stride(void) {
    return support_cases(1, 8);
}

static void terms_have_the_accuracy_of_f32_for_every_chunk_gate_and_shape(void **unused) {
    (void)unused;
    static const int64_t shapes[][6] = {{1, 1, 1, 1, 32, 32},
                                        {1, 70, 1, 2, 32, 48},
                                        {2, 64, 2, 2, 33, 64},
                                        {1, 88, 1, 2, 40, 50},
                                        {1, 96, 1, 1, 128, 128}};
    static const char *const gates[] = {"", "mixed", "zero"};
    const size_t count = sizeof shapes / sizeof shapes[0] - (stride() > 1 ? 1 : 0); /* the last one takes longest */
    for (size_t i = 0; i < count; i++) {
        for (int form = (int)i % 2; form < 8; form += stride() + (shapes[i][4] < 64 ? 0 : 2)) {
            carry_delta_problem p = {.batch = shapes[i][0],
                                     .tokens = shapes[i][1],
                                     .heads = shapes[i][2],
                                     .value_heads = shapes[i][3],
                                     .key = shapes[i][4],
                                     .value = shapes[i][5],
                                     .dtype = CARRY_BF16,
                                     .gate = form % 4 < 3 ? CARRY_DELTA_HEAD_GATE : CARRY_DELTA_NO_GATE,
                                     .l2norm = form >= 4};
            check_problem(&p, form % 4 < 3 ? gates[form % 4] : "", chunks[(form + (int)i) % 3], true, NULL);
        }
    }
}

/* The plan names its kind of product; other types, a key gate, small sizes and other kernels use f32. */
static void plans_name_the_products(void **unused) {
    (void)unused;
    const carry_delta_problem good = {.batch = 1,
                                      .tokens = 512,
                                      .heads = 1,
                                      .value_heads = 1,
                                      .key = 64,
                                      .value = 64,
                                      .dtype = CARRY_BF16,
                                      .gate = CARRY_DELTA_HEAD_GATE};
    for (int form = 0; form < 7; form++) {
        carry_delta_problem p = good;
        p.dtype = form == 1 ? CARRY_F32 : form == 2 ? CARRY_F16 : p.dtype;
        p.gate = form == 3 ? CARRY_DELTA_KEY_GATE : p.gate;
        p.key = form == 4 ? 31 : p.key;
        carry_ctx *ctx = form == 5 ? in_f32 : by_terms[0];
        carry_delta_plan *plan;
        assert_ok(ctx, carry_delta_plan_new(ctx, &plan, &p,
                                            &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                                                   .algorithm = form == 6 ? "chunk16" : "chunk64"}));
        bool named = strstr(carry_delta_plan_about(plan), "products by amx-emulated") != NULL;
        assert_int_equal(named, form == 0);
        carry_delta_plan_free(plan);
    }
}

static void set_bits(carry_tensor *x, int64_t at, float value) {
    ((uint16_t *)x->data)[at] = carry_bf16_from_f32(value);
}

static void nan_in_v(carry_delta_set *s) {
    set_bits(&s->v, 100 * 32 + 5, NAN);
}

static void infinity_in_k(carry_delta_set *s) {
    set_bits(&s->k, 70 * 32 + 5, INFINITY);
}

static void large_q_and_k(carry_delta_set *s) {
    set_bits(&s->k, 70 * 32 + 5, 1e30f);
    set_bits(&s->q, 90 * 32 + 7, 1e25f);
}

static void nan_in_the_state(carry_delta_set *s) {
    ((float *)s->state.data)[77] = NAN;
}

static void infinity_in_the_gradient(carry_delta_set *s) {
    set_bits(&s->grad_o, 98 * 32 + 9, INFINITY);
}

static void deep_gates(carry_delta_set *s) {
    for (int64_t i = 0; i < carry_tensor_count(&s->g); i += 3) {
        carry_tensor *g = &s->g;
        if (g->dtype == CARRY_F32) {
            ((float *)g->data)[i] = i % 2 == 0 ? -INFINITY : -1e4f;
        } else {
            set_bits(g, i, i % 2 == 0 ? -INFINITY : -1e4f);
        }
    }
}

static void numbers_that_are_not_finite_reach_what_they_reach_in_f32(void **unused) {
    (void)unused;
    void (*const spoils[])(carry_delta_set *) = {
        nan_in_v, infinity_in_k, large_q_and_k, nan_in_the_state, infinity_in_the_gradient, deep_gates};
    for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++) {
        for (int form = (int)i % 2; form < 2; form += stride()) {
            carry_delta_problem p = {.batch = 1,
                                     .tokens = 128,
                                     .heads = 1,
                                     .value_heads = 1,
                                     .key = 32,
                                     .value = 32,
                                     .dtype = CARRY_BF16,
                                     .gate = CARRY_DELTA_HEAD_GATE,
                                     .l2norm = form == 0 || spoils[i] == large_q_and_k};
            check_problem(&p, "", "chunk64", spoils[i] == deep_gates, spoils[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terms_have_the_accuracy_of_f32_for_every_chunk_gate_and_shape),
        cmocka_unit_test(plans_name_the_products),
        cmocka_unit_test(numbers_that_are_not_finite_reach_what_they_reach_in_f32),
    };
    return cmocka_run_group_tests_name("delta/terms", tests, open_contexts, close_contexts);
}
