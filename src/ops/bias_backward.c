/* Gradients of a bias and of a gate: sums over tokens, which need no workspace since threads take columns. A
   column's sum is computed in blocks of tokens, which are added in order, so that long sums stay accurate. */
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/video.h"

#define GRAIN_ELEMENTS 16384
#define COLUMNS 32 /* of a piece: two cache lines of every row */

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor dx, y, g;
    carry_tensor dy, dg;
    int64_t tokens, n;
} job;

/* Sums dx, or dx y, over a block of tokens, for columns [at, at + count). */
static void sum_block(const job *j, float *sum, int64_t at, int64_t count, int64_t first, int64_t last) {
    float dx[COLUMNS];
    float y[COLUMNS];
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t t = first; t < last; t++) {
        const int64_t here = t * j->n + at;
        const float *a = carry_piece_in(j->kernels, dx, &j->dx, here, count);
        const float *b = carry_piece_in(j->kernels, y, &j->y, here, count);
        for (int64_t i = 0; b != NULL && i < count; i++) {
            sum[i] += a[i] * b[i];
        }
        for (int64_t i = 0; b == NULL && i < count; i++) {
            sum[i] += a[i];
        }
    }
}

static void sum_columns(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t block = carry_token_block(j->tokens);
    float sum[COLUMNS];
    for (int64_t piece = begin; piece < end; piece++) {
        const int64_t at = piece * COLUMNS;
        const int64_t count = j->n - at < COLUMNS ? j->n - at : COLUMNS;
        float *to = (float *)j->dg.data + at;
        for (int64_t t = 0; t < j->tokens; t += block) {
            sum_block(j, sum, at, count, t, t + block < j->tokens ? t + block : j->tokens);
            j->kernels->rows->add(to, sum, count);
        }
    }
}

static void add_up(carry_ctx *ctx, job *j) {
    carry_parallel(ctx, (j->n + COLUMNS - 1) / COLUMNS, GRAIN_ELEMENTS / (COLUMNS * (j->tokens + 1)) + 1, sum_columns,
                   j);
}

static void multiply_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float dx[CARRY_PIECE];
    float dy[CARRY_PIECE];
    float g[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            const int64_t count = carry_piece(at, j->n);
            const int64_t here = t * j->n + at;
            j->kernels->rows->norm(carry_piece_out(dy, &j->dy, here),
                                   carry_piece_in(j->kernels, dx, &j->dx, here, count),
                                   carry_piece_in(j->kernels, g, &j->g, at, count), NULL, 1.0f, count);
            carry_piece_done(j->kernels, dy, &j->dy, here, count);
        }
    }
}

carry_status carry_add_bias_backward(carry_ctx *ctx, carry_tensor db, carry_tensor dy) {
    CARRY_OPERATOR(ctx, operators, add_bias_backward, &dy)
    CARRY_TRY(carry_expect_rank(ctx, "dy", &dy, 2));
    CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &dy));
    CARRY_TRY(carry_expect_f32(ctx, "db", &db, 1, &dy.shape[1], dy.device));
    return operators->add_bias_backward(ctx, db, dy);
}

carry_status carry_cpu_add_bias_backward(carry_ctx *ctx, carry_tensor db, carry_tensor dy) {
    job j = {.dx = dy, .dg = db, .tokens = dy.shape[0], .n = dy.shape[1]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    add_up(ctx, &j);
    return CARRY_OK;
}

carry_status carry_gated_add_backward(carry_ctx *ctx, carry_tensor dy, carry_tensor dg, carry_tensor dx, carry_tensor y,
                                      carry_tensor g) {
    CARRY_OPERATOR(ctx, operators, gated_add_backward, &dx)
    CARRY_TRY(carry_expect_rank(ctx, "dx", &dx, 2));
    CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &dx));
    if (carry_is_here(&dg)) {
        CARRY_TRY(carry_expect_like(ctx, "y", &y, &dx));
        CARRY_TRY(carry_expect_f32(ctx, "dg", &dg, 1, &dx.shape[1], dx.device));
    }
    if (carry_is_here(&dy)) {
        CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &dx));
        CARRY_TRY(carry_expect_weight(ctx, "g", &g, 1, &dx.shape[1], &dx));
    }
    return operators->gated_add_backward(ctx, dy, dg, dx, y, g);
}

carry_status carry_cpu_gated_add_backward(carry_ctx *ctx, carry_tensor dy, carry_tensor dg, carry_tensor dx,
                                          carry_tensor y, carry_tensor g) {
    job j = {.dx = dx, .y = y, .g = g, .dy = dy, .dg = dg, .tokens = dx.shape[0], .n = dx.shape[1]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    if (carry_is_here(&dg)) { /* before dy is written, since dy may be y */
        add_up(ctx, &j);
    }
    if (carry_is_here(&dy)) {
        carry_parallel(ctx, j.tokens, GRAIN_ELEMENTS / (j.n + 1) + 1, multiply_range, &j);
    }
    return CARRY_OK;
}
