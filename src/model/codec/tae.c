/* Frames through a tiny video autoencoder, one at a time.

   A level's pictures: what enters each of its blocks, now and a frame ago (they change places, so nothing is copied),
   and two that blocks work in. Time is a tree: a latent frame is one frame of the first level, whose one grown frame is
   one of the second, whose two are those of the third, and so on; each is taken to its end before the next begins, in
   the order of time, so every level sees its frames in order and needs no queue. */
#include "model/codec/tae.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/threads.h"
#include "model/codec/codec_kind.h"

typedef struct room {
    carry_tensor in[CARRY_TAE_BLOCKS][2]; /* what entered a block */
    carry_tensor work[2];                 /* the result of a level is in the first */
    carry_tensor pooled;                  /* encoder: sum over the frames that are pooled */
    int now;                              /* which of in is this frame's */
    int filled;                           /* encoder: frames in pooled */
    bool started;                         /* the other of in is a frame of this stream */
} room;

struct carry_tae_stream {
    const carry_tae *tae;
    int64_t height, width;
    room decoder[CARRY_TAE_LEVELS], encoder[CARRY_TAE_LEVELS];
    carry_tensor latent, decoded, pixels; /* decoder: 16 channels; before the last convolution; 3 channels */
    carry_tensor coded, read, entered;    /* encoder: 16 channels; 3 channels; after the first convolution */
    int trimmed;                          /* frames that this stream's start still leaves out */
    void *memory;
};

/* The frame of zeros comes with the memory, which starts as zeros. */
static carry_tensor take(carry_arena *arena, int64_t height, int64_t width, int64_t channels) {
    const int64_t shape[] = {height + 2, width + 2, channels};
    size_t count = SIZE_MAX; /* more than can be allocated */
    (void)carry_size_product(&count, shape, 3, 1);
    return carry_view(carry_arena_take(arena, count, sizeof(float)), CARRY_F32, 3, shape);
}

static void take_room(carry_arena *arena, room *r, int64_t height, int64_t width, int64_t channels) {
    for (int i = 0; i < CARRY_TAE_BLOCKS; i++) {
        r->in[i][0] = take(arena, height, width, channels);
        r->in[i][1] = take(arena, height, width, channels);
    }
    r->work[0] = take(arena, height, width, channels);
    r->work[1] = take(arena, height, width, channels);
}

static void lay_out(carry_tae_stream *s, carry_arena *arena) {
    const carry_tae *t = s->tae;
    int64_t height = s->height / CARRY_LATENT_BLOCK;
    int64_t width = s->width / CARRY_LATENT_BLOCK;
    s->latent = take(arena, height, width, CARRY_LATENT_CHANNELS);
    s->coded = take(arena, height, width, CARRY_LATENT_CHANNELS);
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        take_room(arena, &s->decoder[i], height << i, width << i, t->decoder.level[i].width);
    }
    s->decoded = take(arena, s->height, s->width, t->decoder.last.in);
    s->pixels = take(arena, s->height, s->width, t->decoder.last.out);
    s->read = take(arena, s->height, s->width, t->encoder.first.in);
    s->entered = take(arena, s->height, s->width, t->encoder.first.out);
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        const carry_tae_level *level = &t->encoder.level[i];
        s->encoder[i].pooled = take(arena, s->height >> i, s->width >> i, level->step[0].out);
        take_room(arena, &s->encoder[i], s->height >> (i + 1), s->width >> (i + 1), level->width);
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
        s->memory = carry_arena_total(&arena, &bytes) ? calloc(bytes, 1) : NULL;
    }
    if (s == NULL || s->memory == NULL) {
        free(s);
        return carry_fail(tae->ctx, CARRY_EMEMORY, "no memory to stream pictures of %lld x %lld (%zu bytes)",
                          (long long)height, (long long)width, bytes);
    }
    arena = carry_arena_over(s->memory, bytes);
    lay_out(s, &arena);
    carry_tae_stream_reset(s);
    *stream = s;
    return CARRY_OK;
}

