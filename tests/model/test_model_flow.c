/* Few-step sampling: sigmas, the clean estimate, and noise that is a function of its position. */
#include "support.h"

#include <math.h>

#include "model/dit/dit.h"

enum { COUNT = 40007 };

static void test_sigma_is_shifted(void **state) {
    (void)state;
    for (double t = 0.0; t <= 1000.0; t += 12.5) {
        assert_true(carry_flow_sigma(t, 1.0) == t / 1000.0 && carry_flow_sigma(t, 0.0) == t / 1000.0);
        double s = carry_flow_sigma(t, 5.0);
        assert_true(fabs(s * (1.0 + 4.0 * t / 1000.0) - 5.0 * t / 1000.0) < 1e-15);
        assert_true(s >= t / 1000.0 && s <= 1.0);
    }
    assert_true(carry_flow_sigma(1000.0, 5.0) == 1.0 && carry_flow_sigma(0.0, 5.0) == 0.0);
    assert_true(fabs(carry_flow_sigma(500.0, 5.0) - 2.5 / 3.0) < 1e-15);
}

/* Adding noise and removing the velocity noise - x0 undo each other: two roundings of numbers below 8. */
static void test_clean_undoes_noise(void **state) {
    (void)state;
    float *x = malloc(COUNT * sizeof *x), *x0 = malloc(COUNT * sizeof *x), *noise = malloc(COUNT * sizeof *x);
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        carry_tensor X = carry_view_2d(x, CARRY_F32, COUNT, 1), X0 = carry_view_2d(x0, CARRY_F32, COUNT, 1);
        carry_tensor N = carry_view_2d(noise, CARRY_F32, COUNT, 1);
        assert_ok(ctx, carry_random_uniform(ctx, X0, 1, 1, -1.0f, 1.0f));
        assert_ok(ctx, carry_random_normal(ctx, N, 9, 4, 0.0f, 1.0f));
        memset(x, 255, COUNT * sizeof *x);
        assert_ok(ctx, carry_flow_noise(ctx, X, X0, 0.75, 1.0, 9, 4));
        for (int i = 0; i < COUNT; i++) {
            assert_true(fabs((double)x[i] - (0.25 * (double)x0[i] + 0.75 * (double)noise[i])) < 1e-6);
            noise[i] -= x0[i]; /* the velocity */
        }
        first = first == NULL ? memcpy(malloc(COUNT * sizeof *x), x, COUNT * sizeof *x) : first;
        assert_memory_equal(x, first, COUNT * sizeof *x);
        assert_ok(ctx, carry_flow_clean(ctx, X, X, N, 0.75));
        for (int i = 0; i < COUNT; i++) {
            assert_true(fabs((double)x[i] - (double)x0[i]) < 2e-6);
        }
        assert_ok(ctx, carry_flow_noise(ctx, X, X0, 0.0, 1.0, 9, 4));
        assert_memory_equal(x, x0, COUNT * sizeof *x);
        assert_ok(ctx, carry_flow_noise(ctx, X, X0, 1.0, 0.5, 9, 4));
        double squares = 0.0;
        for (int i = 0; i < COUNT; i++) {
            squares += (double)(x[i] * x[i]) / COUNT;
        }
        assert_true(fabs(squares - 0.25) < 0.01); /* 0.25 sqrt(2 / 40007) = 0.002 of deviation */
        carry_ctx_free(ctx);
    }
    free(x);
    free(x0);
    free(noise);
    free(first);
}

static void test_wrong_numbers_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    float a[6] = {0}, b[6] = {0};
    carry_tensor A = carry_view_1d(a, CARRY_F32, 6), B = carry_view_1d(b, CARRY_F32, 6);
    assert_refused(ctx, CARRY_ERANGE, "sigma", carry_flow_clean(ctx, A, A, B, NAN));
    assert_refused(ctx, CARRY_ERANGE, "sigma", carry_flow_noise(ctx, A, B, 1.5, 1.0, 0, 0));
    assert_refused(ctx, CARRY_ERANGE, "scale", carry_flow_noise(ctx, A, B, 0.5, -1.0, 0, 0));
    assert_refused(ctx, CARRY_ERANGE, "scale", carry_flow_noise(ctx, A, B, 0.5, INFINITY, 0, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "same memory", carry_flow_noise(ctx, A, A, 0.5, 1.0, 0, 0));
    assert_refused(ctx, CARRY_ESHAPE, "velocity", carry_flow_clean(ctx, A, A, carry_view_1d(b, CARRY_F32, 5), 0.5));
    assert_refused(ctx, CARRY_EDTYPE, "x0", carry_flow_noise(ctx, A, carry_view_1d(b, CARRY_F16, 6), 0.5, 1.0, 0, 0));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sigma_is_shifted),
        cmocka_unit_test(test_clean_undoes_noise),
        cmocka_unit_test(test_wrong_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
