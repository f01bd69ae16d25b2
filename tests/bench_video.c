/* Streams with video input and random weights: bench_video CONFIG WIDTH HEIGHT WINDOW CHUNKS CODEC [DEVICE].

   The first half of the video stands still, the second half moves by 24 columns a frame. Four streams are run: noise of
   strength 0.6 with and without --motion 0.5, the first of them twice, and strength 0.02, which keeps nearly all of the
   video. Printed are the median period of a chunk, the frames a second, and how far the frames of the chunks that stand
   still and of those that move are from the stream that keeps the video (root mean square of values in [-1, 1]). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/comm.h"
#include "core/clock.h"
#include "stream/stage.h"

enum { MOST = 64 };

typedef struct video {
    carry_pipeline_options options;
    carry_controls *controls;
    int64_t each;               /* frames of a chunk */
    int64_t read, shown, first; /* frames; first: the first frame that moves */
    float *frames;              /* all that were shown */
    double ended[MOST];         /* when each chunk was shown */
    int chunks;
} video;

static carry_ctx *ctx;

static void must(carry_status status) {
    if (status != CARRY_OK) {
        fprintf(stderr, "bench_video: %s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static carry_status read_frames(void *user, carry_ctx *own, carry_tensor frames, int64_t *got) {
    video *v = user;
    const int64_t h = v->options.height;
    const int64_t w = v->options.width;
    (void)own;
    for (int64_t f = 0; f < frames.shape[0]; f++, v->read++) {
        float *to = (float *)frames.data + f * frames.stride[0];
        const int64_t moved = v->read > v->first ? 24 * (v->read - v->first) : 0;
        for (int64_t c = 0; c < 3; c++) {
            static const double wave[] = {1.0, 0.7, 1.3};
            float *row = to + c * h * w;
            for (int64_t x = 0; x < w; x++) {
                row[x] = (float)(0.8 * sin(0.03 * wave[c] * (double)(x + moved)));
            }
            for (int64_t y = 1; y < h; y++) {
                memcpy(row + y * w, row, (size_t)w * sizeof *row);
            }
        }
    }
    *got = frames.shape[0];
    return CARRY_OK;
}

static carry_status keep_frames(void *user, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch) {
    video *v = user;
    const int64_t each = 3 * v->options.height * v->options.width;
    (void)chunk_index;
    (void)cache_epoch;
    if ((v->shown + frames.shape[0]) * each <= 12 * (int64_t)MOST * each) {
        memcpy(v->frames + v->shown * each, frames.data, (size_t)(frames.shape[0] * each) * sizeof(float));
        v->shown += frames.shape[0];
    }
    return CARRY_OK;
}

static void end_chunk(void *user, const carry_chunk_times *times) {
    video *v = user;
    (void)times;
    if (v->chunks < MOST) {
        v->ended[v->chunks++] = carry_seconds();
    }
}

static carry_status run_rank(void *user, carry_comm *comm) {
    video *v = user;
    carry_stream_figures figures;
    const carry_pipeline_hooks hooks = {
        .controls = v->controls, .frames = keep_frames, .source = read_frames, .chunk = end_chunk, .user = v};
    return carry_pipeline_run(comm, &v->options, &hooks, &figures);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double period(const video *v) {
    double between[MOST];
    int count = 0;
    for (int i = v->chunks / 2; i < v->chunks; i++) {
        between[count++] = v->ended[i] - v->ended[i - 1];
    }
    qsort(between, (size_t)count, sizeof *between, by_value);
    return between[count / 2];
}

static double distance(const video *a, const video *b, int64_t begin, int64_t end) {
    const int64_t each = 3 * a->options.height * a->options.width;
    double sum = 0.0;
    for (int64_t i = begin * each; i < end * each; i++) {
        const double d = (double)a->frames[i] - (double)b->frames[i];
        sum += d * d;
    }
    return sqrt(sum / (double)((end - begin) * each));
}

static void run(video *v, const carry_pipeline_options *options, double strength, double motion) {
    carry_control_state start = carry_control_default();
    *v = (video){.options = *options, .each = options->codec != NULL ? 12 : 3};
    v->first = v->each * (options->chunks / 2);
    v->options.strength = strength;
    v->options.motion = motion;
    v->frames = malloc((size_t)(12 * (int64_t)MOST * 3 * options->height * options->width) * sizeof(float));
    if (v->frames == NULL) {
        exit(1);
    }
    must(carry_controls_new(ctx, &v->controls, &start));
    must(carry_comm_threads((carry_ctx *const[]){ctx}, 1, &(carry_comm_options){CARRY_INIT(carry_comm_options)},
                            run_rank, v));
    carry_controls_free(v->controls);
}

int main(int count, char **words) {
    if (count < 7) {
        fprintf(stderr, "bench_video CONFIG WIDTH HEIGHT WINDOW CHUNKS CODEC [DEVICE]\n");
        return 2;
    }
    static const struct {
        const char *name;
        double strength, motion;
    } runs[] = {
        {"strength 0.02", 0.02, 0.0}, {"0.6", 0.6, 0.0}, {"0.6, motion 0.5", 0.6, 0.5}, {"0.6 again", 0.6, 0.0}};
    static video all[4];
    carry_pipeline_options options = {.chunk = 3, .depth = 2, .clean_pass = true};
    ctx = NULL;
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    must(carry_dit_config_named(ctx, &options.config, words[1]));
    options.width = atoll(words[2]);
    options.height = atoll(words[3]);
    options.window = atoll(words[4]);
    options.chunks = atoll(words[5]);
    options.shift = options.config.shift > 0.0 ? options.config.shift : 5.0;
    options.codec = strcmp(words[6], "none") != 0 ? words[6] : NULL;
    options.device = count > 7 ? atoi(words[7]) : 1;
    if (options.chunks < 4 || options.chunks > MOST) {
        fprintf(stderr, "bench_video: 4 to %d chunks\n", (int)MOST);
        return 2;
    }
    for (int i = 0; i < 4; i++) {
        run(&all[i], &options, runs[i].strength, runs[i].motion);
        const int64_t still = all[i].first - 3; /* frames of chunks that stand still: the first chunk may be shorter */
        printf(
            "{\"run\": \"%s\", \"period_s\": %.6f, \"fps\": %.3f, \"still\": %.4f, \"moving\": %.4f, \"frames\": %lld, "
            "\"still_as_without\": %.4f}\n",
            runs[i].name, period(&all[i]), (double)all[i].each / period(&all[i]), distance(&all[i], &all[0], 0, still),
            distance(&all[i], &all[0], all[i].first + all[i].each, all[i].shown), (long long)all[i].shown,
            i > 1 ? distance(&all[i], &all[1], 0, still) : 0.0);
        (void)fflush(stdout);
    }
    carry_ctx_free(ctx);
    return 0;
}
