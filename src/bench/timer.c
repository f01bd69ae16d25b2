/* Times work on a GPU. */
#include "bench/timer.h"

#include <math.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/error.h"

#define GRAPH_SECONDS 2e-3 /* launching a graph costs some microseconds, a hundredth of this */
#define MOST_RUNS 500

struct carry_timer {
    carry_ctx *ctx;
    int device;
    carry_stream *stream;
    carry_event *from, *to;
    carry_graph *graph;
    int runs; /* number of runs in the graph */
};

carry_status carry_timer_new(carry_ctx *ctx, carry_timer **timer, int device) {
    carry_timer *t = calloc(1, sizeof *t);
    *timer = NULL;
    if (t == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a timer");
    }
    t->ctx = ctx;
    t->device = device;
    carry_status status = carry_stream_new(ctx, &t->stream, device);
    status = status == CARRY_OK ? carry_event_new(ctx, &t->from, device) : status;
    status = status == CARRY_OK ? carry_event_new(ctx, &t->to, device) : status;
    status = status == CARRY_OK ? carry_ctx_set_stream(ctx, device, t->stream) : status;
    if (status != CARRY_OK) {
        carry_timer_free(t);
        return status;
    }
    *timer = t;
    return CARRY_OK;
}

void carry_timer_free(carry_timer *t) {
    if (t != NULL) {
        carry_timer_reset(t);
        (void)carry_ctx_set_stream(t->ctx, t->device, NULL);
        carry_event_free(t->ctx, t->device, t->from);
        carry_event_free(t->ctx, t->device, t->to);
        carry_stream_free(t->ctx, t->device, t->stream);
        free(t);
    }
}

void carry_timer_reset(carry_timer *t) {
    if (t != NULL && t->graph != NULL) {
        (void)carry_stream_wait(t->ctx, t->device, t->stream);
        carry_graph_free(t->ctx, t->device, t->graph);
        t->graph = NULL;
    }
}

static carry_status record(carry_timer *t, carry_status (*run)(void *user), void *user) {
    double once;
    CARRY_TRY(run(user));
    CARRY_TRY(carry_event_record(t->ctx, t->device, t->from, t->stream));
    CARRY_TRY(run(user));
    CARRY_TRY(carry_event_record(t->ctx, t->device, t->to, t->stream));
    CARRY_TRY(carry_event_elapsed(t->ctx, &once, t->device, t->from, t->to));
    t->runs = (int)fmin(MOST_RUNS, fmax(1.0, ceil(GRAPH_SECONDS / fmax(once, 1e-7))));
    CARRY_TRY(carry_graph_begin(t->ctx, t->device, t->stream));
    carry_status status = CARRY_OK;
    for (int i = 0; status == CARRY_OK && i < t->runs; i++) {
        status = run(user);
    }
    carry_status ended = carry_graph_end(t->ctx, &t->graph, t->device, t->stream);
    CARRY_TRY(status == CARRY_OK ? ended : status);
    /* The first launch uploads the graph to the device. */
    return carry_graph_launch(t->ctx, t->device, t->graph, t->stream);
}

carry_status carry_timer_time(carry_timer *t, double *seconds, carry_status (*run)(void *user), void *user) {
    if (t == NULL) {
        const double before = carry_seconds();
        CARRY_TRY(run(user));
        *seconds = carry_seconds() - before;
        return CARRY_OK;
    }
    if (t->graph == NULL) {
        CARRY_TRY(record(t, run, user));
    }
    CARRY_TRY(carry_event_record(t->ctx, t->device, t->from, t->stream));
    CARRY_TRY(carry_graph_launch(t->ctx, t->device, t->graph, t->stream));
    CARRY_TRY(carry_event_record(t->ctx, t->device, t->to, t->stream));
    CARRY_TRY(carry_event_elapsed(t->ctx, seconds, t->device, t->from, t->to));
    *seconds /= t->runs;
    return CARRY_OK;
}
