/* Quantised matrices on a GPU against their decoded values: rows by number, linear maps of few and of many tokens,
   added to a base and several at once, in every format, at odd shapes. */
/* labels: gpu */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"
#include "model/host.h"
#include "ops/quantised/tile_product.h"
#include "support.h"

int carry_cuda_tile_product_registers(void) __attribute__((weak)); /* absent without CUDA */

enum { GPU = 1, SKIPPED = 77 };

typedef struct quantised_case {
    const carry_quant_format *format;
    int64_t rows, columns;
    unsigned char *blocks;
    float *values;  /* decoded, [rows, columns] */
    carry_tensor W; /* on the GPU */
    void *there;
    bool is_square; /* all rows have the scales of the first */
} quantised_case;

static void *there(carry_ctx *ctx, const void *data, size_t bytes) {
    void *made;
    assert_ok(ctx, carry_device_alloc(ctx, &made, GPU, bytes + 16));
    assert_ok(ctx, data != NULL ? carry_device_copy(ctx, made, GPU, data, 0, bytes, NULL)
                                : carry_device_fill(ctx, made, GPU, 0xff, bytes, NULL));
    return made;
}

/* Rows of different magnitudes, one of them zero. */
static void open_case(carry_ctx *ctx, quantised_case *c, int format, int64_t rows, int64_t columns) {
    size_t bytes;
    c->format = carry_quant_format_at(format);
    c->rows = rows;
    c->columns = columns;
    const int64_t blocks = (columns + c->format->block - 1) / c->format->block;
    const size_t row_bytes = carry_quant_row_bytes(c->format, columns);
    float *row = malloc((size_t)(blocks * c->format->block) * sizeof *row);
    c->blocks = malloc((size_t)rows * row_bytes);
    c->values = malloc((size_t)(rows * columns) * sizeof *c->values);
    assert_true(row != NULL && c->blocks != NULL && c->values != NULL);
    for (int64_t r = 0; r < rows; r++) {
        const float size = r % 7 == 3 ? 0.0f : r % 5 == 1 ? 1e-4f : 0.5f;
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(row, CARRY_F32, blocks * c->format->block),
                                           (uint64_t)format, (uint64_t)r, 0.1f * size, size));
        c->format->encode(c->blocks + (size_t)r * row_bytes, row, blocks);
        for (int64_t b = 0; c->is_square && b < blocks; b++) {
            memcpy(c->blocks + (size_t)r * row_bytes + (size_t)b * c->format->bytes,
                   c->blocks + (size_t)b * c->format->bytes, sizeof(float));
        }
    }
    const carry_tensor W = carry_quant_view(c->blocks, c->format, rows, columns);
    for (int64_t r = 0; r < rows; r++) {
        carry_quant_decode(&W, r, 0, columns, c->values + r * columns);
    }
    void *source = there(ctx, c->blocks, (size_t)rows * row_bytes);
    assert_true(carry_quant_bytes_on(&bytes, GPU, c->format, rows, columns));
    c->there = there(ctx, NULL, bytes);
    c->W = carry_quant_view_on(GPU, c->there, c->format, rows, columns);
    assert_ok(ctx, carry_quant_pack(ctx, c->W, source));
    assert_int_equal(c->is_square, carry_quant_is_square(c->format, c->blocks, rows, columns) && rows > 16);
    c->W.stride[2] = c->is_square ? CARRY_QUANT_SQUARE : 0;
    carry_device_free(ctx, GPU, source);
    free(row);
}

static void close_case(carry_ctx *ctx, quantised_case *c) {
    carry_device_free(ctx, GPU, c->there);
    free(c->values);
    free(c->blocks);
}

/* Values with f16 scales are rounded to 2^-11 of the largest scale of the row, and a 4-bit value is up to 15 scales. */
static void expect_row(const quantised_case *c, int64_t row, const float *got) {
    const float *want = c->values + row * c->columns;
    float largest = 0.0f;
    for (int64_t i = 0; i < c->columns; i++) {
        largest = fmaxf(largest, fabsf(want[i]));
    }
    for (int64_t i = 0; i < c->columns; i++) {
        if (!(fabsf(got[i] - want[i]) <= 2e-3f * largest)) {
            fail_msg("%s %d x %d: element %d of row %d is %g, expected %g", c->format->name, (int)c->rows,
                     (int)c->columns, (int)i, (int)row, (double)got[i], (double)want[i]);
        }
    }
}

