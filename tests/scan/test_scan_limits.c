/* Difficult inputs give right results, and bad ones are refused with one error message before anything is written. */
#include <math.h>

#include "support.h"

typedef struct call {
    carry_scan_problem problem;
    carry_tensor h, A, b, h0;
    float data[4][256];
} call;

static call good_call(void) {
    call c = {.problem = {.kind = CARRY_SCAN_DIAGONAL, .batch = 2, .steps = 5, .n = 3, .width = 2}};
    c.h = carry_view_4d(NULL, CARRY_F32, 2, 5, 3, 2);
    c.b = c.h;
    c.A = carry_view_3d(NULL, CARRY_F32, 2, 5, 3);
    c.h0 = carry_view_3d(NULL, CARRY_F32, 2, 3, 2);
    return c;
}

static void point(call *c) {
    c->h.data = c->data[0];
    c->b.data = c->data[1];
    c->A.data = c->data[2];
    c->h0.data = c->data[3];
}

#define refused(expected, words, change)                                                                           \
    do {                                                                                                           \
        call c = good_call();                                                                                      \
        point(&c);                                                                                                 \
        memset(c.data[0], 0x5a, sizeof c.data[0]);                                                                 \
        change;                                                                                                    \
        assert_refused(                                                                                            \
            ctx, expected, words,                                                                                  \
            carry_scan_run(plan, &(carry_scan_args){.h = c.h, .A = c.A, .b = c.b, .h0 = c.h0}, workspace, bytes)); \
        for (size_t i_ = 0; i_ < sizeof c.data[0]; i_++) {                                                         \
            assert_int_equal(((unsigned char *)c.data[0])[i_], 0x5a);                                              \
        }                                                                                                          \
    } while (0)

static void bad_tensors_are_refused_by_name_and_nothing_is_written(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    call good = good_call();
    carry_scan_plan *plan;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &good.problem, NULL));
    size_t bytes = carry_scan_run_workspace(plan);
    void *workspace = malloc(bytes + 1);
    assert_non_null(workspace);
    refused(CARRY_ESHAPE, "A has shape [2, 4, 3] where [2, 5, 3] is needed", c.A.shape[1] = 4);
    refused(CARRY_ESHAPE, "h0 has shape", c.h0.shape[2] = 9);
    refused(CARRY_ESHAPE, "b has shape", c.b.rank = 3);
    refused(CARRY_EDTYPE, "b is bf16 and the problem is planned for f32", c.b.dtype = CARRY_BF16);
    refused(CARRY_EDTYPE, "h is f16", c.h.dtype = CARRY_F16);
    refused(CARRY_EDTYPE, "not a carry_dtype", c.h.dtype = (carry_dtype)77);
    refused(CARRY_ESTRIDE, "h is not packed inside a step", c.h.stride[3] = 2);
    refused(CARRY_ESTRIDE, "h has strides", c.h.stride[0] = c.h.stride[1]);
    refused(CARRY_ESTRIDE, "h has strides [0, ", c.h.stride[0] = 0);
    refused(CARRY_ESTRIDE, "leaves memory", c.b.stride[0] = INT64_MAX / 2);
    refused(CARRY_EALIGN, "b is at an address", c.b.data = (char *)c.b.data + 2);
    refused(CARRY_EARGUMENT, "A has no data", c.A.data = NULL);
    refused(CARRY_EDEVICE, "A is on device 1", c.A.device = 1);
    refused(CARRY_EARGUMENT, "h shares memory with b", c.b.data = c.data[0] + 1);
    refused(CARRY_EARGUMENT, "h shares memory with A", c.A.data = c.data[0]);
    if (bytes > 0) {
        bytes--;
        refused(CARRY_EWORKSPACE, "bytes and the plan needs", (void)0);
    }
    free(workspace);
    workspace = NULL;
    refused(CARRY_EWORKSPACE, "the workspace has 0 bytes", (void)0);
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
}

