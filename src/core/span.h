/* Spans: named intervals of the code, to measure where the time goes.

       static void sweep_up(...) {
           CARRY_SPAN(ctx, "scan", "sweep up");   until the end of this scope, early returns included
           ...
           carry_span_work(ctx, flops, tokens);   adds to the work of the innermost span of this thread
       }

   Without a recorder a span costs one branch on a pointer in the context. With one, each thread of the context writes
   to its own track, which was allocated when the recorder was attached: nothing is locked and nothing grows. A track
   keeps two things. Sums by source line (calls, total and self time, flops, tokens) are exact however long a run is,
   for up to CARRY_SPAN_SITES source lines and CARRY_SPAN_DEPTH nested spans. Events, for a timeline, are kept until the
   track is full; the rest are dropped and counted. The last part of a track is reserved for outer spans, so that the
   outline of a long run is complete.

   A recorder may serve several contexts at once, such as the ranks of one process. Read it only while they are idle. */
#ifndef CARRY_CORE_SPAN_H
#define CARRY_CORE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/context.h"

/* A span's name and place in the source. It is static, so that tracks can point to it. */
typedef struct carry_span_site {
    const char *category, *name, *file;
    int line;
} carry_span_site;

/* A span that is open on a track. */
typedef struct carry_span {
    const carry_span_site *site;
    double start, inside; /* in seconds; inside is the time spent in nested spans */
    double flops, tokens;
    int64_t event; /* its index on the track, or -1 if it was dropped */
    /* True for a piece of a task that another thread started: it adds no call and no wall time. */
    bool piece;
} carry_span;

/* An event on a track: a span, or a new value of a counter from `start` on. */
typedef struct carry_event {
    const carry_span_site *site; /* NULL for a counter */
    const char *counter;
    double start, end; /* end is 0 while the span is open */
    double value;
} carry_event;

/* Sums over all spans of one site on one track. Times include pieces unless stated otherwise. */
typedef struct carry_span_sum {
    const carry_span_site *site; /* NULL: free */
    int64_t calls;
    double total;    /* begin to end, of spans that are not inside another of the same site */
    double wall;     /* total without pieces: the time of the thread that opened the spans */
    double self;     /* total without the time in nested spans */
    double category; /* begin to end, of spans that are not inside another of the same category */
    double flops, tokens;
} carry_span_sum;

#define CARRY_SPAN_SITES 256 /* source lines that a track can sum */
#define CARRY_SPAN_DEPTH 64  /* nested spans that a track records */

typedef struct carry_track {
    int rank, worker; /* worker 0 is the thread that uses the context */
    bool taken;       /* by a context */
    bool samples;     /* samples the memory of the process */
    double sampled;
    carry_event *event;
    int64_t count, limit;
    int64_t dropped; /* events that were dropped, and spans that did not fit into the sums */
    int depth;       /* spans that are open */
    carry_span open[CARRY_SPAN_DEPTH];
    carry_span_sum sum[CARRY_SPAN_SITES];
} carry_track;

typedef struct carry_recorder carry_recorder;

/* events: the number kept per thread. 0: 20,000, or fewer if there are more than 8 cores. 160,000 in all; threads after
   that keep 64 each. */
carry_status carry_recorder_new(carry_ctx *ctx, carry_recorder **recorder, int64_t events);
/* Free it after the contexts that it was attached to. */
void carry_recorder_free(carry_recorder *recorder);
/* The context records as this rank from now on, until the context is freed. Tracks of a freed context of the same
   rank are reused. Any thread may attach its own context. */
carry_status carry_recorder_attach(carry_recorder *recorder, carry_ctx *ctx, int rank);

carry_recorder *carry_recorder_of(const carry_ctx *ctx);

/* Returns tracks in the order in which they were made, and NULL past the end. The contexts must be idle or freed. */
const carry_track *carry_recorder_track(const carry_recorder *recorder, int index);

/* Returns the tracks to the recorder; called by carry_ctx_free. */
void carry_recording_free(struct carry_recording *recording);

