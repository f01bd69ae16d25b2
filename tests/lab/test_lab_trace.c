/* Traces: the output is in the trace-event format, spans of a track nest, and the hotspots read back the same. As
   test_lab_trace FILE PROCESSES it checks a trace that carry profile wrote. */
#include "scan/algorithm.h"
#include "trace_support.h"

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
        assert_true(fabs(a->wall - b->wall) <= 1e-8 * a->wall);
    }
    const carry_hotspot *items = spot_named(&back, "item");
    assert_int_equal(items->calls, 200);
    assert_true(items->tokens == 2000.0 && items->flops == 4e8);
    /* Ranks work at the same time: twice the work in the time of one. */
    assert_true(fabs(carry_hotspot_tokens_rate(&back, items) * items->total / 4000.0 - 1.0) < 1e-6);
    assert_true(fabs(carry_hotspot_mfu(&back, items) * items->total * 100.0 / 0.8 - 1.0) < 1e-6);
    assert_true(isnan(carry_hotspot_mfu(&back, spot_named(&back, "a \"rank\""))));
    carry_hotspots_free(&back);
    free_trace(&m);
}

static void pass_time(void) {
    const double until = carry_seconds() + 1e-4;
    while (carry_seconds() < until) {
    }
}

/* Pieces on every thread, each with a nested span of the same name. */
static void nest(void *argument, int64_t begin, int64_t end, int worker) {
    static const carry_span_site site = {.category = "work", .name = "nested", .file = "t.c", .line = 1};
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        carry_track *outer = carry_span_begin(argument, &site);
        carry_track *inner = carry_span_begin(argument, &site);
        pass_time();
        carry_span_end(&inner);
        carry_span_end(&outer);
        pass_time();
    }
}

static void test_self_is_never_more_than_total(void **state) {
    (void)state;
    enum { THREADS = 3, ITEMS = 60 };
    carry_ctx *ctx = support_ctx(THREADS, NULL, NULL);
    carry_recorder *recorder;
    carry_hotspots h;
    carry_hotspot *categories;
    int count;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 0));
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, 0));
    for (int i = 0; i < 3; i++) {
        CARRY_SPAN(ctx, "test", "give out");
        carry_parallel(ctx, ITEMS, 1, nest, ctx);
    }
    assert_ok(ctx, carry_hotspots_of(ctx, &h, recorder));
    const carry_hotspot *nested = spot_named(&h, "nested");
    const carry_hotspot *out = spot_named(&h, "give out");
    assert_true(nested->calls == 6 * ITEMS && out->calls == 3);
    /* All time in nested is self time, and counts once although each span is inside another. */
    assert_true(fabs(nested->total - nested->self) <= 1e-9 * nested->self && nested->wall == nested->total);
    /* Each item spends 100 us outside nested, on any thread: self and total include it, wall includes the caller's
       part. */
    assert_true(out->self >= 3 * ITEMS * 1e-4 && out->wall <= out->total);
    /* All other spans are inside it, including the caller's wait for the pool. */
    assert_true(fabs(out->total - h.self) <= 1e-9 * out->total);
    for (int i = 0; i < h.count; i++) {
        assert_true(h.spot[i].self <= h.spot[i].total);
    }
    assert_ok(ctx, carry_hotspots_categories(ctx, &categories, &count, &h));
    for (int i = 0; i < count; i++) {
        assert_true(categories[i].self <= categories[i].total);
    }
    free(categories);
    carry_hotspots_free(&h);
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
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
    /* Branches of a graph overlap the kernels beside them, so they have a separate track. */
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

/* Lines move from commit to commit: a span is identified by its category, name and file. */
static void test_differences_are_sorted_by_their_size(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_hotspot a[] = {{"scan", "up", "src/a.c", "", 10, 5, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0},
                         {"scan", "down", "src/a.c", "", 20, 5, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0},
                         {"ops", "gone", "src/b.c", "", 1, 1, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0}};
    carry_hotspot b[] = {{"scan", "up", "src/a.c", "", 11, 5, 2.1, 2.1, 2.1, 2.1, 0.0, 0.0},
                         {"scan", "down", "src/a.c", "", 21, 5, 0.2, 0.2, 0.2, 0.2, 0.0, 0.0},
                         {"ops", "new", "src/b.c", "", 1, 1, 0.3, 0.3, 0.3, 0.3, 0.0, 0.0}};
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

/* The span of a run is the one of its algorithm's entry in the table. */
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

/* For the shell tests: returns 0 if the file is a well-formed trace with this many processes. */
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
        cmocka_unit_test(test_self_is_never_more_than_total),
        cmocka_unit_test(test_gpus_are_processes_and_their_streams_threads),
        cmocka_unit_test(test_hotspots_by_kernel_come_back_from_a_trace),
        cmocka_unit_test(test_kernels_with_one_shown_name_are_one_entry),
        cmocka_unit_test(test_kernels_are_compared),
        cmocka_unit_test(test_categories_add_up),
        cmocka_unit_test(test_differences_are_sorted_by_their_size),
        cmocka_unit_test(test_every_scan_has_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
