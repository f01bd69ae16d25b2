/* Additions to every row: a bias, or another tensor's rows through a gate. */
#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/video.h"

#define GRAIN_ELEMENTS 16384

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor x, y, g; /* x += g y, or x += g where y is absent */
    int64_t n;
} job;

static void add_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float x[CARRY_PIECE];
    float y[CARRY_PIECE];
    float g[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            int64_t count = carry_piece(at, j->n);
            int64_t here = t * j->n + at;
            float *to = carry_piece_open(j->kernels, x, &j->x, here, count);
            const float *row = carry_piece_in(j->kernels, g, &j->g, at, count);
            if (carry_is_here(&j->y)) {
                j->kernels->rows->gated_add(to, carry_piece_in(j->kernels, y, &j->y, here, count), row, count);
            } else {
                j->kernels->rows->add(to, row, count);
            }
            carry_piece_done(j->kernels, x, &j->x, here, count);
        }
    }
}

static carry_status add_rows(carry_ctx *ctx, job *j) {
    CARRY_TRY(carry_kernels_of(ctx, &j->kernels));
    j->n = j->x.shape[1];
    carry_parallel(ctx, j->x.shape[0], GRAIN_ELEMENTS / (j->n + 1) + 1, add_range, j);
    return CARRY_OK;
}

carry_status carry_cpu_add_bias(carry_ctx *ctx, carry_tensor y, carry_tensor b) {
    return add_rows(ctx, &(job){.x = y, .g = b});
}

carry_status carry_cpu_gated_add(carry_ctx *ctx, carry_tensor x, carry_tensor y, carry_tensor g) {
    return add_rows(ctx, &(job){.x = x, .y = y, .g = g});
}

carry_status carry_add_bias(carry_ctx *ctx, carry_tensor y, carry_tensor b) {
    CARRY_OPERATOR(ctx, operators, add_bias, &y)
    CARRY_TRY(carry_expect_rank(ctx, "y", &y, 2));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &y));
    CARRY_TRY(carry_expect_weight(ctx, "b", &b, 1, &y.shape[1], &y));
    return operators->add_bias(ctx, y, b);
}

carry_status carry_gated_add(carry_ctx *ctx, carry_tensor x, carry_tensor y, carry_tensor g) {
    CARRY_OPERATOR(ctx, operators, gated_add, &x)
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_weight(ctx, "g", &g, 1, &x.shape[1], &x));
    return operators->gated_add(ctx, x, y, g);
}
