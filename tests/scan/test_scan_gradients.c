/* Gradients equal float64 finite differences, and every algorithm's gradients equal the float64 ones. L = sum g h is
   linear in every single element of A, b and h0 (no product contains an element twice), so the central difference with
   step 1 is exact except for rounding. */
#include <math.h>

#include "support.h"

enum { MAX = 4096 };

typedef struct data {
    carry_scan_problem problem;
    int64_t A_count, b_count, state_count;
    float A[MAX], b[MAX], h0[MAX], g[MAX];
    double h[MAX], dA[MAX], db[MAX], dh0[MAX];
} data;

static carry_tensor A_view(const carry_scan_problem *p, void *at, carry_dtype dtype) {
    const int64_t shape[] = {p->batch, p->steps, p->n, p->n};
    return carry_view(at, dtype, p->kind == CARRY_SCAN_DENSE ? 4 : 3, shape);
}

static carry_tensor b_view(const carry_scan_problem *p, void *at, carry_dtype dtype) {
    return carry_view_4d(at, dtype, p->batch, p->steps, p->n, p->width);
}

static carry_tensor state_view(const carry_scan_problem *p, void *at, carry_dtype dtype) {
    return carry_view_3d(at, dtype, p->batch, p->n, p->width);
}

static data *make(carry_ctx *ctx, carry_scan_problem p) {
    data *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->problem = p;
    d->state_count = p.batch * p.n * p.width;
    d->b_count = d->state_count * p.steps;
    d->A_count = p.batch * p.steps * p.n * (p.kind == CARRY_SCAN_DENSE ? p.n : 1);
    assert_true(d->A_count <= MAX && d->b_count <= MAX);
    assert_ok(ctx, carry_random_uniform(ctx, A_view(&p, d->A, CARRY_F32), 11, 0, -0.7f, 0.9f));
    assert_ok(ctx, carry_random_normal(ctx, b_view(&p, d->b, CARRY_F32), 11, 1, 0.0f, 1.0f));
    assert_ok(ctx, carry_random_normal(ctx, state_view(&p, d->h0, CARRY_F32), 11, 2, 0.0f, 1.0f));
    assert_ok(ctx, carry_random_normal(ctx, b_view(&p, d->g, CARRY_F32), 11, 3, 0.0f, 1.0f));
    return d;
}

static double loss(carry_ctx *ctx, data *d) {
    carry_tensor h0 = state_view(&d->problem, d->h0, CARRY_F32);
    assert_ok(ctx, carry_scan_reference(ctx, d->h, &d->problem,
                                        &(carry_scan_args){.A = A_view(&d->problem, d->A, CARRY_F32),
                                                           .b = b_view(&d->problem, d->b, CARRY_F32),
                                                           .h0 = h0}));
    double sum = 0.0;
    for (int64_t i = 0; i < d->b_count; i++) {
        sum += d->h[i] * (double)d->g[i];
    }
    return sum;
}

/* The float64 gradients by the library's own reference. */
static void make_gradients(carry_ctx *ctx, data *d) {
    (void)loss(ctx, d);
    carry_tensor h0 = state_view(&d->problem, d->h0, CARRY_F32);
    assert_ok(ctx, carry_scan_reference_backward(ctx, d->dA, d->db, d->dh0, &d->problem,
                                                 &(carry_scan_backward_args){.A = A_view(&d->problem, d->A, CARRY_F32),
                                                                             .dh = b_view(&d->problem, d->g, CARRY_F32),
                                                                             .h0 = h0},
                                                 d->h));
}

static void differences(carry_ctx *ctx, data *d, float *values, const double *gradient, int64_t count,
                        const char *what) {
    for (int64_t i = 0; i < count; i++) {
        float kept = values[i];
        values[i] = kept + 1.0f;
        volatile float up = values[i]; /* what was really stored */
        double above = loss(ctx, d);
        values[i] = kept - 1.0f;
        volatile float down = values[i];
        double below = loss(ctx, d);
        values[i] = kept;
        double slope = (above - below) / ((double)up - (double)down);
        if (!(fabs(slope - gradient[i]) <= 1e-10 * (1.0 + fabs(slope)))) {
            fail_msg("%s[%lld] is %.12g and the finite difference is %.12g", what, (long long)i, gradient[i], slope);
        }
    }
}

static void reference_gradients_equal_finite_differences(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int form = 0; form < 4; form++) {
        data *d = make(ctx, (carry_scan_problem){.kind = (carry_scan_kind)(form & 1),
                                                 .batch = 2,
                                                 .steps = 5,
                                                 .n = 3,
                                                 .width = 2,
                                                 .reversed = (form & 2) != 0});
        make_gradients(ctx, d);
        differences(ctx, d, d->A, d->dA, d->A_count, "dA");
        differences(ctx, d, d->b, d->db, d->b_count, "db");
        differences(ctx, d, d->h0, d->dh0, d->state_count, "dh0");
        free(d);
    }
    carry_ctx_free(ctx);
}

static void compare(const float *got, const double *expected, int64_t count, double tolerance, const char *name,
                    const char *what, const carry_scan_problem *p) {
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(expected[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - expected[i]) <= tolerance * (largest + 1e-30))) {
            fail_msg("%s %s of %s t%lld n%lld w%lld%s: element %lld is %g and should be %g", name, what,
                     p->kind == CARRY_SCAN_DENSE ? "dense" : "diagonal", (long long)p->steps, (long long)p->n,
                     (long long)p->width, p->reversed ? " reversed" : "", (long long)i, (double)got[i], expected[i]);
        }
    }
}

