/* Writes a trace: JSON text is compressed piece by piece, so that only the compressed form is in memory. */
#include "lab/profile/trace.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/context.h"

#define GZIP 16 /* added to zlib's window bits */
#define TEXT_BYTES 65536
#define LINE_BYTES 1024
/* Maximum number of tracks for one stream. Activities that overlap on a stream, such as branches of a graph, need
   several; a GPU runs no more grids than this at a time. */
#define LANES 128

typedef struct writer {
    z_stream stream;
    unsigned char *out;
    size_t size, used;
    char text[TEXT_BYTES];
    size_t pending;
    double start, last;  /* of the whole trace */
    int process, thread; /* the last numbers assigned */
    bool failed, any;    /* any: an event has been written */
} writer;

typedef struct lane {
    int process, thread;
    int64_t end; /* end of the last activity on it */
} lane;

static bool grow(writer *w) {
    size_t size = w->size > 0 ? 2 * w->size : TEXT_BYTES;
    unsigned char *out = realloc(w->out, size);
    if (out == NULL) {
        return false;
    }
    w->out = out;
    w->size = size;
    return true;
}

static void compress_pending(writer *w, int flush) {
    w->stream.next_in = (unsigned char *)w->text;
    w->stream.avail_in = (unsigned)w->pending;
    int code = Z_OK;
    while (!w->failed && code != Z_STREAM_END && (w->stream.avail_in > 0 || flush == Z_FINISH)) {
        if (w->used == w->size && !grow(w)) {
            w->failed = true;
            break;
        }
        size_t room = w->size - w->used;
        w->stream.next_out = w->out + w->used;
        w->stream.avail_out = (unsigned)(room < TEXT_BYTES ? room : TEXT_BYTES);
        unsigned before = w->stream.avail_out;
        code = deflate(&w->stream, flush);
        w->used += before - w->stream.avail_out;
        w->failed = code == Z_STREAM_ERROR;
    }
    w->pending = 0;
}

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...) {
    if (TEXT_BYTES - w->pending < LINE_BYTES) {
        compress_pending(w, Z_NO_FLUSH);
    }
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(w->text + w->pending, TEXT_BYTES - w->pending, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= TEXT_BYTES - w->pending) {
        w->failed = true;
        return;
    }
    w->pending += (size_t)length;
}

/* Writes a JSON string. Characters other than plain ASCII are shown as ?. */
static void put_text(writer *w, const char *text) {
    char shown[LINE_BYTES / 2];
    size_t used = 0;
    for (const char *at = text; *at != '\0' && used + 2 < sizeof shown; at++) {
        if (*at == '"' || *at == '\\') {
            shown[used++] = '\\';
        }
        shown[used++] = (char)(*at < 0x20 || *at > 0x7e ? '?' : *at);
    }
    shown[used] = '\0';
    put(w, "\"%s\"", shown);
}

/* Numbers start at 1: Perfetto takes process 0 and thread 0 for idle ones. */
static void put_head(writer *w, char phase, int process, int thread, int64_t nanoseconds) {
    put(w, "%s{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03d", w->any ? ",\n" : "\n", phase, process, thread,
        (long long)(nanoseconds / 1000), (int)(nanoseconds % 1000));
    w->any = true;
}

static void put_name(writer *w, int process, int thread, const char *what, const char *name) {
    put_head(w, 'M', process, thread, 0);
    put(w, ",\"name\":\"%s\",\"args\":{\"name\":\"%s\"}}", what, name);
}

static void put_names(writer *w, const carry_track *track, int index) {
    char name[48];
    (void)snprintf(name, sizeof name, "rank %d", track->rank);
    put_name(w, track->rank + 1, index + 1, "process_name", name);
    if (track->worker == 0) {
        (void)snprintf(name, sizeof name, "caller");
    } else {
        (void)snprintf(name, sizeof name, "worker %d", track->worker);
    }
    put_name(w, track->rank + 1, index + 1, "thread_name", name);
}

/* Times in whole nanoseconds, rounded the same way everywhere, so that a span ends no later than the span around it. */
static int64_t nanoseconds(const writer *w, double time) {
    return llround(1e9 * (time - w->start));
}

