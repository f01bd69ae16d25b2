/* Linear layers: three products of rows of tokens with a weight, one forward and two backward.

   Forward, a small f32 weight is multiplied in float64 (EXACT_WEIGHT), and a few tokens times a 16-bit or quantised
   weight are dot products that read the weight once (product/few.c, quantised/products.c). Many 16-bit tokens times a
   quantised weight may be products of integers (quantised/many.c). Other bf16 products use the
   processor's instructions for them, if it has any (product/bf16.c). Other large products are packed (product/packed.c;
   product/widened.c for 16-bit operands). The rest, and products of a size for which OpenBLAS was measured to be
   faster, are cut into tiles of the result, whose sizes depend on shapes alone, and threads take tiles: the number of
   threads does not change the sums. In a tile, 16-bit operands are widened into a buffer, one block of k at a time. */
#include "ops/linear.h"

#include "carry/nn.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/product/bf16.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/product/few.h"
#include "ops/product/matmul.h"
#include "ops/nn.h"
#include "ops/product/packed.h"
#include "ops/quantised/many.h"
#include "ops/quantised/products.h"
#include "ops/quantised/quantised.h"
#include "ops/quantised/tiles.h"
#include "ops/product/widened.h"

/* The largest and the smallest tile of products that are not packed. With large tiles, BLAS packs its operands less
   often. If the result has only a few large tiles, such as a weight's gradient, smaller tiles are used, until there are
   TILES_WANTED, one for every thread of a usual machine. Speed relative to BLAS at 512^3, with k in blocks of 512: 97 %
   with tiles of 256 x 256, 92 % with 128 x 128, 90 % with 64 x 128, 88 % with 64 x 64. */
#define TILE_M 256
#define TILE_N 512
#define LEAST_M 64
#define LEAST_N 128
#define TILES_WANTED 8
/* A long sum is computed in blocks of k, all tiles of one block before the next, so that shared operands are still
   in a cache. Summing over 8192 tokens in tiles of 64 x 128 reaches 79 % of BLAS without blocks and 90 % with them. */
#define LONG_K 2048
#define BLOCK_K 512
/* Tiles of 16-bit products: the buffers of operands and sums take half a megabyte of stack. */
#define MIXED_M 128
#define MIXED_N 256
#define MIXED_K 256
#define PIECE_FLOPS 1000000

typedef struct job {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    carry_product_function function; /* of f32 tiles */
    const carry_mixed_product *p;
    int64_t rows, columns; /* of a tile */
    int64_t row_tiles, column_tiles;
    int64_t k_at, k; /* the block of k */
    bool plain;      /* everything is f32 */
} job;

/* The address of element (i, l) of the operand, as if it were not transposed. */
static const char *element(const carry_matrix *a, int64_t i, int64_t l) {
    int64_t at = a->transposed ? l * a->row + i : i * a->row + l;
    return (const char *)a->data + at * (int64_t)carry_dtype_size(a->dtype);
}

/* Rows from i on and columns from l on of an operand as f32: in place, or widened into beside. *row is set to the
   distance between the rows that are stored (of the transposed matrix, if it is stored transposed). */
static const float *widened(const job *j, const carry_matrix *a, float *beside, int64_t i, int64_t l, int64_t rows,
                            int64_t columns, ptrdiff_t *row) {
    const char *from = element(a, i, l);
    if (a->dtype == CARRY_F32) {
        *row = a->row;
        return (const float *)(const void *)from;
    }
    int64_t lines = a->transposed ? columns : rows;
    int64_t length = a->transposed ? rows : columns;
    *row = length;
    if (a->row == length) {
        carry_widen(j->kernels, beside, from, a->dtype, lines * length);
        return beside;
    }
    for (int64_t line = 0; line < lines; line++) {
        carry_widen(j->kernels, beside + line * length, from + line * a->row * 2, a->dtype, length);
    }
    return beside;
}

