/* Encodes or decodes video with Wan's autoencoder, one frame at a time.

   Every convolution over time has a ring of three pictures: its input for this frame and for the two frames before.
   They are written in place (by a norm, or by the convolution before), so nothing is copied. In the decoder, a level
   may turn one frame into two: the first passes through all later levels before the second does, as in tae.c. */
#include "model/codec/wan_vae.h"

#include <inttypes.h>
#include <stdlib.h>

#include "carry/nn.h"
#include "ops/video.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/span.h"
#include "core/tensor.h"
#include "ops/picture.h"

#define FRAMES 3
#define PIXEL_CHANNELS 3
#define QUERIES 1024 /* queries of attention processed at a time: their scores stay in a GPU's cache */
#define LEAST 1e-30f /* added to the mean of squares, so that pixels that are zero stay zero */

typedef struct ring {
    carry_tensor picture[FRAMES];
    int64_t count; /* number of frames processed */
} ring;

/* The memory of one level. in: its input; the same tensor as x if the widths are equal. */
typedef struct room {
    carry_tensor in, x, work;
    ring block[CARRY_WAN_BLOCKS][2], time;
} room;

typedef struct side_state {
    room level[CARRY_WAN_LEVELS];
    ring middle[2][2], conv_in, conv_out;
    carry_tensor latent, coded, pixels; /* 16 channels; 32 in the encoder; 3 in the decoder */
    carry_tensor tokens, normed, qkv, scores, p, mixed, bias;
    void *memory; /* NULL: no frame was processed yet */
} side_state;

struct carry_wan_stream {
    const carry_wan *wan;
    int64_t height, width;
    side_state decoder, encoder;
};

static carry_tensor take(const carry_wan_stream *s, carry_arena *arena, int64_t height, int64_t width,
                         int64_t channels) {
    const int64_t shape[] = {height + 2, width + 2, channels};
    return carry_arena_tensor(arena, s->wan->device, s->wan->dtype, 3, shape);
}

static void take_ring(const carry_wan_stream *s, carry_arena *arena, ring *r, int64_t height, int64_t width,
                      int64_t channels) {
    for (int i = 0; i < FRAMES; i++) {
        r->picture[i] = take(s, arena, height, width, channels);
    }
}

static void take_attention(const carry_wan_stream *s, carry_arena *arena, side_state *state, int64_t tokens,
                           int64_t width) {
    const int device = s->wan->device;
    const carry_dtype dtype = s->wan->dtype;
    const int64_t queries = tokens < QUERIES ? tokens : QUERIES;
    const int64_t scores[] = {1, queries, tokens};
    state->tokens = carry_arena_tensor(arena, device, dtype, 2, (const int64_t[]){tokens, width});
    state->normed = carry_arena_tensor(arena, device, dtype, 2, (const int64_t[]){tokens, width});
    state->mixed = carry_arena_tensor(arena, device, dtype, 2, (const int64_t[]){tokens, width});
    state->qkv = carry_arena_tensor(arena, device, dtype, 2, (const int64_t[]){tokens, 3 * width});
    state->scores = carry_arena_tensor(arena, device, CARRY_F32, 3, scores);
    state->p = dtype == CARRY_F32 ? state->scores : carry_arena_tensor(arena, device, dtype, 3, scores);
    state->bias = carry_arena_tensor(arena, device, CARRY_F32, 2, (const int64_t[]){1, queries + tokens - 1});
}