static void bad_problems_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_scan_plan *plan;
    const carry_scan_problem good = {.batch = 1, .steps = 1, .n = 1, .width = 1};
    carry_scan_problem p = good;
    p.steps = 0;
    assert_refused(ctx, CARRY_ESIZE, "steps is 0", carry_scan_plan_new(ctx, &plan, &p, NULL));
    p.steps = -3;
    assert_refused(ctx, CARRY_ESIZE, "steps is -3", carry_scan_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.batch = p.steps = p.n = p.width = (int64_t)1 << 20;
    assert_refused(ctx, CARRY_ESIZE, "multiply to more than memory can be", carry_scan_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.kind = CARRY_SCAN_DENSE;
    p.n = (int64_t)1 << 31;
    assert_refused(ctx, CARRY_ESIZE, "multiply", carry_scan_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.dtype = CARRY_I64;
    assert_refused(ctx, CARRY_EDTYPE, "not i64", carry_scan_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.device = 3;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "device 3", carry_scan_plan_new(ctx, &plan, &p, NULL));
    p = good;
    p.kind = (carry_scan_kind)9;
    assert_refused(ctx, CARRY_EARGUMENT, "kind 9", carry_scan_plan_new(ctx, &plan, &p, NULL));
    assert_refused(ctx, CARRY_ENOTFOUND, "no scan algorithm 'quick': choose one of sequential",
                   carry_scan_plan_new(ctx, &plan, &good,
                                       &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = "quick"}));
    assert_null(plan);
    p = good;
    p.kind = CARRY_SCAN_DENSE;
    assert_refused(
        ctx, CARRY_EUNSUPPORTED, "diagonal transitions",
        carry_scan_plan_new(ctx, &plan, &p,
                            &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = "matmul_log"}));
    assert_refused(
        ctx, CARRY_EARGUMENT, "chunk of -1",
        carry_scan_plan_new(ctx, &plan, &good, &(carry_scan_options){CARRY_INIT(carry_scan_options), .chunk = -1}));
    carry_ctx_free(ctx);
}

static carry_status run_on(carry_ctx *ctx, const char *name, const carry_scan_problem *p, float *h, float *a,
                           float *b) {
    carry_scan_plan *plan;
    carry_status status = carry_scan_plan_new(
        ctx, &plan, p, &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = name, .chunk = 9});
    if (status != CARRY_OK) {
        return status;
    }
    void *workspace = malloc(carry_scan_run_workspace(plan) + 1);
    assert_non_null(workspace);
    status = carry_scan_run(plan,
                            &(carry_scan_args){.h = carry_view_4d(h, CARRY_F32, p->batch, p->steps, p->n, p->width),
                                               .A = carry_view_3d(a, CARRY_F32, p->batch, p->steps, p->n),
                                               .b = carry_view_4d(b, CARRY_F32, p->batch, p->steps, p->n, p->width)},
                            workspace, carry_scan_run_workspace(plan));
    free(workspace);
    carry_scan_plan_free(plan);
    return status;
}

/* Decays of e^-40 and exactly 0 among ordinary ones: right everywhere, and refused only by the log form. Transitions
   are at most 1, so f32 rounds each of at most 128 additions by 2^-24 of at most the largest value. */
static void deep_and_zero_decays_stay_right(void **unused) {
    (void)unused;
    enum { T = 128, N = 8, W = 8 };
    static float a[T * N], b[T * N * W], h[T * N * W];
    static double expected[T * N * W];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_scan_problem p = {.batch = 1, .steps = T, .n = N, .width = W};
    for (int form = 0; form < 4; form++) {
        assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(a, CARRY_F32, T * N), 21, 0, 0.0f, 1.0f));
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(b, CARRY_F32, T * N * W), 21, 1, 0.0f, 1.0f));
        for (int i = 0; i < T * N; i++) {
            a[i] = form == 0   ? expf(-40.0f * a[i])
                   : form == 1 ? (a[i] < 0.3f ? 0.0f : a[i])
                   : form == 2 ? expf(-40.0f)
                               : 0.0f;
        }
        assert_ok(ctx, carry_scan_reference(ctx, expected, &p,
                                            &(carry_scan_args){.A = carry_view_3d(a, CARRY_F32, 1, T, N),
                                                               .b = carry_view_4d(b, CARRY_F32, 1, T, N, W)}));
        for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
            memset(h, 0xff, sizeof h);
            carry_status status = run_on(ctx, carry_scan_name(0, i), &p, h, a, b);
            if (strcmp(carry_scan_name(0, i), "matmul_log") == 0) {
                assert_int_equal(status, CARRY_ERANGE);
                assert_non_null(strstr(carry_ctx_error(ctx), "use matmul4"));
                continue;
            }
            assert_ok(ctx, status);
            for (int j = 0; j < T * N * W; j++) {
                if (!(fabs((double)h[j] - expected[j]) <= 2.0 * 0x1p-24 * 16.0 * fmax(1.0, fabs(expected[j])))) {
                    fail_msg("%s form %d: element %d is %g and should be %g", carry_scan_name(0, i), form, j,
                             (double)h[j], expected[j]);
                }
            }
        }
    }
    carry_ctx_free(ctx);
}

