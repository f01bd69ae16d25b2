/* Traces made by two ranks and by imaginary GPUs, and a check of the trace-event format. */
#ifndef CARRY_TESTS_TRACE_SUPPORT_H
#define CARRY_TESTS_TRACE_SUPPORT_H

#include <math.h>
#include <zlib.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/span.h"
#include "core/threads.h"
#include "lab/profile/trace.h"
#include "core/json.h"
#include "support.h"

typedef struct span {
    int64_t track, start, end; /* nanoseconds */
} span;

typedef struct seen {
    span *spans;
    size_t count;
    int processes, counters, kernels, copies;
    char threads[256]; /* their names, in the order of their events */
    bool process_named[64];
    char wrong[256];
} seen;

static inline char *expand(const void *bytes, size_t length, size_t *text_length) {
    const size_t limit = (size_t)64 << 20;
    char *text = malloc(limit);
    z_stream stream = {.next_in = (unsigned char *)(uintptr_t)bytes, .avail_in = (unsigned)length};
    bool ok = text != NULL && inflateInit2(&stream, MAX_WBITS + 16) == Z_OK;
    stream.next_out = (unsigned char *)text;
    stream.avail_out = (unsigned)limit;
    ok = ok && inflate(&stream, Z_FINISH) == Z_STREAM_END;
    (void)inflateEnd(&stream);
    *text_length = stream.total_out;
    if (!ok) {
        free(text);
        return NULL;
    }
    return text;
}

static inline int by_start(const void *a, const void *b) {
    const span *x = a;
    const span *y = b;
    if (x->track != y->track) {
        return (x->track > y->track) - (x->track < y->track);
    }
    if (x->start != y->start) {
        return (x->start > y->start) - (x->start < y->start);
    }
    return (x->end < y->end) - (x->end > y->end); /* of two that begin together, the longer one is the outer one */
}

static inline bool is_gpu(const char *category) {
    return strcmp(category, "kernel") == 0 || strcmp(category, "copy") == 0 || strcmp(category, "fill") == 0;
}

static inline bool is_number(const carry_json *node) {
    return node != NULL && node->kind == CARRY_JSON_NUMBER;
}

static inline bool is_integer(const carry_json *node) {
    return is_number(node) && node->whole;
}

static inline int64_t integer_of(const carry_json *node) {
    return is_integer(node) ? node->as.number.integer : 0;
}

/* The arguments of a kernel, or of a copy or fill. */
static inline const char *look_at_gpu(const carry_json *args, seen *s) {
    if (is_integer(carry_json_find(args, "bytes"))) {
        s->copies++;
        return NULL;
    }
    s->kernels++;
    const char *grid = carry_json_string(carry_json_find(args, "grid"));
    const char *block = carry_json_string(carry_json_find(args, "block"));
    return grid != NULL && block != NULL && is_integer(carry_json_find(args, "registers")) &&
                   is_integer(carry_json_find(args, "shared_bytes"))
               ? NULL
               : "a kernel lacks grid, block, registers or shared_bytes";
}

/* Checks an event against the trace-event format: the fields of every event, and those of its phase. */
static inline const char *look_at(const carry_json *event, seen *s) {
    const char *phase = carry_json_string(carry_json_find(event, "ph"));
    const char *name = carry_json_string(carry_json_find(event, "name"));
    const carry_json *pid = carry_json_find(event, "pid");
    const carry_json *tid = carry_json_find(event, "tid");
    const carry_json *ts = carry_json_find(event, "ts");
    const carry_json *args = carry_json_find(event, "args");
    if (phase == NULL || strlen(phase) != 1 || name == NULL || name[0] == '\0' || args == NULL ||
        args->kind != CARRY_JSON_OBJECT) {
        return "an event lacks ph, name or args";
    }
    if (!is_integer(pid) || !is_integer(tid) || !is_number(ts) || !(carry_json_number(ts) >= 0.0)) {
        return "pid, tid or ts is no number";
    }
    int64_t process = integer_of(pid);
    if (process < 1 || process >= 64) {
        return "a process has no sensible number";
    }
    if (phase[0] == 'M') {
        if (carry_json_string(carry_json_find(args, "name")) == NULL) {
            return "metadata without a name";
        }
        if (strcmp(name, "process_name") == 0 && !s->process_named[process]) {
            s->process_named[process] = true;
            s->processes++;
        }
        size_t used = strlen(s->threads);
        (void)snprintf(s->threads + used, sizeof s->threads - used, "%s;",
                       carry_json_string(carry_json_find(args, "name")));
        return NULL;
    }
    if (!s->process_named[process]) {
        return "an event of a process without a name";
    }
    if (phase[0] == 'C') {
        s->counters++;
        return is_number(carry_json_find(args, "value")) ? NULL : "a counter without a value";
    }
    const carry_json *duration = carry_json_find(event, "dur");
    const char *at = carry_json_string(carry_json_find(args, "at"));
    if (phase[0] != 'X' || !is_number(duration) || !(carry_json_number(duration) >= 0.0) ||
        carry_json_string(carry_json_find(event, "cat")) == NULL) {
        return "a complete event lacks dur or cat";
    }
    int64_t start = llround(1000.0 * carry_json_number(ts));
    s->spans[s->count++] =
        (span){.track = integer_of(tid), .start = start, .end = start + llround(1000.0 * carry_json_number(duration))};
    if (is_gpu(carry_json_string(carry_json_find(event, "cat")))) {
        return look_at_gpu(args, s);
    }
    if (at == NULL || at[0] == '/' || strchr(at, ':') == NULL) {
        return "a span does not say where it is in the source";
    }
    return NULL;
}

