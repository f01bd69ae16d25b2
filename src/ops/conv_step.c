/* The convolution of one token of each sequence, with the same bits as carry_conv. Threads take blocks of channels of
   a few sequences, which share the block's taps; each block shifts its part of the tails. */
#include <inttypes.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/conv.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/pool.h"

#define TOGETHER 8 /* sequences of a block */

typedef struct job {
    carry_conv_problem p[CARRY_CONV_STEP_MAPS]; /* for their taps */
    const carry_conv_step_args *args;
    int64_t blocks[CARRY_CONV_STEP_MAPS]; /* of channels */
    int64_t all;                          /* of all maps */
    int64_t batch;
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

/* A block of channels of some sequences. */
typedef struct block {
    const carry_conv_problem *p;
    const carry_conv_step_map *map;
    const float *taps;
    const float *tail[TOGETHER]; /* of each sequence */
    float *moved[TOGETHER];      /* where its next tail goes */
    int64_t first, sequences;
    int64_t at, channels;
} block;

#define LANES 16 /* a constant number, so that compilers use vectors */

/* Takes the upper halves of f32 numbers. Returns false if a lower half is not zero: the number is not bf16. */
static bool take_halves(uint16_t *to, const float *from, int64_t count) {
    uint32_t rest[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        uint32_t bits[LANES];
        memcpy(bits, from + i, sizeof bits);
        for (int j = 0; j < LANES; j++) {
            rest[j] |= bits[j];
            to[i + j] = (uint16_t)(bits[j] >> 16);
        }
    }
    for (; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        rest[0] |= bits;
        to[i] = (uint16_t)(bits >> 16);
    }
    uint32_t any = 0;
    for (int j = 0; j < LANES; j++) {
        any |= rest[j];
    }
    return (any & 0xFFFFu) == 0;
}

/* Converts the tail of a sequence to bf16, and appends its token. Returns false if the tail has numbers that are not
   bf16. */
static bool half_window(const block *o, int64_t s, uint16_t *window) {
    for (int64_t i = 0; i < CARRY_HALF_CONV_TAPS - 1; i++) {
        if (!take_halves(window + i * CARRY_CONV_CHANNELS, o->tail[s] + i * o->p->channels + o->at, o->channels)) {
            return false;
        }
    }
    memcpy(window + (CARRY_HALF_CONV_TAPS - 1) * CARRY_CONV_CHANNELS,
           (const uint16_t *)o->map->x.data + (o->first + s) * o->p->channels + o->at,
           (size_t)o->channels * sizeof *window);
    return true;
}

/* Computes the sequences whose tails are exact in bf16, in one pass over bf16 as carry_conv does, and sets is_done for
   them. */
static void half_tokens(const block *o, const carry_half_rows *half, bool is_done[TOGETHER]) {
    enum { WINDOW = CARRY_HALF_CONV_TAPS * CARRY_CONV_CHANNELS };
    uint16_t windows[TOGETHER * WINDOW];
    carry_half_conv conv = {.channels = o->channels,
                            .taps = o->taps,
                            .x_token = WINDOW,
                            .x_row = CARRY_CONV_CHANNELS,
                            .y_row = o->p->channels,
                            .taps_row = CARRY_CONV_CHANNELS,
                            .silu = o->p->activation == CARRY_SILU};
    for (int64_t s = 0; s < o->sequences; s++) {
        is_done[s] = half_window(o, s, windows + s * WINDOW);
    }
    for (int64_t s = 0; s < o->sequences; s += conv.tokens + 1) { /* neighbours at once */
        conv.tokens = 0;
        while (s + conv.tokens < o->sequences && is_done[s + conv.tokens]) {
            conv.tokens++;
        }
        conv.x = windows + s * WINDOW;
        conv.y = (uint16_t *)o->map->y.data + (o->first + s) * o->p->channels + o->at;
        half->conv(&conv);
    }
}

/* x: the token of sequence s as f32. */
static void wide_token(const block *o, int64_t s, const float *x) {
    const carry_conv_problem *p = o->p;
    const int64_t before = p->width - 1;
    const int64_t here = (o->first + s) * p->channels + o->at;
    const float *seen[CARRY_CONV_WIDTHS];
    float out[CARRY_CONV_CHANNELS];
    for (int64_t i = 0; i < before; i++) {
        seen[i] = o->tail[s] + i * p->channels + o->at;
    }
    seen[before] = x;
    float *y = carry_piece_out(out, &o->map->y, here);
    p->kernels->rows->conv(y, seen, o->taps, CARRY_CONV_CHANNELS, p->width, o->channels);
    p->kernels->rows->activate(y, y, o->channels, p->activation);
    carry_piece_done(p->kernels, out, &o->map->y, here, o->channels);
}

static void run_block(const block *o) {
    const carry_conv_problem *p = o->p;
    const int64_t before = p->width - 1;
    const bool fits =
        p->width == CARRY_HALF_CONV_TAPS && (p->activation == CARRY_SILU || p->activation == CARRY_NO_ACTIVATION);
    const carry_half_rows *half = fits ? carry_half_rows_for(p->kernels, &o->map->x, &o->map->y, &o->map->y) : NULL;
    bool is_done[TOGETHER] = {false};
    if (half != NULL) {
        half_tokens(o, half, is_done);
    }
    for (int64_t s = 0; s < o->sequences; s++) {
        float beside[CARRY_CONV_CHANNELS];
        const int64_t here = (o->first + s) * p->channels + o->at;
        const float *x = carry_piece_in(p->kernels, beside, &o->map->x, here, o->channels);
        if (!is_done[s]) {
            wide_token(o, s, x);
        }
        for (int64_t i = 0; i < before; i++) {
            const float *from = i + 1 < before ? o->tail[s] + (i + 1) * p->channels + o->at : x;
            memcpy(o->moved[s] + i * p->channels + o->at, from, (size_t)o->channels * sizeof *from);
        }
    }
}

static void step_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float taps[CARRY_CONV_WIDTHS * CARRY_CONV_CHANNELS];
    const int32_t *sources = j->args->from != NULL ? j->args->from : j->args->slots;
    for (int64_t i = begin; i < end; i++) {
        int64_t index = i % j->all;
        int which = 0;
        while (index >= j->blocks[which]) {
            index -= j->blocks[which++];
        }
        block o = {.p = &j->p[which], .map = &j->args->map[which], .taps = taps, .first = i / j->all * TOGETHER};
        o.at = index * CARRY_CONV_CHANNELS;
        o.channels = o.p->channels - o.at < CARRY_CONV_CHANNELS ? o.p->channels - o.at : CARRY_CONV_CHANNELS;
        o.sequences = j->batch - o.first < TOGETHER ? j->batch - o.first : TOGETHER;
        const int64_t tail = (o.p->width - 1) * o.p->channels;
        for (int64_t s = 0; s < o.sequences; s++) {
            o.tail[s] = (const float *)o.map->tails.data + sources[o.first + s] * tail;
            o.moved[s] = (float *)o.map->tails.data + j->args->slots[o.first + s] * tail;
        }
        carry_conv_taps(o.p, taps, o.at, o.channels, false);
        run_block(&o);
    }
}

carry_status carry_cpu_conv_step(carry_ctx *ctx, const carry_conv_step_args *args) {
    job j = {.args = args, .batch = args->map[0].x.shape[0]};
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
    carry_parallel(ctx, (j.batch + TOGETHER - 1) / TOGETHER * j.all, j.batch < 4 ? 4 : 1, step_blocks, &j);
    return CARRY_OK;
}
