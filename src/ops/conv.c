/* Causal depthwise convolution along tokens: for each token, the sum of the `width` rows up to its own, each times a
   row of taps, then an activation. Threads take blocks of tokens and of channels. */
#include "ops/conv.h"

#include <inttypes.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"

#define TOKENS 64
_Static_assert(CARRY_CONV_CHANNELS <= CARRY_HALF_CONV_CHANNELS, "channels of a block");

typedef struct job {
    carry_conv_problem p;
    carry_tensor y, after;
    int64_t token_blocks, channel_blocks;
} job;

static carry_status expect_borders(carry_ctx *ctx, const carry_conv_problem *p, const carry_tensor *cu_seqlens) {
    CARRY_TRY(carry_expect_rank(ctx, "cu_seqlens", cu_seqlens, 1));
    CARRY_TRY(carry_expect_i64(ctx, "cu_seqlens", cu_seqlens, cu_seqlens->shape[0], p->x.device));
    if (p->batch != 1 || p->sequences < 1) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "cu_seqlens has %" PRId64 " entries and x a batch of %" PRId64
                          ": two entries at least and a batch of 1 are needed",
                          p->sequences + 1, p->batch);
    }
    for (int64_t i = 0; p->x.device == 0 && i < p->sequences; i++) {
        if (p->borders[i + 1] < p->borders[i] || p->borders[0] != 0) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "cu_seqlens must start at 0 and not decrease; entries %" PRId64 " and %" PRId64
                              " are %" PRId64 " and %" PRId64,
                              i, i + 1, p->borders[i], p->borders[i + 1]);
        }
    }
    if (p->x.device == 0 && p->borders[p->sequences] != p->tokens) {
        return carry_fail(ctx, CARRY_EARGUMENT, "cu_seqlens ends at %" PRId64 " and there are %" PRId64 " tokens",
                          p->borders[p->sequences], p->tokens);
    }
    return CARRY_OK;
}

carry_conv_problem carry_conv_problem_of(carry_tensor x, carry_tensor w, carry_tensor before, carry_tensor cu_seqlens,
                                         carry_activation activation) {
    return (carry_conv_problem){.x = x,
                                .w = w,
                                .before = before,
                                .borders = cu_seqlens.data,
                                .sequences = carry_is_here(&cu_seqlens) ? cu_seqlens.shape[0] - 1 : 0,
                                .batch = x.shape[0],
                                .tokens = x.shape[1],
                                .channels = x.shape[2],
                                .width = w.rank == 2 || w.rank == 3 ? w.shape[w.rank - 1] : 0,
                                .activation = activation};
}

carry_status carry_conv_expect(carry_ctx *ctx, const carry_conv_problem *p, const carry_tensor *cu_seqlens) {
    CARRY_TRY(carry_expect_rank(ctx, "x", &p->x, 3));
    CARRY_TRY(carry_expect_rows(ctx, "x", &p->x, &p->x));
    if (p->w.rank != 2 && p->w.rank != 3) {
        return carry_fail(ctx, CARRY_ESHAPE, "w has rank %d where 2 or 3 is needed", p->w.rank);
    }
    if (p->width < 1 || p->width > CARRY_CONV_WIDTHS) {
        return carry_fail(ctx, CARRY_ESHAPE, "w has %" PRId64 " taps: 1 to %d are possible", p->width,
                          CARRY_CONV_WIDTHS);
    }
    const int64_t three[3] = {p->channels, 1, p->width};
    const int64_t two[2] = {p->channels, p->width};
    CARRY_TRY(carry_expect_weight(ctx, "w", &p->w, p->w.rank, p->w.rank == 3 ? three : two, &p->x));
    if (carry_is_here(&p->before)) {
        CARRY_TRY(carry_expect_f32(ctx, "before", &p->before, 3, (const int64_t[]){p->batch, p->width - 1, p->channels},
                                   p->x.device));
    }
    if ((unsigned)p->activation > CARRY_GELU) {
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no activation number %d", (int)p->activation);
    }
    return carry_is_here(cu_seqlens) ? expect_borders(ctx, p, cu_seqlens) : CARRY_OK;
}

void carry_conv_borders(const carry_conv_problem *p, int64_t t, int64_t *begin, int64_t *end, bool *first_sequence) {
    *begin = 0;
    *end = p->tokens;
    *first_sequence = true;
    if (p->borders == NULL) {
        return;
    }
    int64_t low = 0; /* the last border that is at most t; sequences may be empty */
    int64_t high = p->sequences;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        *(p->borders[middle] <= t ? &low : &high) = middle;
    }
    *begin = p->borders[low];
    *end = p->borders[low + 1];
    *first_sequence = low == 0;
}

