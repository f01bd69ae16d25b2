/* Traces: what is written is the trace-event format, spans of a track nest, and the hotspots come back; what is damaged
   is refused. As test_lab_trace FILE PROCESSES it looks at a trace that carry profile wrote. */
#include "support.h"

#include <math.h>
#include <zlib.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/span.h"
#include "core/threads.h"
#include "lab/profile/trace.h"
#include "scan/algorithm.h"
#include "model/json.h"

typedef struct span {
    int64_t track, start, end; /* nanoseconds */
} span;

typedef struct seen {
    span *spans;
    size_t count;
    int processes, counters, kernels, copies;
    char threads[256]; /* their names, in the order in which they were met */
    bool process_named[64];
    char wrong[256];
} seen;

static char *expand(const void *bytes, size_t length, size_t *text_length) {
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

static int by_start(const void *a, const void *b) {
    const span *x = a;
    const span *y = b;
    if (x->track != y->track) {
        return (x->track > y->track) - (x->track < y->track);
    }
    if (x->start != y->start) {
        return (x->start > y->start) - (x->start < y->start);
    }
    return (x->end < y->end) - (x->end > y->end); /* the longer one is around the shorter */
}

static bool is_gpu(const char *category) {
    return strcmp(category, "kernel") == 0 || strcmp(category, "copy") == 0 || strcmp(category, "fill") == 0;
}

static bool is_number(const carry_json *node) {
    return node != NULL && node->kind == CARRY_JSON_NUMBER;
}

static bool is_integer(const carry_json *node) {
    return is_number(node) && node->whole;
}

static int64_t integer_of(const carry_json *node) {
    return is_integer(node) ? node->as.number.integer : 0;
}

/* The arguments of a kernel, or of a copy or fill. */
static const char *look_at_gpu(const carry_json *args, seen *s) {
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

/* Of the trace-event format: what every event has, and what its phase adds. */
static const char *look_at(const carry_json *event, seen *s) {
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

/* Spans of one track are inside each other or apart. */
static const char *check_nesting(seen *s) {
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

/* NULL when all is well; the caller's seen then has the numbers. */
static const char *check_trace(const void *bytes, size_t length, seen *s) {
    size_t text_length;
    char *text = expand(bytes, length, &text_length);
    if (text == NULL) {
        return "it is not gzip";
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json *root = NULL;
    (void)carry_json_parse(ctx, &root, text, text_length, "the trace");
    /* Perfetto reads no further than the first key that it does not know. */
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

static void item(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        CARRY_SPAN(argument, "work", "item");
        carry_span_work(argument, 2e6, 10.0);
    }
}

static void work_rank(carry_recorder *recorder, int rank, int64_t items) {
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

static made make_trace_with(carry_activity_log *log, int64_t events, int64_t items) {
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

static made make_trace(int64_t events, int64_t items) {
    return make_trace_with(NULL, events, items);
}

/* Two GPUs. On the first, a stream with two graphs' branches at the same time and one with copies; 10 us each. */
static carry_activity_log *make_log(int64_t records, int kernels) {
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

static void free_trace(made *m) {
    carry_activity_free(m->log);
    free(m->bytes);
    carry_hotspots_free(&m->hotspots);
    carry_recorder_free(m->recorder);
    carry_ctx_free(m->ctx);
}

static const carry_hotspot *spot_named(const carry_hotspots *h, const char *name) {
    for (int i = 0; i < h->count; i++) {
        if (strcmp(h->spot[i].name, name) == 0) {
            return &h->spot[i];
        }
    }
    fail_msg("no hotspot '%s'", name);
    return NULL;
}

static void test_a_trace_of_two_ranks_is_well_formed(void **state) {
    (void)state;
    made m = make_trace(0, 300);
    seen s = {0};
    const char *wrong = check_trace(m.bytes, m.length, &s);
    if (wrong != NULL) {
        fail_msg("%s", wrong);
    }
    assert_int_equal(s.processes, 2);
    assert_true(s.count >= 602);
    assert_true(s.counters >= 600); /* pieces that wait, and memory */
    free_trace(&m);
}

static void test_a_cut_trace_is_well_formed_and_its_hotspots_are_whole(void **state) {
    (void)state;
    made m = make_trace(64, 5000);
    seen s = {0};
    const char *wrong = check_trace(m.bytes, m.length, &s);
    if (wrong != NULL) {
        fail_msg("%s", wrong);
    }
    assert_true(s.count < 6 * 64);
    assert_true(m.hotspots.dropped >= 2 * 5000 - 6 * 64);
    assert_int_equal(spot_named(&m.hotspots, "item")->calls, 10000);
    free_trace(&m);
}

static void test_hotspots_come_back_from_a_trace(void **state) {
    (void)state;
    made m = make_trace(0, 100);
    carry_hotspots back;
    assert_ok(m.ctx, carry_trace_read(m.ctx, &back, m.bytes, m.length, "t"));
    assert_int_equal(back.count, m.hotspots.count);
    assert_int_equal(back.ranks, 2);
    assert_int_equal(back.threads, 6);
    for (int i = 0; i < back.count; i++) {
        const carry_hotspot *a = &m.hotspots.spot[i];
        const carry_hotspot *b = spot_named(&back, a->name);
        assert_string_equal(a->category, b->category);
        assert_string_equal(a->file, b->file);
        assert_true(a->line == b->line && a->calls == b->calls);
        assert_true(fabs(a->self - b->self) <= 1e-8 * fabs(a->self) + 1e-15); /* nine digits are written */
        assert_true(fabs(a->total - b->total) <= 1e-8 * a->total);
    }
    const carry_hotspot *items = spot_named(&back, "item");
    assert_int_equal(items->calls, 200);
    assert_true(items->tokens == 2000.0 && items->flops == 4e8);
    /* Ranks work at the same time: twice as much in the time of one. */
    assert_true(fabs(carry_hotspot_tokens_rate(&back, items) * items->total / 4000.0 - 1.0) < 1e-6);
    assert_true(fabs(carry_hotspot_mfu(&back, items) * items->total * 100.0 / 0.8 - 1.0) < 1e-6);
    assert_true(isnan(carry_hotspot_mfu(&back, spot_named(&back, "a \"rank\""))));
    carry_hotspots_free(&back);
    free_trace(&m);
}

static const carry_hotspot *kernel_named(const carry_hotspots *h, const char *name) {
    return spot_named(&(carry_hotspots){.count = h->kernels, .spot = h->kernel}, name);
}

static void test_gpus_are_processes_and_their_streams_threads(void **state) {
    (void)state;
    made m = make_trace_with(make_log(0, 100), 0, 5);
    seen s = {0};
    const char *wrong = check_trace(m.bytes, m.length, &s);
    if (wrong != NULL) {
        fail_msg("%s", wrong);
    }
    assert_int_equal(s.processes, 4); /* two ranks, two GPUs */
    assert_int_equal(s.kernels, 200);
    assert_int_equal(s.copies, 2);
    /* Branches overlap the kernels beside them: they have a track of their own. */
    assert_non_null(strstr(s.threads, ";GPU 0;stream 7;stream 7, 2 at once;stream 9;GPU 1;stream 9;"));
    free_trace(&m);
}

static void test_hotspots_by_kernel_come_back_from_a_trace(void **state) {
    (void)state;
    made m = make_trace_with(make_log(50, 100), 0, 5);
    carry_hotspots back;
    assert_ok(m.ctx, carry_trace_read(m.ctx, &back, m.bytes, m.length, "t"));
    assert_true(back.gpus == m.hotspots.gpus && back.kernels == 5 && m.hotspots.kernels == 5);
    assert_true(back.gpu_events == 50 && back.gpu_dropped == 152 && back.gpu_lost == 0);
    assert_string_equal(back.kernel[0].name, "branch"); /* most time */
    assert_int_equal(back.kernel[0].calls, 100);
    assert_true(fabs(back.kernel[0].total - 1e-3) < 1e-8);
    assert_int_equal(kernel_named(&back, "up<\"4\">")->calls, 50);
    assert_string_equal(kernel_named(&back, "fill")->category, "fill");
    assert_true(fabs(carry_hotspot_gpu_share(&back, &back.kernel[0]) - back.kernel[0].total / m.log->busy) < 1e-6);
    carry_hotspots_free(&back);
    free_trace(&m);
}

static void test_kernels_with_one_shown_name_are_one_entry(void **state) {
    (void)state;
    made m = make_trace_with(make_log(0, 10), 0, 1);
    carry_hotspots h = {0};
    for (int i = 0; i < CARRY_ACTIVITY_NAMES; i++) { /* as shortening does */
        if (m.log->sum[i].name != NULL && m.log->sum[i].kind == CARRY_ACTIVITY_KERNEL) {
            (void)snprintf(m.log->sum[i].name, strlen(m.log->sum[i].name) + 1, "k");
        }
    }
    assert_ok(m.ctx, carry_hotspots_add_gpu(m.ctx, &h, m.log));
    assert_int_equal(h.kernels, 3);
    assert_int_equal(kernel_named(&h, "k")->calls, 20);
    carry_hotspots_free(&h);
    free_trace(&m);
}

static void test_kernels_are_compared(void **state) {
    (void)state;
    made a = make_trace_with(make_log(0, 100), 0, 1);
    made b = make_trace_with(make_log(0, 10), 0, 1);
    made none = make_trace(0, 1);
    carry_hotspot_change *changes;
    int count;
    assert_ok(a.ctx, carry_hotspots_compare_gpu(a.ctx, &changes, &count, &a.hotspots, &b.hotspots));
    assert_int_equal(count, 5);
    assert_string_equal(changes[0].a.name, "branch");
    assert_true(fabs(changes[0].change + 9e-4) < 1e-8 && changes[0].a.calls == 100 && changes[0].b.calls == 10);
    free(changes);
    assert_ok(a.ctx, carry_hotspots_compare_gpu(a.ctx, &changes, &count, &none.hotspots, &b.hotspots));
    assert_true(count == 5 && changes[0].a.calls == 0 && changes[0].change > 0.0);
    free(changes);
    free_trace(&a);
    free_trace(&b);
    free_trace(&none);
}

static void test_categories_add_up(void **state) {
    (void)state;
    made m = make_trace(0, 100);
    carry_hotspot *spots;
    int count;
    double self = 0.0;
    assert_ok(m.ctx, carry_hotspots_categories(m.ctx, &spots, &count, &m.hotspots));
    for (int i = 0; i < count; i++) {
        self += spots[i].self;
        assert_true(i == 0 || spots[i].self <= spots[i - 1].self);
    }
    assert_true(count >= 2 && fabs(self - m.hotspots.self) <= 1e-9 * self);
    free(spots);
    free_trace(&m);
}

/* Lines move from commit to commit: a place is known by its category, name and file. */
static void test_differences_are_sorted_by_their_size(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_hotspot a[] = {{"scan", "up", "src/a.c", "", 10, 5, 2.0, 2.0, 2.0, 0.0, 0.0},
                         {"scan", "down", "src/a.c", "", 20, 5, 1.0, 1.0, 1.0, 0.0, 0.0},
                         {"ops", "gone", "src/b.c", "", 1, 1, 0.5, 0.5, 0.5, 0.0, 0.0}};
    carry_hotspot b[] = {{"scan", "up", "src/a.c", "", 11, 5, 2.1, 2.1, 2.1, 0.0, 0.0},
                         {"scan", "down", "src/a.c", "", 21, 5, 0.2, 0.2, 0.2, 0.0, 0.0},
                         {"ops", "new", "src/b.c", "", 1, 1, 0.3, 0.3, 0.3, 0.0, 0.0}};
    carry_hotspot_change *changes;
    int count;
    assert_ok(ctx, carry_hotspots_compare(ctx, &changes, &count, &(carry_hotspots){.count = 3, .spot = a},
                                          &(carry_hotspots){.count = 3, .spot = b}));
    const char *const expected[] = {"down", "gone", "new", "up"};
    assert_int_equal(count, 4);
    for (int i = 0; i < 4; i++) {
        const carry_hotspot *known = changes[i].a.calls > 0 ? &changes[i].a : &changes[i].b;
        assert_string_equal(known->name, expected[i]);
    }
    assert_true(fabs(changes[0].change + 0.8) < 1e-12 && changes[2].a.calls == 0 && changes[1].b.calls == 0);
    free(changes);
    carry_ctx_free(ctx);
}

static void test_a_truncated_trace_is_refused_at_every_byte(void **state) {
    (void)state;
    made m = make_trace(64, 20);
    for (size_t length = 0; length < m.length; length++) {
        carry_hotspots back;
        assert_refused(m.ctx, CARRY_EFORMAT, "not a trace", carry_trace_read(m.ctx, &back, m.bytes, length, "t"));
    }
    free_trace(&m);
}

static void test_a_damaged_trace_is_refused_or_read(void **state) {
    (void)state;
    made m = make_trace(64, 20);
    unsigned char *bytes = m.bytes;
    int read = 0;
    for (size_t i = 0; i < m.length; i++) {
        carry_hotspots back;
        bytes[i] ^= 0x10;
        if (carry_trace_read(m.ctx, &back, m.bytes, m.length, "t") == CARRY_OK) {
            read++;
            carry_hotspots_free(&back);
        }
        bytes[i] ^= 0x10;
    }
    assert_true(read <= 7); /* bytes 4 to 9 of the header say nothing, nor do the bits that fill the last byte */
    free_trace(&m);
}

static void test_other_files_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
#define HEAD "{\"traceEvents\":[],\"carry\":{\"version\":"
#define REST ",\"ranks\":1,\"threads\":1,\"wall_s\":1,\"events\":0,\"dropped\":0,\"gemm_gflops\":0,\"hotspots\":["
#define SPOT "{\"category\":\"a\",\"name\":\"b\",\"file\":\"c\",\"line\":1,\"calls\":"
#define TAIL ",\"total_s\":1,\"self_s\":1,\"outer_s\":1,\"flops\":0,\"tokens\":0}]}}"
#define GPUS "],\"gpus\":1,\"gpu_busy_s\":1,\"gpu_events\":1,\"gpu_dropped\":0,\"gpu_lost\":"
#define KERNEL ",\"kernels\":[{\"category\":\"kernel\",\"name\":\"k\",\"total_s\":1,\"calls\":"
    const struct {
        const char *text, *words;
    } bad[] = {{"", "not a trace"},
               {"[]", "not a JSON object"},
               {"{}", "no traceEvents"},
               {"{\"traceEvents\":[]}", "no hotspots"},
               {"{\"traceEvents\":[],\"traceEvents\":[]}", "duplicate"},
               {HEAD "2" REST "]}}", "newer version"},
               {HEAD "1" REST "{}]}}", "incomplete"},
               {HEAD "1" REST SPOT "-1" TAIL, "incomplete"},
               {HEAD "1" REST SPOT "1.5" TAIL, "incomplete"},
               {HEAD "1" REST SPOT "1e30" TAIL, "incomplete"},
               {HEAD "1" REST SPOT "1" TAIL "x", "line 1"},
               {HEAD "1" REST "],\"kernels\":1}}", "more kernels"},
               {HEAD "1" REST "],\"kernels\":[]}}", "of its GPUs"},
               {HEAD "1" REST GPUS "-1" KERNEL "1}]}}", "of its GPUs"},
               {HEAD "1" REST GPUS "0" KERNEL "1.5}]}}", "a kernel"},
               {HEAD "1" REST GPUS "0,\"kernels\":[[]]}}", "a kernel"},
               {"\x1f\x8b", "too early"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        carry_hotspots back;
        assert_refused(ctx, CARRY_EFORMAT, bad[i].words,
                       carry_trace_read(ctx, &back, bad[i].text, strlen(bad[i].text), "t"));
    }
    carry_hotspots good;
    const char text[] = HEAD "1" REST SPOT "1" TAIL; /* the same without what is wrong */
    assert_ok(ctx, carry_trace_read(ctx, &good, text, sizeof text - 1, "t"));
    carry_hotspots_free(&good);
    const char gpu[] = HEAD "1" REST GPUS "0" KERNEL "1}]}}";
    assert_ok(ctx, carry_trace_read(ctx, &good, gpu, sizeof gpu - 1, "t"));
    assert_true(good.kernels == 1 && good.gpus == 1);
    carry_hotspots_free(&good);
    carry_ctx_free(ctx);
}

/* 100 MB of zeros in 100 kB: the bound is on what comes out. */
static void test_a_bomb_is_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    unsigned char *zeros = calloc(1, 1 << 20);
    unsigned char *bomb = malloc(1 << 20);
    z_stream stream = {.next_out = bomb, .avail_out = 1 << 20};
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    for (int i = 0; i <= 100; i++) {
        stream.next_in = zeros;
        stream.avail_in = i < 100 ? 1 << 20 : 0;
        (void)deflate(&stream, i < 100 ? Z_NO_FLUSH : Z_FINISH);
    }
    (void)deflateEnd(&stream);
    carry_hotspots back;
    assert_refused(ctx, CARRY_EFORMAT, "more text", carry_trace_read(ctx, &back, bomb, stream.total_out, "t"));
    free(zeros);
    free(bomb);
    carry_ctx_free(ctx);
}

/* A run's span is that of its algorithm's entry in the table. */
static void test_every_scan_has_a_place(void **state) {
    (void)state;
    for (int gpu = 0; gpu < 2; gpu++) {
        const carry_scan_algorithm *algorithm;
        for (int i = 0; (algorithm = carry_scan_at(gpu != 0, i)) != NULL; i++) {
            if (algorithm->span.name == NULL || algorithm->span.category == NULL || algorithm->span.file == NULL) {
                fail_msg("%s has no .span", algorithm->name);
            }
            assert_non_null(strstr(algorithm->span.name, algorithm->name));
        }
    }
}

/* For the shell tests: 0 when the file is a well-formed trace with this many processes. */
static int check_file(const char *path, int processes) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char *bytes;
    size_t length;
    seen s = {0};
    const char *wrong = carry_file_read(ctx, &bytes, &length, path, CARRY_TRACE_BYTES) != CARRY_OK
                            ? carry_ctx_error(ctx)
                            : check_trace(bytes, length, &s);
    if (wrong == NULL && s.processes != processes) {
        wrong = "the number of processes is another";
    }
    (void)printf("%s: %zu spans, %d counters, %d processes: %s\n", path, s.count, s.counters, s.processes,
                 wrong != NULL ? wrong : "well-formed");
    free(bytes);
    carry_ctx_free(ctx);
    return wrong != NULL;
}

int main(int count, char **arguments) {
    if (count == 3) {
        return check_file(arguments[1], (int)strtol(arguments[2], NULL, 10));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_trace_of_two_ranks_is_well_formed),
        cmocka_unit_test(test_a_cut_trace_is_well_formed_and_its_hotspots_are_whole),
        cmocka_unit_test(test_hotspots_come_back_from_a_trace),
        cmocka_unit_test(test_gpus_are_processes_and_their_streams_threads),
        cmocka_unit_test(test_hotspots_by_kernel_come_back_from_a_trace),
        cmocka_unit_test(test_kernels_with_one_shown_name_are_one_entry),
        cmocka_unit_test(test_kernels_are_compared),
        cmocka_unit_test(test_categories_add_up),
        cmocka_unit_test(test_differences_are_sorted_by_their_size),
        cmocka_unit_test(test_a_truncated_trace_is_refused_at_every_byte),
        cmocka_unit_test(test_a_damaged_trace_is_refused_or_read),
        cmocka_unit_test(test_other_files_are_refused),
        cmocka_unit_test(test_a_bomb_is_refused),
        cmocka_unit_test(test_every_scan_has_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