static void check_embed(carry_ctx *ctx, const quantised_case *c) {
    enum { IDS = 5 };
    int64_t ids[IDS];
    const size_t bytes = (size_t)(IDS * c->columns) * sizeof(float);
    float *got = malloc(bytes);
    assert_non_null(got);
    for (int i = 0; i < IDS; i++) {
        ids[i] = (c->rows - 1) * i / (IDS - 1);
    }
    void *ids_there = there(ctx, ids, sizeof ids);
    void *y = there(ctx, NULL, bytes);
    const carry_tensor rows = carry_view_on(GPU, y, CARRY_F32, 2, (const int64_t[]){IDS, c->columns});
    assert_ok(ctx, carry_embed(ctx, rows, c->W, carry_view_on(GPU, ids_there, CARRY_I64, 1, (const int64_t[]){IDS})));
    assert_ok(ctx, carry_read(ctx, carry_view_2d(got, CARRY_F32, IDS, c->columns), rows));
    for (int i = 0; i < IDS; i++) {
        expect_row(c, ids[i], got + i * c->columns);
    }
    carry_device_free(ctx, GPU, y);
    carry_device_free(ctx, GPU, ids_there);
    free(got);
}

/* The error of a sum: each term has the errors of its weight and its activation, with random sign, at most 2^-8 in bf16
   and 2^-11 in f16; the result is rounded once. f16 scales are off by 2^-12 for all weights of a group together. Many
   tokens times fp8_block are rounded to e4m3, with an error of 2.6 % of each term in the mean: seven times that. */
static void expect_sums(const quantised_case *c, const float *x, const float *got, const float *base, int64_t tokens,
                        carry_dtype dtype) {
    const bool may_be_narrow = dtype == CARRY_BF16 && tokens >= 256 && c->format == &carry_quant_fp8_block;
    const double each = may_be_narrow ? 0.18 : dtype == CARRY_BF16 ? 0.012 : 0.003;
    const double whole = dtype == CARRY_BF16 ? 0.006 : 0.001;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t r = 0; r < c->rows; r++) {
            double sum = base != NULL ? (double)base[t * c->rows + r] : 0.0;
            double squares = 1e-12;
            for (int64_t i = 0; i < c->columns; i++) {
                const double term = (double)c->values[r * c->columns + i] * (double)x[t * c->columns + i];
                sum += term;
                squares += term * term;
            }
            const double has = (double)got[t * c->rows + r];
            if (!(fabs(has - sum) <= each * sqrt(squares) + whole * fabs(sum) + 1e-6)) {
                fail_msg("%s %d x %d, %d tokens of %s: token %d of row %d is %g, expected %g", c->format->name,
                         (int)c->rows, (int)c->columns, (int)tokens, carry_dtype_name(dtype), (int)t, (int)r, has, sum);
            }
        }
    }
}

/* Numbers that bf16 represents exactly, as f32 on the host and in `dtype` on the GPU. */
static carry_tensor numbers(carry_ctx *ctx, float **here, int64_t rows, int64_t columns, carry_dtype dtype,
                            uint64_t stream) {
    const int64_t count = rows * columns;
    uint16_t *low = malloc((size_t)count * sizeof *low);
    *here = malloc((size_t)count * sizeof **here);
    assert_true(low != NULL && *here != NULL);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(*here, CARRY_F32, count), 5, stream, 0.0f, 1.0f));
    for (int64_t i = 0; i < count; i++) {
        low[i] = carry_bf16_from_f32((*here)[i]);
        (*here)[i] = carry_f32_from_bf16(low[i]);
    }
    const void *from = dtype == CARRY_F32 ? (const void *)*here : low;
    void *data = there(ctx, from, (size_t)count * carry_dtype_size(dtype));
    free(low);
    return carry_view_on(GPU, data, dtype, 2, (const int64_t[]){rows, columns});
}

static void check_linear(carry_ctx *ctx, const quantised_case *c, int64_t tokens, carry_dtype dtype, bool added) {
    const int64_t count = tokens * c->rows;
    float *x_here;
    float *base_here;
    float *got = malloc((size_t)count * sizeof *got);
    uint16_t *low = malloc((size_t)count * sizeof *low);
    assert_true(got != NULL && low != NULL);
    const carry_tensor x = numbers(ctx, &x_here, tokens, c->columns, dtype, 1);
    const carry_tensor base = numbers(ctx, &base_here, tokens, c->rows, dtype, 2);
    void *data = there(ctx, NULL, (size_t)count * carry_dtype_size(dtype));
    const carry_tensor y = carry_view_on(GPU, data, dtype, 2, (const int64_t[]){tokens, c->rows});
    assert_ok(ctx, added ? carry_linear_add(ctx, y, x, c->W, base) : carry_linear(ctx, y, x, c->W, false));
    assert_ok(ctx, carry_read(ctx, carry_view_2d(dtype == CARRY_F32 ? (void *)got : low, dtype, tokens, c->rows), y));
    for (int64_t i = 0; dtype != CARRY_F32 && i < count; i++) {
        got[i] = carry_f32_from_bf16(low[i]);
    }
    expect_sums(c, x_here, got, added ? base_here : NULL, tokens, dtype);
    carry_device_free(ctx, GPU, data);
    carry_device_free(ctx, GPU, base.data);
    carry_device_free(ctx, GPU, x.data);
    free(low);
    free(got);
    free(base_here);
    free(x_here);
}

