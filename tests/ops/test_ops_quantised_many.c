/* Products of many tokens with quantised weights by integers: every kernel set equals the sum of decoded weights times
   rounded activations, rates decide where they are used, and merged maps have the bits of single ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "ops/kernels/quant_many.h"
#include "ops/product/bf16.h"
#include "ops/product/packed.h"
#include "ops/product/rates.h"
#include "quantised_blocks.h"
#include "support.h"

/* Adds rows of every format with panels of tokens to sums, for numbers of rows, tokens and columns around the sizes of
   tiles, and compares them with float64. */
static void expect_many(carry_ctx *ctx, const carry_quant_kernels *by, const carry_quant_format *format, int64_t k,
                        int rows, int64_t tokens, bool any_codes) {
    enum { MOST = 768, STRIDE = 48, SIX = CARRY_QUANT_MANY_TOKENS, PANELS = 3, CHUNKS = 3 };
    static float x[PANELS * SIX * MOST], sums[PANELS * SIX * STRIDE], row[MOST];
    static _Alignas(64) carry_quant_panel packed[CHUNKS][PANELS];
    const carry_quant_many_function many = by->many(format);
    const int64_t chunks = (k + CARRY_QUANT_CHUNK - 1) / CARRY_QUANT_CHUNK;
    const int64_t panels = (tokens + SIX - 1) / SIX;
    unsigned char *blocks = make_blocks(ctx, format, rows, k, 3);
    const carry_tensor W = carry_quant_view(blocks, format, rows, k);
    const int64_t pieces = W.stride[0] / (int64_t)format->bytes * format->block / CARRY_QUANT_BLOCK;
    if (any_codes) {
        take_any_codes(ctx, blocks, format, rows * (W.stride[0] / (int64_t)format->bytes));
    }
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(x, CARRY_F32, PANELS * SIX * MOST), 9, 0, 0.0f, 3.0f));
    memset(x, 0, 40 * sizeof *x); /* blocks of zeros */
    memset(packed, 0x55, sizeof packed);
    for (int64_t i = 0; i < PANELS * SIX * STRIDE; i++) {
        sums[i] = 0.25f;
    }
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t count =
            k - c * CARRY_QUANT_CHUNK < CARRY_QUANT_CHUNK ? k - c * CARRY_QUANT_CHUNK : CARRY_QUANT_CHUNK;
        for (int64_t t = 0; t < panels * SIX; t++) {
            by->pack(&packed[c][t / SIX], (int)(t % SIX), x + t * MOST + c * CARRY_QUANT_CHUNK, t < tokens ? count : 0);
        }
        const int64_t left = pieces - c * CARRY_QUANT_PIECES;
        many(&(carry_quant_many){.rows = rows,
                                 .pieces = (int)(left < CARRY_QUANT_PIECES ? left : CARRY_QUANT_PIECES),
                                 .chunk = c,
                                 .w = blocks,
                                 .row_bytes = (size_t)W.stride[0],
                                 .panels = panels,
                                 .x = packed[c],
                                 .sums = sums,
                                 .sums_row = STRIDE});
    }
    for (int64_t t = 0; t < panels * SIX; t++) {
        for (int r = 0; r < rows; r++) {
            double total = 0.25;
            double size = 0.25;
            carry_quant_decode(&W, r, 0, k, row);
            for (int64_t i = 0; i < k; i++) {
                const carry_quant_panel *panel = &packed[i / CARRY_QUANT_CHUNK][t / SIX];
                const int64_t piece = i % CARRY_QUANT_CHUNK / CARRY_QUANT_BLOCK;
                const double scale = (double)panel->scale[piece][t % SIX];
                const double value = scale * (double)panel->q[piece][t % SIX][i % CARRY_QUANT_BLOCK];
                assert_true(fabs(value - (t < tokens ? (double)x[t * MOST + i] : 0.0)) <= 0.501 * scale);
                total += (double)row[i] * value;
                size += 8.0 * (fabs((double)row[i]) + 0.5) * fabs(value); /* minima are subtracted last */
            }
            assert_true(fabs((double)sums[t * STRIDE + r] - total) <= 1e-6 * size);
        }
        assert_true(sums[t * STRIDE + CARRY_QUANT_MANY_ROWS] == 0.25f);
    }
    free(blocks);
}

