/* The gradient of the convolution. For each token, the gradient of its sum is ds = dy f'(sum), with the sum computed
   again; then

       dx[s] = sum_j w[width - 1 - j] ds[s + j],   dw[i] += ds[t] x[t - (width-1) + i]

   so dx is the convolution of ds with the taps reversed, over the tokens from s on. A block of tokens computes the
   ds of the few tokens after it again instead of waiting for another thread. dw is summed per block of tokens into
   the workspace and added in order. */
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/conv.h"
#include "ops/cpu.h"

typedef struct job {
    carry_conv_problem p;
    carry_tensor dx, dw, dbefore, dy;
    int64_t block, token_blocks, channel_blocks;
    float *partial; /* [batch, token blocks, width, channels] */
} job;

/* Buffers of a thread for a block of channels. */
typedef struct beside {
    float taps[CARRY_CONV_WIDTHS * CARRY_CONV_CHANNELS];
    float reversed[CARRY_CONV_WIDTHS * CARRY_CONV_CHANNELS];
    float sums[CARRY_CONV_WIDTHS * CARRY_CONV_CHANNELS];
    float ds[CARRY_CONV_RING * CARRY_CONV_CHANNELS]; /* a ring of rows, by token */
    float row[CARRY_CONV_CHANNELS];
    carry_conv_rows rows;
} beside;

/* Writes ds of token t to the ring, and adds the token's part of dw if it belongs to this block. */
static void reach_sum(const job *j, beside *k, int64_t b, int64_t t, int64_t at, int64_t count, bool own) {
    const carry_conv_problem *p = &j->p;
    const carry_rows *rows = p->kernels->rows;
    const float *seen[CARRY_CONV_WIDTHS];
    float *ds = k->ds + t % CARRY_CONV_RING * CARRY_CONV_CHANNELS;
    carry_conv_rows_of(p, &k->rows, seen, b, t, at, count);
    const float *dy = carry_piece_in(p->kernels, k->row, &j->dy, (b * p->tokens + t) * p->channels + at, count);
    if (p->activation == CARRY_NO_ACTIVATION) {
        memcpy(ds, dy, (size_t)count * sizeof *ds);
    } else {
        rows->conv(ds, seen, k->taps, CARRY_CONV_CHANNELS, p->width, count);
        rows->activate_backward(ds, dy, ds, count, p->activation);
    }
    if (own && carry_is_here(&j->dw)) {
        rows->conv_weights(k->sums, ds, seen, CARRY_CONV_CHANNELS, p->width, count);
    }
}

/* Computes dx of token s from the ds in the ring; for s < 0, dbefore of the row that is -s tokens before the first
   token. */
static void reach_input(const job *j, beside *k, int64_t b, int64_t s, int64_t at, int64_t count) {
    const carry_conv_problem *p = &j->p;
    const carry_tensor *to = s < 0 ? &j->dbefore : &j->dx;
    if (!carry_is_here(to)) {
        return;
    }
    int64_t begin;
    int64_t end;
    bool first_sequence;
    carry_conv_borders(p, s, &begin, &end, &first_sequence);
    const float *reached[CARRY_CONV_WIDTHS];
    for (int64_t i = 0; i < p->width; i++) {
        int64_t t = s + i;
        reached[i] = t >= 0 && t < end ? k->ds + t % CARRY_CONV_RING * CARRY_CONV_CHANNELS : k->rows.zeros;
    }
    int64_t here =
        s < 0 ? (b * (p->width - 1) + s + p->width - 1) * p->channels + at : (b * p->tokens + s) * p->channels + at;
    float *out = carry_piece_out(k->row, to, here);
    p->kernels->rows->conv(out, reached, k->reversed, CARRY_CONV_CHANNELS, p->width, count);
    carry_piece_done(p->kernels, k->row, to, here, count);
}

static void backward_block(const job *j, beside *k, int64_t b, int64_t token_block, int64_t at, int64_t count) {
    const carry_conv_problem *p = &j->p;
    int64_t first = token_block * j->block;
    int64_t last = p->tokens - first < j->block ? p->tokens : first + j->block;
    int64_t ahead = last + p->width - 1 < p->tokens ? last + p->width - 1 : p->tokens;
    carry_conv_taps(p, k->taps, at, count, false);
    carry_conv_taps(p, k->reversed, at, count, true);
    memset(k->sums, 0, sizeof k->sums);
    carry_conv_rows_start(&k->rows);
    int64_t done = first; /* tokens whose ds is known */
    for (int64_t s = first == 0 ? -(p->width - 1) : first; s < last; s++) {
        for (; done < ahead && done < s + p->width; done++) {
            reach_sum(j, k, b, done, at, count, done < last);
        }
        reach_input(j, k, b, s, at, count);
    }
    for (int64_t i = 0; carry_is_here(&j->dw) && i < p->width; i++) {
        float *to = j->partial + ((b * j->token_blocks + token_block) * p->width + i) * p->channels + at;
        memcpy(to, k->sums + i * CARRY_CONV_CHANNELS, (size_t)count * sizeof *to);
    }
}

