/* Products with quantised weights: every kernel set equals the sum of decoded weights times rounded activations, linear
   maps of few and of many tokens are near those of the decoded weights in f32, and bf16 products of many tokens have
   the bits of those with decoded weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "ops/kernels/quant.h"
#include "ops/product/bf16.h"
#include "quantised_blocks.h"
#include "support.h"

/* any_codes: blocks of random bytes instead of encoded values. */
static void expect_formats(bool any_codes) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static const int64_t widths[] = {1, 31, 32, 33, 255, 256, 257, 512, 1000};
    for (int set = 0; carry_quant_kernels_at(set) != NULL; set++) {
        const carry_quant_kernels *by = carry_quant_kernels_at(set);
        for (int f = 0; by->usable() && carry_quant_format_at(f) != NULL; f++) {
            const carry_quant_format *format = carry_quant_format_at(f);
            const carry_quant_dots_function dots = carry_quant_dots_by(by, format);
            for (size_t w = 0; dots != NULL && w < sizeof widths / sizeof widths[0]; w++) {
                const int64_t k = widths[w];
                /* Two tiles of rows and one more; groups of four, two and one token. */
                enum { ROWS = 9, STRIDE = 10, TOKENS = 7, MOST = 1024 };
                static int8_t q[TOKENS * MOST];
                static float scale[TOKENS * MOST / 32], sum[TOKENS * MOST / 32], x[TOKENS * MOST], y[TOKENS * STRIDE];
                unsigned char *blocks = make_blocks(ctx, format, ROWS, k, 3);
                const carry_tensor W = carry_quant_view(blocks, format, ROWS, k);
                if (any_codes) {
                    take_any_codes(ctx, blocks, format, ROWS * (W.stride[0] / (int64_t)format->bytes));
                }
                carry_quant_x rounded = {.columns = (k + CARRY_QUANT_PAD - 1) / CARRY_QUANT_PAD * CARRY_QUANT_PAD,
                                         .q = q,
                                         .scale = scale,
                                         .sum = sum};
                assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(x, CARRY_F32, TOKENS * MOST), 9, 0, 0.0f, 3.0f));
                memset(q, 0x55, sizeof q);
                for (int t = 0; t < TOKENS; t++) {
                    by->round(&rounded, t, x + t * MOST, k);
                }
                memset(y, 0xff, sizeof y);
                dots(&(carry_quant_dots){.rows = ROWS,
                                         .tokens = TOKENS,
                                         .blocks = W.stride[0] / (int64_t)format->bytes,
                                         .w = blocks,
                                         .row_bytes = (size_t)W.stride[0],
                                         .x = rounded,
                                         .y = y,
                                         .y_row = STRIDE});
                for (int t = 0; t < TOKENS; t++) {
                    for (int r = 0; r < ROWS; r++) {
                        float row[MOST];
                        double total = 0.0;
                        double size = 0.0;
                        carry_quant_decode(&W, r, 0, k, row);
                        for (int64_t i = 0; i < k; i++) {
                            const int64_t at = t * rounded.columns + i;
                            const double value = (double)q[at] * (double)scale[at / 32];
                            assert_true(fabs(value - (double)x[t * MOST + i]) <= 0.501 * (double)scale[at / 32]);
                            total += (double)row[i] * value;
                            size += 8.0 * (fabs((double)row[i]) + 0.5) * fabs(value); /* minima are subtracted last */
                        }
                        /* NEON rounds the sums that minima are multiplied by to 16 bits. */
                        assert_true(fabs((double)y[t * STRIDE + r] - total) <= 4e-6 * size);
                    }
                }
                free(blocks);
            }
        }
    }
    carry_ctx_free(ctx);
}

static void test_kernels_equal_their_formats(void **state) {
    (void)state;
    expect_formats(false);
}

static void test_kernels_take_any_codes(void **state) {
    (void)state;
    expect_formats(true);
}

static void test_decoding_to_bf16_rounds_the_decoded_values(void **state) {
    (void)state;
    enum { K = 1024 };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_quant_kernels *by = carry_quant_kernels_for(NULL);
    int64_t found = 0;
    for (int f = 0; by->bf16 != NULL && carry_quant_format_at(f) != NULL; f++) {
        const carry_quant_format *format = carry_quant_format_at(f);
        const carry_quant_bf16_function decode = by->bf16(format);
        unsigned char *blocks = make_blocks(ctx, format, 1, K, 11);
        float values[K];
        uint16_t bits[K];
        found += decode != NULL;
        for (int any_codes = 0; any_codes < 2 && decode != NULL; any_codes++) {
            if (any_codes) {
                take_any_codes(ctx, blocks, format, K / format->block);
            }
            format->decode(values, blocks, K / format->block);
            memset(bits, 0xff, sizeof bits);
            decode(bits, blocks, K / format->block);
            for (int i = 0; i < K; i++) {
                assert_int_equal(bits[i], carry_bf16_from_f32(values[i]));
            }
        }
        free(blocks);
    }
    carry_ctx_free(ctx);
    if (found == 0) {
        skip(); /* no such function here */
    }
}

