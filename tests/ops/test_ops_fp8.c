/* Operators in 8-bit floats on the CPU: every code, saturation and NaN, scales from one step to the next, products and
   the loss against float64. test_ops_backends_fp8 compares GPUs with these. */
#include "support.h"

#include <math.h>

#include "ops/fp8.h"

static carry_ctx *ctx;

static float wide(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static carry_tensor matrix(uint16_t *bits, const float *from, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows * columns; i++) {
        bits[i] = carry_bf16_from_f32(from[i]);
    }
    return carry_view_2d(bits, CARRY_BF16, rows, columns);
}

/* The value of a code by its definition. */
static double value_of(unsigned char code, carry_fp8_kind kind) {
    const int bits = kind == CARRY_E4M3 ? 3 : 2, bias = kind == CARRY_E4M3 ? 7 : 15;
    const int exponent = (code & 0x7f) >> bits, fraction = code & ((1 << bits) - 1);
    const double part = (double)fraction / (double)(1 << bits);
    return (code & 0x80 ? -1.0 : 1.0) * (exponent == 0 ? ldexp(part, 1 - bias) : ldexp(1.0 + part, exponent - bias));
}

static bool is_finite_code(int code, carry_fp8_kind kind) {
    return kind == CARRY_E4M3 ? (code & 0x7f) != 0x7f : (code & 0x7f) < 0x7c;
}

/* Every finite code, and numbers between it and the next: to nearest, ties to even. */
static void test_rounding_is_to_nearest_even(void **state) {
    (void)state;
    static const carry_fp8_kind kinds[] = {CARRY_E4M3, CARRY_E5M2};
    for (int k = 0; k < 2; k++) {
        for (int code = 0; code < 0x7f && is_finite_code(code + 1, kinds[k]); code++) {
            const float low = (float)value_of((unsigned char)code, kinds[k]);
            const float high = (float)value_of((unsigned char)(code + 1), kinds[k]);
            const float step = high - low;
            const float from[16 * 16] = {low,  low + 0.25f * step,  low + 0.5f * step,  low + 0.75f * step,
                                         -low, -low - 0.25f * step, -low - 0.5f * step, -low - 0.75f * step};
            const int even = code % 2 == 0 ? code : code + 1;
            const int want[] = {code, code, even, code + 1};
            uint16_t bits[16 * 16];
            unsigned char codes[16 * 16];
            float scale[CARRY_FP8_NUMBERS] = {1.0f, 1.0f, 0.0f, 224.0f};
            const carry_tensor x = matrix(bits, from, 16, 16);
            const carry_fp8 to = {.codes = codes, .rows = 16, .columns = 16, .kind = kinds[k], .scale = scale};
            assert_int_equal(carry_fp8_round(ctx, to, x, false), CARRY_OK);
            for (int i = 0; i < 4; i++) {
                assert_int_equal(codes[i], want[i]);
                assert_int_equal(codes[4 + i], want[i] | (i == 0 && code == 0 && !signbit(-low) ? 0 : 0x80));
            }
            assert_true(scale[CARRY_FP8_LARGEST] == wide(bits[3]));
        }
    }
}

static void test_large_numbers_saturate_and_nan_stays(void **state) {
    (void)state;
    static const float from[16 * 16] = {449.0f, -1e30f, 57345.0f, INFINITY, -INFINITY, NAN, 0.0f, 1e-30f};
    static const unsigned char want[2][8] = {{0x7e, 0xfe, 0x7e, 0x7f, 0x7f, 0x7f, 0, 0},
                                             {0x5f, 0xfb, 0x7b, 0x7f, 0x7f, 0x7f, 0, 0}};
    for (size_t k = 0; k < 2; k++) {
        uint16_t bits[16 * 16];
        unsigned char codes[16 * 16];
        float scale[CARRY_FP8_NUMBERS] = {1.0f, 1.0f, 0.0f, 224.0f};
        const carry_tensor x = matrix(bits, from, 16, 16);
        const carry_fp8 to = {
            .codes = codes, .rows = 16, .columns = 16, .kind = k == 0 ? CARRY_E4M3 : CARRY_E5M2, .scale = scale};
        assert_int_equal(carry_fp8_round(ctx, to, x, false), CARRY_OK);
        for (int i = 0; i < 8; i++) {
            const bool is_nan = want[k][i] == 0x7f;
            const int code = is_nan ? codes[i] & 0x7f : codes[i];
            assert_int_equal(code, want[k][i]);
        }
        assert_true(scale[CARRY_FP8_LARGEST] > 1e38f);
    }
}

static void test_scales_follow_the_largest_element_of_the_step_before(void **state) {
    (void)state;
    float scales[3][CARRY_FP8_NUMBERS] = {
        {2.0f, 0.5f, 112.0f, 224.0f}, {2.0f, 0.5f, 0.0f, 224.0f}, {2.0f, 0.5f, INFINITY, 3584.0f}};
    assert_int_equal(carry_fp8_scales(ctx, carry_view_2d(scales, CARRY_F32, 3, CARRY_FP8_NUMBERS)), CARRY_OK);
    assert_true(scales[0][CARRY_FP8_SCALE] == 0.5f && scales[0][CARRY_FP8_INVERSE] == 2.0f);
    for (int i = 1; i < 3; i++) { /* nothing recorded, or nothing finite: unchanged */
        assert_true(scales[i][CARRY_FP8_SCALE] == 2.0f && scales[i][CARRY_FP8_INVERSE] == 0.5f);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(scales[i][CARRY_FP8_LARGEST] == 0.0f);
    }
}

