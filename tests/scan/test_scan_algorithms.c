/* Every algorithm of the table equals the float64 reference: for every kind, type, length, n and width, in both
   directions, with and without an initial state, in place and with strides, for every thread count and every set of
   kernels. */
#include <math.h>

#include "support.h"

typedef struct data {
    carry_scan_problem problem;
    carry_tensor A, b, h, h0;
    double *expected;
} data;

static void *room(size_t bytes) {
    void *made = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(made);
    return made;
}

static data make(carry_ctx *ctx, carry_scan_problem p, bool with_h0) {
    data d = {.problem = p};
    const int64_t A_shape[] = {p.batch, p.steps, p.n, p.n};
    const int64_t b_shape[] = {p.batch, p.steps, p.n, p.width};
    bool dense = p.kind == CARRY_SCAN_DENSE;
    size_t b_count = (size_t)(p.batch * p.steps * p.n * p.width);
    size_t A_count = (size_t)(p.batch * p.steps * p.n) * (size_t)(dense ? p.n : 1);
    d.A = carry_view(room(A_count * 4), p.dtype, dense ? 4 : 3, A_shape);
    d.b = carry_view(room(b_count * 4), p.dtype, 4, b_shape);
    d.h = carry_view(room(b_count * 4), p.f32_result ? CARRY_F32 : p.dtype, 4, b_shape);
    d.h0 = carry_view_3d(room((size_t)(p.batch * p.n * p.width) * 4), p.dtype, p.batch, p.n, p.width);
    float spread = 0.78f / sqrtf((float)p.n);
    assert_ok(ctx, dense ? carry_random_uniform(ctx, d.A, 3, 0, -spread, spread)
                         : carry_random_uniform(ctx, d.A, 3, 0, 0.8f, 1.0f));
    assert_ok(ctx, carry_random_normal(ctx, d.b, 3, 1, 0.0f, 0.1f));
    assert_ok(ctx, carry_random_normal(ctx, d.h0, 3, 2, 0.0f, 1.0f));
    d.expected = room(b_count * sizeof *d.expected);
    assert_ok(ctx,
              carry_scan_reference(ctx, d.expected, &p,
                                   &(carry_scan_args){.A = d.A, .b = d.b, .h0 = with_h0 ? d.h0 : (carry_tensor){0}}));
    return d;
}

static void discard(data *d) {
    free(d->A.data);
    free(d->b.data);
    free(d->h.data);
    free(d->h0.data);
    free(d->expected);
}

static double element(const carry_tensor *t, int64_t i) {
    if (t->dtype == CARRY_F32) {
        return ((const float *)t->data)[i];
    }
    uint16_t bits = ((const uint16_t *)t->data)[i];
    return t->dtype == CARRY_BF16 ? carry_f32_from_bf16(bits) : carry_f32_from_f16(bits);
}

/* One step rounds k + 2 times by u = 2^-24 of at most s times the largest value (k = n, s = 0.4 sqrt n dense; k = s = 1
   diagonal). A contraction of 0.9 on average leaves about 32 steps, and a tree adds two roundings a level. Storage adds
   half a unit of its type. The log form works on logarithms up to 80. */
static double bound_of(const data *d, const char *name) {
    const carry_scan_problem *p = &d->problem;
    bool dense = p->kind == CARRY_SCAN_DENSE;
    double length = dense ? (double)p->n + 2.0 : 3.0;
    double spread = dense ? fmax(1.0, 0.4 * sqrt((double)p->n)) : 1.0;
    double steps = fmin((double)p->steps, 32.0) + 2.0 * log2((double)p->steps) + 1.0;
    double sums = 0x1p-24 * length * spread * steps * (strcmp(name, "matmul_log") == 0 ? 80.0 : 1.0);
    return sums + (d->h.dtype == CARRY_F32 ? 0.0 : d->h.dtype == CARRY_BF16 ? 0x1p-8 : 0x1p-11);
}

static void compare(const data *d, const carry_tensor *h, const char *name) {
    const carry_scan_problem *p = &d->problem;
    int64_t count = p->batch * p->steps * p->n * p->width;
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(d->expected[i]));
    }
    double bound = bound_of(d, name) * largest;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs(element(h, i) - d->expected[i]);
        if (!(difference <= bound)) {
            fail_msg("%s %s %s b%lld t%lld n%lld w%lld%s: element %lld is %g and should be %g (bound %g)", name,
                     p->kind == CARRY_SCAN_DENSE ? "dense" : "diagonal", carry_dtype_name(p->dtype),
                     (long long)p->batch, (long long)p->steps, (long long)p->n, (long long)p->width,
                     p->reversed ? " reversed" : "", (long long)i, element(h, i), d->expected[i], bound);
        }
    }
}

