/* The convolution of one token of each sequence, with the same bits as carry_conv. Threads take blocks of channels
   of a sequence; each block shifts its part of the tail. */
#include <inttypes.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/conv.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/pool.h"

typedef struct job {
    carry_conv_problem p[CARRY_CONV_STEP_MAPS]; /* for their taps */
    const carry_conv_step_args *args;
    int64_t blocks[CARRY_CONV_STEP_MAPS]; /* of channels */
    int64_t all;                          /* of a sequence */
} job;

carry_status carry_conv_expect_map(carry_ctx *ctx, const carry_conv_step_map *map, const carry_conv_step_map *first) {
    const carry_tensor *w = &map->w;
    CARRY_TRY(carry_expect_rank(ctx, "x", &map->x, 2));
    CARRY_TRY(carry_expect_rank(ctx, "tails", &map->tails, 3));
    CARRY_TRY(carry_expect_rows(ctx, "x", &map->x, &map->x));
    CARRY_TRY(carry_expect_like(ctx, "y", &map->y, &map->x));
    const int64_t channels = map->x.shape[1];
    const int64_t width = w->rank == 2 || w->rank == 3 ? w->shape[w->rank - 1] : 0;
    if (width < 1 || width > CARRY_CONV_WIDTHS || first->x.dtype != map->x.dtype ||
        first->x.shape[0] != map->x.shape[0] || first->w.shape[first->w.rank - 1] != width) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "w has %" PRId64 " taps: expected 1 to %d, and inputs of one type, batch and width", width,
                          CARRY_CONV_WIDTHS);
    }
    const int64_t three[3] = {channels, 1, width};
    const int64_t two[2] = {channels, width};
    CARRY_TRY(carry_expect_weight(ctx, "w", w, w->rank, w->rank == 3 ? three : two, &map->x));
    const int64_t tails[] = {map->tails.shape[0], width - 1, channels};
    return carry_expect_f32(ctx, "tails", &map->tails, 3, tails, first->x.device);
}

carry_status carry_conv_step(carry_ctx *ctx, const carry_conv_step_args *args) {
    CARRY_OPERATOR(ctx, operators, conv_step, &args->map[0].x)
    if (args->maps < 1 || args->maps > CARRY_CONV_STEP_MAPS || args->slots == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%d inputs of a step: expected 1 to %d, and slots", args->maps,
                          CARRY_CONV_STEP_MAPS);
    }
    for (int i = 0; i < args->maps; i++) {
        CARRY_TRY(carry_conv_expect_map(ctx, &args->map[i], &args->map[0]));
    }
    return operators->conv_step(ctx, args);
}

/* Computes in one pass over bf16, as carry_conv does; returns false if the tail has numbers that are not bf16. */
static bool half_token(const carry_conv_problem *p, const carry_conv_step_map *map, const carry_half_rows *half,
                       const float *tail, const float *taps, int64_t b, int64_t at, int64_t count) {
    const carry_kernels *kernels = p->kernels;
    const int64_t channels = p->channels;
    uint16_t window[CARRY_HALF_CONV_TAPS * CARRY_CONV_CHANNELS];
    float back[CARRY_CONV_CHANNELS];
    for (int64_t i = 0; i < CARRY_HALF_CONV_TAPS - 1; i++) {
        uint16_t *row = window + i * CARRY_CONV_CHANNELS;
        kernels->bf16_from_f32(row, tail + i * channels + at, count);
        kernels->f32_from_bf16(back, row, count);
        if (memcmp(back, tail + i * channels + at, (size_t)count * sizeof *back) != 0) {
            return false;
        }
    }
    const uint16_t *x = (const uint16_t *)map->x.data + b * channels + at;
    memcpy(window + (CARRY_HALF_CONV_TAPS - 1) * CARRY_CONV_CHANNELS, x, (size_t)count * sizeof *x);
    half->conv(&(carry_half_conv){.tokens = 1,
                                  .channels = count,
                                  .x = window,
                                  .taps = taps,
                                  .y = (uint16_t *)map->y.data + b * channels + at,
                                  .x_row = CARRY_CONV_CHANNELS,
                                  .y_row = channels,
                                  .taps_row = CARRY_CONV_CHANNELS,
                                  .silu = p->activation == CARRY_SILU});
    return true;
}

static void step_block(const job *j, int which, int64_t b, int64_t at, int64_t count) {
    const carry_conv_problem *p = &j->p[which];
    const carry_conv_step_map *map = &j->args->map[which];
    const bool fits =
        p->width == CARRY_HALF_CONV_TAPS && (p->activation == CARRY_SILU || p->activation == CARRY_NO_ACTIVATION);
    const carry_half_rows *half = fits ? carry_half_rows_for(p->kernels, &map->x, &map->y, &map->y) : NULL;
    float taps[CARRY_CONV_WIDTHS * CARRY_CONV_CHANNELS];
    float beside[CARRY_CONV_CHANNELS];
    float out[CARRY_CONV_CHANNELS];
    const float *seen[CARRY_CONV_WIDTHS];
    const int64_t here = b * p->channels + at;
    const int64_t before = p->width - 1;
    const int32_t *sources = j->args->from != NULL ? j->args->from : j->args->slots;
    const float *tail = (const float *)map->tails.data + sources[b] * before * p->channels;
    float *moved = (float *)map->tails.data + j->args->slots[b] * before * p->channels;
    carry_conv_taps(p, taps, at, count, false);
    const float *x = carry_piece_in(p->kernels, beside, &map->x, here, count);
    if (half == NULL || !half_token(p, map, half, tail, taps, b, at, count)) {
        for (int64_t i = 0; i < before; i++) {
            seen[i] = tail + i * p->channels + at;
        }
        seen[before] = x;
        float *y = carry_piece_out(out, &map->y, here);
        p->kernels->rows->conv(y, seen, taps, CARRY_CONV_CHANNELS, p->width, count);
        p->kernels->rows->activate(y, y, count, p->activation);
        carry_piece_done(p->kernels, out, &map->y, here, count);
    }
    for (int64_t i = 0; i < before; i++) {
        const float *from = i + 1 < before ? tail + (i + 1) * p->channels + at : x;
        memcpy(moved + i * p->channels + at, from, (size_t)count * sizeof *tail);
    }
}

static void step_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t block = i % j->all;
        int which = 0;
        while (block >= j->blocks[which]) {
            block -= j->blocks[which++];
        }
        const int64_t at = block * CARRY_CONV_CHANNELS;
        const int64_t left = j->p[which].channels - at;
        step_block(j, which, i / j->all, at, left < CARRY_CONV_CHANNELS ? left : CARRY_CONV_CHANNELS);
    }
}

carry_status carry_cpu_conv_step(carry_ctx *ctx, const carry_conv_step_args *args) {
    job j = {.args = args};
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    for (int i = 0; i < args->maps; i++) {
        const carry_conv_step_map *map = &args->map[i];
        j.p[i] = (carry_conv_problem){.kernels = kernels,
                                      .x = map->x,
                                      .w = map->w,
                                      .channels = map->x.shape[1],
                                      .width = map->w.shape[map->w.rank - 1],
                                      .activation = map->activation};
        j.blocks[i] = (j.p[i].channels + CARRY_CONV_CHANNELS - 1) / CARRY_CONV_CHANNELS;
        j.all += j.blocks[i];
    }
    carry_parallel(ctx, args->map[0].x.shape[0] * j.all, 4, step_blocks, &j);
    return CARRY_OK;
}
