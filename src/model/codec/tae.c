/* Encodes or decodes video with a tiny autoencoder, one frame at a time.

   A level has these pictures: the inputs of each of its blocks, for this frame and for the one before (they are
   swapped, so nothing is copied), and two work buffers. In the decoder, a latent frame is one frame of the first level,
   which becomes one frame of the second, which becomes two of the third, and so on. The first of two frames passes
   through all later levels before the second does, so every level gets its frames in order and needs no queue. */
#include "model/codec/tae.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/codec/codec_kind.h"

typedef struct room {
    carry_tensor in[CARRY_TAE_BLOCKS][2]; /* inputs of the blocks */
    carry_tensor work[2];                 /* the output of a level is in work[0] */
    carry_tensor pooled;                  /* encoder: sum over the pooled frames */
    int now;                              /* index of this frame's picture in `in` */
    int filled;                           /* encoder: frames in pooled */
    bool started;                         /* the other picture of `in` is a frame of this stream */
} room;

struct carry_tae_stream {
    const carry_tae *tae;
    int64_t height, width;
    room decoder[CARRY_TAE_LEVELS], encoder[CARRY_TAE_LEVELS];
    carry_tensor latent, decoded, pixels; /* decoder: 16 channels; input of the last convolution; 3 channels */
    carry_tensor coded, read, entered;    /* encoder: 16 channels; 3 channels; output of the first convolution */
    int trimmed;                          /* frames at the start of this stream that are still to be dropped */
    void *memory;
};

/* The border of zeros needs no code: the memory is zeroed when it is allocated. */
static carry_tensor take(const carry_tae_stream *s, carry_arena *arena, int64_t height, int64_t width,
                         int64_t channels) {
    const int64_t shape[] = {height + 2, width + 2, channels};
    return carry_arena_tensor(arena, s->tae->device, s->tae->dtype, 3, shape);
}

static void take_room(const carry_tae_stream *s, carry_arena *arena, room *r, int64_t height, int64_t width,
                      int64_t channels) {
    for (int i = 0; i < CARRY_TAE_BLOCKS; i++) {
        r->in[i][0] = take(s, arena, height, width, channels);
        r->in[i][1] = take(s, arena, height, width, channels);
    }
    r->work[0] = take(s, arena, height, width, channels);
    r->work[1] = take(s, arena, height, width, channels);
}

static void lay_out(carry_tae_stream *s, carry_arena *arena) {
    const carry_tae *t = s->tae;
    int64_t height = s->height / CARRY_LATENT_BLOCK;
    int64_t width = s->width / CARRY_LATENT_BLOCK;
    s->latent = take(s, arena, height, width, CARRY_LATENT_CHANNELS);
    s->coded = take(s, arena, height, width, CARRY_LATENT_CHANNELS);
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        take_room(s, arena, &s->decoder[i], height << i, width << i, t->decoder.level[i].width);
    }
    s->decoded = take(s, arena, s->height, s->width, t->decoder.last.in);
    s->pixels = take(s, arena, s->height, s->width, t->decoder.last.out);
    s->read = take(s, arena, s->height, s->width, t->encoder.first.in);
    s->entered = take(s, arena, s->height, s->width, t->encoder.first.out);
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        const carry_tae_level *level = &t->encoder.level[i];
        s->encoder[i].pooled = take(s, arena, s->height >> i, s->width >> i, level->step[0].out);
        take_room(s, arena, &s->encoder[i], s->height >> (i + 1), s->width >> (i + 1), level->width);
    }
}

carry_status carry_tae_stream_new(const carry_tae *tae, carry_tae_stream **stream, int64_t height, int64_t width) {
    carry_arena arena = {0};
    size_t bytes = 0;
    carry_tae_stream *s = calloc(1, sizeof *s);
    *stream = NULL;
    if (s != NULL) {
        *s = (carry_tae_stream){.tae = tae, .height = height, .width = width};
        lay_out(s, &arena);
    }
    carry_status status;
    if (s == NULL || !carry_arena_total(&arena, &bytes)) {
        status = carry_fail(tae->ctx, CARRY_EMEMORY, "out of memory: streaming pictures of %lld x %lld",
                            (long long)height, (long long)width);
    } else {
        status = carry_codec_pictures(tae->ctx, &s->memory, tae->device, bytes, height, width);
    }
    if (status != CARRY_OK) {
        free(s);
        return status;
    }
    arena = carry_arena_over(s->memory, bytes);
    lay_out(s, &arena);
    carry_tae_stream_reset(s);
    *stream = s;
    return CARRY_OK;
}

void carry_tae_stream_free(carry_tae_stream *stream) {
    if (stream != NULL) {
        carry_codec_memory_free(stream->tae->ctx, stream->tae->device, stream->memory);
        free(stream);
    }
}

void carry_tae_stream_reset(carry_tae_stream *stream) {
    stream->trimmed = CARRY_TAE_RATIO - 1;
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        stream->decoder[i].started = false;
        stream->encoder[i].started = false;
        stream->encoder[i].filled = 0;
    }
}

