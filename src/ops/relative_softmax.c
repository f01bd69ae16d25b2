/* Softmax of scores with a bias by distance. */
#include <inttypes.h>
#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/video.h"

#define GRAIN_ELEMENTS 8192

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor p, scores, bias;
    int64_t keys;
} job;

/* One row: first the maximum, then the sum, then the quotients, piece by piece if p has 16 bits. */
static void softmax_row(const job *j, int64_t row) {
    const int64_t queries = j->scores.shape[1];
    const int64_t all = j->scores.shape[2];
    const float *scores = (const float *)j->scores.data + row * all;
    const float *bias =
        (const float *)j->bias.data + row / queries * (queries + all - 1) + (queries - 1 - row % queries);
    float piece[CARRY_PIECE];
    float largest = -INFINITY;
    double sum = 0.0;
    for (int64_t i = 0; i < j->keys; i++) {
        const float value = scores[i] + bias[i];
        largest = value > largest ? value : largest;
    }
    for (int64_t i = 0; i < j->keys; i++) {
        sum += (double)expf(scores[i] + bias[i] - largest);
    }
    const float scale = (float)(1.0 / sum);
    for (int64_t at = 0; at < all; at += CARRY_PIECE) {
        const int64_t count = carry_piece(at, all);
        float *p = carry_piece_out(piece, &j->p, row * all + at);
        for (int64_t i = 0; i < count; i++) {
            p[i] = at + i < j->keys ? expf(scores[at + i] + bias[at + i] - largest) * scale : 0.0f;
        }
        carry_piece_done(j->kernels, piece, &j->p, row * all + at, count);
    }
}

static void softmax_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        softmax_row(argument, row);
    }
}

carry_status carry_relative_softmax(carry_ctx *ctx, carry_tensor p, carry_tensor scores, carry_tensor bias,
                                    int64_t keys) {
    CARRY_OPERATOR(ctx, operators, relative_softmax, &scores)
    CARRY_TRY(carry_expect_rank(ctx, "scores", &scores, 3));
    CARRY_TRY(carry_expect_f32(ctx, "scores", &scores, 3, scores.shape, scores.device));
    CARRY_TRY(carry_expect_activation(ctx, "p", &p, 3, scores.shape, scores.device));
    if (keys < 1 || keys > scores.shape[2]) {
        return carry_fail(ctx, CARRY_ERANGE,
                          "keys is %" PRId64 " where 1 to %" PRId64 ", the columns of scores, can be", keys,
                          scores.shape[2]);
    }
    const int64_t table[2] = {scores.shape[0], scores.shape[1] + scores.shape[2] - 1};
    CARRY_TRY(carry_expect_f32(ctx, "bias", &bias, 2, table, scores.device));
    return operators->relative_softmax(ctx, p, scores, bias, keys);
}

carry_status carry_cpu_relative_softmax(carry_ctx *ctx, carry_tensor p, carry_tensor scores, carry_tensor bias,
                                        int64_t keys) {
    job j = {.p = p, .scores = scores, .bias = bias, .keys = keys};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, scores.shape[0] * scores.shape[1], GRAIN_ELEMENTS / (scores.shape[2] + 1) + 1, softmax_range,
                   &j);
    return CARRY_OK;
}
