/* Layer norm of rows. First the mean, then the squared differences from it, so that a row far from zero loses no
   precision. Rows are processed in pieces of columns, so that rows of any length and of 16 bits use the same loops. */
#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN_ELEMENTS 16384

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, x, w, b;
    int64_t n;
    float plus, eps;
} job;

static carry_layer_row measure(const job *j, float *beside, int64_t t) {
    const carry_rows *rows = j->kernels->rows;
    float sum = 0.0f;
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->n);
        sum += rows->sum(carry_piece_in(j->kernels, beside, &j->x, t * j->n + at, count), count);
    }
    const float mean = sum / (float)j->n;
    float squares = 0.0f;
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->n);
        squares += rows->sum_squares_from(carry_piece_in(j->kernels, beside, &j->x, t * j->n + at, count), mean, count);
    }
    return (carry_layer_row){.mean = mean, .scale = 1.0f / sqrtf(squares / (float)j->n + j->eps), .plus = j->plus};
}

static void layer_norm_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float x[CARRY_PIECE];
    float w[CARRY_PIECE];
    float b[CARRY_PIECE];
    float y[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        const carry_layer_row row = measure(j, x, t);
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            int64_t count = carry_piece(at, j->n);
            int64_t here = t * j->n + at;
            j->kernels->rows->layer_norm(carry_piece_out(y, &j->y, here),
                                         carry_piece_in(j->kernels, x, &j->x, here, count),
                                         carry_piece_in(j->kernels, w, &j->w, at, count),
                                         carry_piece_in(j->kernels, b, &j->b, at, count), &row, count);
            carry_piece_done(j->kernels, y, &j->y, here, count);
        }
    }
}

carry_status carry_layer_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor b,
                              float plus, float eps) {
    CARRY_OPERATOR(ctx, operators, layer_norm, &x)
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    if (carry_is_here(&w)) {
        CARRY_TRY(carry_expect_weight(ctx, "w", &w, 1, &x.shape[1], &x));
    }
    if (carry_is_here(&b)) {
        CARRY_TRY(carry_expect_weight(ctx, "b", &b, 1, &x.shape[1], &x));
    }
    return operators->layer_norm(ctx, y, x, w, b, plus, eps);
}

carry_status carry_cpu_layer_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor b,
                                  float plus, float eps) {
    job j = {.y = y, .x = x, .w = w, .b = b, .n = x.shape[1], .plus = plus, .eps = eps};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], GRAIN_ELEMENTS / (j.n + 1) + 1, layer_norm_range, &j);
    return CARRY_OK;
}