/* Writes a complete event up to its arguments, which the caller adds. */
static void put_complete(writer *w, int process, int thread, int64_t start, int64_t spent, const char *category,
                         const char *name) {
    put_head(w, 'X', process, thread, start);
    put(w, ",\"dur\":%lld.%03d,\"cat\":", (long long)(spent / 1000), (int)(spent % 1000));
    put_text(w, category);
    put(w, ",\"name\":");
    put_text(w, name);
    put(w, ",\"args\":{");
}

static void put_event(writer *w, const carry_track *track, int index, const carry_event *event) {
    int64_t start = nanoseconds(w, event->start);
    if (event->site == NULL) {
        put_head(w, 'C', track->rank + 1, index + 1, start);
        put(w, ",\"name\":");
        put_text(w, event->counter);
        put(w, ",\"args\":{\"value\":%.9g}}", isfinite(event->value) ? event->value : 0.0);
        return;
    }
    int64_t spent = nanoseconds(w, event->end > 0.0 ? event->end : w->last) - start;
    put_complete(w, track->rank + 1, index + 1, start, spent, event->site->category, event->site->name);
    put(w, "\"at\":\"%s:%d\"}}", event->site->file, event->site->line);
}

static void put_activity(writer *w, const carry_activity_log *log, const carry_activity *a, const lane *on,
                         int64_t start) {
    put_complete(w, on->process, on->thread, start, on->end - start, carry_activity_category(a->kind),
                 log->sum[a->name].name);
    if (a->kind != CARRY_ACTIVITY_KERNEL) {
        put(w, "\"bytes\":%lld}}", (long long)a->bytes);
        return;
    }
    put(w, "\"grid\":\"%dx%dx%d\",\"block\":\"%dx%dx%d\",\"registers\":%d,\"shared_bytes\":%lld}}", a->grid[0],
        a->grid[1], a->grid[2], a->block[0], a->block[1], a->block[2], a->registers, (long long)a->bytes);
}

/* The first lane that is free at `start`, or else a new, named lane. */
static lane *find_lane(writer *w, lane *lanes, int *count, const carry_activity *a, int64_t start) {
    char name[48];
    int at = 0;
    while (at < *count && lanes[at].end > start) {
        at++;
    }
    if (at < *count || at == LANES) {
        return &lanes[at < LANES ? at : LANES - 1];
    }
    lanes[at] = (lane){.process = w->process, .thread = ++w->thread};
    (*count)++;
    int used = snprintf(name, sizeof name, "stream %u", a->stream);
    if (at > 0) {
        (void)snprintf(name + used, sizeof name - (size_t)used, ", %d at once", at + 1);
    }
    put_name(w, w->process, w->thread, "thread_name", name);
    return &lanes[at];
}

/* Writes each GPU as a process, numbered after the ranks, and each stream as a thread. Records are sorted by
   GPU, stream and start. */
static void put_gpus(writer *w, const carry_activity_log *log) {
    lane lanes[LANES];
    int count = 0;
    for (int64_t i = 0; i < log->count; i++) {
        const carry_activity *a = &log->record[i];
        if (i == 0 || a->gpu != a[-1].gpu) {
            char name[48];
            (void)snprintf(name, sizeof name, "GPU %d", a->gpu);
            put_name(w, ++w->process, w->thread + 1, "process_name", name);
            count = 0;
        } else if (a->stream != a[-1].stream) {
            count = 0;
        }
        int64_t start = nanoseconds(w, a->start);
        int64_t end = nanoseconds(w, a->end);
        lane *on = find_lane(w, lanes, &count, a, start);
        start = start > on->end ? start : on->end; /* only if all lanes are in use */
        on->end = end > start ? end : start;
        put_activity(w, log, a, on, start);
    }
}

static void put_kernels(writer *w, const carry_hotspots *h) {
    put(w,
        "],\n\"gpus\":%d,\"gpu_busy_s\":%.9g,\"gpu_events\":%lld,\"gpu_dropped\":%lld,\"gpu_lost\":%lld,\"kernels\":[",
        h->gpus, h->gpu_busy, (long long)h->gpu_events, (long long)h->gpu_dropped, (long long)h->gpu_lost);
    for (int i = 0; i < h->kernels; i++) {
        put(w, "%s{\"category\":", i > 0 ? ",\n" : "\n");
        put_text(w, h->kernel[i].category);
        put(w, ",\"name\":");
        put_text(w, h->kernel[i].name);
        put(w, ",\"calls\":%lld,\"total_s\":%.9g}", (long long)h->kernel[i].calls, h->kernel[i].total);
    }
}