void carry_tae_stream_free(carry_tae_stream *stream) {
    if (stream != NULL) {
        free(stream->memory);
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

static carry_status convolve(const carry_tae_stream *s, const carry_tae_conv *conv, carry_tensor y, carry_tensor x,
                             bool relu) {
    return carry_conv2d(
        s->tae->ctx,
        &(carry_conv2d_args){
            .y = y, .x = x, .w = conv->w, .bias = conv->bias, .form = conv->form, .in = conv->in, .relu = relu});
}

/* From in[0], this frame's, to work[0]. */
static carry_status run_blocks(const carry_tae_stream *s, const carry_tae_level *level, room *r) {
    CARRY_SPAN(s->tae->ctx, "model", "tae blocks");
    carry_ctx *ctx = s->tae->ctx;
    for (int i = 0; i < CARRY_TAE_BLOCKS; i++) {
        const carry_tae_conv *conv = level->block[i];
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

/* Between pictures of channels last and planes that are next_channel numbers apart. */
typedef struct planes {
    carry_tensor picture;
    float *plane;
    const float *from; /* or this, to read */
    int64_t next_channel;
} planes;

/* NaN becomes 0, so that a picture is one whatever the latents are. */
static float in_range(float value) {
    return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f;
}

static void write_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const planes *p = argument;
    int64_t width = p->picture.shape[1] - 2;
    int64_t channels = p->picture.shape[2];
    for (int64_t y = begin; y < end; y++) {
        const float *row = (const float *)p->picture.data + ((y + 1) * (width + 2) + 1) * channels;
        for (int64_t c = 0; c < channels; c++) {
            float *to = p->plane + c * p->next_channel + y * width;
            for (int64_t x = 0; x < width; x++) {
                to[x] = row[x * channels + c];
            }
        }
    }
}

static void write_frame_rows(void *argument, int64_t begin, int64_t end, int worker) {
    const planes *p = argument;
    int64_t width = p->picture.shape[1] - 2;
    write_rows(argument, begin, end, worker);
    for (int64_t c = 0; c < p->picture.shape[2]; c++) {
        float *to = p->plane + c * p->next_channel;
        for (int64_t i = begin * width; i < end * width; i++) {
            to[i] = in_range(to[i]);
        }
    }
}

static void read_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const planes *p = argument;
    int64_t width = p->picture.shape[1] - 2;
    int64_t channels = p->picture.shape[2];
    for (int64_t y = begin; y < end; y++) {
        float *row = (float *)p->picture.data + ((y + 1) * (width + 2) + 1) * channels;
        for (int64_t i = 0; i < width * channels; i++) {
            row[i] = p->from[i % channels * p->next_channel + y * width + i / channels];
        }
    }
}

static void read_latent_rows(void *argument, int64_t begin, int64_t end, int worker) {
    const planes *p = argument;
    int64_t pitch = p->picture.shape[1] * p->picture.shape[2];
    read_rows(argument, begin, end, worker);
    float *data = p->picture.data;
    for (int64_t i = (begin + 1) * pitch; i < (end + 1) * pitch; i++) {
        data[i] = 3.0f * tanhf(data[i] / 3.0f); /* the frame stays 0 */
    }
}

static void each_row(const carry_tae_stream *s, carry_task task, planes p) {
    carry_parallel(s->tae->ctx, p.picture.shape[0] - 2, 16, task, &p);
}

/* Frames of one level, in in[0], to the end of all that they grow into. */
static carry_status decode_level(carry_tae_stream *s, int at, float *frames, int64_t *made) {
    const carry_tae_side *side = &s->tae->decoder;
    const carry_tae_level *level = &side->level[at];
    room *r = &s->decoder[at];
    bool last = at + 1 == CARRY_TAE_LEVELS;
    CARRY_TRY(run_blocks(s, level, r));
    for (int i = 0; i < level->steps; i++) {
        if (last && s->trimmed > 0) { /* nothing beyond this level remembers */
            s->trimmed--;
            continue;
        }
        room *next = last ? NULL : &s->decoder[at + 1];
        CARRY_TRY(convolve(s, &level->step[i], r->work[1], r->work[0], false));
        CARRY_TRY(convolve(s, &level->conv, last ? s->decoded : next->in[0][next->now], r->work[1], last));
        if (!last) {
            CARRY_TRY(decode_level(s, at + 1, frames, made));
            continue;
        }
        CARRY_TRY(convolve(s, &side->last, s->pixels, s->decoded, false));
        int64_t area = s->height * s->width;
        each_row(s, write_frame_rows,
                 (planes){.picture = s->pixels, .plane = frames + *made * 3 * area, .next_channel = area});
        ++*made;
    }
    return CARRY_OK;
}

carry_status carry_tae_decode(carry_tae_stream *stream, float *frames, int64_t *made, const float *latent,
                              int64_t next_channel) {
    room *r = &stream->decoder[0];
    *made = 0;
    each_row(stream, read_latent_rows,
             (planes){.picture = stream->latent, .from = latent, .next_channel = next_channel});
    CARRY_TRY(convolve(stream, &stream->tae->decoder.first, r->in[0][r->now], stream->latent, true));
    return decode_level(stream, 0, frames, made);
}

carry_status carry_tae_encode(carry_tae_stream *stream, float *latent, int64_t next_channel, const float *frame) {
    const carry_tae_side *side = &stream->tae->encoder;
    carry_tensor picture = stream->entered;
    each_row(stream, read_rows,
             (planes){.picture = stream->read, .from = frame, .next_channel = stream->height * stream->width});
    CARRY_TRY(convolve(stream, &side->first, picture, stream->read, true));
    for (int i = 0; i < CARRY_TAE_LEVELS; i++) {
        const carry_tae_level *level = &side->level[i];
        const carry_tae_conv *step = &level->step[stream->encoder[i].filled];
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
    each_row(stream, write_rows, (planes){.picture = stream->coded, .plane = latent, .next_channel = next_channel});
    return CARRY_OK;
}
