/* Drawing, encoding and noising batches of shapes. */
#include "train/dit/shapes_batch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/threads.h"
#include "model/codec/codec.h"
#include "model/dit/words.h"

#define CAPTIONS (CARRY_SHAPE_FORMS * CARRY_SHAPE_COLOURS * CARRY_SHAPE_DIRECTIONS)
#define TEXTS 2
#define STARTS 0.5
#define OWN_STEPS 0.5 /* fraction of times that are steps of the sampler */
#define FIRST_FRAMES 900
#define TIME_STREAM 0x74696d65
#define NOISE_STREAM 0x6e6f0000
#define OWN_STREAM 0x6f770000

struct carry_shapes_batch {
    carry_ctx *ctx;
    carry_dit_config config;
    carry_shapes_batch_options options;
    carry_shapes_options shapes;
    int64_t latent, count; /* number of elements of a chunk, and of a video */
    carry_codec **codec;   /* one per video, since videos are made in parallel */
    float *pixels;         /* [videos, chunk, 3, side, side] */
    float *clean, *noisy, *target, *noise;
    float *rough, *velocity; /* of the forward pass that computes a past */
    double *rough_t;
    float *words, *text; /* words: [CAPTIONS + 1, text_len, text_dim], the last for no words; text: [videos * TEXTS,
                            ...] */
    double *t;
    int64_t *caption, *start;
    float *weight;
    int64_t first;
};

static int64_t text_count(const carry_dit_config *c) {
    return c->text_len * c->text_dim;
}

static int caption_index(carry_shape s) {
    return (s.form * CARRY_SHAPE_COLOURS + s.colour) * CARRY_SHAPE_DIRECTIONS + s.direction;
}

/* There are few captions: each is encoded once. */
static carry_status encode_captions(carry_shapes_batch *b) {
    const int64_t n = text_count(&b->config);
    for (int i = 0; i <= CAPTIONS; i++) {
        const carry_shape s = {.form = i / CARRY_SHAPE_DIRECTIONS / CARRY_SHAPE_COLOURS,
                               .colour = i / CARRY_SHAPE_DIRECTIONS % CARRY_SHAPE_COLOURS,
                               .direction = i % CARRY_SHAPE_DIRECTIONS};
        char text[CARRY_SHAPE_CAPTION] = "";
        if (i < CAPTIONS) {
            (void)carry_shape_caption(text, s);
        }
        CARRY_TRY(carry_words_encode(b->ctx,
                                     carry_view_2d(b->words + i * n, CARRY_F32, b->config.text_len, b->config.text_dim),
                                     NULL, NULL, text, strlen(text)));
    }
    return CARRY_OK;
}

static carry_status take(carry_shapes_batch *b, void *pointer, const int64_t *factors, int count, size_t item) {
    size_t bytes;
    void *memory = carry_size_product(&bytes, factors, count, item) ? carry_aligned_new(bytes + 1) : NULL;
    if (memory == NULL) {
        return carry_fail(b->ctx, CARRY_EMEMORY, "out of memory: a batch of %lld videos", (long long)b->options.videos);
    }
    memset(memory, 0, bytes);
    *(void **)pointer = memory;
    return CARRY_OK;
}