void carry_conv_taps(const carry_conv_problem *p, float *taps, int64_t at, int64_t count, bool reversed) {
    float beside[CARRY_CONV_WIDTHS * CARRY_CONV_CHANNELS];
    const int64_t width = p->width;
    const float *w = carry_piece_in(p->kernels, beside, &p->w, at * width, count * width);
    for (int64_t i = 0; i < width; i++) {
        float *to = taps + (reversed ? width - 1 - i : i) * CARRY_CONV_CHANNELS;
        for (int64_t c = 0; c < count; c++) {
            to[c] = w[c * width + i];
        }
    }
}

void carry_conv_rows_start(carry_conv_rows *rows) {
    rows->kept = INT64_MIN;
    memset(rows->zeros, 0, sizeof rows->zeros);
}

void carry_conv_rows_of(const carry_conv_problem *p, carry_conv_rows *rows, const float *seen[CARRY_CONV_WIDTHS],
                        int64_t b, int64_t t, int64_t at, int64_t count) {
    int64_t begin;
    int64_t end;
    bool first_sequence;
    carry_conv_borders(p, t, &begin, &end, &first_sequence);
    for (int64_t i = 0; i < p->width; i++) {
        int64_t s = t - (p->width - 1) + i;
        if (s >= begin) {
            float *beside = rows->ring + s % CARRY_CONV_RING * CARRY_CONV_CHANNELS;
            if (p->x.dtype == CARRY_F32 || s > rows->kept) {
                seen[i] = carry_piece_in(p->kernels, beside, &p->x, (b * p->tokens + s) * p->channels + at, count);
                rows->kept = s;
            } else {
                seen[i] = beside;
            }
        } else if (first_sequence && carry_is_here(&p->before)) {
            seen[i] = (const float *)p->before.data + (b * (p->width - 1) + s + p->width - 1) * p->channels + at;
        } else {
            seen[i] = rows->zeros;
        }
    }
}

/* A block of tokens and channels. */
typedef struct block {
    int64_t b, first, last, at, count;
} block;

/* Builds, in bf16, the window of a token near the start of its sequence, which includes rows before the sequence: those
   of `before`, or zeros. Returns false if a number in `before` is not exact in bf16. Numbers that an earlier call on
   bf16 inputs stored in `before` are exact. */
static bool half_window(const carry_conv_problem *p, const block *o, int64_t t, int64_t begin, bool first_sequence,
                        uint16_t window[CARRY_HALF_CONV_TAPS * CARRY_CONV_CHANNELS]) {
    for (int64_t i = 0; i < CARRY_HALF_CONV_TAPS; i++) {
        const int64_t s = t - (CARRY_HALF_CONV_TAPS - 1) + i;
        uint16_t *row = window + i * CARRY_CONV_CHANNELS;
        if (s >= begin) {
            const uint16_t *x = p->x.data;
            memcpy(row, x + (o->b * p->tokens + s) * p->channels + o->at, (size_t)o->count * sizeof *row);
        } else if (first_sequence && carry_is_here(&p->before)) {
            const float *from = p->before.data;
            float back[CARRY_CONV_CHANNELS];
            from += (o->b * (p->width - 1) + s + p->width - 1) * p->channels + o->at;
            p->kernels->bf16_from_f32(row, from, o->count);
            p->kernels->f32_from_bf16(back, row, o->count);
            if (memcmp(back, from, (size_t)o->count * sizeof *back) != 0) {
                return false;
            }
        } else {
            memset(row, 0, (size_t)o->count * sizeof *row);
        }
    }
    return true;
}

/* Computes tokens from t on in one pass over bf16; returns how many were done. */
static int64_t half_tokens(const job *j, const carry_half_rows *half, const block *o, const float *taps, int64_t t) {
    const carry_conv_problem *p = &j->p;
    const int64_t here = (o->b * p->tokens + t) * p->channels + o->at;
    carry_half_conv conv = {.tokens = 1,
                            .channels = o->count,
                            .taps = taps,
                            .y = (uint16_t *)j->y.data + here,
                            .y_row = p->channels,
                            .taps_row = CARRY_CONV_CHANNELS,
                            .silu = p->activation == CARRY_SILU};
    int64_t begin;
    int64_t end;
    bool first_sequence;
    carry_conv_borders(p, t, &begin, &end, &first_sequence);
    if (t - begin >= CARRY_HALF_CONV_TAPS - 1) {
        conv.tokens = (end < o->last ? end : o->last) - t;
        conv.x = (const uint16_t *)p->x.data + here - (CARRY_HALF_CONV_TAPS - 1) * p->channels;
        conv.x_token = conv.x_row = p->channels;
        half->conv(&conv);
        return conv.tokens;
    }
    uint16_t window[CARRY_HALF_CONV_TAPS * CARRY_CONV_CHANNELS];
    if (!half_window(p, o, t, begin, first_sequence, window)) {
        return 0;
    }
    conv.x = window;
    conv.x_token = conv.x_row = CARRY_CONV_CHANNELS;
    half->conv(&conv);
    return 1;
}