static void take_side(const carry_wan_stream *s, carry_arena *arena, side_state *state, const carry_wan_side *side,
                      bool decodes) {
    const int64_t low = s->height / CARRY_LATENT_BLOCK;
    const int64_t narrow = s->width / CARRY_LATENT_BLOCK;
    const int64_t middle = side->middle[0].out;
    for (int i = 0; i < CARRY_WAN_LEVELS; i++) {
        const carry_wan_level *level = &side->level[i];
        room *r = &state->level[i];
        const int64_t height = decodes ? low << i : s->height >> i;
        const int64_t width = decodes ? narrow << i : s->width >> i;
        r->x = take(s, arena, height, width, level->out);
        r->in = level->in == level->out ? r->x : take(s, arena, height, width, level->in);
        r->work = take(s, arena, height, width, level->out);
        for (int b = 0; b < level->blocks; b++) {
            take_ring(s, arena, &r->block[b][0], height, width, level->block[b].in);
            take_ring(s, arena, &r->block[b][1], height, width, level->out);
        }
        if (level->has_time) {
            take_ring(s, arena, &r->time, decodes ? height : height / 2, decodes ? width : width / 2, level->out);
        }
    }
    for (int i = 0; i < 4; i++) {
        take_ring(s, arena, &state->middle[i / 2][i % 2], low, narrow, middle);
    }
    take_attention(s, arena, state, low * narrow, middle);
    state->latent = take(s, arena, low, narrow, CARRY_LATENT_CHANNELS);
    if (decodes) {
        take_ring(s, arena, &state->conv_in, low, narrow, CARRY_LATENT_CHANNELS);
        take_ring(s, arena, &state->conv_out, s->height, s->width, side->level[CARRY_WAN_LEVELS - 1].out);
        state->pixels = take(s, arena, s->height, s->width, PIXEL_CHANNELS);
    } else {
        take_ring(s, arena, &state->conv_in, s->height, s->width, PIXEL_CHANNELS);
        take_ring(s, arena, &state->conv_out, low, narrow, middle);
        state->coded = take(s, arena, low, narrow, side->conv_out.out);
    }
}

/* Allocates memory for a side, before its first frame. */
static carry_status open_side(carry_wan_stream *s, side_state *state, const carry_wan_side *side, bool decodes) {
    carry_arena arena = {0};
    size_t bytes = 0;
    if (state->memory != NULL) {
        return CARRY_OK;
    }
    take_side(s, &arena, state, side, decodes);
    if (!carry_arena_total(&arena, &bytes)) {
        return carry_fail(s->wan->ctx, CARRY_EMEMORY, "out of memory: streaming pictures of %" PRId64 " x %" PRId64,
                          s->height, s->width);
    }
    CARRY_TRY(carry_codec_pictures(s->wan->ctx, &state->memory, s->wan->device, bytes, s->height, s->width));
    arena = carry_arena_over(state->memory, bytes);
    take_side(s, &arena, state, side, decodes);
    return CARRY_OK;
}

carry_status carry_wan_stream_new(const carry_wan *wan, carry_wan_stream **stream, int64_t height, int64_t width) {
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL) {
        return carry_fail(wan->ctx, CARRY_EMEMORY, "out of memory: a codec");
    }
    **stream = (carry_wan_stream){.wan = wan, .height = height, .width = width};
    return CARRY_OK;
}

void carry_wan_stream_free(carry_wan_stream *stream) {
    if (stream != NULL) {
        carry_codec_memory_free(stream->wan->ctx, stream->wan->device, stream->decoder.memory);
        carry_codec_memory_free(stream->wan->ctx, stream->wan->device, stream->encoder.memory);
        free(stream);
    }
}

static void reset_side(side_state *state) {
    for (int i = 0; i < 4; i++) {
        state->middle[i / 2][i % 2].count = 0;
    }
    state->conv_in.count = 0;
    state->conv_out.count = 0;
    for (int i = 0; i < CARRY_WAN_LEVELS; i++) {
        state->level[i].time.count = 0;
        for (int b = 0; b < 2 * CARRY_WAN_BLOCKS; b++) {
            state->level[i].block[b / 2][b % 2].count = 0;
        }
    }
}

void carry_wan_stream_reset(carry_wan_stream *stream) {
    reset_side(&stream->decoder);
    reset_side(&stream->encoder);
}

/* The picture of a ring that is `back` frames old; absent before a stream's first frame. */
static carry_tensor frame_of(const ring *r, int64_t back) {
    return back <= r->count ? r->picture[(r->count - back) % FRAMES] : (carry_tensor){0};
}