static carry_status make(carry_shapes_batch *b) {
    const carry_shapes_batch_options *o = &b->options;
    const int64_t latents[] = {o->videos, b->count};
    const int64_t places[] = {o->videos, o->chunks};
    const int64_t pixels[] = {o->videos, o->chunk, 3, o->side, o->side};
    const int64_t words[] = {CAPTIONS + 1, text_count(&b->config)};
    const int64_t text[] = {o->videos, TEXTS, text_count(&b->config)};
    CARRY_TRY(take(b, &b->codec, &o->videos, 1, sizeof(carry_codec *)));
    CARRY_TRY(take(b, &b->pixels, pixels, 5, sizeof(float)));
    CARRY_TRY(take(b, &b->clean, latents, 2, sizeof(float)));
    CARRY_TRY(take(b, &b->noisy, latents, 2, sizeof(float)));
    CARRY_TRY(take(b, &b->target, latents, 2, sizeof(float)));
    CARRY_TRY(take(b, &b->noise, latents, 2, sizeof(float)));
    CARRY_TRY(take(b, &b->rough, latents, 2, sizeof(float)));
    CARRY_TRY(take(b, &b->velocity, latents, 2, sizeof(float)));
    CARRY_TRY(take(b, &b->rough_t, places, 2, sizeof *b->rough_t));
    CARRY_TRY(take(b, &b->words, words, 2, sizeof(float)));
    CARRY_TRY(take(b, &b->text, text, 3, sizeof(float)));
    CARRY_TRY(take(b, &b->t, places, 2, sizeof *b->t));
    CARRY_TRY(take(b, &b->caption, places, 2, sizeof *b->caption));
    CARRY_TRY(take(b, &b->weight, places, 2, sizeof *b->weight));
    CARRY_TRY(take(b, &b->start, &o->videos, 1, sizeof *b->start));
    const carry_codec_size size = {.height = o->side, .width = o->side, .most = o->chunk};
    for (int64_t i = 0; i < o->videos; i++) {
        CARRY_TRY(carry_codec_open(b->ctx, &b->codec[i], NULL, &size));
    }
    return encode_captions(b);
}

carry_status carry_shapes_batch_new(carry_ctx *ctx, carry_shapes_batch **made, const carry_dit_config *config,
                                    const carry_shapes_batch_options *options) {
    carry_shapes_batch *b = calloc(1, sizeof *b);
    *made = NULL;
    if (b == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: batches");
    }
    b->ctx = ctx;
    b->config = *config;
    b->options = *options;
    b->shapes = (carry_shapes_options){.side = options->side,
                                       .frames = options->chunks * options->chunk,
                                       .chunk = options->chunk,
                                       .speed = options->speed,
                                       .starts = STARTS,
                                       .changes = options->changes,
                                       .unnamed = options->unnamed};
    b->latent = config->in_dim * options->chunk * (options->side / 8) * (options->side / 8);
    b->count = b->latent * options->chunks;
    carry_status status = make(b);
    if (status != CARRY_OK) {
        carry_shapes_batch_free(b);
        return status;
    }
    *made = b;
    return CARRY_OK;
}

void carry_shapes_batch_free(carry_shapes_batch *b) {
    if (b == NULL) {
        return;
    }
    for (int64_t i = 0; b->codec != NULL && i < b->options.videos; i++) {
        carry_codec_free(b->codec[i]);
    }
    void *const owned[] = {b->codec, b->pixels,  b->clean,  b->noisy, b->target, b->noise,    b->words,  b->text,
                           b->t,     b->caption, b->weight, b->start, b->rough,  b->velocity, b->rough_t};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        free(owned[i]);
    }
    free(b);
}

/* The time of a chunk in the model's unit: 1000 sigma. */
static double time_of(const carry_shapes_batch *b, int64_t index, int64_t chunk, double *past) {
    const carry_dit_config *c = &b->config;
    const carry_words w = carry_philox(b->options.seed, TIME_STREAM, (uint64_t)(index * b->options.chunks + chunk));
    const double chance = (double)w.word[0] * 0x1p-32;
    const double where = (double)w.word[1] * 0x1p-32;
    *past = b->options.past_noise * (double)w.word[2] * 0x1p-32;
    const bool is_own = c->steps > 0 && chance < OWN_STEPS;
    const double t = is_own ? (double)c->step[(int64_t)(where * (double)c->steps)] : 1000.0 * (1.0 - where);
    return 1000.0 * carry_flow_sigma(t, c->shift);
}