/* Only matmul_log may return CARRY_ERANGE or CARRY_EUNSUPPORTED; then the result is false. */
static bool run(carry_ctx *ctx, const data *d, const char *name, int64_t chunk, carry_tensor h, carry_tensor b,
                const carry_tensor *h0) {
    carry_scan_plan *plan;
    carry_status status =
        carry_scan_plan_new(ctx, &plan, &d->problem,
                            &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = name, .chunk = chunk});
    bool limited = strcmp(name, "matmul_log") == 0;
    if (status == CARRY_EUNSUPPORTED && limited && d->problem.kind == CARRY_SCAN_DENSE) {
        return false;
    }
    assert_ok(ctx, status);
    size_t bytes = carry_scan_run_workspace(plan);
    unsigned char *workspace = room(bytes + 8);
    memset(workspace + bytes, 0x5a, 8);
    status =
        carry_scan_run(plan, &(carry_scan_args){.h = h, .A = d->A, .b = b, .h0 = h0 != NULL ? *h0 : (carry_tensor){0}},
                       workspace, bytes);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(workspace[bytes + (size_t)i], 0x5a);
    }
    free(workspace);
    carry_scan_plan_free(plan);
    if (status == CARRY_ERANGE && limited) {
        return false;
    }
    assert_ok(ctx, status);
    return true;
}

static void check_all(carry_ctx *ctx, carry_scan_problem p, bool with_h0, int64_t chunk) {
    data d = make(ctx, p, with_h0);
    size_t bytes = (size_t)(p.batch * p.steps * p.n * p.width) * 4;
    for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
        memset(d.h.data, 0xff, bytes);
        if (run(ctx, &d, carry_scan_name(0, i), chunk, d.h, d.b, with_h0 ? &d.h0 : NULL)) {
            compare(&d, &d.h, carry_scan_name(0, i));
        }
    }
    discard(&d);
}

static void every_algorithm_matches_the_reference_for_every_length(void **unused) {
    (void)unused;
    const int64_t lengths[] = {1, 2, 3, 7, 31, 32, 33, 63, 64, 65, support_cases(1000, 150)};
    static const int64_t ns[] = {1, 3, 16, 33};
    static const int64_t widths[] = {1, 5, 64};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    int turn = 0;
    for (int kind = 0; kind < 2; kind++) {
        for (carry_dtype dtype = CARRY_F32; dtype <= CARRY_F16; dtype++) {
            for (size_t t = 0; t < sizeof lengths / sizeof lengths[0]; t++) {
                for (size_t n = 0; n < 4; n++) {
                    for (size_t w = 0; w < 3; w++, turn++) {
                        if (turn % support_cases(1, 5) != 0) { /* coprime to the counts of kinds, lengths, n, widths */
                            continue;
                        }
                        carry_scan_problem p = {.kind = (carry_scan_kind)kind,
                                                .batch = 1,
                                                .steps = lengths[t],
                                                .n = ns[n],
                                                .width = widths[w],
                                                .dtype = dtype,
                                                .reversed = turn % 5 == 3,
                                                .f32_result = turn % 7 == 2};
                        check_all(ctx, p, turn % 3 == 1, turn % 4 == 0 ? 0 : 1 + turn % 11);
                    }
                }
            }
        }
    }
    carry_ctx_free(ctx);
}

static void batches_directions_and_states_agree_with_the_reference(void **unused) {
    (void)unused;
    for (int threads = 1; threads <= 4; threads += support_cases(1, 3)) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        for (int64_t batch = 1; batch <= 5; batch += 2) {
            for (int form = 0; form < 8; form++) {
                carry_scan_problem p = {.kind = (form & 1) != 0 ? CARRY_SCAN_DENSE : CARRY_SCAN_DIAGONAL,
                                        .batch = batch,
                                        .steps = 37,
                                        .n = 6,
                                        .width = 35,
                                        .reversed = (form & 2) != 0};
                check_all(ctx, p, (form & 4) != 0, 5);
            }
        }
        carry_ctx_free(ctx);
    }
}

static void every_set_of_kernels_gives_right_scans(void **unused) {
    (void)unused;
    for (int set = 0; carry_kernels_name(set) != NULL; set++) {
        if (!carry_kernels_usable(set)) {
            print_message("skipped: this processor cannot run %s\n", carry_kernels_name(set));
            continue;
        }
        carry_ctx *ctx = support_ctx(2, carry_kernels_name(set), NULL);
        for (int form = 0; form < 6; form++) {
            check_all(ctx,
                      (carry_scan_problem){.kind = (carry_scan_kind)(form % 2),
                                           .batch = 2,
                                           .steps = 50,
                                           .n = 17,
                                           .width = 9,
                                           .dtype = (carry_dtype)(form / 2)},
                      true, 8);
        }
        carry_ctx_free(ctx);
    }
}

