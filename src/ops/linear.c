/* Linear layers: three products of rows of tokens with a weight.

   A product is cut into tiles of its result, whose sizes depend on shapes alone, and threads take tiles; so the number
   of threads changes nothing in the sums. Operands of 16 bits are widened beside, block of k after block of k. */
#include "ops/linear.h"

#include "carry/nn.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/nn.h"

#define TILE_M 256
#define TILE_N 512
/* Tiles of 16-bit products: operands and sums beside them are half a megabyte of stack. */
#define MIXED_M 128
#define MIXED_N 256
#define MIXED_K 256
#define BLAS_FROM 64
#define PIECE_FLOPS 1000000

typedef struct job {
    const carry_kernels *kernels;
    const carry_mixed_product *p;
    int64_t rows, columns, column_tiles; /* of a tile */
    bool plain;                          /* everything is f32 */
} job;

static carry_product_function choice(const carry_kernels *kernels, int64_t m, int64_t n, int64_t k) {
    bool large = m >= BLAS_FROM && n >= BLAS_FROM && k >= BLAS_FROM;
    return large && carry_blas_product != NULL ? carry_blas_product : kernels->product;
}

/* Element (i, l) of the operand, not transposed. */
static const char *element(const carry_matrix *a, int64_t i, int64_t l) {
    int64_t at = a->transposed ? l * a->row + i : i * a->row + l;
    return (const char *)a->data + at * (int64_t)carry_dtype_size(a->dtype);
}

/* Rows i.. and columns l.. of an operand as f32: where they are, or widened into beside; *row is their distance. */
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
        choice(j->kernels, m, n, k)(&part);
    }
    for (int64_t r = 0; p->c_row != n && r < m; r++) {
        carry_narrow(j->kernels, to + (size_t)(r * p->c_row) * size, c + r * n, p->c_dtype, n);
    }
    if (p->c_row == n) {
        carry_narrow(j->kernels, to, c, p->c_dtype, m * n);
    }
}

static void plain_tile(const job *j, int64_t i, int64_t n_at, int64_t m, int64_t n) {
    const carry_mixed_product *p = j->p;
    float *c = (float *)p->c + i * p->c_row + n_at;
    choice(j->kernels, m, n, p->k)(&(carry_product){.m = m,
                                                    .n = n,
                                                    .k = p->k,
                                                    .count = 1,
                                                    .a = (const float *)(const void *)element(&p->a, i, 0),
                                                    .a_row = p->a.row,
                                                    .b = (const float *)(const void *)element(&p->b, 0, n_at),
                                                    .b_row = p->b.row,
                                                    .c = c,
                                                    .c_row = p->c_row,
                                                    .base = p->accumulate ? c : NULL,
                                                    .base_row = p->c_row,
                                                    .a_transposed = p->a.transposed,
                                                    .b_transposed = p->b.transposed});
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

void carry_mixed_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *product) {
    const carry_mixed_product *p = product;
    if (p->m < 1 || p->n < 1) {
        return;
    }
    CARRY_SPAN(ctx, "ops", "linear");
    carry_span_work(ctx, 2.0 * (double)p->m * (double)p->n * (double)p->k, 0.0);
    bool plain = p->a.dtype == CARRY_F32 && p->b.dtype == CARRY_F32 && p->c_dtype == CARRY_F32;
    job j = {.kernels = kernels,
             .p = p,
             .plain = plain,
             .rows = plain ? TILE_M : MIXED_M,
             .columns = plain ? TILE_N : MIXED_N};
    j.column_tiles = (p->n + j.columns - 1) / j.columns;
    int64_t count = (p->m + j.rows - 1) / j.rows * j.column_tiles;
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k / (double)count;
    carry_parallel(ctx, count, flops < PIECE_FLOPS ? (int64_t)(PIECE_FLOPS / (flops + 1.0)) + 1 : 1, tiles, &j);
}

static carry_matrix matrix_of(const carry_tensor *tensor, bool transposed) {
    return (carry_matrix){
        .data = tensor->data, .dtype = tensor->dtype, .row = tensor->shape[1], .transposed = transposed};
}

static carry_status expect_layer(carry_ctx *ctx, const char *y_name, const carry_tensor *y, const char *x_name,
                                 const carry_tensor *x, const carry_tensor *W) {
    CARRY_TRY(carry_expect_rank(ctx, x_name, x, 2));
    CARRY_TRY(carry_expect_rank(ctx, y_name, y, 2));
    CARRY_TRY(carry_expect_like(ctx, x_name, x, x));
    CARRY_TRY(carry_expect_weight(ctx, "W", W, 2, (const int64_t[]){y->shape[1], x->shape[1]}, x->dtype));
    carry_tensor like = *x;
    like.shape[1] = y->shape[1];
    return carry_expect_like(ctx, y_name, y, &like);
}

carry_status carry_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate) {
    const carry_kernels *kernels;
    CARRY_TRY(carry_nn_begin(ctx, &kernels, "linear", &x));
    CARRY_TRY(expect_layer(ctx, "y", &y, "x", &x, &W));
    carry_mixed_product p = {.m = x.shape[0],
                             .n = y.shape[1],
                             .k = x.shape[1],
                             .a = matrix_of(&x, false),
                             .b = matrix_of(&W, true),
                             .c = y.data,
                             .c_dtype = y.dtype,
                             .c_row = y.shape[1],
                             .accumulate = accumulate};
    if (p.m == 1) { /* one token: W times a vector, read once, with rows of W over threads */
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
    return CARRY_OK;
}

carry_status carry_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy, carry_tensor x,
                                   carry_tensor W, bool accumulate) {
    const carry_kernels *kernels;
    CARRY_TRY(carry_nn_begin(ctx, &kernels, "linear_backward", &dy));
    CARRY_TRY(expect_layer(ctx, "dy", &dy, "x", &x, &W));
    if (carry_is_here(&dx)) {
        CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    }
    if (carry_is_here(&dW)) {
        CARRY_TRY(carry_expect_f32(ctx, "dW", &dW, 2, W.shape));
    }
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