/* Draws a chunk and stores its latents in `target`, which is computed from them later. */
static carry_status draw_chunk(carry_shapes_batch *b, const carry_shapes_video *video, int64_t v, int64_t chunk) {
    const carry_shapes_batch_options *o = &b->options;
    const int64_t frame = 3 * o->side * o->side;
    float *pixels = b->pixels + v * o->chunk * frame;
    for (int64_t f = 0; f < o->chunk; f++) {
        double x;
        double y;
        const carry_shape s = carry_shapes_at(&b->shapes, video, chunk * o->chunk + f, &x, &y);
        carry_shape_draw(pixels + f * frame, o->side, s, x, y);
    }
    return carry_codec_encode(b->codec[v],
                              carry_view_4d(b->target + v * b->count + chunk * b->latent, CARRY_F32, b->config.in_dim,
                                            o->chunk, o->side / 8, o->side / 8),
                              carry_view_4d(pixels, CARRY_F32, o->chunk, 3, o->side, o->side));
}

static carry_status make_chunk(carry_shapes_batch *b, const carry_shapes_video *video, int64_t v, int64_t chunk) {
    const int64_t index = b->first + v;
    const int64_t place = v * b->options.chunks + chunk;
    const int64_t at = v * b->count + chunk * b->latent;
    double past;
    b->t[place] = time_of(b, index, chunk, &past);
    CARRY_TRY(draw_chunk(b, video, v, chunk));
    float *noise = b->noise + at;
    const uint64_t stream = (uint64_t)(index * b->options.chunks + chunk) << 1;
    const carry_tensor all = carry_view_1d(noise, CARRY_F32, b->latent);
    CARRY_TRY(carry_random_normal(b->ctx, all, b->options.seed ^ NOISE_STREAM, stream | 1, 0.0f, (float)past));
    for (int64_t i = 0; i < b->latent; i++) {
        b->clean[at + i] = b->target[at + i] + noise[i];
    }
    CARRY_TRY(carry_random_normal(b->ctx, all, b->options.seed ^ NOISE_STREAM, stream, 0.0f, 1.0f));
    const float sigma = (float)(1e-3 * b->t[place]);
    for (int64_t i = 0; i < b->latent; i++) {
        const float x = b->target[at + i];
        b->noisy[at + i] = (1.0f - sigma) * x + sigma * noise[i];
        b->target[at + i] = noise[i] - x;
    }
    b->caption[place] = chunk * b->options.chunk < video->change ? 0 : 1;
    const bool shows = chunk * b->options.chunk >= video->blank;
    b->weight[place] = shows && (chunk > 0 || video->is_start) ? 1.0f : 0.0f;
    return CARRY_OK;
}

static carry_status make_video(carry_shapes_batch *b, int64_t v) {
    const int64_t index = b->first + v;
    const carry_shapes_video video = carry_shapes_video_of(&b->shapes, b->options.seed, index);
    const size_t n = (size_t)text_count(&b->config);
    for (int i = 0; i < TEXTS; i++) {
        const size_t caption = (size_t)(video.is_unnamed ? CAPTIONS : caption_index(video.shape[i]));
        memcpy(b->text + (size_t)(v * TEXTS + i) * n, b->words + caption * n, n * sizeof(float));
    }
    b->start[v] = (int64_t)(carry_philox(b->options.seed, TIME_STREAM + 1, (uint64_t)index).word[0] % FIRST_FRAMES);
    for (int64_t chunk = 0; chunk < b->options.chunks; chunk++) {
        CARRY_TRY(make_chunk(b, &video, v, chunk));
    }
    return CARRY_OK;
}

typedef struct video_job {
    carry_shapes_batch *batch;
    carry_status (*work)(carry_shapes_batch *batch, int64_t video);
    _Atomic int status;
} video_job;

static void run_videos(void *argument, int64_t begin, int64_t end, int worker) {
    video_job *j = argument;
    (void)worker;
    for (int64_t v = begin; v < end; v++) {
        const carry_status status = j->work(j->batch, v + 1);
        if (status != CARRY_OK) {
            atomic_store(&j->status, (int)status);
        }
    }
}