/* The inputs of experiment 044 in f32: errors below 1e-5, absolute. bf16 inputs with f32 results: below 1e-3,
   absolute. */
static void errors_on_experiment_044_are_small(void **unused) {
    (void)unused;
    enum { N = 16, W = 64, MOST = 256 };
    static float a[MOST * N], b[MOST * N * W], h[MOST * N * W];
    static double expected[MOST * N * W];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int64_t steps = 64; steps <= MOST; steps *= 2) {
        for (carry_dtype dtype = CARRY_F32; dtype <= CARRY_BF16; dtype++) {
            carry_scan_problem p = {.batch = 1, .steps = steps, .n = N, .width = W, .dtype = dtype, .f32_result = true};
            carry_tensor A = carry_view_3d(a, dtype, 1, steps, N);
            carry_tensor B = carry_view_4d(b, dtype, 1, steps, N, W);
            assert_ok(ctx, carry_random_uniform(ctx, A, 44, 0, 0.8f, 1.0f));
            assert_ok(ctx, carry_random_normal(ctx, B, 44, 1, 0.0f, 0.1f));
            assert_ok(ctx, carry_scan_reference(ctx, expected, &p, &(carry_scan_args){.A = A, .b = B}));
            for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
                carry_scan_plan *plan;
                assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &p,
                                                   &(carry_scan_options){CARRY_INIT(carry_scan_options),
                                                                         .algorithm = carry_scan_name(0, i)}));
                void *workspace = malloc(carry_scan_run_workspace(plan) + 1);
                assert_non_null(workspace);
                memset(h, 0xff, sizeof h);
                assert_ok(ctx, carry_scan_run(
                                   plan,
                                   &(carry_scan_args){.h = carry_view_4d(h, CARRY_F32, 1, steps, N, W), .A = A, .b = B},
                                   workspace, carry_scan_run_workspace(plan)));
                double worst = 0.0;
                for (int64_t j = 0; j < steps * N * W; j++) {
                    double difference = fabs((double)h[j] - expected[j]);
                    worst = difference > worst || isnan(difference) ? difference : worst;
                }
                if (!(worst < (dtype == CARRY_F32 ? 1e-5 : 1e-3))) {
                    fail_msg("%s %s T=%lld: error %g", carry_scan_name(0, i), carry_dtype_name(dtype), (long long)steps,
                             worst);
                }
                free(workspace);
                carry_scan_plan_free(plan);
            }
        }
    }
    carry_ctx_free(ctx);
}

/* A NaN reaches only later steps, never an earlier step, another sequence or channel. */
static void a_nan_reaches_what_follows_it_alone(void **unused) {
    (void)unused;
    enum { B = 3, T = 20, N = 4, W = 2 };
    static float a[B * T * N], b[B * T * N * W], h[B * T * N * W];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_scan_problem p = {.batch = B, .steps = T, .n = N, .width = W};
    for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
        assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(a, CARRY_F32, B * T * N), 5, 0, 0.8f, 1.0f));
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(b, CARRY_F32, B * T * N * W), 5, 1, 0.0f, 1.0f));
        b[((1 * T + 10) * N + 2) * W] = NAN;
        assert_ok(ctx, run_on(ctx, carry_scan_name(0, i), &p, h, a, b));
        for (int j = 0; j < B * T * N * W; j++) {
            bool may = j / (T * N * W) == 1 && j / (N * W) % T >= 10 && j / W % N == 2 && j % W == 0;
            assert_true(may || isfinite(h[j]));
        }
        for (int t = 10; t < T; t++) {
            assert_true(isnan(h[((1 * T + t) * N + 2) * W]));
        }
    }
    carry_ctx_free(ctx);
}