static carry_status convolve(const carry_tae_stream *s, const carry_codec_conv *conv, carry_tensor y, carry_tensor x,
                             bool relu) {
    return carry_conv2d(
        s->tae->ctx,
        &(carry_conv2d_args){
            .y = y, .x = x, .w = conv->w, .bias = conv->bias, .form = conv->form, .in = conv->in, .relu = relu});
}

/* Runs the blocks of a level, from in[0], with this frame's picture, to work[0]. */
static carry_status run_blocks(const carry_tae_stream *s, const carry_tae_level *level, room *r) {
    CARRY_SPAN(s->tae->ctx, "model", "tae blocks");
    carry_ctx *ctx = s->tae->ctx;
    for (int i = 0; i < CARRY_TAE_BLOCKS; i++) {
        const carry_codec_conv *conv = level->block[i];
        carry_tensor x = r->in[i][r->now];
        carry_tensor past = r->started ? r->in[i][!r->now] : (carry_tensor){0};
        carry_tensor out = i + 1 < CARRY_TAE_BLOCKS ? r->in[i + 1][r->now] : r->work[0];
        CARRY_TRY(carry_conv2d(ctx, &(carry_conv2d_args){.y = r->work[0],
                                                         .x = x,
                                                         .past = past,
                                                         .w = conv[0].w,
                                                         .bias = conv[0].bias,
                                                         .in = conv[0].in,
                                                         .relu = true}));
        CARRY_TRY(convolve(s, &conv[1], r->work[1], r->work[0], true));
        CARRY_TRY(carry_conv2d(ctx, &(carry_conv2d_args){.y = out,
                                                         .x = r->work[1],
                                                         .w = conv[2].w,
                                                         .bias = conv[2].bias,
                                                         .add = x,
                                                         .in = conv[2].in,
                                                         .relu = true}));
    }
    r->now = !r->now;
    r->started = true;
    return CARRY_OK;
}

/* Processes the frame in in[0] of a level through this and all later levels, with all frames that it becomes. */
static carry_status decode_level(carry_tae_stream *s, int at, const carry_codec_output *to, int64_t *made) {
    const carry_tae_side *side = &s->tae->decoder;
    const carry_tae_level *level = &side->level[at];
    room *r = &s->decoder[at];
    bool last = at + 1 == CARRY_TAE_LEVELS;
    CARRY_TRY(run_blocks(s, level, r));
    for (int i = 0; i < level->steps; i++) {
        if (last && s->trimmed > 0) { /* no later level has a state, so the frame can be dropped here */
            s->trimmed--;
            continue;
        }
        room *next = last ? NULL : &s->decoder[at + 1];
        CARRY_TRY(convolve(s, &level->step[i], r->work[1], r->work[0], false));
        CARRY_TRY(convolve(s, &level->conv, last ? s->decoded : next->in[0][next->now], r->work[1], last));
        if (!last) {
            CARRY_TRY(decode_level(s, at + 1, to, made));
            continue;
        }
        CARRY_TRY(convolve(s, &side->last, s->pixels, s->decoded, false));
        CARRY_TRY(carry_codec_put(s->tae->ctx, to, (*made)++, s->pixels, (carry_picture_map){.scale = 1.0f}));
    }
    return CARRY_OK;
}

carry_status carry_tae_decode(carry_tae_stream *stream, const carry_codec_output *to, int64_t *made,
                              carry_tensor latent) {
    room *r = &stream->decoder[0];
    CARRY_TRY(carry_picture_read(stream->tae->ctx, stream->latent, latent,
                                 (carry_picture_map){.scale = 1.0f, .tanh3 = true}));
    CARRY_TRY(convolve(stream, &stream->tae->decoder.first, r->in[0][r->now], stream->latent, true));
    return decode_level(stream, 0, to, made);
}

carry_status carry_tae_encode(carry_tae_stream *stream, carry_tensor latent, carry_tensor frame) {
    const carry_picture_map as_is = {.scale = 1.0f};
    const carry_tae_side *side = &stream->tae->encoder;
    carry_tensor picture = stream->entered;
    CARRY_TRY(carry_picture_read(stream->tae->ctx, stream->read, frame, as_is));
    CARRY_TRY(convolve(stream, &side->first, picture, stream->read, true));
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        const carry_tae_level *level = &side->level[i];
        const carry_codec_conv *step = &level->step[stream->encoder[i].filled];
        room *r = &stream->encoder[i];
        CARRY_TRY(
            carry_conv2d(stream->tae->ctx, &(carry_conv2d_args){.y = r->pooled,
                                                                .x = picture,
                                                                .w = step->w,
                                                                .add = r->filled > 0 ? r->pooled : (carry_tensor){0},
                                                                .form = step->form,
                                                                .in = step->in}));
        r->filled++;
        if (r->filled < level->steps) {
            return CARRY_OK;
        }
        r->filled = 0;
        CARRY_TRY(convolve(stream, &level->conv, r->in[0][r->now], r->pooled, false));
        CARRY_TRY(run_blocks(stream, level, r));
        picture = r->work[0];
    }
    CARRY_TRY(convolve(stream, &side->last, stream->coded, picture, false));
    return carry_picture_write(stream->tae->ctx, latent, stream->coded, as_is);
}