static carry_status convolve(const carry_wan_stream *s, const carry_codec_conv *conv, carry_tensor y, carry_tensor x) {
    return carry_conv2d(
        s->wan->ctx,
        &(carry_conv2d_args){.y = y, .x = x, .w = conv->w, .bias = conv->bias, .form = conv->form, .in = conv->in});
}

/* Applies a convolution to the newest frame of a ring and the two before it. add may be absent. Does not advance the
   ring. */
static carry_status convolve_ring(const carry_wan_stream *s, const carry_codec_conv *conv, carry_tensor y,
                                  const ring *r, carry_tensor add) {
    return carry_conv2d(s->wan->ctx, &(carry_conv2d_args){.y = y,
                                                          .x = frame_of(r, 0),
                                                          .past = frame_of(r, 1),
                                                          .older = frame_of(r, 2),
                                                          .w = conv->w,
                                                          .bias = conv->bias,
                                                          .add = add,
                                                          .form = conv->form,
                                                          .in = conv->in});
}

/* y = silu(norm(x)), including the border of zeros, which stays zero. */
static carry_status norm_silu(const carry_wan_stream *s, carry_tensor y, carry_tensor x, carry_tensor gamma) {
    const int64_t pixels = x.shape[0] * x.shape[1];
    return carry_rms_norm_silu(s->wan->ctx, carry_reshape_2d(y, pixels, x.shape[2]),
                               carry_reshape_2d(x, pixels, x.shape[2]), gamma, LEAST);
}

/* y = block(x); y may be x. work has the channels of y. */
static carry_status run_block(const carry_wan_stream *s, const carry_wan_block *block, ring rings[2], carry_tensor y,
                              carry_tensor x, carry_tensor work) {
    CARRY_TRY(norm_silu(s, frame_of(&rings[0], 0), x, block->norm[0]));
    CARRY_TRY(convolve_ring(s, &block->conv[0], work, &rings[0], (carry_tensor){0}));
    CARRY_TRY(norm_silu(s, frame_of(&rings[1], 0), work, block->norm[1]));
    if (block->in != block->out) {
        CARRY_TRY(convolve(s, &block->shortcut, work, x));
        x = work;
    }
    CARRY_TRY(convolve_ring(s, &block->conv[1], y, &rings[1], x));
    rings[0].count++;
    rings[1].count++;
    return CARRY_OK;
}

/* Rows first .. first + count - 1 of q, k or v (which = 0, 1, 2) in qkv. */
static carry_tensor part_of(carry_tensor qkv, int which, int64_t first, int64_t count) {
    const int64_t width = qkv.shape[1] / 3;
    const int64_t shape[] = {1, count, width};
    char *data = (char *)qkv.data + (size_t)(first * qkv.shape[1] + which * width) * carry_dtype_size(qkv.dtype);
    carry_tensor part = carry_view_on(qkv.device, data, qkv.dtype, 3, shape);
    part.stride[1] = qkv.shape[1];
    part.stride[0] = count * qkv.shape[1];
    return part;
}

static carry_status attend(const carry_wan_stream *s, side_state *state) {
    carry_ctx *ctx = s->wan->ctx;
    const int64_t tokens = state->qkv.shape[0];
    const int64_t width = state->qkv.shape[1] / 3;
    for (int64_t first = 0; first < tokens; first += QUERIES) {
        const int64_t count = tokens - first < QUERIES ? tokens - first : QUERIES;
        const carry_tensor scores = carry_reshape_3d(state->scores, 1, count, tokens);
        const carry_tensor p = carry_reshape_3d(state->p, 1, count, tokens);
        CARRY_TRY(carry_matmul(ctx, scores, part_of(state->qkv, 0, first, count), part_of(state->qkv, 1, 0, tokens),
                               &(carry_matmul_options){CARRY_INIT(carry_matmul_options), .b_transposed = true}));
        CARRY_TRY(carry_relative_softmax(ctx, p, scores, carry_reshape_2d(state->bias, 1, count + tokens - 1), tokens));
        CARRY_TRY(carry_matmul(ctx, carry_reshape_3d(carry_slice(state->mixed, first, count), 1, count, width), p,
                               part_of(state->qkv, 2, 0, tokens), NULL));
    }
    return CARRY_OK;
}