static void test_products_of_many_tokens_equal_their_formats(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 31, 32, 33, 96, 255, 256, 257, 512, 700};
    static const int rows[] = {1, 15, 16, 17, 31, 32};
    static const int64_t tokens[] = {1, 6, 7, 18};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int found = 0;
    for (int set = 0; carry_quant_kernels_at(set) != NULL; set++) {
        const carry_quant_kernels *by = carry_quant_kernels_at(set);
        for (int f = 0; by->usable() && by->many != NULL && carry_quant_format_at(f) != NULL; f++) {
            const carry_quant_format *format = carry_quant_format_at(f);
            for (int i = 0; by->many(format) != NULL && i < 60; i++) {
                if (support_takes(i + f, 9)) {
                    expect_many(ctx, by, format, widths[i % 10], rows[i % 6], tokens[i % 4], i % 7 == 0);
                    found++;
                }
            }
        }
    }
    carry_ctx_free(ctx);
    if (found == 0) {
        skip(); /* no such kernels here */
    }
}

/* Integers are used where remembered rates say that they are faster, and without such rates where the processor has no
   instructions for bf16. The choice is made once. */
static void test_rates_choose_products_of_many_tokens(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        carry_ctx *ctx = support_ctx(1, NULL, NULL);
        const carry_kernels *kernels;
        assert_ok(ctx, carry_kernels_of(ctx, &kernels));
        carry_rates_table rates = support_rates();
        rates.remembered = i < 2;
        rates.large_own = 2e10;
        rates.large_bf16 = 3e10;
        rates.large_integers = i == 0 ? 4e10 : 1e10;
        assert_true(carry_rates_put(ctx, &rates));
        const bool for_f16 = carry_packed_integers(ctx, CARRY_F16);
        const bool for_bf16 = carry_packed_integers(ctx, CARRY_BF16);
        assert_true(for_f16 == (i != 1));
        assert_true(for_bf16 == (i == 0 || (i == 2 && carry_bf16_of(ctx) == NULL)));
        rates.large_integers = i == 0 ? 1e10 : 4e10; /* too late */
        assert_true(carry_rates_put(ctx, &rates));
        assert_true(carry_packed_integers(ctx, CARRY_F16) == for_f16);
        assert_true(carry_packed_integers(ctx, CARRY_BF16) == for_bf16);
        carry_ctx_free(ctx);
    }
}

static void test_merged_maps_equal_single_maps(void **state) {
    (void)state;
    enum { MAPS = 3, TOKENS = 20, K = 512, MOST = 200 };
    static const char *const formats[MAPS] = {"q5_k", "q4_k", "q8_0"};
    static const int64_t rows[MAPS] = {MOST, 33, 16};
    static uint16_t x[TOKENS * K], merged[MAPS][TOKENS * MOST], single[MAPS][TOKENS * MOST];
    static float values[TOKENS * K];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_merged_linear_args args = {.maps = MAPS, .x = carry_view_2d(x, CARRY_BF16, TOKENS, K)};
    unsigned char *blocks[MAPS];
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(values, CARRY_F32, TOKENS * K), 6, 0, 0.0f, 1.0f));
    for (int i = 0; i < TOKENS * K; i++) {
        x[i] = carry_bf16_from_f32(values[i]);
    }
    memset(merged, 0xff, sizeof merged);
    memset(single, 0xff, sizeof single);
    for (int i = 0; i < MAPS; i++) {
        const carry_quant_format *format = carry_quant_format_named(formats[i]);
        blocks[i] = make_blocks(ctx, format, rows[i], K, 5 + (uint64_t)i);
        args.W[i] = carry_quant_view(blocks[i], format, rows[i], K);
        args.y[i] = carry_view_2d(merged[i], CARRY_BF16, TOKENS, rows[i]);
        assert_ok(ctx,
                  carry_linear(ctx, carry_view_2d(single[i], CARRY_BF16, TOKENS, rows[i]), args.x, args.W[i], false));
    }
    assert_ok(ctx, carry_merged_linear(ctx, &args));
    for (int i = 0; i < MAPS; i++) {
        assert_memory_equal(merged[i], single[i], sizeof merged[i]);
        free(blocks[i]);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_many_tokens_equal_their_formats),
        cmocka_unit_test(test_rates_choose_products_of_many_tokens),
        cmocka_unit_test(test_merged_maps_equal_single_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
