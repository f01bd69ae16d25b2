/* Shared by the tests of the pipeline: a small model, and a stream that keeps the digests of its frames. */
#ifndef CARRY_TESTS_STREAM_SUPPORT_H
#define CARRY_TESTS_STREAM_SUPPORT_H

#include "comm_support.h"

#include "core/clock.h"
#include "stream/envelope.h"
#include "stream/pipeline.h"

enum { CHUNKS = 512 };

/* 1, 2, 3 and 6 ranks divide the heads and ffn_dim; a frame has 4 patches. */
static inline carry_pipeline_options small_stream(void) {
    return (carry_pipeline_options){
        .config = {.dim = 48,
                   .ffn_dim = 96,
                   .num_heads = 6,
                   .num_layers = 2,
                   .in_dim = 16,
                   .out_dim = 16,
                   .text_len = 8,
                   .text_dim = 16,
                   .freq_dim = 32,
                   .patch = {1, 2, 2},
                   .eps = 1e-6,
                   .qk_norm = true,
                   .cross_attn_norm = true},
        .height = 32,
        .width = 32,
        .chunk = 2,
        .window = 7,
        .sink = 1,
        .shift = 3.0,
        .depth = 2,
        .context = 2,
        .clean_pass = true,
        .chunks = 6,
    };
}

/* A stream and what its hooks, on rank 0, have seen of it. */
typedef struct stream {
    carry_pipeline_options options;
    carry_controls *controls;
    carry_stream_figures figures;
    int ranks;
    double deadline;
    int64_t cut_at, stop_at, fail_at, pause_at, prompt_at,
        lora_at; /* the number of chunks shown before it happens; 0: never */
    bool has_video;
    double video; /* change of all its values from frame to frame */
    int64_t read; /* frames of it */
    /* seen */
    int64_t digest[CHUNKS];
    uint64_t chunk_index[CHUNKS], epoch[CHUNKS];
    int shown, frames; /* calls of the hooks */
    uint64_t last_cut;
    int cuts, asked_cuts, late; /* late: frames of an epoch older than the last cut */
    double under_way_most;
    char message[512];
    carry_status status[RANKS];
} stream;

static stream *stopping; /* the stream of the stop hook, which gets no user pointer */

static inline bool should_stop(void) {
    return stopping != NULL && stopping->stop_at > 0 && stopping->shown >= stopping->stop_at;
}

static inline carry_status see_frames(void *user, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch) {
    stream *s = user;
    const size_t bytes = (size_t)(frames.shape[0] * frames.stride[0]) * sizeof(float);
    s->digest[s->frames % CHUNKS] = carry_stream_digest(frames.data, bytes);
    s->chunk_index[s->frames % CHUNKS] = chunk_index;
    s->epoch[s->frames % CHUNKS] = cache_epoch;
    s->frames++;
    s->late += s->cuts > 0 && cache_epoch < s->last_cut;
    return s->fail_at > 0 && s->shown >= s->fail_at ? CARRY_EIO : CARRY_OK;
}

static inline void see_cut(void *user, uint64_t cache_epoch, bool is_asked) {
    stream *s = user;
    s->cuts++;
    s->asked_cuts += is_asked;
    s->last_cut = cache_epoch;
}

static inline void ask(carry_controls *controls, const char *json) {
    char why[256] = "";
    if (carry_controls_apply(controls, json, strlen(json), why, sizeof why) != CARRY_OK) {
        print_error("%s: %s\n", json, why);
    }
}

static inline void see_chunk(void *user, const carry_chunk_times *times) {
    stream *s = user;
    s->shown++;
    s->under_way_most = times->depth > s->under_way_most ? times->depth : s->under_way_most;
    if (s->shown == s->cut_at) {
        ask(s->controls, "{\"cut\": true}");
    }
    if (s->shown == s->prompt_at) {
        ask(s->controls, "{\"prompt\": \"another\"}");
    }
    if (s->shown == s->lora_at) {
        ask(s->controls, "{\"lora\": 1}");
    }
    if (s->shown == s->pause_at) {
        ask(s->controls, "{\"pause\": true}");
    }
}

/* A picture whose values alternate by `video`. */
static inline carry_status read_video(void *user, carry_ctx *ctx, carry_tensor frames, int64_t *got) {
    stream *s = user;
    float *to = frames.data;
    (void)ctx;
    for (int64_t i = 0; i < frames.shape[0]; i++) {
        for (int64_t k = 0; k < frames.stride[0]; k++) {
            to[i * frames.stride[0] + k] =
                (float)((double)(k % 7) / 7.0 - 0.5 + (s->read % 2 == 0 ? 0.5 : -0.5) * s->video);
        }
        s->read++;
    }
    *got = frames.shape[0];
    return CARRY_OK;
}

static inline carry_status stream_rank(void *user, carry_comm *comm) {
    stream *s = user;
    const int rank = carry_comm_rank(comm);
    const carry_pipeline_hooks hooks = {.controls = rank == 0 ? s->controls : NULL,
                                        .stop = should_stop,
                                        .frames = see_frames,
                                        .source = s->has_video ? read_video : NULL,
                                        .cut = see_cut,
                                        .chunk = see_chunk,
                                        .user = s};
    s->status[rank] = carry_pipeline_run(comm, &s->options, &hooks, rank == 0 ? &s->figures : NULL);
    return s->status[rank];
}

static inline carry_status run_stream(stream *s) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_control_state start = carry_control_default();
    const bool makes_controls = s->controls == NULL;
    start.steps = 2;
    start.loras = s->options.loras;
    start.step[0] = 1000;
    start.step[1] = 500;
    start.kv_bias = 0.7;
    if (makes_controls) {
        assert_ok(ctx, carry_controls_new(ctx, &s->controls, &start));
    }
    stopping = s;
    const carry_comm_options options = {CARRY_INIT(carry_comm_options),
                                        .deadline = s->deadline > 0 ? s->deadline : world.deadline};
    const carry_status status = run_ranks(s->ranks, &options, stream_rank, s, s->message);
    stopping = NULL;
    if (makes_controls) {
        carry_controls_free(s->controls);
        s->controls = NULL;
    }
    carry_ctx_free(ctx);
    return status;
}

#endif
