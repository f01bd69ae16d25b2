/* A root-mean-square norm in two steps, for rows whose columns are split over ranks: the sums of squares, which the
   caller adds over ranks, and the scaling. */
#include <inttypes.h>
#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/video.h"

#define GRAIN_ELEMENTS 16384

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, x, sums, w;
    int64_t n, whole;
    float eps;
} job;

static void squares_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float x[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        float sum = 0.0f;
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            int64_t count = carry_piece(at, j->n);
            sum += j->kernels->rows->sum_squares(carry_piece_in(j->kernels, x, &j->x, t * j->n + at, count), count);
        }
        ((float *)j->sums.data)[t] = sum;
    }
}

static void scale_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const float *sums = j->sums.data;
    float x[CARRY_PIECE];
    float w[CARRY_PIECE];
    float y[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        const float scale = 1.0f / sqrtf(sums[t] / (float)j->whole + j->eps);
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            int64_t count = carry_piece(at, j->n);
            int64_t here = t * j->n + at;
            j->kernels->rows->norm(carry_piece_out(y, &j->y, here), carry_piece_in(j->kernels, x, &j->x, here, count),
                                   carry_piece_in(j->kernels, w, &j->w, at, count), NULL, scale, count);
            carry_piece_done(j->kernels, y, &j->y, here, count);
        }
    }
}

static carry_status expect(carry_ctx *ctx, const carry_tensor *x, const carry_tensor *sums) {
    CARRY_TRY(carry_expect_rank(ctx, "x", x, 2));
    return carry_expect_f32(ctx, "sums", sums, 1, &x->shape[0], x->device);
}

carry_status carry_row_squares(carry_ctx *ctx, carry_tensor sums, carry_tensor x) {
    CARRY_OPERATOR(ctx, operators, row_squares, &x)
    CARRY_TRY(expect(ctx, &x, &sums));
    CARRY_TRY(carry_expect_rows(ctx, "x", &x, &x));
    return operators->row_squares(ctx, sums, x);
}

carry_status carry_cpu_row_squares(carry_ctx *ctx, carry_tensor sums, carry_tensor x) {
    job j = {.x = x, .sums = sums, .n = x.shape[1]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], GRAIN_ELEMENTS / (j.n + 1) + 1, squares_range, &j);
    return CARRY_OK;
}

carry_status carry_rms_scale(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor sums, carry_tensor w,
                             int64_t whole, float eps) {
    CARRY_OPERATOR(ctx, operators, rms_scale, &x)
    CARRY_TRY(expect(ctx, &x, &sums));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    if (carry_is_here(&w)) {
        CARRY_TRY(carry_expect_weight(ctx, "w", &w, 1, &x.shape[1], &x));
    }
    if (whole < x.shape[1]) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "rms_scale: the whole row has %" PRId64 " elements and this part of it %" PRId64, whole,
                          x.shape[1]);
    }
    return operators->rms_scale(ctx, y, x, sums, w, whole, eps);
}

carry_status carry_cpu_rms_scale(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor sums, carry_tensor w,
                                 int64_t whole, float eps) {
    job j = {.y = y, .x = x, .sums = sums, .w = w, .n = x.shape[1], .whole = whole, .eps = eps};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], GRAIN_ELEMENTS / (j.n + 1) + 1, scale_range, &j);
    return CARRY_OK;
}