/* Activations rounded to 8 bits change a sum of k terms by about 1/127 / sqrt(12) of the norm of its terms; bf16
   changes it by 2^-9 of each term. */
SUPPORT_UNWATCHED static bool is_near(double has, double first, const float *x, const float *w, int64_t k) {
    double total = first;
    double square = 1.0;
    for (int64_t i = 0; i < k; i++) {
        const double term = (double)x[i] * (double)w[i];
        total += term;
        square += (double)w[i] * (double)w[i] + term * term;
    }
    return fabs(has - total) <= 0.05 * sqrt(square) + fabs(total) / 200.0;
}

/* y by carry_linear with W quantised, against W decoded, in f32. */
static void expect_linear(carry_ctx *ctx, const carry_quant_format *format, carry_dtype dtype, int64_t tokens,
                          int64_t k, bool accumulate) {
    const int64_t rows = 37;
    unsigned char *blocks = make_blocks(ctx, format, rows, k, 5);
    const carry_tensor W = carry_quant_view(blocks, format, rows, k);
    float *decoded = malloc((size_t)(rows * k) * sizeof *decoded);
    float *x = malloc((size_t)(tokens * k) * sizeof *x);
    uint16_t *half = malloc((size_t)(tokens * k) * sizeof *half);
    float *y = malloc((size_t)(tokens * rows) * sizeof *y);
    uint16_t *y_half = malloc((size_t)(tokens * rows) * sizeof *y_half);
    assert_true(decoded != NULL && x != NULL && half != NULL && y != NULL && y_half != NULL);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(x, CARRY_F32, tokens * k), 6, 0, 0.0f, 1.0f));
    for (int64_t i = 0; i < tokens * k; i++) {
        half[i] = carry_bf16_from_f32(x[i]);
        x[i] = dtype == CARRY_BF16 ? carry_f32_from_bf16(half[i]) : x[i];
    }
    for (int64_t i = 0; i < tokens * rows; i++) {
        y[i] = 1.0f;
        y_half[i] = carry_bf16_from_f32(1.0f);
    }
    for (int64_t r = 0; r < rows; r++) {
        carry_quant_decode(&W, r, 0, k, decoded + r * k);
    }
    const bool is_half = dtype == CARRY_BF16;
    assert_ok(ctx, carry_linear(ctx, carry_view_2d(is_half ? (void *)y_half : (void *)y, dtype, tokens, rows),
                                carry_view_2d(is_half ? (void *)half : (void *)x, dtype, tokens, k), W, accumulate));
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t r = 0; r < rows; r++) {
            const float has = is_half ? carry_f32_from_bf16(y_half[t * rows + r]) : y[t * rows + r];
            assert_true(is_near((double)has, accumulate ? 1.0 : 0.0, x + t * k, decoded + r * k, k));
        }
    }
    free(decoded);
    free(x);
    free(half);
    free(y);
    free(y_half);
    free(blocks);
}

static void test_linear_maps_are_near_those_of_the_decoded_weight(void **state) {
    (void)state;
    static const char *const kernels[] = {NULL, "plain"};
    for (int i = 0; i < 2; i++) {
        carry_ctx *ctx = support_ctx(2, kernels[i], NULL);
        for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
            static const int64_t tokens[] = {1, 2, 8, 9, 16, 17, 40, 551};
            for (int t = 0; t < 8; t++) {
                if (!support_takes(f * 8 + t + i, 5)) {
                    continue;
                }
                expect_linear(ctx, carry_quant_format_at(f), CARRY_F32, tokens[t], 300, t % 2 == 0);
                expect_linear(ctx, carry_quant_format_at(f), CARRY_BF16, tokens[t], 256, t % 2 == 1);
            }
        }
        carry_ctx_free(ctx);
    }
}

/* carry_bf16_run with W quantised and with W decoded to bf16 before: the same bits, whatever type c has and wherever
   blocks of k and of rows end. */
