/* Heads in 8 bits (ops/f8.h) equal the reference conversions, and a pool of them gives back what 8 bits can hold. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "ops/f8.h"
#include "ops/pool.h"
#include "ops/quantised/quantised.h"

static void conversions_equal_the_reference(void **unused) {
    (void)unused;
    for (int code = 0; code < 256; code++) {
        const float value = carry_f32_from_f8((uint8_t)code);
        const float got = carry_f8_value((uint8_t)code);
        assert_true(isnan(value) ? isnan(got) : carry_f8_bits(value) == carry_f8_bits(got));
        assert_int_equal(carry_f8_round(value) & 0x7f, code & 0x7f);
    }
    for (uint64_t i = 0; i < 400000; i++) { /* from 2^-14 to 2^10, with ties */
        const uint32_t word = carry_philox(i, 3, 5).word[0];
        const uint32_t bits = (word & 0x80000000u) | (113u + word % 24u) << 23 | (word >> 8 << (i % 3 * 8) & 0x7fffffu);
        const float x = carry_f8_float(bits);
        if (carry_f8_round(x) != carry_f8_from_f32(x)) {
            fail_msg("%.9g becomes %#x: expected %#x", (double)x, carry_f8_round(x), carry_f8_from_f32(x));
        }
    }
    assert_int_equal(carry_f8_round(INFINITY), CARRY_F8_NAN);
    assert_int_equal(carry_f8_round(-NAN) & 0x7f, CARRY_F8_NAN);
    assert_int_equal(carry_f8_round(1e30f), CARRY_F8_MOST);
}

/* The scale is the smallest power of two for which no number is above 448. */
static void scales_are_the_smallest(void **unused) {
    (void)unused;
    static const float largest[] = {448.0f, 448.1f, 1.0f, 1.75f, 1.76f, 0x1p-100f, 0x1p-140f, 0.0f, 3e38f};
    for (size_t i = 0; i < sizeof largest / sizeof *largest; i++) {
        const uint32_t e = carry_f8_scale_of(carry_f8_bits(largest[i]));
        assert_true(e >= 1 && e <= 247);
        assert_true(largest[i] * carry_f8_inverse(e) <= 448.0f);
        assert_true(e == 1 || largest[i] * carry_f8_inverse(e - 1) > 448.0f);
        assert_true(carry_f8_scale(e) * carry_f8_inverse(e) == 1.0f);
    }
}

enum { ROWS = 3 * CARRY_POOL_PAGE, HEADS = 2, WIDTH = 300, COUNT = CARRY_POOL_PAGE + 5 };

/* Tokens of two pages: every element is within 2^-4 of its size, or half a step of the smallest numbers. NaN and
   infinity become NaN and change no other element. */
static void rows_come_back_from_their_pages(void **unused) {
    (void)unused;
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};
    static uint8_t codes[ROWS * HEADS * WIDTH], scales[ROWS * HEADS];
    static float given[COUNT * HEADS * WIDTH], got[COUNT * HEADS * WIDTH];
    static uint32_t memory[2][COUNT * HEADS * WIDTH];
    static const int32_t pages[] = {2, 0};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    int64_t rows[COUNT];
    const carry_f8_pool pool = {.numbers = carry_view_3d(codes, CARRY_F8, ROWS, HEADS, WIDTH),
                                .scales = carry_view_2d(scales, CARRY_I8, ROWS, HEADS)};
    for (int t = 0; t < COUNT; t++) {
        rows[t] = pages[t / CARRY_POOL_PAGE] * CARRY_POOL_PAGE + t % CARRY_POOL_PAGE;
    }
    for (int type = 0; type < 3; type++) {
        const int64_t shape[] = {COUNT, HEADS, WIDTH};
        const carry_tensor from = carry_view(memory[0], types[type], 3, shape);
        const carry_tensor to = carry_view(memory[1], types[type], 3, shape);
        for (int i = 0; i < COUNT * HEADS * WIDTH; i++) {
            const uint32_t word = carry_philox((uint64_t)i, 8, 1).word[0];
            given[i] = ldexpf((float)(int32_t)word * 0x1p-31f, (int)(i / WIDTH % 13) - 6);
        }
        given[5] = NAN;
        given[WIDTH + 7] = INFINITY;
        assert_ok(ctx, carry_convert(ctx, from, carry_view(given, CARRY_F32, 3, shape)));
        assert_ok(ctx, carry_convert(ctx, carry_view(given, CARRY_F32, 3, shape), from)); /* as they were rounded */
        memset(codes, 0x55, sizeof codes);
        assert_ok(ctx, carry_put_rows_f8(ctx, pool, from, rows));
        assert_ok(ctx, carry_take_pages_f8(ctx, to, pool, pages));
        assert_ok(ctx, carry_convert(ctx, carry_view(got, CARRY_F32, 3, shape), to));
        for (int i = 0; i < COUNT * HEADS * WIDTH; i++) {
            const int head = i / WIDTH;
            const float scale = carry_f8_scale(scales[rows[head / HEADS] * HEADS + head % HEADS]);
            if (!isfinite(given[i])) {
                assert_true(isnan(got[i]));
            } else if (!(fabsf(got[i] - given[i]) <= fmaxf(fabsf(given[i]) * 0x1p-4f, scale * 0x1p-10f))) {
                fail_msg("element %d is %g: expected %g", i, (double)got[i], (double)given[i]);
            }
        }
        for (int i = 0; i < CARRY_POOL_PAGE * HEADS * WIDTH; i++) { /* page 1 is unused */
            assert_int_equal(codes[CARRY_POOL_PAGE * HEADS * WIDTH + i], 0x55);
        }
    }
    carry_ctx_free(ctx);
}

static void wrong_pools_are_refused(void **unused) {
    (void)unused;
    static uint8_t codes[CARRY_POOL_PAGE * 8], scales[CARRY_POOL_PAGE];
    float x[8] = {0};
    const int64_t row = 0;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_f8_pool pool = {.numbers = carry_view_3d(codes, CARRY_F8, CARRY_POOL_PAGE, 1, 8),
                                .scales = carry_view_2d(scales, CARRY_I8, CARRY_POOL_PAGE, 1)};
    carry_f8_pool wrong = pool;
    wrong.scales.shape[0] = 3;
    assert_refused(ctx, CARRY_ESHAPE, "expected packed f8_e4m3 [rows, 1, 8]",
                   carry_put_rows_f8(ctx, wrong, carry_view_3d(x, CARRY_F32, 1, 1, 8), &row));
    wrong = pool;
    wrong.numbers.dtype = CARRY_I8;
    assert_refused(ctx, CARRY_ESHAPE, "expected packed f8_e4m3 [rows, 1, 8]",
                   carry_put_rows_f8(ctx, wrong, carry_view_3d(x, CARRY_F32, 1, 1, 8), &row));
    assert_refused(ctx, CARRY_ESHAPE, "expected packed f8_e4m3 [rows, 1, 4]",
                   carry_put_rows_f8(ctx, pool, carry_view_3d(x, CARRY_F32, 1, 1, 4), &row));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_equal_the_reference),
        cmocka_unit_test(scales_are_the_smallest),
        cmocka_unit_test(rows_come_back_from_their_pages),
        cmocka_unit_test(wrong_pools_are_refused),
    };
    return cmocka_run_group_tests_name("ops_f8", tests, NULL, NULL);
}