/* Parts of the macro and of the functions below that run only while recording. */
carry_track *carry_span_open(carry_ctx *ctx, const carry_span_site *site);
/* The same for a piece of a task that the span at `site` started on another thread. */
carry_track *carry_span_open_piece(carry_ctx *ctx, const carry_span_site *site);
void carry_span_close(carry_track *track);
void carry_span_add(carry_track *track, double flops, double tokens);
carry_track *carry_span_track(const carry_ctx *ctx); /* the track of this thread */
void carry_count_keep(carry_ctx *ctx, const char *counter, double value);
/* The site of the innermost open span of this thread, or NULL. */
const carry_span_site *carry_span_here(carry_ctx *ctx);

/* Returns the track on which the span is open, or NULL if nothing is recorded. */
static inline carry_track *carry_span_begin(carry_ctx *ctx, const carry_span_site *site) {
    return __builtin_expect(ctx->recording != NULL, 0) ? carry_span_open(ctx, site) : NULL;
}

static inline void carry_span_end(carry_track *const *track) {
    if (__builtin_expect(*track != NULL, 0)) {
        carry_span_close(*track);
    }
}

/* The same, and adds the work of the span. */
static inline void carry_span_end_work(carry_track *const *track, double flops, double tokens) {
    if (__builtin_expect(*track != NULL, 0)) {
        carry_span_add(*track, flops, tokens);
        carry_span_close(*track);
    }
}

/* Adds to the work of the innermost span of this thread. */
static inline void carry_span_work(carry_ctx *ctx, double flops, double tokens) {
    if (__builtin_expect(ctx->recording != NULL, 0)) {
        carry_span_add(carry_span_track(ctx), flops, tokens);
    }
}

/* Records a counter's new value. counter is a string literal, such as "queue". */
static inline void carry_count(carry_ctx *ctx, const char *counter, double value) {
    if (__builtin_expect(ctx->recording != NULL, 0)) {
        carry_count_keep(ctx, counter, value);
    }
}

#define CARRY_SPAN_JOIN_(a, b) a##b
#define CARRY_SPAN_AT_(ctx, category, name, line)                                                       \
    static const carry_span_site CARRY_SPAN_JOIN_(span_site_, line) = {category, name, __FILE__, line}; \
    CARRY_SPAN_SITE_(ctx, &CARRY_SPAN_JOIN_(span_site_, line), line)
#define CARRY_SPAN_SITE_(ctx, site, line)                                                               \
    __attribute__((cleanup(carry_span_end), unused)) carry_track *const CARRY_SPAN_JOIN_(span_, line) = \
        carry_span_begin(ctx, site)
#define CARRY_SPAN_BEGIN_AT_(track, ctx, category, name, line)                                          \
    static const carry_span_site CARRY_SPAN_JOIN_(span_site_, line) = {category, name, __FILE__, line}; \
    carry_track *const track = carry_span_begin(ctx, &CARRY_SPAN_JOIN_(span_site_, line))
#define CARRY_SPAN_NAMED_(ctx, site, line) CARRY_SPAN_SITE_(ctx, site, line)

/* A statement that opens a span until the end of the scope. */
#define CARRY_SPAN(ctx, category, name) CARRY_SPAN_AT_(ctx, category, name, __LINE__)
/* The same with a site that is stored elsewhere, such as an algorithm's entry in its table. */
#define CARRY_SPAN_OF(ctx, site) CARRY_SPAN_NAMED_(ctx, site, __LINE__)
/* For a phase that is not a scope: CARRY_SPAN_BEGIN(track, ...) declares track, and carry_span_end(&track) ends the
   span. No return or jump may leave the code between them. */
#define CARRY_SPAN_BEGIN(track, ctx, category, name) CARRY_SPAN_BEGIN_AT_(track, ctx, category, name, __LINE__)
/* The initialiser of a site that is stored in a table entry (CARRY_SPAN_OF). */
#define CARRY_SPAN_SITE(category, name) \
    { category, name, __FILE__, __LINE__ }

#endif