/* Two spans of one track are nested or disjoint. */
static inline const char *check_nesting(seen *s) {
    qsort(s->spans, s->count, sizeof *s->spans, by_start);
    const span *open[256];
    int depth = 0;
    for (size_t i = 0; i < s->count; i++) {
        const span *now = &s->spans[i];
        while (depth > 0 && (open[depth - 1]->track != now->track || open[depth - 1]->end <= now->start)) {
            depth--;
        }
        if (depth > 0 && now->end > open[depth - 1]->end) {
            return "two spans of a track overlap";
        }
        if (depth == 256) {
            return "spans are too deep";
        }
        open[depth++] = now;
    }
    return NULL;
}

/* NULL if the trace is valid, and then *s has the counts; else an error message. */
static inline const char *check_trace(const void *bytes, size_t length, seen *s) {
    size_t text_length;
    char *text = expand(bytes, length, &text_length);
    if (text == NULL) {
        return "it is not gzip";
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json *root = NULL;
    (void)carry_json_parse(ctx, &root, text, text_length, "the trace");
    /* Perfetto stops at the first unknown key. */
    bool first = text_length > 15 && strncmp(text, "{\"traceEvents\":", 15) == 0;
    free(text);
    const carry_json *events = carry_json_find(root, "traceEvents");
    const char *wrong = root == NULL ? "it is not JSON" : !first ? "traceEvents is not first" : NULL;
    s->spans = calloc((size_t)carry_json_count(events) + 1, sizeof *s->spans);
    size_t i = 0;
    for (const carry_json *event = carry_json_first(events); wrong == NULL && event != NULL; event = event->next, i++) {
        wrong = look_at(event, s);
        if (wrong != NULL) {
            (void)snprintf(s->wrong, sizeof s->wrong, "event %zu: %s", i, wrong);
            wrong = s->wrong;
        }
    }
    carry_json_free(root);
    carry_ctx_free(ctx);
    wrong = wrong == NULL ? check_nesting(s) : wrong;
    free(s->spans);
    return wrong;
}

static inline void item(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        CARRY_SPAN(argument, "work", "item");
        carry_span_work(argument, 2e6, 10.0);
    }
}

static inline void work_rank(carry_recorder *recorder, int rank, int64_t items) {
    carry_ctx *ctx = support_ctx(3, NULL, NULL);
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, rank));
    {
        CARRY_SPAN(ctx, "test", "a \"rank\"");
        carry_parallel(ctx, items, 1, item, ctx);
    }
    carry_ctx_free(ctx);
}

typedef struct made {
    carry_ctx *ctx;
    carry_recorder *recorder;
    carry_activity_log *log; /* NULL: no GPU */
    carry_hotspots hotspots;
    void *bytes;
    size_t length;
} made;

static inline made make_trace_with(carry_activity_log *log, int64_t events, int64_t items) {
    made m = {.ctx = support_ctx(1, NULL, NULL), .log = log};
    assert_ok(m.ctx, carry_recorder_new(m.ctx, &m.recorder, events));
    work_rank(m.recorder, 0, items);
    work_rank(m.recorder, 1, items);
    assert_ok(m.ctx, carry_hotspots_of(m.ctx, &m.hotspots, m.recorder));
    if (log != NULL) {
        assert_ok(m.ctx, carry_hotspots_add_gpu(m.ctx, &m.hotspots, log));
    }
    m.hotspots.gemm_gflops = 100.0;
    assert_ok(m.ctx, carry_trace_make(m.ctx, &m.bytes, &m.length, m.recorder, m.log, &m.hotspots, "carry \"x\" \\ \n"));
    return m;
}

static inline made make_trace(int64_t events, int64_t items) {
    return make_trace_with(NULL, events, items);
}

/* Two GPUs. The first has a stream with two branches of a graph at the same time and a stream with copies; 10 us
   each. */
static inline carry_activity_log *make_log(int64_t records, int kernels) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_activity_log *log;
    assert_ok(ctx, carry_activity_new(ctx, &log, records));
    double start = carry_seconds() - 1.0; /* before any span */
    for (int i = 0; i < kernels; i++) {
        double at = start + 1e-5 * i;
        carry_activity a = {.stream = 7, .start = at, .end = at + 1e-5, .grid = {132, 2, 1}, .block = {256, 1, 1}};
        a.registers = 40;
        a.bytes = 1024;
        carry_activity_add(log, &a, i % 2 == 0 ? "up<\"4\">" : "down");
        a.start += 5e-6;
        a.end += 5e-6;
        carry_activity_add(log, &a, "branch");
    }
    carry_activity copy = {.kind = CARRY_ACTIVITY_COPY, .stream = 9, .start = start, .end = start + 3e-5, .bytes = 99};
    carry_activity_add(log, &copy, "copy host to device");
    copy.gpu = 1;
    copy.kind = CARRY_ACTIVITY_FILL;
    carry_activity_add(log, &copy, "fill");
    carry_activity_finish(log);
    carry_ctx_free(ctx);
    return log;
}

static inline void free_trace(made *m) {
    carry_activity_free(m->log);
    free(m->bytes);
    carry_hotspots_free(&m->hotspots);
    carry_recorder_free(m->recorder);
    carry_ctx_free(m->ctx);
}

#endif
