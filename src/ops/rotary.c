/* Rotary positions: pairs of a head's elements are rotated by the angle of their token, which is the same for every
   head. */
#include <inttypes.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/video.h"

#define GRAIN_ELEMENTS 16384

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, x, table;
    int64_t heads, size;
    float sign;
} job;

static void rotary_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float x[CARRY_PIECE]; /* an even number, so that pairs stay together */
    float y[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        const float *table = (const float *)j->table.data + t * j->size;
        for (int64_t h = 0; h < j->heads; h++) {
            for (int64_t at = 0; at < j->size; at += CARRY_PIECE) {
                int64_t count = carry_piece(at, j->size);
                int64_t here = (t * j->heads + h) * j->size + at;
                j->kernels->rows->rotary(carry_piece_out(y, &j->y, here),
                                         carry_piece_in(j->kernels, x, &j->x, here, count), table + at, j->sign,
                                         count / 2);
                carry_piece_done(j->kernels, y, &j->y, here, count);
            }
        }
    }
}

carry_status carry_rotary(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse) {
    CARRY_OPERATOR(ctx, operators, rotary, &x)
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 3));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    const int64_t size = x.shape[2];
    if (size % 2 != 0) {
        return carry_fail(ctx, CARRY_ESHAPE, "x has heads of %" PRId64 ": rotary positions turn pairs", size);
    }
    CARRY_TRY(carry_expect_f32(ctx, "table", &table, 3, (const int64_t[]){x.shape[0], size / 2, 2}, x.device));
    return operators->rotary(ctx, y, x, table, inverse);
}

carry_status carry_cpu_rotary(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse) {
    job j = {.y = y, .x = x, .table = table, .heads = x.shape[1], .size = x.shape[2], .sign = inverse ? -1.0f : 1.0f};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], GRAIN_ELEMENTS / (j.heads * j.size + 1) + 1, rotary_range, &j);
    return CARRY_OK;
}