static void mixed_tile(const job *j, int64_t i, int64_t n_at, int64_t m, int64_t n) {
    const carry_mixed_product *p = j->p;
    float a[MIXED_M * MIXED_K];
    float b[MIXED_N * MIXED_K];
    float c[MIXED_M * MIXED_N];
    const size_t size = carry_dtype_size(p->c_dtype);
    char *to = (char *)p->c + (size_t)(i * p->c_row + n_at) * size;
    for (int64_t r = 0; p->accumulate && r < m; r++) {
        carry_widen(j->kernels, c + r * n, to + (size_t)(r * p->c_row) * size, p->c_dtype, n);
    }
    for (int64_t l = 0; l == 0 || l < p->k; l += MIXED_K) {
        int64_t k = p->k - l < MIXED_K ? p->k - l : MIXED_K;
        carry_product part = {.m = m,
                              .n = n,
                              .k = k,
                              .count = 1,
                              .c = c,
                              .c_row = n,
                              .base = l > 0 || p->accumulate ? c : NULL,
                              .base_row = n,
                              .a_transposed = p->a.transposed,
                              .b_transposed = p->b.transposed};
        part.a = widened(j, &p->a, a, i, l, m, k, &part.a_row);
        part.b = widened(j, &p->b, b, l, n_at, k, n, &part.b_row);
        if (j->function == j->kernels->product && carry_packed_pays(j->kernels, &part)) {
            carry_packed_run(j->ctx, j->kernels, &part, 0);
        } else {
            j->function(&part);
        }
    }
    for (int64_t r = 0; p->c_row != n && r < m; r++) {
        carry_narrow(j->kernels, to + (size_t)(r * p->c_row) * size, c + r * n, p->c_dtype, n);
    }
    if (p->c_row == n) {
        carry_narrow(j->kernels, to, c, p->c_dtype, m * n);
    }
}

/* The part of an f32 product with rows from i on and columns from n_at on, over the block of k. */
static carry_product plain_part(const job *j, int64_t i, int64_t n_at, int64_t m, int64_t n) {
    const carry_mixed_product *p = j->p;
    float *c = (float *)p->c + i * p->c_row + n_at;
    return (carry_product){.m = m,
                           .n = n,
                           .k = j->k,
                           .count = 1,
                           .a = (const float *)(const void *)element(&p->a, i, j->k_at),
                           .a_row = p->a.row,
                           .b = (const float *)(const void *)element(&p->b, j->k_at, n_at),
                           .b_row = p->b.row,
                           .c = c,
                           .c_row = p->c_row,
                           .base = p->accumulate || j->k_at > 0 ? c : NULL,
                           .base_row = p->c_row,
                           .a_transposed = p->a.transposed,
                           .b_transposed = p->b.transposed};
}

static void plain_tile(const job *j, int64_t i, int64_t n_at, int64_t m, int64_t n) {
    carry_product part = plain_part(j, i, n_at, m, n);
    j->function(&part);
}

static void tiles(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t i = tile / j->column_tiles * j->rows;
        int64_t n_at = tile % j->column_tiles * j->columns;
        int64_t m = j->p->m - i < j->rows ? j->p->m - i : j->rows;
        int64_t n = j->p->n - n_at < j->columns ? j->p->n - n_at : j->columns;
        (j->plain ? plain_tile : mixed_tile)(j, i, n_at, m, n);
    }
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void cut_into_tiles(job *j) {
    const int64_t m = j->p->m;
    const int64_t n = j->p->n;
    j->rows = least(m, j->plain ? TILE_M : MIXED_M);
    j->columns = least(n, j->plain ? TILE_N : MIXED_N);
    for (;;) {
        j->row_tiles = (m + j->rows - 1) / j->rows;
        j->column_tiles = (n + j->columns - 1) / j->columns;
        bool many = j->row_tiles * j->column_tiles >= TILES_WANTED;
        if (!many && j->columns > LEAST_N && (j->columns > j->rows || j->rows <= LEAST_M)) {
            j->columns = (j->columns / 2 + 15) / 16 * 16;
        } else if (!many && j->rows > LEAST_M) {
            j->rows = (j->rows / 2 + 15) / 16 * 16;
        } else {
            return;
        }
    }
}

void carry_mixed_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *product) {
    if (product->b.dtype == CARRY_QUANTISED) {
        carry_quantised_products(ctx, kernels, product);
        return;
    }
    const carry_bf16 *bf16 = carry_bf16_of(ctx);
    carry_mixed_products_by(ctx, kernels, carry_bf16_pays(bf16, product) ? bf16 : NULL, product);
}