static void operators_equal_decoded_values(void **unused) {
    (void)unused;
    static const int64_t shapes[][2] = {{1, 1}, {16, 64}, {33, 200}, {100, 257}, {48, 2050}, {17, 63}};
    static const int64_t tokens[] = {1, 3, 8, 13, 32, 40, 70};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            quantised_case c = {0};
            open_case(ctx, &c, f, shapes[s][0], shapes[s][1]);
            check_embed(ctx, &c);
            for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
                check_linear(ctx, &c, tokens[t], t % 2 == 0 ? CARRY_BF16 : CARRY_F32, t % 3 == 1);
            }
            close_case(ctx, &c);
        }
    }
    carry_ctx_free(ctx);
}

/* Blocks of the kernel for few tokens have several rounds of tiles. */
static void tall_matrices_equal_decoded_values(void **unused) {
    (void)unused;
    static const int64_t tokens[] = {1, 5, 8};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        quantised_case c = {0};
        open_case(ctx, &c, f, 10007, 136);
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
            check_linear(ctx, &c, tokens[t], CARRY_BF16, t == 1);
        }
        close_case(ctx, &c);
    }
    carry_ctx_free(ctx);
}

/* The order of sums does not depend on which warp or block ends first. */
static void repeated_products_have_the_same_bits(void **unused) {
    (void)unused;
    enum { ROWS = 2560, COLUMNS = 1280, MOST = 32 };
    static const int64_t tokens[] = {1, 8, 13, MOST};
    static float first[MOST * ROWS];
    static float again[MOST * ROWS];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        quantised_case c = {0};
        float *x_here;
        open_case(ctx, &c, f, ROWS, COLUMNS);
        const carry_tensor x = numbers(ctx, &x_here, MOST, COLUMNS, CARRY_F32, 7);
        void *data = there(ctx, NULL, sizeof first);
        for (int i = 0; i < 4 * (int)(sizeof tokens / sizeof tokens[0]); i++) {
            const int64_t count = tokens[i / 4];
            float *to = i % 4 == 0 ? first : again;
            const carry_tensor y = carry_view_on(GPU, data, CARRY_F32, 2, (const int64_t[]){count, ROWS});
            assert_ok(ctx, carry_linear(ctx, y, carry_slice(x, 0, count), c.W, false));
            assert_ok(ctx, carry_read(ctx, carry_view_2d(to, CARRY_F32, count, ROWS), y));
            assert_true(i % 4 == 0 || memcmp(first, again, (size_t)(count * ROWS) * sizeof *first) == 0);
        }
        carry_device_free(ctx, GPU, data);
        carry_device_free(ctx, GPU, x.data);
        free(x_here);
        close_case(ctx, &c);
    }
    carry_ctx_free(ctx);
}

/* 256 tokens and more: activations may be rounded to 8 bits too. */
static void many_tokens_equal_decoded_values(void **state) {
    static const int64_t shapes[][2] = {{256, 384}, {160, 128}, {48, 128}, {40, 256}, {64, 300}};
    static const int64_t tokens[] = {256, 269, 512};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        quantised_case c = {.is_square = *(const bool *)*state};
        open_case(ctx, &c, carry_quant_format_index(&carry_quant_fp8_block), shapes[s][0], shapes[s][1]);
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
            check_linear(ctx, &c, tokens[t], CARRY_BF16, t == 1);
        }
        close_case(ctx, &c);
    }
    carry_ctx_free(ctx);
}