/* x += proj(attention(norm(x))) within the frame: its pixels are the tokens. */
static carry_status run_attention(const carry_wan_stream *s, const carry_wan_attention *a, side_state *state,
                                  carry_tensor x) {
    carry_ctx *ctx = s->wan->ctx;
    CARRY_SPAN(ctx, "model", "wan attention");
    const int64_t height = x.shape[0] - 2;
    const int64_t channels = x.shape[2];
    const int64_t row = (x.shape[1] - 2) * channels;
    const carry_tensor inside = carry_reshape_2d(carry_slice(x, 1, height), height, x.shape[1] * channels);
    const carry_tensor rows = carry_reshape_2d(state->tokens, height, row);
    CARRY_TRY(carry_copy_columns(ctx, rows, 0, inside, channels, row));
    CARRY_TRY(carry_rms_norm(ctx, state->normed, state->tokens, a->norm, (carry_tensor){0}, LEAST));
    CARRY_TRY(carry_affine(ctx, state->qkv, state->normed, a->qkv, a->qkv_bias, CARRY_NO_ACTIVATION, false));
    CARRY_TRY(attend(s, state));
    CARRY_TRY(carry_affine(ctx, state->tokens, state->mixed, a->proj, a->proj_bias, CARRY_NO_ACTIVATION, true));
    return carry_copy_columns(ctx, inside, channels, rows, 0, row);
}

static carry_status run_middle(const carry_wan_stream *s, const carry_wan_side *side, side_state *state, room *r) {
    CARRY_TRY(run_block(s, &side->middle[0], state->middle[0], r->x, r->x, r->work));
    CARRY_TRY(run_attention(s, &side->attention, state, r->x));
    return run_block(s, &side->middle[1], state->middle[1], r->x, r->x, r->work);
}

/* Runs the blocks of a level, from its `in` to `out`. */
static carry_status run_blocks(const carry_wan_stream *s, const carry_wan_level *level, room *r, carry_tensor out) {
    CARRY_SPAN(s->wan->ctx, "model", "wan blocks");
    for (int b = 0; b < level->blocks; b++) {
        CARRY_TRY(run_block(s, &level->block[b], r->block[b], b + 1 < level->blocks ? r->x : out, b == 0 ? r->in : r->x,
                            r->work));
    }
    return CARRY_OK;
}

static carry_status show(carry_wan_stream *s, const carry_codec_output *to, int64_t *made, carry_tensor x) {
    const carry_wan_side *side = &s->wan->decoder;
    side_state *state = &s->decoder;
    CARRY_TRY(norm_silu(s, frame_of(&state->conv_out, 0), x, side->norm_out));
    CARRY_TRY(convolve_ring(s, &side->conv_out, state->pixels, &state->conv_out, (carry_tensor){0}));
    state->conv_out.count++;
    return carry_codec_put(s->wan->ctx, to, (*made)++, state->pixels,
                           (carry_picture_map){.scale = 0.5f, .shift = 0.5f});
}

/* Processes the frame in the level's `in`, and all frames made from it, to the end. first: it belongs to a stream's
   first latent frame. */
static carry_status decode_level(carry_wan_stream *s, int at, bool first, const carry_codec_output *to, int64_t *made) {
    const carry_wan_level *level = &s->wan->decoder.level[at];
    room *r = &s->decoder.level[at];
    room *next = r + 1;
    if (!level->has_time || first) {
        CARRY_TRY(run_blocks(s, level, r, r->x));
        if (!level->resamples) {
            return show(s, to, made, r->x);
        }
        CARRY_TRY(convolve(s, &level->resample, next->in, r->x));
        return decode_level(s, at + 1, first, to, made);
    }
    CARRY_TRY(run_blocks(s, level, r, frame_of(&r->time, 0)));
    for (int i = 0; i < 2; i++) {
        CARRY_TRY(convolve_ring(s, &level->time[i], r->work, &r->time, (carry_tensor){0}));
        CARRY_TRY(convolve(s, &level->resample, next->in, r->work));
        CARRY_TRY(decode_level(s, at + 1, first, to, made));
    }
    r->time.count++;
    return CARRY_OK;
}