static void output_may_be_the_input(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 12; form++) {
        carry_scan_problem p = {.kind = (carry_scan_kind)(form % 2),
                                .batch = 1 + form % 3,
                                .steps = 40,
                                .n = 5,
                                .width = 3,
                                .dtype = (carry_dtype)(form / 4),
                                .reversed = form % 4 > 1};
        data d = make(ctx, p, true);
        size_t bytes = (size_t)(p.batch * p.steps * p.n * p.width) * 4;
        for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
            memcpy(d.h.data, d.b.data, bytes);
            if (run(ctx, &d, carry_scan_name(0, i), 7, d.h, d.h, &d.h0)) {
                compare(&d, &d.h, carry_scan_name(0, i));
            }
        }
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Time is outermost, batch inside, with a gap after every step: [T, batch, n, w + gap] viewed as [batch, T, n, w]. */
static void strides_over_batch_and_time_are_free(void **unused) {
    (void)unused;
    enum { B = 3, T = 29, N = 4, W = 6, GAP = 5, STEP = N * W + GAP };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int kind = 0; kind < 2; kind++) {
        carry_scan_problem p = {.kind = (carry_scan_kind)kind, .batch = B, .steps = T, .n = N, .width = W};
        data d = make(ctx, p, false);
        static float b[T * B * STEP], h[T * B * STEP], packed[B * T * N * W];
        for (int64_t i = 0; i < B * T; i++) {
            memcpy(b + (i % T * B + i / T) * STEP, (float *)d.b.data + i * N * W, N * W * sizeof *b);
        }
        carry_tensor b_view = carry_view_4d(b, CARRY_F32, B, T, N, W);
        b_view.stride[0] = STEP;
        b_view.stride[1] = B * STEP;
        carry_tensor h_view = b_view;
        h_view.data = h;
        for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
            for (int64_t j = 0; j < T * B * STEP; j++) {
                h[j] = 1e30f;
            }
            if (!run(ctx, &d, carry_scan_name(0, i), 6, h_view, b_view, NULL)) {
                continue;
            }
            for (int64_t j = 0; j < B * T; j++) {
                const float *step = h + (j % T * B + j / T) * STEP;
                memcpy(packed + j * N * W, step, N * W * sizeof *packed);
                for (int g = 0; g < GAP; g++) {
                    assert_true(step[N * W + g] == 1e30f);
                }
            }
            carry_tensor result = carry_view_4d(packed, CARRY_F32, B, T, N, W);
            compare(&d, &result, carry_scan_name(0, i));
        }
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Bit for bit, for a fixed plan (with the chunk given if the algorithm has one). */
static void results_do_not_depend_on_the_number_of_threads(void **unused) {
    (void)unused;
    const int64_t shapes[][4] = {
        {1, 100, 16, 64}, {1, support_cases(257, 65), 70, 1}, {3, 64, 8, 33}, {2, 50, 5, 17}, {1, 40, 3, 49}};
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
        for (int form = 0; form < 4; form++) {
            carry_scan_problem p = {.kind = (carry_scan_kind)(form % 2),
                                    .batch = shapes[shape][0],
                                    .steps = shapes[shape][1],
                                    .n = shapes[shape][2],
                                    .width = shapes[shape][3],
                                    .dtype = form < 2 ? CARRY_F32 : CARRY_BF16};
            carry_ctx *one = support_ctx(1, NULL, NULL);
            data d = make(one, p, true);
            size_t bytes = (size_t)(p.batch * p.steps * p.n * p.width) * carry_dtype_size(p.dtype);
            void *first = room(bytes);
            for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
                if (!run(one, &d, carry_scan_name(0, i), 16, d.h, d.b, &d.h0)) {
                    continue;
                }
                memcpy(first, d.h.data, bytes);
                for (int threads = 2; threads <= 5; threads += support_cases(1, 3)) {
                    carry_ctx *many = support_ctx(threads, NULL, NULL);
                    memset(d.h.data, 0xff, bytes);
                    assert_true(run(many, &d, carry_scan_name(0, i), 16, d.h, d.b, &d.h0));
                    if (memcmp(first, d.h.data, bytes) != 0) {
                        fail_msg("%s shape %zu form %d differs between 1 and %d threads", carry_scan_name(0, i), shape,
                                 form, threads);
                    }
                    carry_ctx_free(many);
                }
            }
            free(first);
            discard(&d);
            carry_ctx_free(one);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_matches_the_reference_for_every_length),
        cmocka_unit_test(batches_directions_and_states_agree_with_the_reference),
        cmocka_unit_test(every_set_of_kernels_gives_right_scans),
        cmocka_unit_test(output_may_be_the_input),
        cmocka_unit_test(strides_over_batch_and_time_are_free),
        cmocka_unit_test(results_do_not_depend_on_the_number_of_threads),
    };
    return cmocka_run_group_tests_name("scan/algorithms", tests, NULL, NULL);
}
