/* What is added to every row: a bias, or another tensor's rows through a gate. */
#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/nn.h"

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
            int64_t count = j->n - at < CARRY_PIECE ? j->n - at : CARRY_PIECE;
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

static carry_status add_rows(carry_ctx *ctx, job *j, const char *operator_name, const char *x, const char *g) {
    CARRY_TRY(carry_nn_begin(ctx, &j->kernels, operator_name, &j->x));
    CARRY_TRY(carry_expect_rank(ctx, x, &j->x, 2));
    CARRY_TRY(carry_expect_like(ctx, x, &j->x, &j->x));
    j->n = j->x.shape[1];
    CARRY_TRY(carry_expect_weight(ctx, g, &j->g, 1, &j->n, j->x.dtype));
    carry_parallel(ctx, j->x.shape[0], GRAIN_ELEMENTS / (j->n + 1) + 1, add_range, j);
    return CARRY_OK;
}

carry_status carry_add_bias(carry_ctx *ctx, carry_tensor y, carry_tensor b) {
    job j = {.x = y, .g = b};
    return add_rows(ctx, &j, "add_bias", "y", "b");
}

carry_status carry_gated_add(carry_ctx *ctx, carry_tensor x, carry_tensor y, carry_tensor g) {
    job j = {.x = x, .y = y, .g = g};
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    return add_rows(ctx, &j, "gated_add", "x", "g");
}
