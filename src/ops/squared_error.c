/* The squared distance from a target, by groups of rows: a thread has a group and sums it in order. */
#include <inttypes.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/video.h"

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor dy, y;
    const float *target, *weight;
    double *losses;
    int64_t each; /* elements of a group */
    double scale;
} job;

static void lose_piece(const job *j, int64_t at, int64_t count, float factor, bool is_out, double *sum) {
    float wide[CARRY_PIECE];
    float gradient[CARRY_PIECE];
    const float *y = carry_piece_in(j->kernels, wide, &j->y, at, count);
    float *dy = carry_piece_out(gradient, &j->dy, at);
    for (int64_t i = 0; i < count; i++) {
        const float off = is_out ? 0.0f : y[i] - j->target[at + i];
        if (dy != NULL) {
            dy[i] = is_out ? 0.0f : factor * off;
        }
        *sum += (double)off * (double)off;
    }
    carry_piece_done(j->kernels, gradient, &j->dy, at, count);
}

static void lose_groups(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t g = begin; g < end; g++) {
        const double weight = (double)j->weight[g];
        const bool is_out = weight < 0.0;
        double sum = 0.0;
        for (int64_t at = 0; at < j->each; at += CARRY_PIECE) {
            const int64_t count = j->each - at < CARRY_PIECE ? j->each - at : CARRY_PIECE;
            lose_piece(j, g * j->each + at, count, (float)(2.0 * j->scale * weight), is_out, &sum);
        }
        j->losses[g] = is_out ? 0.0 : weight * sum;
    }
}

carry_status carry_squared_error(carry_ctx *ctx, const carry_squared_error_args *args) {
    const carry_tensor total = args->total, losses = args->losses, dy = args->dy, y = args->y, target = args->target,
                       weight = args->weight;
    CARRY_OPERATOR(ctx, operators, squared_error, &y)
    CARRY_TRY(carry_expect_rank(ctx, "y", &y, 2));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &y));
    CARRY_TRY(carry_expect_f32(ctx, "target", &target, 2, y.shape, y.device));
    if (carry_is_here(&dy)) {
        CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &y));
    }
    CARRY_TRY(carry_expect_rank(ctx, "weight", &weight, 1));
    const int64_t groups = weight.shape[0];
    if (groups < 1 || y.shape[0] % groups != 0) {
        return carry_fail(ctx, CARRY_ESHAPE, "%" PRId64 " rows are not %" PRId64 " groups of equal size", y.shape[0],
                          groups);
    }
    CARRY_TRY(carry_expect_f32(ctx, "weight", &weight, 1, &groups, y.device));
    CARRY_TRY(carry_expect_f64(ctx, "losses", &losses, groups, y.device));
    CARRY_TRY(carry_expect_f64(ctx, "total", &total, 1, y.device));
    return operators->squared_error(ctx, total, losses, dy, y, target, weight, args->scale);
}

carry_status carry_cpu_squared_error(carry_ctx *ctx, carry_tensor total, carry_tensor losses, carry_tensor dy,
                                     carry_tensor y, carry_tensor target, carry_tensor weight, double scale) {
    const int64_t groups = weight.shape[0];
    job j = {.dy = dy,
             .y = y,
             .target = target.data,
             .weight = weight.data,
             .losses = losses.data,
             .each = y.shape[0] / groups * y.shape[1],
             .scale = scale};
    double *sum = total.data;
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, groups, 1, lose_groups, &j);
    *sum = 0.0;
    for (int64_t g = 0; g < groups; g++) {
        *sum += j.losses[g];
    }
    return CARRY_OK;
}