static void products_are_counted_as_the_definition_counts_them(void **unused) {
    (void)unused;
    static const struct {
        const char *name;
        int64_t products;
    } known[] = {{"sequential", 1024}, {"hillis_steele", 18434}, {"cyclic", 3069}, {"blelloch", 3050}};
    enum { T = 1024, N = 2 };
    static float a[T * N], b[T * N], h[T * N];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_scan_problem p = {.batch = 1, .steps = T, .n = N, .width = 1};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        carry_scan_plan *plan;
        assert_ok(ctx, carry_scan_plan_new(
                           ctx, &plan, &p,
                           &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = known[i].name}));
        void *workspace = malloc(carry_scan_run_workspace(plan) + 1);
        assert_non_null(workspace);
        assert_ok(ctx, carry_scan_run(plan,
                                      &(carry_scan_args){.h = carry_view_4d(h, CARRY_F32, 1, T, N, 1),
                                                         .A = carry_view_3d(a, CARRY_F32, 1, T, N),
                                                         .b = carry_view_4d(b, CARRY_F32, 1, T, N, 1)},
                                      workspace, carry_scan_run_workspace(plan)));
        carry_scan_counts counts = {CARRY_INIT(carry_scan_counts)};
        assert_ok(ctx, carry_scan_counted(plan, &counts));
        assert_int_equal(counts.products, known[i].products);
        free(workspace);
        carry_scan_plan_free(plan);
    }
    carry_ctx_free(ctx);
}

static void the_wrong_kind_of_plan_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    call c = good_call();
    point(&c);
    carry_scan_plan *plan;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &c.problem, NULL));
    carry_scan_backward_args given = {.db = c.h, .A = c.A, .h = c.b, .dh = c.b};
    assert_refused(ctx, CARRY_EARGUMENT, "with backward set", carry_scan_backward(plan, &given, NULL, 0));
    carry_scan_plan_free(plan);
    c.problem.backward = true;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &c.problem, NULL));
    assert_refused(ctx, CARRY_EARGUMENT, "without backward",
                   carry_scan_run(plan, &(carry_scan_args){.h = c.h, .A = c.A, .b = c.b}, NULL, 0));
    assert_refused(ctx, CARRY_EWORKSPACE, "the plan needs", carry_scan_backward(plan, &given, NULL, 0));
    carry_tensor dh0 = c.h0;
    dh0.stride[0] = 0;
    given.dh0 = dh0;
    assert_refused(ctx, CARRY_ESTRIDE, "dh0 has strides [0]", carry_scan_backward(plan, &given, NULL, 0));
    given.dh0 = c.h0;
    given.dA = c.A;
    given.dA.data = c.h0.data;
    assert_refused(ctx, CARRY_EARGUMENT, "dh0 shares memory with dA", carry_scan_backward(plan, &given, NULL, 0));
    given.dh0 = (carry_tensor){0};
    given.h0 = c.h0;
    assert_refused(ctx, CARRY_EARGUMENT, "dA shares memory with h0", carry_scan_backward(plan, &given, NULL, 0));
    given.dA = (carry_tensor){0};
    given.h0.data = given.db.data;
    assert_refused(ctx, CARRY_EARGUMENT, "db shares memory with h0", carry_scan_backward(plan, &given, NULL, 0));
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_tensors_are_refused_by_name_and_nothing_is_written),
        cmocka_unit_test(bad_problems_are_refused),
        cmocka_unit_test(deep_and_zero_decays_stay_right),
        cmocka_unit_test(errors_on_experiment_044_are_small),
        cmocka_unit_test(a_nan_reaches_what_follows_it_alone),
        cmocka_unit_test(products_are_counted_as_the_definition_counts_them),
        cmocka_unit_test(the_wrong_kind_of_plan_is_refused),
    };
    return cmocka_run_group_tests_name("scan/limits", tests, NULL, NULL);
}