void carry_mixed_products_by(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *bf16,
                             const carry_mixed_product *p) {
    if (p->m < 1 || p->n < 1) {
        return;
    }
    CARRY_SPAN(ctx, "ops", "linear");
    carry_span_work(ctx, 2.0 * (double)p->m * (double)p->n * (double)p->k, 0.0);
    if (bf16 != NULL && carry_bf16_run(ctx, kernels, bf16, p)) {
        return;
    }
    if (p->a_packed != NULL) {
        *p->a_packed = false;
    }
    bool plain = p->a.dtype == CARRY_F32 && p->b.dtype == CARRY_F32 && p->c_dtype == CARRY_F32;
    job j = {.ctx = ctx, .kernels = kernels, .p = p, .plain = plain, .k = p->k};
    carry_product whole = plain_part(&j, 0, 0, p->m, p->n);
    /* Blocks of a fixed number of rows never use a BLAS, since that choice depends on measurements. */
    j.function = ctx->fixed_rows_bytes > 0 ? kernels->product : carry_products_choice(ctx, kernels, &whole);
    if (plain && j.function == kernels->product && carry_packed_pays(kernels, &whole)) {
        carry_packed_run(ctx, kernels, &whole, 0);
        return;
    }
    if (!plain && j.function == kernels->product && carry_packed_pays(kernels, &whole) &&
        carry_widened_run(ctx, kernels, p)) {
        return;
    }
    cut_into_tiles(&j);
    int64_t block = plain && p->k > LONG_K ? BLOCK_K : p->k;
    double flops = 2.0 * (double)j.rows * (double)j.columns * (double)block;
    int64_t grain = flops < PIECE_FLOPS ? (int64_t)(PIECE_FLOPS / (flops + 1.0)) + 1 : 1;
    for (j.k_at = 0; j.k_at == 0 || j.k_at < p->k; j.k_at += block) {
        j.k = p->k - j.k_at < block ? p->k - j.k_at : block;
        carry_parallel(ctx, j.row_tiles * j.column_tiles, grain, tiles, &j);
        if (block == 0) {
            break;
        }
    }
}

carry_matrix carry_weight_transposed(const carry_tensor *W) {
    const bool is_quantised = W->dtype == CARRY_QUANTISED;
    return (carry_matrix){.data = W->data,
                          .dtype = W->dtype,
                          .row = is_quantised ? W->stride[0] : W->shape[1],
                          .transposed = true,
                          .format = is_quantised ? W->stride[1] : 0};
}

static carry_matrix matrix_of(const carry_tensor *tensor, bool transposed) {
    return (carry_matrix){
        .data = tensor->data, .dtype = tensor->dtype, .row = tensor->shape[1], .transposed = transposed};
}

carry_status carry_expect_matrix(carry_ctx *ctx, const char *name, const carry_tensor *W, int64_t rows,
                                 const carry_tensor *x) {
    const int64_t shape[] = {rows, x->shape[1]};
    if (W->dtype != CARRY_QUANTISED || W->device != x->device) {
        return carry_expect_weight(ctx, name, W, 2, shape, x);
    }
    const carry_quant_format *format = carry_quant_format_of(W);
    carry_quant_tiles layout;
    if (format == NULL || (W->device == 0 ? W->stride[0] != (int64_t)carry_quant_row_bytes(format, W->shape[1])
                                          : !carry_quant_tiles_of_tensor(&layout, W))) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s is quantised in rows that no format has", name);
    }
    return carry_tensor_expect(ctx, name, W, 2, shape);
}