carry_status carry_wan_decode(carry_wan_stream *stream, const carry_codec_output *to, int64_t *made,
                              carry_tensor latent) {
    const carry_wan_side *side = &stream->wan->decoder;
    side_state *state = &stream->decoder;
    CARRY_TRY(open_side(stream, state, side, true));
    const bool first = state->conv_in.count == 0;
    CARRY_TRY(carry_picture_read(stream->wan->ctx, state->latent, latent, (carry_picture_map){.scale = 1.0f}));
    CARRY_TRY(convolve(stream, &side->quant, frame_of(&state->conv_in, 0), state->latent));
    CARRY_TRY(convolve_ring(stream, &side->conv_in, state->level[0].x, &state->conv_in, (carry_tensor){0}));
    state->conv_in.count++;
    CARRY_TRY(run_middle(stream, side, state, &state->level[0]));
    return decode_level(stream, 0, first, to, made);
}

/* Passes the output of a level to the next one. *goes is false if that has to wait for another frame. */
static carry_status resample(carry_wan_stream *s, int at, bool *goes) {
    const carry_wan_level *level = &s->wan->encoder.level[at];
    room *r = &s->encoder.level[at];
    room *next = r + 1;
    *goes = true;
    if (!level->has_time) {
        return convolve(s, &level->resample, next->in, r->x);
    }
    const carry_tensor halved = frame_of(&r->time, 0);
    CARRY_TRY(convolve(s, &level->resample, halved, r->x));
    *goes = r->time.count % 2 == 0;
    if (r->time.count == 0) {
        CARRY_TRY(carry_copy(s->wan->ctx, next->in, halved));
    } else if (*goes) {
        CARRY_TRY(convolve_ring(s, &level->time[0], next->in, &r->time, (carry_tensor){0}));
    }
    r->time.count++;
    return CARRY_OK;
}

carry_status carry_wan_encode(carry_wan_stream *stream, carry_tensor latent, carry_tensor frame) {
    const carry_wan_side *side = &stream->wan->encoder;
    side_state *state = &stream->encoder;
    room *last = &state->level[CARRY_WAN_LEVELS - 1];
    CARRY_TRY(open_side(stream, state, side, false));
    CARRY_TRY(carry_picture_read(stream->wan->ctx, frame_of(&state->conv_in, 0), frame,
                                 (carry_picture_map){.scale = 2.0f, .shift = -1.0f}));
    CARRY_TRY(convolve_ring(stream, &side->conv_in, state->level[0].in, &state->conv_in, (carry_tensor){0}));
    state->conv_in.count++;
    for (int i = 0; i < CARRY_WAN_LEVELS; i++) {
        bool goes = true;
        CARRY_TRY(run_blocks(stream, &side->level[i], &state->level[i], state->level[i].x));
        if (side->level[i].resamples) {
            CARRY_TRY(resample(stream, i, &goes));
        }
        if (!goes) {
            return CARRY_OK;
        }
    }
    CARRY_TRY(run_middle(stream, side, state, last));
    CARRY_TRY(norm_silu(stream, frame_of(&state->conv_out, 0), last->x, side->norm_out));
    CARRY_TRY(convolve_ring(stream, &side->conv_out, state->coded, &state->conv_out, (carry_tensor){0}));
    state->conv_out.count++;
    CARRY_TRY(convolve(stream, &side->quant, state->latent, state->coded));
    return carry_picture_write(stream->wan->ctx, latent, state->latent, (carry_picture_map){.scale = 1.0f});
}