/* Maps of many tokens whose results are columns of one tensor, and a third one apart. */
static void many_tokens_of_merged_maps_equal_decoded_values(void **state) {
    enum { TOKENS = 301, ROWS = 336, COLUMNS = 256 };
    static const int64_t first[] = {0, 128, 256, ROWS};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    quantised_case c = {.is_square = *(const bool *)*state};
    float *x_here;
    static float got[TOKENS * ROWS];
    open_case(ctx, &c, carry_quant_format_index(&carry_quant_fp8_block), ROWS, COLUMNS);
    const carry_tensor x = numbers(ctx, &x_here, TOKENS, COLUMNS, CARRY_BF16, 9);
    uint16_t *y = there(ctx, NULL, sizeof got);
    uint16_t *apart = there(ctx, NULL, sizeof got);
    carry_merged_linear_args args = {.x = x, .maps = 3};
    for (int i = 0; i < 3; i++) {
        const int64_t shape[] = {TOKENS, first[i + 1] - first[i]};
        args.W[i] = carry_slice(c.W, first[i], shape[1]);
        args.y[i] = carry_view_on(GPU, (i == 2 ? apart : y) + first[i], CARRY_BF16, 2, shape);
        args.y[i].stride[0] = ROWS;
    }
    assert_ok(ctx, carry_merged_linear(ctx, &args));
    for (int i = 0; i < 2; i++) {
        static uint16_t part[TOKENS * ROWS];
        const carry_tensor from =
            carry_view_on(GPU, i == 0 ? y : apart, CARRY_BF16, 2, (const int64_t[]){TOKENS, ROWS});
        assert_ok(ctx, carry_read(ctx, carry_view_2d(part, CARRY_BF16, TOKENS, ROWS), from));
        for (int j = 0; j < TOKENS * ROWS; j++) {
            got[j] = (j % ROWS >= first[2]) == (i == 1) ? carry_f32_from_bf16(part[j]) : got[j];
        }
    }
    expect_sums(&c, x_here, got, NULL, TOKENS, CARRY_BF16);
    carry_device_free(ctx, GPU, apart);
    carry_device_free(ctx, GPU, y);
    carry_device_free(ctx, GPU, x.data);
    free(x_here);
    close_case(ctx, &c);
    carry_ctx_free(ctx);
}

/* Rows that start at a multiple of 16, and two maps whose results are columns of one tensor. */
static void slices_and_merged_maps_equal_decoded_values(void **unused) {
    (void)unused;
    enum { TOKENS = 3, ROWS = 80, COLUMNS = 192, FIRST = 48 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        quantised_case c = {0};
        float *x_here;
        static float got[TOKENS * ROWS];
        open_case(ctx, &c, f, ROWS, COLUMNS);
        const carry_tensor x = numbers(ctx, &x_here, TOKENS, COLUMNS, CARRY_F32, 9);
        float *y = there(ctx, NULL, sizeof got);
        carry_merged_linear_args args = {.x = x, .maps = 2};
        for (int i = 0; i < 2; i++) {
            const int64_t shape[] = {TOKENS, i == 0 ? FIRST : ROWS - FIRST};
            args.W[i] = carry_slice(c.W, i == 0 ? 0 : FIRST, shape[1]);
            args.y[i] = carry_view_on(GPU, y + (i == 0 ? 0 : FIRST), CARRY_F32, 2, shape);
            args.y[i].stride[0] = ROWS;
        }
        assert_ok(ctx, carry_merged_linear(ctx, &args));
        assert_ok(ctx, carry_read(ctx, carry_view_2d(got, CARRY_F32, TOKENS, ROWS),
                                  carry_view_on(GPU, y, CARRY_F32, 2, (const int64_t[]){TOKENS, ROWS})));
        expect_sums(&c, x_here, got, NULL, TOKENS, CARRY_F32);
        carry_device_free(ctx, GPU, y);
        carry_device_free(ctx, GPU, x.data);
        free(x_here);
        close_case(ctx, &c);
    }
    carry_ctx_free(ctx);
}

/* With 80 registers or fewer two blocks of one product would share a multiprocessor while another is idle. */
static void second_products_have_more_than_80_registers(void **unused) {
    (void)unused;
    const int registers = carry_cuda_tile_product_registers != NULL ? carry_cuda_tile_product_registers() : 0;
    if (registers == 0) {
        skip();
    }
    assert_in_range(registers, 81, 88);
}

int main(void) {
    static bool rows = false; /* scales of rows, or of 128 x 128 elements */
    static bool square = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_equal_decoded_values),
        cmocka_unit_test(tall_matrices_equal_decoded_values),
        cmocka_unit_test(repeated_products_have_the_same_bits),
        cmocka_unit_test_prestate(many_tokens_equal_decoded_values, &rows),
        cmocka_unit_test_prestate(many_tokens_equal_decoded_values, &square),
        cmocka_unit_test_prestate(many_tokens_of_merged_maps_equal_decoded_values, &rows),
        cmocka_unit_test_prestate(many_tokens_of_merged_maps_equal_decoded_values, &square),
        cmocka_unit_test(slices_and_merged_maps_equal_decoded_values),
        cmocka_unit_test(second_products_have_more_than_80_registers),
    };
    if (carry_device_count() < 2) {
        (void)puts("skipped: no GPU");
        return SKIPPED;
    }
    return cmocka_run_group_tests_name("ops/quantised_gpu", tests, NULL, NULL);
}