carry_status carry_expect_linear(carry_ctx *ctx, const char *y_name, const carry_tensor *y, const carry_tensor *x,
                                 const carry_tensor *W) {
    CARRY_TRY(carry_expect_rank(ctx, "x", x, 2));
    CARRY_TRY(carry_expect_rank(ctx, y_name, y, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", x, x));
    CARRY_TRY(carry_expect_matrix(ctx, "W", W, y->shape[1], x));
    carry_tensor like = *x;
    like.shape[1] = y->shape[1];
    return carry_expect_like(ctx, y_name, y, &like);
}

carry_status carry_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate) {
    CARRY_OPERATOR(ctx, operators, linear, &x)
    CARRY_TRY(carry_expect_linear(ctx, "y", &y, &x, &W));
    return operators->linear(ctx, y, x, W, accumulate);
}

/* A forward product of f32 tensors is computed in float64 if the weight has at most this many elements. It costs
   little at this size, and later operators amplify the rounding of f32 sums: a norm does so for a head whose output
   is small. Of 57 reference values of a hybrid model with hidden size 64, 4 are out of tolerance if these sums and
   sums of squares are float64, and 15 if both are f32. The choice depends only on the weight's shape, so the number
   of tokens changes no bit. */
#define EXACT_WEIGHT ((int64_t)1 << 15)
#define EXACT_PIECE_FLOPS 200000

typedef struct exact_job {
    const carry_kernels *kernels;
    carry_exact_dots dots;
    bool by_columns; /* pieces are columns of y, not rows */
} exact_job;

static void exact_pieces(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const exact_job *j = argument;
    carry_exact_dots d = j->dots;
    if (j->by_columns) {
        d.b += begin * d.b_row;
        d.c += begin;
        d.n = end - begin;
    } else {
        d.a += begin * d.a_row;
        d.c += begin * d.c_row;
        d.m = end - begin;
    }
    j->kernels->exact_dots(&d);
}

static bool exact_linear(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                         bool accumulate) {
    const bool plain = x.dtype == CARRY_F32 && W.dtype == CARRY_F32 && y.dtype == CARRY_F32;
    if (!plain || W.shape[0] < 1 || W.shape[1] > EXACT_WEIGHT / W.shape[0]) {
        return false;
    }
    exact_job j = {.kernels = kernels,
                   .dots = {.m = x.shape[0],
                            .n = W.shape[0],
                            .k = W.shape[1],
                            .a = x.data,
                            .b = W.data,
                            .c = y.data,
                            .a_row = W.shape[1],
                            .b_row = W.shape[1],
                            .c_row = W.shape[0],
                            .accumulate = accumulate},
                   .by_columns = x.shape[0] < 8};
    CARRY_SPAN(ctx, "ops", "linear");
    carry_span_work(ctx, 2.0 * (double)j.dots.m * (double)j.dots.n * (double)j.dots.k, 0.0);
    const int64_t each = 2 * j.dots.k * (j.by_columns ? j.dots.m : j.dots.n);
    carry_parallel(ctx, j.by_columns ? j.dots.n : j.dots.m, (EXACT_PIECE_FLOPS / (each + 1) + 4) / 4 * 4, exact_pieces,
                   &j);
    return true;
}

carry_status carry_linear_map(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate,
                              bool *x_packed) {
    if (ctx->fixed_rows != NULL) {
        *x_packed = false;
        return carry_fixed_rows_map(ctx, y, x, W, accumulate);
    }
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    bool half = W.dtype == CARRY_BF16 || W.dtype == CARRY_F16;
    bool packed = *x_packed;
    *x_packed = false;
    if (exact_linear(ctx, kernels, y, x, W, accumulate)) {
        return CARRY_OK;
    }
    if (W.dtype == CARRY_QUANTISED && (carry_quantised_many(ctx, kernels, y, x, W, accumulate) ||
                                       carry_quantised_few(ctx, kernels, y, x, W, accumulate))) {
        return CARRY_OK;
    }
    if (half && carry_few_tokens(ctx, kernels, y, x, W, accumulate)) {
        return CARRY_OK;
    }
    carry_mixed_product p = {.m = x.shape[0],
                             .n = y.shape[1],
                             .k = x.shape[1],
                             .a = matrix_of(&x, false),
                             .b = carry_weight_transposed(&W),
                             .c = y.data,
                             .c_dtype = y.dtype,
                             .c_row = y.shape[1],
                             .accumulate = accumulate,
                             .a_packed = &packed};
    if (p.m == 1 &&
        W.dtype != CARRY_QUANTISED) { /* one token: W times a vector; W is read once and threads share its rows */
        p = (carry_mixed_product){.m = p.n,
                                  .n = 1,
                                  .k = p.k,
                                  .a = matrix_of(&W, false),
                                  .b = {.data = x.data, .dtype = x.dtype, .row = 1},
                                  .c = y.data,
                                  .c_dtype = y.dtype,
                                  .c_row = 1,
                                  .accumulate = accumulate};
    }
    carry_mixed_products(ctx, kernels, &p);
    *x_packed = p.a_packed != NULL && packed;
    return CARRY_OK;
}

carry_status carry_cpu_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate) {
    bool x_packed = false;
    return carry_linear_map(ctx, y, x, W, accumulate, &x_packed);
}

carry_status carry_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy, carry_tensor x,
                                   carry_tensor W, bool accumulate) {
    CARRY_OPERATOR(ctx, operators, linear_backward, &dy)
    CARRY_TRY(carry_expect_linear(ctx, "dy", &dy, &x, &W));
    if (carry_is_here(&dx)) {
        CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    }
    if (carry_is_here(&dW)) {
        CARRY_TRY(carry_expect_f32(ctx, "dW", &dW, 2, W.shape, dy.device));
    }
    return operators->linear_backward(ctx, dx, dW, dy, x, W, accumulate);
}

carry_status carry_cpu_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy,
                                       carry_tensor x, carry_tensor W, bool accumulate) {
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    if (carry_is_here(&dx)) {
        carry_mixed_products(ctx, kernels,
                             &(carry_mixed_product){.m = x.shape[0],
                                                    .n = x.shape[1],
                                                    .k = dy.shape[1],
                                                    .a = matrix_of(&dy, false),
                                                    .b = matrix_of(&W, false),
                                                    .c = dx.data,
                                                    .c_dtype = dx.dtype,
                                                    .c_row = x.shape[1],
                                                    .accumulate = accumulate});
    }
    if (carry_is_here(&dW)) {
        carry_mixed_products(ctx, kernels,
                             &(carry_mixed_product){.m = W.shape[0],
                                                    .n = W.shape[1],
                                                    .k = x.shape[0],
                                                    .a = matrix_of(&dy, true),
                                                    .b = matrix_of(&x, false),
                                                    .c = dW.data,
                                                    .c_dtype = CARRY_F32,
                                                    .c_row = W.shape[1],
                                                    .accumulate = true});
    }
    return CARRY_OK;
}