static void put_hotspots(writer *w, const carry_hotspots *h) {
    put(w,
        "\"carry\":{\"version\":1,\"ranks\":%d,\"threads\":%d,\"wall_s\":%.9g,\"events\":%lld,\"dropped\":%lld,"
        "\"gemm_gflops\":%.9g,\"hotspots\":[",
        h->ranks, h->threads, h->wall, (long long)h->events, (long long)h->dropped, h->gemm_gflops);
    for (int i = 0; i < h->count; i++) {
        const carry_hotspot *spot = &h->spot[i];
        put(w, "%s{\"category\":", i > 0 ? ",\n" : "\n");
        put_text(w, spot->category);
        put(w, ",\"name\":");
        put_text(w, spot->name);
        put(w, ",\"file\":");
        put_text(w, spot->file);
        put(w,
            ",\"line\":%d,\"calls\":%lld,\"total_s\":%.9g,\"wall_s\":%.9g,\"self_s\":%.9g,\"outer_s\":%.9g,\"flops\":%."
            "9g,"
            "\"tokens\":%.9g}",
            spot->line, (long long)spot->calls, spot->total, spot->wall, spot->self, spot->outer, spot->flops,
            spot->tokens);
    }
    if (h->gpus > 0) {
        put_kernels(w, h);
    }
    put(w, "]}");
}

static void find_times(writer *w, const carry_recorder *recorder, const carry_activity_log *log) {
    const carry_track *track;
    w->start = INFINITY;
    for (int i = 0; (track = carry_recorder_track(recorder, i)) != NULL; i++) {
        for (int64_t j = 0; j < track->count; j++) {
            const carry_event *event = &track->event[j];
            w->start = fmin(w->start, event->start);
            w->last = fmax(w->last, fmax(event->start, event->end));
        }
    }
    for (int64_t i = 0; log != NULL && i < log->count; i++) {
        w->start = fmin(w->start, log->record[i].start);
    }
}

static void put_trace(writer *w, const carry_recorder *recorder, const carry_activity_log *log,
                      const carry_hotspots *hotspots, const char *command) {
    const carry_track *track;
    find_times(w, recorder, log);
    put(w, "{\"traceEvents\":["); /* first, because Perfetto stops at the first key it does not know */
    for (int i = 0; (track = carry_recorder_track(recorder, i)) != NULL; i++) {
        put_names(w, track, i);
        for (int64_t j = 0; j < track->count; j++) {
            put_event(w, track, i, &track->event[j]);
        }
        w->process = track->rank + 1 > w->process ? track->rank + 1 : w->process;
        w->thread = i + 1;
    }
    if (log != NULL) {
        put_gpus(w, log);
    }
    put(w, "],\n\"displayTimeUnit\":\"ns\",\n\"otherData\":{\"writer\":\"carry %s\",\"command\":", carry_version());
    put_text(w, command);
    put(w, "},\n");
    put_hotspots(w, hotspots);
    put(w, "}\n");
    compress_pending(w, Z_FINISH);
}

carry_status carry_trace_make(carry_ctx *ctx, void **bytes, size_t *length, const carry_recorder *recorder,
                              const carry_activity_log *log, const carry_hotspots *hotspots, const char *command) {
    *bytes = NULL;
    *length = 0;
    writer *w = calloc(1, sizeof *w);
    if (w == NULL ||
        deflateInit2(&w->stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + GZIP, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        free(w);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the trace");
    }
    put_trace(w, recorder, log, hotspots, command);
    (void)deflateEnd(&w->stream);
    bool failed = w->failed;
    *bytes = w->out;
    *length = w->used;
    free(w);
    if (failed) {
        free(*bytes);
        *bytes = NULL;
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the trace");
    }
    return CARRY_OK;
}
