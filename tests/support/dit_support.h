/* Shared by the tests of the video transformer: small models, random latents, videos cut into chunks. */
#ifndef CARRY_TESTS_DIT_SUPPORT_H
#define CARRY_TESTS_DIT_SUPPORT_H

#include "dit_reference.h"

/* Odd sizes, 12 heads of 6 by default: pairs 1, 1, 1 of time, height and width. */
static inline carry_dit_config small_config(void) {
    return (carry_dit_config){.dim = 72,
                              .ffn_dim = 60,
                              .num_heads = 12,
                              .num_layers = 2,
                              .in_dim = 16,
                              .out_dim = 16,
                              .text_len = 5,
                              .text_dim = 7,
                              .freq_dim = 10,
                              .patch = {1, 2, 2},
                              .eps = 1e-6,
                              .qk_norm = true,
                              .cross_attn_norm = true};
}

static inline carry_dit *small_dit(carry_ctx *ctx, const carry_dit_config *config) {
    carry_dit *dit;
    assert_ok(ctx, carry_dit_new(ctx, &dit, config, NULL, 0));
    assert_ok(ctx, carry_dit_init(dit, 7));
    return dit;
}

static inline float *random_floats(carry_ctx *ctx, int64_t count, uint64_t stream) {
    float *made = malloc((size_t)count * sizeof *made + 1);
    assert_non_null(made);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(made, CARRY_F32, count), 77, stream, 0.0f, 1.0f));
    return made;
}

/* Frames first..first+count-1 of [channels, frames, area], copied out or back. */
static inline void copy_frames(float *part, float *whole, int64_t channels, int64_t frames, int64_t area, int64_t first,
                               int64_t count, bool back) {
    for (int64_t c = 0; c < channels; c++) {
        float *in_whole = whole + (c * frames + first) * area, *in_part = part + c * count * area;
        memcpy(back ? in_whole : in_part, back ? in_part : in_whole, (size_t)(count * area) * sizeof *part);
    }
}

/* A video and its split: lengths of chunks, and the diffusion time of each. */
enum { MOST_FRAMES = 40 };
typedef struct cut_video {
    reference_video v;
    float *latents, *text, *velocity;
    int64_t start[MOST_FRAMES], end[MOST_FRAMES];
    double t[MOST_FRAMES];
    int chunks;
    int64_t length[MOST_FRAMES];
} cut_video;

static inline cut_video cut(carry_ctx *ctx, const carry_dit_config *c, int64_t height, int64_t width,
                            const int64_t *lengths, int chunks) {
    cut_video video = {.chunks = chunks};
    int64_t frames = 0;
    for (int i = 0; i < chunks; i++) {
        video.length[i] = lengths[i];
        for (int64_t f = 0; f < lengths[i]; f++) {
            assert_in_range(frames + f, 0, MOST_FRAMES - 1);
            video.start[frames + f] = frames;
            video.end[frames + f] = frames + lengths[i];
            video.t[frames + f] = (double)(1000 - 130 * i % 1000);
        }
        frames += lengths[i];
    }
    video.latents = random_floats(ctx, c->in_dim * frames * height * width, 1);
    video.text = random_floats(ctx, c->text_len * c->text_dim, 2);
    video.velocity = random_floats(ctx, c->out_dim * frames * height * width, 3);
    video.v = (reference_video){.latents = video.latents,
                                .text = video.text,
                                .text_rows = c->text_len - 2,
                                .frames = frames,
                                .height = height,
                                .width = width,
                                .window = frames};
    return video;
}

static inline void close_video(cut_video *video) {
    free(video->latents);
    free(video->text);
    free(video->velocity);
}

static inline carry_tensor text_of(const carry_dit *dit, const cut_video *video) {
    return carry_view_2d(video->text, CARRY_F32, video->v.text_rows, dit->config.text_dim);
}

/* Runs chunks from..to-1 of the video in one call, with these latents, and stores their velocities. */
static inline carry_status run_chunks(carry_dit *dit, carry_dit_cache *cache, cut_video *video, float *latents,
                                      int from, int to, bool wanted) {
    const carry_dit_config *c = &dit->config;
    const int64_t area = video->v.height * video->v.width;
    carry_dit_chunk chunk[CARRY_DIT_CHUNKS] = {{.t = 0.0}};
    float *part[CARRY_DIT_CHUNKS][2];
    int64_t start[CARRY_DIT_CHUNKS + 1] = {0};
    for (int i = 0; i < from; i++) {
        start[0] += video->length[i];
    }
    for (int i = 0; i < to - from; i++) {
        const int64_t frames = video->length[from + i];
        part[i][0] = malloc((size_t)(c->in_dim * frames * area) * sizeof(float));
        part[i][1] = malloc((size_t)(c->out_dim * frames * area) * sizeof(float));
        memset(part[i][1], 255, (size_t)(c->out_dim * frames * area) * sizeof(float));
        copy_frames(part[i][0], latents, c->in_dim, video->v.frames, area, start[i], frames, false);
        chunk[i] = (carry_dit_chunk){
            .latents = carry_view_4d(part[i][0], CARRY_F32, c->in_dim, frames, video->v.height, video->v.width),
            .t = video->t[start[i]],
            .start = start[i]};
        if (wanted) {
            chunk[i].velocity =
                carry_view_4d(part[i][1], CARRY_F32, c->out_dim, frames, video->v.height, video->v.width);
        }
        start[i + 1] = start[i] + frames;
    }
    carry_status status = carry_dit_forward(dit, cache, chunk, to - from, (float)video->v.bias);
    for (int i = 0; i < to - from; i++) {
        if (wanted && status == CARRY_OK) {
            copy_frames(part[i][1], video->velocity, c->out_dim, video->v.frames, area, start[i],
                        video->length[from + i], true);
        }
        free(part[i][0]);
        free(part[i][1]);
    }
    return status;
}

static inline double *wanted_velocity(const carry_dit *dit, cut_video *video) {
    video->v.start = video->start;
    video->v.end = video->end;
    video->v.t = video->t;
    return reference_velocity(dit, &video->v);
}

/* Relative RMS over frames first..last-1. */
static inline double velocity_error(const carry_dit *dit, const cut_video *video, const double *wanted, int64_t first,
                                    int64_t last) {
    const int64_t area = video->v.height * video->v.width;
    double difference = 0.0, magnitude = 0.0;
    for (int64_t i = 0; i < dit->config.out_dim * video->v.frames * area; i++) {
        const int64_t frame = i / area % video->v.frames;
        if (frame >= first && frame < last) {
            const double off = (double)video->velocity[i] - wanted[i];
            difference += off * off;
            magnitude += wanted[i] * wanted[i];
        }
    }
    return sqrt(difference / magnitude); /* a NaN fails every comparison with a bound */
}

#endif
