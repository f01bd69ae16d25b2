/* Recorders and their tracks. A track has one writer at a time: the thread that uses the context, or a thread of its
   pool. A thread finds its track by its number, carry_worker. */
#include "core/span.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/threads.h"

#define EVENTS 20000
#define ALL_EVENTS 160000
#define LEAST_EVENTS 64
#define TRACKS 4096
/* Spans at this depth or less are the outline. Only they may use the last eighth of a track. */
#define OUTLINE_DEPTH 2
/* Reading the resident set takes some microseconds, so at this interval at most a thousandth of the time. */
#define SAMPLE_SECONDS 0.01

struct carry_recorder {
    pthread_mutex_t lock; /* guards the list of tracks, not their contents */
    int64_t events, left; /* events of one track, and events left for all */
    int count;
    carry_track *track[TRACKS];
};

struct carry_recording {
    carry_recorder *recorder;
    int count;
    carry_track *track[]; /* by worker */
};

static carry_track *track_of(const carry_ctx *ctx) {
    const struct carry_recording *recording = ctx->recording;
    int worker = carry_worker(ctx);
    return recording->track[worker < recording->count ? worker : 0];
}

static bool has_room(const carry_track *track, int depth) {
    int64_t limit = depth <= OUTLINE_DEPTH ? track->limit : track->limit - track->limit / 8;
    return track->count < limit;
}

static void keep_counter(carry_track *track, const char *counter, int depth, double now, double value) {
    if (!has_room(track, depth)) {
        track->dropped++;
        return;
    }
    track->event[track->count++] = (carry_event){.counter = counter, .start = now, .value = value};
}

static void sample(carry_track *track, double now) {
    if (track->samples && now - track->sampled >= SAMPLE_SECONDS) {
        track->sampled = now;
        double bytes = carry_resident_bytes();
        if (bytes >= 0.0) {
            keep_counter(track, "memory", OUTLINE_DEPTH, now, bytes);
        }
    }
}

static carry_span_sum *sum_of(carry_track *track, const carry_span_site *site) {
    uintptr_t start = ((uintptr_t)site >> 4) * 0x9E3779B9u;
    for (uintptr_t i = 0; i < CARRY_SPAN_SITES; i++) {
        carry_span_sum *sum = &track->sum[(start + i) % CARRY_SPAN_SITES];
        if (sum->site == site || sum->site == NULL) {
            sum->site = site;
            return sum;
        }
    }
    return NULL;
}

/* The innermost span has ended. */
static void add_up(carry_track *track, const carry_span *span, double seconds) {
    bool same_site = false;
    bool same_category = false;
    for (const carry_span *at = track->open; at < span; at++) {
        same_site = same_site || at->site == span->site;
        same_category = same_category || strcmp(at->site->category, span->site->category) == 0;
    }
    carry_span_sum *sum = sum_of(track, span->site);
    if (sum == NULL) {
        track->dropped++;
        return;
    }
    sum->calls += span->piece ? 0 : 1;
    sum->wall += span->piece || same_site ? 0.0 : seconds;
    sum->total += same_site ? 0.0 : seconds;
    sum->category += same_category ? 0.0 : seconds;
    sum->self += seconds - span->inside;
    sum->flops += span->flops;
    sum->tokens += span->tokens;
}

static carry_track *track_new(carry_recorder *recorder, int rank, int worker) {
    int64_t limit = recorder->events < recorder->left ? recorder->events : recorder->left;
    limit = limit > LEAST_EVENTS ? limit : LEAST_EVENTS;
    carry_track *track = recorder->count < TRACKS ? calloc(1, sizeof *track) : NULL;
    if (track == NULL) {
        return NULL;
    }
    track->event = malloc((size_t)limit * sizeof *track->event);
    if (track->event == NULL) {
        free(track);
        return NULL;
    }
    track->rank = rank;
    track->worker = worker;
    track->limit = limit;
    track->samples = recorder->count == 0;
    recorder->left -= limit;
    recorder->track[recorder->count++] = track;
    return track;
}

static carry_track *take_track(carry_recorder *recorder, int rank, int worker) {
    for (int i = 0; i < recorder->count; i++) {
        carry_track *track = recorder->track[i];
        if (!track->taken && track->rank == rank && track->worker == worker) {
            return track;
        }
    }
    return track_new(recorder, rank, worker);
}