/* f32 sums of at most 16 + 8 terms over at most 48 steps of growth below 1.5: 1e-4 of the largest is far above
   rounding, and far below the effect of a wrong index. */
static void every_algorithm_gives_these_gradients(void **unused) {
    (void)unused;
    static const int64_t shapes[][4] = {{1, 1, 3, 2},  {2, 2, 3, 1},  {1, 17, 4, 3},
                                        {3, 33, 2, 5}, {1, 48, 5, 8}, {5, 7, 8, 1}};
    for (int threads = 1; threads <= 3; threads++) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
            for (int form = 0; form < 4; form++) {
                carry_scan_problem p = {.kind = (carry_scan_kind)(form & 1),
                                        .batch = shapes[shape][0],
                                        .steps = shapes[shape][1],
                                        .n = shapes[shape][2],
                                        .width = shapes[shape][3],
                                        .reversed = (form & 2) != 0};
                data *d = make(ctx, p);
                for (int64_t i = 0; i < d->A_count; i++) { /* positive and moderate, for the log form */
                    d->A[i] = p.kind == CARRY_SCAN_DENSE ? d->A[i] * 0.4f : 0.5f + 0.4f * fabsf(d->A[i]);
                }
                make_gradients(ctx, d);
                float h_stored[MAX];
                for (int64_t i = 0; i < d->b_count; i++) {
                    h_stored[i] = (float)d->h[i];
                }
                p.backward = true;
                for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
                    const char *name = carry_scan_name(0, i);
                    carry_scan_plan *plan;
                    carry_status status = carry_scan_plan_new(
                        ctx, &plan, &p,
                        &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = name, .chunk = 5});
                    if (status == CARRY_EUNSUPPORTED && strcmp(name, "matmul_log") == 0) {
                        continue;
                    }
                    assert_ok(ctx, status);
                    float dA[MAX];
                    float db[MAX];
                    float dh0[MAX];
                    memset(dA, 0xff, sizeof dA);
                    memset(dh0, 0xff, sizeof dh0);
                    memcpy(db, d->g, sizeof db); /* db may be g */
                    carry_tensor dA_view = A_view(&p, dA, CARRY_F32);
                    carry_tensor dh0_view = state_view(&p, dh0, CARRY_F32);
                    carry_tensor h0 = state_view(&p, d->h0, CARRY_F32);
                    void *workspace = malloc(carry_scan_backward_workspace(plan) + 1);
                    assert_non_null(workspace);
                    assert_ok(ctx, carry_scan_backward(plan,
                                                       &(carry_scan_backward_args){.db = b_view(&p, db, CARRY_F32),
                                                                                   .dA = dA_view,
                                                                                   .dh0 = dh0_view,
                                                                                   .A = A_view(&p, d->A, CARRY_F32),
                                                                                   .h = b_view(&p, h_stored, CARRY_F32),
                                                                                   .dh = b_view(&p, db, CARRY_F32),
                                                                                   .h0 = h0},
                                                       workspace, carry_scan_backward_workspace(plan)));
                    compare(dA, d->dA, d->A_count, 1e-4, name, "dA", &p);
                    compare(db, d->db, d->b_count, 1e-4, name, "db", &p);
                    compare(dh0, d->dh0, d->state_count, 1e-4, name, "dh0", &p);
                    free(workspace);
                    carry_scan_plan_free(plan);
                }
                free(d);
            }
        }
        carry_ctx_free(ctx);
    }
}

/* Without an initial state, dA of the first step is zero; without dA and dh0, only db is written. */
static void what_is_not_asked_for_is_not_written(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_scan_problem p = {.kind = CARRY_SCAN_DENSE, .batch = 1, .steps = 6, .n = 3, .width = 2, .backward = true};
    data *d = make(ctx, p);
    carry_scan_plan *plan;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &p, NULL));
    void *workspace = malloc(carry_scan_backward_workspace(plan));
    float db[MAX];
    float dA[MAX];
    assert_non_null(workspace);
    memset(dA, 0xff, sizeof dA);
    carry_tensor dA_view = A_view(&p, dA, CARRY_F32);
    carry_scan_backward_args given = {.db = b_view(&p, db, CARRY_F32),
                                      .A = A_view(&p, d->A, CARRY_F32),
                                      .h = b_view(&p, d->b, CARRY_F32),
                                      .dh = b_view(&p, d->g, CARRY_F32)};
    assert_ok(ctx, carry_scan_backward(plan, &given, workspace, carry_scan_backward_workspace(plan)));
    given.dA = dA_view;
    assert_ok(ctx, carry_scan_backward(plan, &given, workspace, carry_scan_backward_workspace(plan)));
    for (int i = 0; i < 9; i++) {
        assert_true(dA[i] == 0.0f);
    }
    assert_true(dA[9] != 0.0f);
    free(workspace);
    carry_scan_plan_free(plan);
    free(d);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_gradients_equal_finite_differences),
        cmocka_unit_test(every_algorithm_gives_these_gradients),
        cmocka_unit_test(what_is_not_asked_for_is_not_written),
    };
    return cmocka_run_group_tests_name("scan/gradients", tests, NULL, NULL);
}
