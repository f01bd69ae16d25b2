/* Matrices in 8-bit floats with a scale for each row, and their products, on the CPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/f8.h"
#include "ops/fp8_rows.h"
#include "support.h"

enum { M = 5, N = 32, K = 48, E4M3_MOST = 0x7e };

static carry_ctx *ctx;

static carry_fp8_rows rows_over(unsigned char *codes, float *scale, int64_t rows, int64_t columns) {
    return (carry_fp8_rows){.codes = codes, .scale = scale, .rows = rows, .columns = columns};
}

static void fill(uint16_t *bits, int count, int step, float size) {
    for (int i = 0; i < count; i++) {
        bits[i] = carry_bf16_from_f32((float)((i * step + 11) % 101 - 50) * size);
    }
}

static float value_of(const carry_fp8_rows *a, int64_t row, int64_t column) {
    return carry_f8_value(a->codes[row * a->columns + column]) * a->scale[row];
}

static void test_a_row_has_its_own_scale(void **state) {
    (void)state;
    uint16_t bits[M * K];
    unsigned char codes[M * K];
    float scale[M];
    const carry_fp8_rows a = rows_over(codes, scale, M, K);
    fill(bits, M * K, 37, 0.01f);
    for (int i = 0; i < K; i++) {
        bits[1 * K + i] = carry_bf16_from_f32(1e4f * carry_f32_from_bf16(bits[i]));
        bits[2 * K + i] = 0;
        bits[3 * K + i] = carry_bf16_from_f32(i == 7 ? INFINITY : i == 9 ? NAN : 3.0f);
    }
    assert_ok(ctx, carry_fp8_rows_round(ctx, a, carry_view_2d(bits, CARRY_BF16, M, K)));
    for (int r = 0; r < M; r++) {
        float largest = 0.0f;
        int most = 0;
        for (int i = 0; i < K; i++) {
            const float x = carry_f32_from_bf16(bits[r * K + i]);
            largest = fabsf(x) > largest ? fabsf(x) : largest;
            most = (codes[r * K + i] & 0x7f) > most ? codes[r * K + i] & 0x7f : most;
            if (isfinite(x)) {
                /* Half a step of 3 bits of fraction, or of the smallest code. */
                assert_true(fabsf(value_of(&a, r, i) - x) <= 0x1p-4f * fabsf(x) + 0x1p-10f * scale[r]);
            } else {
                assert_int_equal(codes[r * K + i] & 0x7f, 0x7f); /* NaN */
            }
        }
        if (r != 2 && r != 3) {
            assert_true(scale[r] == largest / CARRY_FP8_ROWS_MOST);
            assert_int_equal(most, E4M3_MOST);
        }
    }
    assert_true(scale[3] == 1.0f);
    assert_int_equal(codes[2 * K], 0);
}

/* Codes and scales are exact, so only the roundings of the sum and of the result differ from float64. */
static void test_products_match_float64(void **state) {
    (void)state;
    static uint16_t x[M * K], w[N * K], b[N], y[M * N];
    static unsigned char x_codes[M * K], w_codes[N * K];
    float x_scale[M], w_scale[N];
    const carry_fp8_rows X = rows_over(x_codes, x_scale, M, K);
    const carry_fp8_rows W = rows_over(w_codes, w_scale, N, K);
    fill(x, M * K, 37, 0.02f);
    fill(w, N * K, 53, 0.03f);
    fill(b, N, 7, 0.01f);
    assert_ok(ctx, carry_fp8_rows_round(ctx, X, carry_view_2d(x, CARRY_BF16, M, K)));
    assert_ok(ctx, carry_fp8_rows_round(ctx, W, carry_view_2d(w, CARRY_BF16, N, K)));
    for (int form = 0; form < 6; form++) {
        const bool has_bias = form % 2 == 1;
        const bool gelu = form / 2 == 1;
        const bool accumulate = form / 2 == 2;
        fill(y, M * N, 29, 0.5f);
        uint16_t before[M * N];
        memcpy(before, y, sizeof y);
        const int64_t n = N;
        assert_ok(ctx, carry_fp8_rows_affine(ctx, carry_view_2d(y, CARRY_BF16, M, N), X, W,
                                             has_bias ? carry_view_1d(b, CARRY_BF16, n) : (carry_tensor){.data = NULL},
                                             gelu ? CARRY_GELU : CARRY_NO_ACTIVATION, accumulate));
        for (int i = 0; i < M; i++) {
            for (int j = 0; j < N; j++) {
                double sum = 0.0;
                double sizes = 0.0;
                for (int l = 0; l < K; l++) {
                    const double term = (double)value_of(&X, i, l) * (double)value_of(&W, j, l);
                    sum += term;
                    sizes += fabs(term);
                }
                sum += has_bias ? (double)carry_f32_from_bf16(b[j]) : 0.0;
                sum += accumulate ? (double)carry_f32_from_bf16(before[i * N + j]) : 0.0;
                sum = gelu ? 0.5 * sum * (1.0 + tanh(sqrt(2.0 / 3.14159265358979) * (sum + 0.044715 * sum * sum * sum)))
                           : sum;
                assert_true(fabs((double)carry_f32_from_bf16(y[i * N + j]) - sum) <=
                            0x1p-8 * fabs(sum) + 64 * 0x1p-24 * (sizes + 30.0));
            }
        }
    }
}

static void test_wrong_sizes_and_types_are_refused(void **state) {
    (void)state;
    static uint16_t bits[32 * 32];
    static unsigned char codes[32 * 32];
    static float scale[32];
    const carry_tensor y = carry_view_2d(bits, CARRY_BF16, 32, 32);
    const carry_tensor absent = {.data = NULL};
    const carry_fp8_rows a = rows_over(codes, scale, 32, 32);
    assert_int_equal(
        carry_fp8_rows_round(ctx, rows_over(codes, scale, 32, 24), carry_view_2d(bits, CARRY_BF16, 32, 24)),
        CARRY_ESHAPE);
    assert_non_null(strstr(carry_ctx_error(ctx), "multiple of 16"));
    assert_int_equal(carry_fp8_rows_round(ctx, a, carry_view_2d(bits, CARRY_F16, 32, 32)), CARRY_EDTYPE);
    assert_int_equal(carry_fp8_rows_round(ctx, a, carry_view_2d(bits, CARRY_BF16, 16, 32)), CARRY_ESHAPE);
    assert_int_equal(
        carry_fp8_rows_affine(ctx, y, rows_over(codes, scale, 32, 16), a, absent, CARRY_NO_ACTIVATION, false),
        CARRY_ESHAPE);
    assert_int_equal(carry_fp8_rows_affine(ctx, carry_view_2d(bits, CARRY_BF16, 32, 24), a,
                                           rows_over(codes, scale, 24, 32), absent, CARRY_NO_ACTIVATION, false),
                     CARRY_ESHAPE);
    assert_non_null(strstr(carry_ctx_error(ctx), "multiple of 16"));
    assert_int_equal(carry_fp8_rows_affine(ctx, y, a, a, absent, CARRY_SILU, false), CARRY_EARGUMENT);
    assert_int_equal(carry_fp8_rows_affine(ctx, y, a, a, absent, CARRY_GELU, true), CARRY_EARGUMENT);
    assert_int_equal(carry_fp8_rows_affine(ctx, y, a, a, carry_view_1d(scale, CARRY_F32, 32), CARRY_GELU, false),
                     CARRY_EDTYPE);
}

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_has_its_own_scale),
        cmocka_unit_test(test_products_match_float64),
        cmocka_unit_test(test_wrong_sizes_and_types_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