/* The kernels of half_rows.h if they support this convolution, else NULL. */
static const carry_half_rows *half_of(const job *j) {
    const carry_conv_problem *p = &j->p;
    const bool fits =
        p->width == CARRY_HALF_CONV_TAPS && (p->activation == CARRY_SILU || p->activation == CARRY_NO_ACTIVATION);
    return fits ? carry_half_rows_for(p->kernels, &p->x, &j->y, &j->y) : NULL;
}

static void conv_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_conv_problem *p = &j->p;
    float taps[CARRY_CONV_WIDTHS * CARRY_CONV_CHANNELS];
    float beside[CARRY_CONV_CHANNELS];
    const float *seen[CARRY_CONV_WIDTHS];
    carry_conv_rows rows;
    const carry_half_rows *half = half_of(j);
    for (int64_t index = begin; index < end; index++) {
        const int64_t at = index % j->channel_blocks * CARRY_CONV_CHANNELS;
        const int64_t first = index / j->channel_blocks % j->token_blocks * TOKENS;
        const block o = {.b = index / j->channel_blocks / j->token_blocks,
                         .first = first,
                         .last = p->tokens - first < TOKENS ? p->tokens : first + TOKENS,
                         .at = at,
                         .count = p->channels - at < CARRY_CONV_CHANNELS ? p->channels - at : CARRY_CONV_CHANNELS};
        carry_conv_taps(p, taps, at, o.count, false);
        carry_conv_rows_start(&rows);
        for (int64_t t = first; t < o.last;) {
            const int64_t done = half != NULL ? half_tokens(j, half, &o, taps, t) : 0;
            t += done;
            if (done > 0) {
                continue;
            }
            int64_t here = (o.b * p->tokens + t) * p->channels + at;
            float *y = carry_piece_out(beside, &j->y, here);
            carry_conv_rows_of(p, &rows, seen, o.b, t, at, o.count);
            p->kernels->rows->conv(y, seen, taps, CARRY_CONV_CHANNELS, p->width, o.count);
            p->kernels->rows->activate(y, y, o.count, p->activation);
            carry_piece_done(p->kernels, beside, &j->y, here, o.count);
            t++;
        }
    }
}

/* Stores the rows that a token after the last one would see. In ascending order, so that `after` may be `before`. */
static void keep_last(const job *j) {
    const carry_conv_problem *p = &j->p;
    int64_t begin;
    int64_t end;
    bool first_sequence;
    carry_conv_borders(p, p->tokens, &begin, &end, &first_sequence);
    const size_t row = (size_t)p->channels * sizeof(float);
    for (int64_t i = 0; i < p->batch * (p->width - 1); i++) {
        int64_t b = i / (p->width - 1);
        int64_t s = p->tokens - (p->width - 1) + i % (p->width - 1);
        float *to = (float *)j->after.data + i * p->channels;
        if (s >= begin) {
            const char *from =
                (const char *)p->x.data + (size_t)((b * p->tokens + s) * p->channels) * carry_dtype_size(p->x.dtype);
            carry_widen(p->kernels, to, from, p->x.dtype, p->channels);
        } else if (first_sequence && carry_is_here(&p->before)) {
            memmove(to, (const float *)p->before.data + (b * (p->width - 1) + s + p->width - 1) * p->channels, row);
        } else {
            memset(to, 0, row);
        }
    }
}

carry_status carry_conv(carry_ctx *ctx, const carry_conv_args *args) {
    const carry_conv_problem p =
        carry_conv_problem_of(args->x, args->w, args->before, args->cu_seqlens, args->activation);
    CARRY_OPERATOR(ctx, operators, conv, &args->x)
    CARRY_TRY(carry_conv_expect(ctx, &p, &args->cu_seqlens));
    CARRY_TRY(carry_expect_like(ctx, "y", &args->y, &args->x));
    if (carry_is_here(&args->after)) {
        CARRY_TRY(carry_expect_f32(ctx, "after", &args->after, 3, (const int64_t[]){p.batch, p.width - 1, p.channels},
                                   args->x.device));
    }
    return operators->conv(ctx, args);
}

carry_status carry_cpu_conv(carry_ctx *ctx, const carry_conv_args *args) {
    job j = {.p = carry_conv_problem_of(args->x, args->w, args->before, args->cu_seqlens, args->activation),
             .y = args->y,
             .after = args->after};
    CARRY_TRY(carry_kernels_of(ctx, &j.p.kernels));
    j.token_blocks = (j.p.tokens + TOKENS - 1) / TOKENS;
    j.channel_blocks = (j.p.channels + CARRY_CONV_CHANNELS - 1) / CARRY_CONV_CHANNELS;
    carry_parallel(ctx, j.p.batch * j.token_blocks * j.channel_blocks, 1, conv_blocks, &j);
    if (carry_is_here(&j.after)) {
        keep_last(&j);
    }
    return CARRY_OK;
}