/* Makes the first video alone, so that errors are reported there, before threads start. */
static carry_status each_video(carry_shapes_batch *b, carry_status (*work)(carry_shapes_batch *batch, int64_t video)) {
    video_job j = {.batch = b, .work = work};
    CARRY_TRY(work(b, 0));
    carry_parallel(b->ctx, b->options.videos - 1, 1, run_videos, &j);
    return (carry_status)atomic_load(&j.status);
}

static void fill_args(const carry_shapes_batch *b, carry_dit_pass_args *args) {
    const carry_shapes_batch_options *o = &b->options;
    const int64_t shape[] = {o->videos, o->chunks, b->config.in_dim, o->chunk, o->side / 8, o->side / 8};
    args->clean = carry_view(b->clean, CARRY_F32, 6, shape);
    args->noisy = carry_view(b->noisy, CARRY_F32, 6, shape);
    args->target = carry_view(b->target, CARRY_F32, 6, shape);
    args->text = carry_view_3d(b->text, CARRY_F32, o->videos * TEXTS, b->config.text_len, b->config.text_dim);
    args->t = b->t;
    args->caption = b->caption;
    args->start = b->start;
    args->weight = b->weight;
}

carry_status carry_shapes_batch_make(carry_shapes_batch *b, int64_t first, carry_dit_pass_args *args, double *counted) {
    const carry_shapes_batch_options *o = &b->options;
    b->first = first;
    CARRY_TRY(each_video(b, make_video));
    fill_args(b, args);
    *counted = 0.0;
    for (int64_t i = 0; i < o->videos * o->chunks; i++) {
        *counted += (double)b->weight[i] * (double)b->latent;
    }
    return CARRY_OK;
}

/* Adds noise to the clean latents, as much as before one of the sampler's last two steps. The model's output for them
   becomes the past: it has errors if two steps were left, and few if one was left. */
static carry_status roughen_video(carry_shapes_batch *b, int64_t v) {
    const carry_dit_config *c = &b->config;
    for (int64_t chunk = 0; chunk < b->options.chunks; chunk++) {
        const int64_t place = v * b->options.chunks + chunk;
        const uint64_t stream = (uint64_t)((b->first + v) * b->options.chunks + chunk);
        const int64_t back = 1 + (int64_t)(carry_philox(b->options.seed, OWN_STREAM, stream).word[0] & 1);
        const double t = c->steps >= back ? (double)c->step[c->steps - back] : 250.0 * (double)back;
        const double sigma = carry_flow_sigma(t, c->shift);
        const double told = 1e-3 * b->t[place];
        float *to = b->rough + place * b->latent;
        CARRY_TRY(carry_random_normal(b->ctx, carry_view_1d(to, CARRY_F32, b->latent), b->options.seed ^ OWN_STREAM,
                                      stream, 0.0f, 1.0f));
        for (int64_t i = 0; i < b->latent; i++) {
            const int64_t at = place * b->latent + i;
            const double x = (double)b->noisy[at] - told * (double)b->target[at];
            to[i] = (float)((1.0 - sigma) * x + sigma * (double)to[i]);
        }
        b->rough_t[place] = 1000.0 * sigma;
    }
    return CARRY_OK;
}

carry_status carry_shapes_batch_own(carry_shapes_batch *b, carry_dit_pass_args *args) {
    CARRY_TRY(each_video(b, roughen_video));
    fill_args(b, args);
    args->noisy.data = b->rough;
    args->velocity = args->noisy;
    args->velocity.data = b->velocity;
    args->target = (carry_tensor){.data = NULL};
    args->t = b->rough_t;
    return CARRY_OK;
}

void carry_shapes_batch_past(carry_shapes_batch *b) {
    for (int64_t place = 0; place < b->options.videos * b->options.chunks; place++) {
        const float sigma = (float)(1e-3 * b->rough_t[place]);
        for (int64_t i = place * b->latent; i < (place + 1) * b->latent; i++) {
            b->clean[i] = b->rough[i] - sigma * b->velocity[i];
        }
    }
}