static void expect_bits_of_decoded(carry_ctx *ctx, const carry_bf16 *by, const carry_quant_format *format, int64_t m,
                                   int64_t n, int64_t k, carry_dtype c_dtype) {
    const carry_kernels *kernels;
    assert_ok(ctx, carry_kernels_of(ctx, &kernels));
    unsigned char *blocks = make_blocks(ctx, format, n, k, 5);
    const carry_tensor W = carry_quant_view(blocks, format, n, k);
    uint16_t *decoded = malloc((size_t)(n * k) * sizeof *decoded);
    uint16_t *a = malloc((size_t)(m * k) * sizeof *a);
    float *row = malloc((size_t)k * sizeof *row);
    const size_t bytes = (size_t)(m * n) * carry_dtype_size(c_dtype);
    void *c[2] = {malloc(bytes), malloc(bytes)};
    assert_true(decoded != NULL && a != NULL && row != NULL && c[0] != NULL && c[1] != NULL);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_2d(a, CARRY_BF16, m, k), 6, 0, 0.0f, 1.0f));
    for (int64_t r = 0; r < n; r++) {
        carry_quant_decode(&W, r, 0, k, row);
        for (int64_t i = 0; i < k; i++) {
            decoded[r * k + i] = carry_bf16_from_f32(row[i]);
        }
    }
    const carry_tensor view = carry_view_2d(decoded, CARRY_BF16, n, k);
    for (int i = 0; i < 2; i++) {
        memset(c[i], 0, bytes);
        const carry_mixed_product p = {.m = m,
                                       .n = n,
                                       .k = k,
                                       .a = {.data = a, .dtype = CARRY_BF16, .row = k},
                                       .b = carry_weight_transposed(i == 0 ? &W : &view),
                                       .c = c[i],
                                       .c_dtype = c_dtype,
                                       .c_row = n,
                                       .accumulate = true};
        assert_true(carry_bf16_run(ctx, kernels, by, &p));
    }
    assert_memory_equal(c[0], c[1], bytes);
    free(decoded);
    free(a);
    free(row);
    free(c[0]);
    free(c[1]);
    free(blocks);
}

static void test_bf16_products_have_the_bits_of_decoded_weights(void **state) {
    (void)state;
    for (int threads = 1; threads < 3; threads++) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        for (int i = 0; carry_bf16_at(i) != NULL; i++) {
            const carry_bf16 *by = carry_bf16_at(i);
            for (int f = 0; by->missing() == NULL && carry_quant_format_at(f) != NULL; f++) {
                const carry_quant_format *format = carry_quant_format_at(f);
                if (support_takes(f + i + threads, 5)) {
                    expect_bits_of_decoded(ctx, by, format, 33, 70, 300, CARRY_BF16);
                    expect_bits_of_decoded(ctx, by, format, 5, 37, 1031, CARRY_F32);
                }
                if (f == carry_quant_format_index(&carry_quant_q8_0) && threads >= support_cases(1, 2)) {
                    const int form = by->emulated ? support_cases(-1, i % 2) : -1; /* emulations are slow */
                    if (form != 1) {
                        expect_bits_of_decoded(ctx, by, format, 7, 165, 4352, CARRY_F32); /* three blocks of k */
                    }
                    if (form != 0) {
                        expect_bits_of_decoded(ctx, by, format, 7, 165, 3333, CARRY_BF16); /* and of rows */
                    }
                }
            }
        }
        carry_ctx_free(ctx);
    }
}

static void test_embeddings_and_losses(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        const carry_quant_format *format = carry_quant_format_at(f);
        enum { VOCABULARY = 50, K = 1300, TOKENS = 9 };
        unsigned char *blocks = make_blocks(ctx, format, VOCABULARY, K, 8);
        const carry_tensor W = carry_quant_view(blocks, format, VOCABULARY, K);
        static float y[TOKENS * K], row[K], decoded[VOCABULARY * K], losses[2][TOKENS];
        int64_t ids[TOKENS];
        for (int t = 0; t < TOKENS; t++) {
            ids[t] = (t * 7) % VOCABULARY;
        }
        for (int r = 0; r < VOCABULARY; r++) {
            carry_quant_decode(&W, r, 0, K, decoded + r * K);
        }
        const carry_tensor to = carry_view_2d(y, CARRY_F32, TOKENS, K);
        const carry_tensor tokens = carry_view_1d(ids, CARRY_I64, TOKENS);
        assert_ok(ctx, carry_embed(ctx, to, W, tokens));
        for (int t = 0; t < TOKENS; t++) {
            carry_quant_decode(&W, ids[t], 0, K, row);
            assert_memory_equal(y + t * K, row, sizeof row);
        }
        const size_t bytes = carry_linear_cross_entropy_workspace(TOKENS, K, VOCABULARY);
        void *workspace = malloc(bytes);
        assert_non_null(workspace);
        for (int i = 0; i < 2; i++) {
            const carry_linear_cross_entropy_args args = {
                .losses = carry_view_1d(losses[i], CARRY_F32, TOKENS),
                .x = to,
                .W = i == 0 ? W : carry_view_2d(decoded, CARRY_F32, VOCABULARY, K),
                .targets = tokens,
                .scale = 1.0f};
            assert_ok(ctx, carry_linear_cross_entropy(ctx, &args, workspace, bytes));
        }
        for (int t = 0; t < TOKENS; t++) {
            assert_true(fabsf(losses[0][t] - losses[1][t]) <= 1e-3f * (1.0f + fabsf(losses[1][t])));
        }
        free(workspace);
        free(blocks);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_equal_their_formats),
        cmocka_unit_test(test_kernels_take_any_codes),
        cmocka_unit_test(test_decoding_to_bf16_rounds_the_decoded_values),
        cmocka_unit_test(test_linear_maps_are_near_those_of_the_decoded_weight),
        cmocka_unit_test(test_bf16_products_have_the_bits_of_decoded_weights),
        cmocka_unit_test(test_embeddings_and_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