enum { M = 16, N = 32, K = 48 };

/* Codes and scales are exact, so only the sum's and the result's roundings differ from float64. */
static void test_a_product_matches_float64_and_turned_codes_are_the_same(void **state) {
    (void)state;
    static float from_a[M * K], from_b[N * K];
    static uint16_t bits_a[M * K], bits_b[N * K], bits_c[M * N], bits_turned[N * K];
    static unsigned char a_codes[M * K], b_codes[N * K], turned[N * K];
    float a_scale[CARRY_FP8_NUMBERS] = {1.0f, 1.0f, 0.0f, 3584.0f};
    float b_scale[CARRY_FP8_NUMBERS] = {1.0f, 1.0f, 0.0f, 224.0f};
    for (int i = 0; i < M * K; i++) {
        from_a[i] = (float)((i * 37 + 11) % 101 - 50) * 1e-4f;
    }
    for (int i = 0; i < N * K; i++) {
        from_b[i] = (float)((i * 53 + 7) % 97 - 48) * 0.05f;
    }
    const carry_tensor a = matrix(bits_a, from_a, M, K), b = matrix(bits_b, from_b, N, K);
    const carry_fp8 left = {.codes = a_codes, .rows = M, .columns = K, .kind = CARRY_E5M2, .scale = a_scale};
    const carry_fp8 right = {.codes = b_codes, .rows = N, .columns = K, .kind = CARRY_E4M3, .scale = b_scale};
    const int64_t numbers = CARRY_FP8_NUMBERS;
    assert_int_equal(carry_fp8_measure(ctx, carry_view_1d(a_scale, CARRY_F32, numbers), a), CARRY_OK);
    assert_int_equal(carry_fp8_measure(ctx, carry_view_1d(b_scale, CARRY_F32, numbers), b), CARRY_OK);
    assert_int_equal(carry_fp8_scales(ctx, carry_view_2d(a_scale, CARRY_F32, 1, numbers)), CARRY_OK);
    assert_int_equal(carry_fp8_scales(ctx, carry_view_2d(b_scale, CARRY_F32, 1, numbers)), CARRY_OK);
    assert_int_equal(carry_fp8_round(ctx, left, a, false), CARRY_OK);
    assert_int_equal(carry_fp8_round(ctx, right, b, false), CARRY_OK);
    const carry_tensor c = carry_view_2d(bits_c, CARRY_BF16, M, N);
    assert_int_equal(carry_fp8_product(ctx, c, left, right, (carry_tensor){0}), CARRY_OK);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0.0, sizes = 0.0;
            for (int l = 0; l < K; l++) {
                const double x = value_of(a_codes[i * K + l], CARRY_E5M2) * (double)a_scale[CARRY_FP8_SCALE];
                const double y = value_of(b_codes[j * K + l], CARRY_E4M3) * (double)b_scale[CARRY_FP8_SCALE];
                assert_true(fabs(x - (double)wide(bits_a[i * K + l])) <=
                            0x1p-3 * fabs((double)wide(bits_a[i * K + l])));
                sum += x * y;
                sizes += fabs(x * y);
            }
            assert_true(fabs((double)wide(bits_c[i * N + j]) - sum) <= 0x1p-8 * fabs(sum) + K * 0x1p-24 * sizes);
        }
    }
    const carry_fp8 other = {.codes = turned, .rows = K, .columns = N, .kind = CARRY_E4M3, .scale = b_scale};
    assert_int_equal(carry_fp8_round(ctx, other, b, true), CARRY_OK);
    for (int i = 0; i < N * K; i++) {
        bits_turned[i] = turned[i % K * N + i / K];
        assert_int_equal(bits_turned[i], b_codes[i]);
    }
}

static void test_wrong_sizes_and_kinds_are_refused(void **state) {
    (void)state;
    static uint16_t bits[32 * 32];
    static unsigned char codes[32 * 32];
    float scale[CARRY_FP8_NUMBERS] = {1.0f, 1.0f, 0.0f, 224.0f};
    carry_fp8 to = {.codes = codes, .rows = 32, .columns = 24, .kind = CARRY_E5M2, .scale = scale};
    assert_int_equal(carry_fp8_round(ctx, to, carry_view_2d(bits, CARRY_BF16, 32, 24), false), CARRY_ESHAPE);
    assert_non_null(strstr(carry_ctx_error(ctx), "multiples of 16"));
    to.columns = 32;
    assert_int_equal(carry_fp8_round(ctx, to, carry_view_2d(bits, CARRY_F16, 32, 32), false), CARRY_EDTYPE);
    assert_int_equal(carry_fp8_product(ctx, carry_view_2d(bits, CARRY_BF16, 32, 32), to, to, (carry_tensor){0}),
                     CARRY_EDTYPE);
    assert_non_null(strstr(carry_ctx_error(ctx), "both e5m2"));
    const char *why = NULL;
    assert_false(carry_fp8_is_fast(ctx, 0, false, &why));
    assert_non_null(why);
    why = NULL;
    assert_false(carry_fp8_is_fast(ctx, 0, true, &why));
    assert_non_null(why);
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
        cmocka_unit_test(test_rounding_is_to_nearest_even),
        cmocka_unit_test(test_large_numbers_saturate_and_nan_stays),
        cmocka_unit_test(test_scales_follow_the_largest_element_of_the_step_before),
        cmocka_unit_test(test_a_product_matches_float64_and_turned_codes_are_the_same),
        cmocka_unit_test(test_wrong_sizes_and_kinds_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