carry_track *carry_span_open(carry_ctx *ctx, const carry_span_site *site) {
    carry_track *track = track_of(ctx);
    double now = carry_seconds();
    sample(track, now);
    int depth = track->depth++;
    if (depth >= CARRY_SPAN_DEPTH) {
        track->dropped++;
        return track;
    }
    carry_span *span = &track->open[depth];
    *span = (carry_span){.site = site, .start = now, .event = -1};
    if (has_room(track, depth)) {
        span->event = track->count++;
        track->event[span->event] = (carry_event){.site = site, .start = now};
    } else {
        track->dropped++;
    }
    return track;
}

carry_track *carry_span_open_piece(carry_ctx *ctx, const carry_span_site *site) {
    carry_track *track = carry_span_open(ctx, site);
    if (track->depth <= CARRY_SPAN_DEPTH) {
        track->open[track->depth - 1].piece = true;
    }
    return track;
}

void carry_span_close(carry_track *track) {
    int depth = --track->depth;
    if (depth >= CARRY_SPAN_DEPTH) {
        return;
    }
    const carry_span *span = &track->open[depth];
    double now = carry_seconds();
    double seconds = now - span->start;
    if (span->event >= 0) {
        track->event[span->event].end = now;
    }
    add_up(track, span, seconds);
    if (depth > 0) {
        track->open[depth - 1].inside += seconds;
    }
}

carry_track *carry_span_track(const carry_ctx *ctx) {
    return track_of(ctx);
}

void carry_span_add(carry_track *track, double flops, double tokens) {
    if (track->depth > 0 && track->depth <= CARRY_SPAN_DEPTH) {
        track->open[track->depth - 1].flops += flops;
        track->open[track->depth - 1].tokens += tokens;
    }
}

void carry_count_keep(carry_ctx *ctx, const char *counter, double value) {
    keep_counter(track_of(ctx), counter, OUTLINE_DEPTH + 1, carry_seconds(), value);
}

const carry_span_site *carry_span_here(carry_ctx *ctx) {
    const carry_track *track = track_of(ctx);
    int depth = track->depth < CARRY_SPAN_DEPTH ? track->depth : CARRY_SPAN_DEPTH;
    return depth > 0 ? track->open[depth - 1].site : NULL;
}

carry_status carry_recorder_new(carry_ctx *ctx, carry_recorder **recorder, int64_t events) {
    *recorder = NULL;
    if (events < 0 || events > ALL_EVENTS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%lld events a thread: give 1 to %d, or 0 for %d", (long long)events,
                          ALL_EVENTS, EVENTS);
    }
    carry_recorder *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a recorder");
    }
    pthread_mutex_init(&made->lock, NULL);
    int64_t fair = ALL_EVENTS / carry_cores();
    made->events = events > 0 ? events : fair < EVENTS ? fair : EVENTS;
    made->left = ALL_EVENTS;
    *recorder = made;
    return CARRY_OK;
}

void carry_recorder_free(carry_recorder *recorder) {
    if (recorder == NULL) {
        return;
    }
    for (int i = 0; i < recorder->count; i++) {
        free(recorder->track[i]->event);
        free(recorder->track[i]);
    }
    pthread_mutex_destroy(&recorder->lock);
    free(recorder);
}

carry_status carry_recorder_attach(carry_recorder *recorder, carry_ctx *ctx, int rank) {
    int threads = carry_ctx_threads(ctx);
    if (ctx->recording != NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "this context has a recorder already");
    }
    struct carry_recording *made = calloc(1, sizeof *made + (size_t)threads * sizeof(carry_track *));
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: recording %d threads", threads);
    }
    made->recorder = recorder;
    pthread_mutex_lock(&recorder->lock);
    for (int i = 0; i < threads; i++) {
        made->track[i] = take_track(recorder, rank, i);
        if (made->track[i] == NULL) {
            break;
        }
        made->track[i]->taken = true;
        made->count++;
    }
    pthread_mutex_unlock(&recorder->lock);
    if (made->count < threads) {
        carry_recording_free(made);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: recording %d threads", threads);
    }
    ctx->recording = made;
    return CARRY_OK;
}

carry_recorder *carry_recorder_of(const carry_ctx *ctx) {
    return ctx->recording != NULL ? ctx->recording->recorder : NULL;
}

void carry_recording_free(struct carry_recording *recording) {
    if (recording == NULL) {
        return;
    }
    pthread_mutex_lock(&recording->recorder->lock);
    for (int i = 0; i < recording->count; i++) {
        recording->track[i]->taken = false;
        recording->track[i]->depth = 0;
    }
    pthread_mutex_unlock(&recording->recorder->lock);
    free(recording);
}

const carry_track *carry_recorder_track(const carry_recorder *recorder, int index) {
    return index >= 0 && index < recorder->count ? recorder->track[index] : NULL;
}
