/* Results of stage 0: decodes latents to frames, and sends frames and figures to the viewers. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/span.h"
#include "stream/stage.h"

#define FPS_SECONDS 5.0 /* the frame rate is an average over this time */

static void rest(double seconds) {
    if (seconds > 0.0) {
        const struct timespec pause = {.tv_sec = (time_t)seconds,
                                       .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
        (void)nanosleep(&pause, NULL);
    }
}

/* With a pace: waits until these frames are due or the stream is to stop. The next chunk is started meanwhile. left:
   number of frames of this chunk that follow these. */
static carry_status keep_pace(carry_stage *s, int64_t frames, int64_t left, double *waited) {
    *waited = 0.0;
    if (!(s->options->fps > 0.0)) {
        return CARRY_OK;
    }
    const double start = carry_seconds();
    s->due = s->due > start - 1.0 ? s->due : start; /* after a delay, frames are not shown faster to catch up */
    for (double wait = s->due - start; wait > 0.0 && !(s->hooks->stop != NULL && s->hooks->stop());
         wait = s->due - carry_seconds()) {
        CARRY_TRY(carry_stage_late(s));
        CARRY_TRY(carry_stage_send_due(s, frames + left));
        rest(fmin(wait, s->unanswered > 0 ? CARRY_STAGE_PROMPTS : CARRY_STAGE_LOOK / 10));
    }
    s->due += (double)frames / s->options->fps;
    *waited = carry_seconds() - start;
    s->paced += *waited;
    return CARRY_OK;
}

/* Encodes the first frame of a chunk as a still picture, for a context that starts with it. */
static carry_status encode_anchor(carry_stage *s, const float *picture) {
    const int64_t channels = s->config.in_dim;
    const carry_pipeline_options *o = s->options;
    const int64_t at = s->anchors % (s->context_chunks + CARRY_STAGE_DEPTH);
    CARRY_SPAN(s->ctx, "stream", "encode");
    memcpy(s->first, picture, (size_t)(3 * o->height * o->width) * sizeof *picture);
    carry_codec_reset(s->anchor_codec);
    CARRY_TRY(carry_codec_encode(s->anchor_codec,
                                 carry_view_4d(s->latents, CARRY_F32, channels, 1, s->height, s->width),
                                 carry_view_4d(s->first, CARRY_F32, 1, 3, o->height, o->width)));
    for (int64_t i = 0; i < channels * s->frame; i++) {
        s->anchor[at * channels * s->frame + i] = carry_bf16_from_f32(s->latents[i]);
    }
    s->anchors++;
    return CARRY_OK;
}

static void take_frame(carry_stage *s, const carry_result *result, int64_t frame) {
    const uint16_t *bits = result->latents_out.data;
    const int64_t channels = s->config.in_dim;
    for (int64_t c = 0; c < channels; c++) {
        const uint16_t *from = bits + (c * s->options->chunk + frame) * s->frame;
        for (int64_t i = 0; i < s->frame; i++) {
            s->latents[c * s->frame + i] = carry_f32_from_bf16(from[i]);
        }
    }
}

/* Decodes one latent frame at a time, so that pending messages make progress in between. */
static carry_status decode(carry_stage *s, const carry_flight *flight, const carry_result *result,
                           const carry_about *about, carry_chunk_times *times, int64_t *shown) {
    const carry_pipeline_options *o = s->options;
    const int64_t ratio = carry_codec_ratio(s->codec);
    const carry_tensor latents = carry_view_4d(s->latents, CARRY_F32, s->config.in_dim, 1, s->height, s->width);
    for (int64_t f = 0; f < o->chunk; f++) {
        const double start = carry_seconds();
        const int64_t count = carry_codec_frames(s->codec, 1);
        const carry_tensor frames = carry_view_4d(s->pixels, CARRY_F32, count, 3, o->height, o->width);
        bool there;
        double paced = 0.0;
        {
            CARRY_SPAN(s->ctx, "stream", "decode");
            take_frame(s, result, f);
            CARRY_TRY(carry_codec_decode(s->codec, frames, latents));
        }
        if (s->hooks->frames != NULL && count > 0) {
            CARRY_TRY(keep_pace(s, count, (o->chunk - f - 1) * ratio, &paced));
            CARRY_TRY(s->hooks->frames(s->hooks->user, frames, flight->chunk_index, flight->cache_epoch));
        }
        times->decode += carry_seconds() - start - paced;
        if (s->figures.frames == 0 && count > 0) {
            s->figures.first_frame_seconds = carry_seconds() - s->began;
        }
        if (*shown == 0 && count > 0) {
            s->recent[s->figures.chunks % CARRY_STAGE_RECENT] = times->stage1 + times->build + times->decode;
            times->prompt = carry_stage_shows(s, about);
        }
        s->figures.frames += (uint64_t)count;
        *shown += count;
        if (f == 0 && o->recompute == CARRY_RECOMPUTE_ANCHOR) {
            const double before = carry_seconds();
            CARRY_TRY(encode_anchor(s, s->pixels + (count - 1) * 3 * o->height * o->width));
            times->encode = carry_seconds() - before;
        }
        CARRY_TRY(carry_stage_late(s));
        CARRY_TRY(carry_link_poll(s->link, &there));
        s->figures.decoded_waiting = there ? 1 : 0;
    }
    return CARRY_OK;
}

static double frames_a_second(carry_stage *s, int64_t frames) {
    const double now = carry_seconds();
    s->shown[s->shown_count % CARRY_STAGE_RATES].seconds = now;
    s->shown[s->shown_count % CARRY_STAGE_RATES].frames = frames;
    s->shown_count++;
    const int64_t kept = s->shown_count < CARRY_STAGE_RATES ? s->shown_count : CARRY_STAGE_RATES;
    double first = now;
    int64_t sum = 0; /* frames shown after the time `first` */
    for (int64_t i = 1; i <= kept; i++) {
        const int64_t at = (s->shown_count - i) % CARRY_STAGE_RATES;
        first = s->shown[at].seconds;
        if (i == kept || now - first > FPS_SECONDS) {
            break;
        }
        sum += s->shown[at].frames;
    }
    return now > first ? (double)sum / (now - first) : 0.0;
}

/* The query takes some microseconds and its result seldom changes, so it is not made for every chunk. */
static void look_at_memory(carry_stage *s) {
    size_t available = 0;
    size_t total = 0;
    if (s->options->device != 0 && s->figures.chunks % 8 == 1 &&
        carry_device_memory(s->ctx, &available, &total, s->options->device) == CARRY_OK) {
        s->figures.gpu_used = (double)(total - available);
        s->figures.gpu_total = (double)total;
    }
}

void carry_stage_tell(carry_stage *s, const char *what) {
    carry_stream_figures *f = &s->figures;
    look_at_memory(s);
    carry_overlap_read(s->overlap, &f->overlap);
    f->under_way = s->under_way;
    f->paused = s->state.paused;
    (void)snprintf(f->state, sizeof f->state, "%s", what);
    if (s->hooks->figures != NULL) {
        s->hooks->figures(s->hooks->user, f);
    }
}

static void report(carry_stage *s, const carry_chunk_times *t) {
    const carry_sink *sink = &s->hooks->sink;
    const int64_t step = (int64_t)t->chunk_index;
    carry_sink_metric(sink, step, "stage0_s", t->stage0);
    carry_sink_metric(sink, step, "stage1_s", t->stage1);
    carry_sink_metric(sink, step, "decode_s", t->decode);
    carry_sink_metric(sink, step, "denoise_s", t->denoise);
    carry_sink_metric(sink, step, "recompute_s", t->recompute);
    carry_sink_metric(sink, step, "mesh_idle_s", t->idle);
    carry_sink_metric(sink, step, "under_way", t->depth);
    if (t->period > 0.0) {
        carry_sink_metric(sink, step, "period_s", t->period);
    }
    carry_sink_metric(sink, step, "fps", s->figures.fps);
    carry_sink_metric(sink, step, "overlap_score", s->figures.overlap.score);
    if (s->hooks->chunk != NULL) {
        s->hooks->chunk(s->hooks->user, t);
    }
}

/* The period runs from the end of the previous chunk to the end of this one, so that it includes the work of stage 0
   for this chunk. Between the arrivals of two results, it would include the work of stage 0 for the previous chunk
   instead; if the stages take turns, the score would then be only the difference of these two, which is noise. */
static void end_period(carry_stage *s, carry_chunk_times *t) {
    const double now = carry_seconds();
    t->period = s->has_last ? now - s->last_shown - s->paced : 0.0;
    if (t->period > 0.0 && s->paced > 0.0) {
        /* The mesh worked while stage 0 waited for its pace, so the time without these waits can be too short: no
           pipeline is faster than its slower stage. */
        t->period = fmax(t->period, fmax(t->stage0, t->stage1));
    }
    s->paced = 0.0;
    s->last_shown = now;
    s->has_last = true;
}

carry_status carry_stage_show(carry_stage *s, const carry_flight *flight, const carry_result *result,
                              const carry_about *about) {
    carry_chunk_times t = {
        .chunk_index = flight->chunk_index,
        .cache_epoch = flight->cache_epoch,
        .stage1 = 1e-3 * result->stage1_ms,
        .idle = 1e-3 * result->mesh_idle_ms,
        .build = flight->build,
        .denoise = about->denoise,
        .recompute = about->recompute,
        .clean = about->clean,
        .depth = flight->depth,
    };
    int64_t shown = 0;
    const double start = carry_seconds();
    rest(s->options->slow_stage0);
    const double slow = carry_seconds() - start;
    CARRY_TRY(decode(s, flight, result, about, &t, &shown));
    t.stage0 = slow + t.build + t.decode + t.encode;
    end_period(s, &t);
    s->oldest = (s->oldest + 1) % CARRY_STAGE_DEPTH;
    s->under_way--;
    s->figures.chunks++;
    s->figures.last = t;
    s->figures.fps = frames_a_second(s, shown);
    if (about->forwards > 0) {
        s->figures.reductions_large = about->large / about->forwards;
        s->figures.reductions_small = about->small / about->forwards;
    }
    carry_overlap_add(s->overlap, &t);
    carry_stage_tell(s, "streaming");
    report(s, &t);
    return CARRY_OK;
}