static void backward_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    beside k;
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block % j->channel_blocks * CARRY_CONV_CHANNELS;
        int64_t count = j->p.channels - at < CARRY_CONV_CHANNELS ? j->p.channels - at : CARRY_CONV_CHANNELS;
        backward_block(j, &k, block / j->channel_blocks / j->token_blocks, block / j->channel_blocks % j->token_blocks,
                       at, count);
    }
}

static void add_weights(const job *j) {
    const carry_conv_problem *p = &j->p;
    float *dw = j->dw.data;
    for (int64_t block = 0; block < p->batch * j->token_blocks; block++) {
        for (int64_t i = 0; i < p->width; i++) {
            const float *from = j->partial + (block * p->width + i) * p->channels;
            for (int64_t c = 0; c < p->channels; c++) {
                dw[c * p->width + i] += from[c];
            }
        }
    }
}

size_t carry_conv_backward_workspace(int64_t batch, int64_t tokens, int64_t channels, int64_t width) {
    if (batch <= 0 || tokens <= 0 || channels <= 0 || width <= 0) {
        return 0;
    }
    const int64_t factors[] = {batch, carry_token_blocks_most(tokens), channels, width};
    size_t bytes;
    return carry_size_product(&bytes, factors, 4, sizeof(float)) ? bytes : SIZE_MAX;
}

carry_status carry_conv_backward(carry_ctx *ctx, const carry_conv_backward_args *args, void *workspace,
                                 size_t workspace_bytes) {
    const carry_conv_problem p =
        carry_conv_problem_of(args->x, args->w, args->before, args->cu_seqlens, args->activation);
    const int device = args->x.device;
    CARRY_OPERATOR(ctx, operators, conv_backward, &args->x)
    CARRY_TRY(carry_conv_expect(ctx, &p, &args->cu_seqlens));
    CARRY_TRY(carry_expect_like(ctx, "dy", &args->dy, &args->x));
    if (carry_is_here(&args->dx)) {
        CARRY_TRY(carry_expect_rows(ctx, "dx", &args->dx, &args->x));
    }
    if (carry_is_here(&args->dw)) {
        CARRY_TRY(carry_expect_f32(ctx, "dw", &args->dw, args->w.rank, args->w.shape, device));
        CARRY_TRY(carry_expect_workspace(ctx, "conv_backward", workspace, workspace_bytes,
                                         carry_conv_backward_workspace(p.batch, p.tokens, p.channels, p.width),
                                         device));
    }
    if (carry_is_here(&args->dbefore)) {
        CARRY_TRY(carry_expect_f32(ctx, "dbefore", &args->dbefore, 3,
                                   (const int64_t[]){p.batch, p.width - 1, p.channels}, device));
    }
    return operators->conv_backward(ctx, args, workspace);
}

carry_status carry_cpu_conv_backward(carry_ctx *ctx, const carry_conv_backward_args *args, void *workspace) {
    job j = {.p = carry_conv_problem_of(args->x, args->w, args->before, args->cu_seqlens, args->activation),
             .dx = args->dx,
             .dw = args->dw,
             .dbefore = args->dbefore,
             .dy = args->dy,
             .partial = workspace};
    const carry_conv_problem *p = &j.p;
    CARRY_TRY(carry_kernels_of(ctx, &j.p.kernels));
    j.block = carry_token_block(p->tokens);
    j.token_blocks = (p->tokens + j.block - 1) / j.block;
    j.channel_blocks = (p->channels + CARRY_CONV_CHANNELS - 1) / CARRY_CONV_CHANNELS;
    carry_parallel(ctx, p->batch * j.token_blocks * j.channel_blocks, 1, backward_blocks, &j);
    if (p->tokens == 0 && carry_is_here(&j.dbefore)) {
        memset(j.dbefore.data, 0, (size_t)carry_tensor_count(&j.dbefore) * sizeof(float));
    }
    if (carry_is_here(&j.dw)) {
        add_weights(&j);
    }
    return CARRY_OK;
}
