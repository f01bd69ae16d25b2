/* Spans: no effect without a recorder; sums and nesting with one; a full track counts the events that it dropped; every
   thread has its own track. */
#include "support.h"

#include <pthread.h>

#include "core/clock.h"
#include "core/span.h"
#include "core/threads.h"

static void pass_time(double seconds) {
    double until = carry_seconds() + seconds;
    while (carry_seconds() < until) {
    }
}

static void inner(carry_ctx *ctx) {
    CARRY_SPAN(ctx, "work", "inner");
    carry_span_work(ctx, 10.0, 3.0);
    pass_time(1e-3);
}

static int outer(carry_ctx *ctx, bool early) {
    CARRY_SPAN(ctx, "work", "outer");
    pass_time(1e-3);
    inner(ctx);
    if (early) {
        return 1;
    }
    CARRY_SPAN(ctx, "other", "rest");
    inner(ctx);
    return 2;
}

static const carry_span_sum *sum_named(const carry_track *track, const char *name) {
    for (int i = 0; i < CARRY_SPAN_SITES; i++) {
        if (track->sum[i].site != NULL && strcmp(track->sum[i].site->name, name) == 0) {
            return &track->sum[i];
        }
    }
    return NULL;
}

static void test_nothing_is_recorded_without_a_recorder(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    assert_int_equal(outer(ctx, false), 2);
    carry_count(ctx, "queue", 1.0);
    assert_null(ctx->recording);
    carry_recorder *recorder;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 0));
    assert_null(carry_recorder_track(recorder, 0));
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
}

static void test_self_time_is_without_children_and_nesting_is_counted_once(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_recorder *recorder;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 100));
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, 3));
    assert_int_equal(outer(ctx, false), 2);
    assert_int_equal(outer(ctx, true), 1); /* the early return ends its spans */
    const carry_track *track = carry_recorder_track(recorder, 0);
    assert_int_equal(track->rank, 3);
    assert_int_equal(track->depth, 0);
    assert_int_equal(track->dropped, 0);
    const carry_span_sum *out = sum_named(track, "outer");
    const carry_span_sum *in = sum_named(track, "inner");
    const carry_span_sum *rest = sum_named(track, "rest");
    assert_int_equal(out->calls, 2);
    assert_int_equal(in->calls, 3);
    assert_int_equal(rest->calls, 1);
    assert_true(in->self >= 3e-3 && in->self == in->total);
    /* The self times of outer, rest and inner add up to outer's total: nested time is subtracted exactly. */
    double sum = out->self + rest->self + in->self;
    assert_true(sum > 0.999999 * out->total && sum < 1.000001 * out->total);
    assert_true(out->self >= 2e-3 && rest->total >= 1e-3 && rest->self < rest->total);
    /* inner is always inside another span of its category, so the category's time is outer's alone. */
    assert_true(in->category == 0.0 && out->category == out->total && rest->category == rest->total);
    assert_true(in->flops == 30.0 && in->tokens == 9.0 && out->flops == 0.0);
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
}

static void test_events_nest_and_say_where_they_are(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_recorder *recorder;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 100));
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, 0));
    assert_int_equal(outer(ctx, false), 2);
    carry_count(ctx, "queue", 7.0);
    const carry_track *track = carry_recorder_track(recorder, 0);
    int spans = 0;
    int counters = 0;
    for (int64_t i = 0; i < track->count; i++) {
        const carry_event *event = &track->event[i];
        if (event->site == NULL) {
            counters += strcmp(event->counter, "queue") == 0 && event->value == 7.0;
            continue;
        }
        spans++;
        assert_true(event->end >= event->start);
        const char *file = event->site->file; /* a compiler cache may make it relative to the build folder */
        while (strncmp(file, "../", 3) == 0) {
            file += 3;
        }
        assert_string_equal(file, "tests/core/test_core_span.c");
        assert_true(event->site->line > 0);
    }
    assert_int_equal(spans, 4);
    assert_int_equal(counters, 1);
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
}

/* Sums go on when there is no space for events, and dropped events are counted. */
static void test_a_full_track_drops_and_counts(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_recorder *recorder;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 64));
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, 0));
    for (int i = 0; i < 1000; i++) {
        CARRY_SPAN(ctx, "many", "a");
        CARRY_SPAN(ctx, "many", "b");
    }
    const carry_track *track = carry_recorder_track(recorder, 0);
    assert_int_equal(track->limit, 64);
    assert_int_equal(track->count, 64);
    assert_true(track->dropped >= 2000 - 64); /* samples of memory are dropped, too */
    assert_int_equal(sum_named(track, "a")->calls, 1000);
    assert_int_equal(sum_named(track, "b")->calls, 1000);
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
}

static void sink(carry_ctx *ctx, int depth) {
    CARRY_SPAN(ctx, "deep", "sink");
    if (depth > 1) {
        sink(ctx, depth - 1);
    }
}

static void test_spans_deeper_than_a_track_holds_are_left_out(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_recorder *recorder;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 1000));
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, 0));
    sink(ctx, CARRY_SPAN_DEPTH + 36);
    const carry_track *track = carry_recorder_track(recorder, 0);
    assert_int_equal(track->depth, 0);
    assert_int_equal(track->dropped, 36);
    assert_int_equal(sum_named(track, "sink")->calls, CARRY_SPAN_DEPTH);
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
}

static void work_piece(void *argument, int64_t begin, int64_t end, int worker) {
    carry_ctx *ctx = argument;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        CARRY_SPAN(ctx, "work", "item");
        pass_time(2e-5);
    }
}

static void give_out(carry_ctx *ctx) {
    CARRY_SPAN(ctx, "work", "give out");
    carry_parallel(ctx, 400, 4, work_piece, ctx);
}

/* Every item is on exactly one track, and the pieces of workers have the name of the span that started them. */
static void test_threads_have_tracks_of_their_own(void **state) {
    (void)state;
    enum { THREADS = 4 };
    carry_ctx *ctx = support_ctx(THREADS, NULL, NULL);
    carry_recorder *recorder;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 5000));
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, 0));
    for (int i = 0; i < 5; i++) {
        give_out(ctx);
    }
    carry_ctx_free(ctx);
    int64_t items = 0;
    int64_t calls = 0;
    for (int i = 0; i < THREADS; i++) {
        const carry_track *track = carry_recorder_track(recorder, i);
        assert_non_null(track);
        assert_int_equal(track->worker, i);
        const carry_span_sum *item = sum_named(track, "item");
        const carry_span_sum *out = sum_named(track, "give out");
        items += item != NULL ? item->calls : 0;
        calls += out != NULL ? out->calls : 0;
        assert_true(i == 0 || out == NULL || (out->calls == 0 && out->wall == 0.0 && out->total >= out->self));
    }
    assert_null(carry_recorder_track(recorder, THREADS));
    assert_int_equal(items, 2000);
    assert_int_equal(calls, 5);
    carry_recorder_free(recorder);
}

typedef struct rank_work {
    carry_recorder *recorder;
    int rank;
    bool ok;
} rank_work;

static void *rank_main(void *argument) {
    rank_work *work = argument;
    carry_ctx *ctx;
    work->ok = carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 2}) == CARRY_OK &&
               carry_recorder_attach(work->recorder, ctx, work->rank) == CARRY_OK;
    for (int i = 0; work->ok && i < 20; i++) {
        give_out(ctx);
    }
    carry_ctx_free(ctx);
    return NULL;
}

/* Contexts of several threads share a recorder; a later context of the same rank continues its tracks. */
static void test_ranks_share_a_recorder(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_recorder *recorder;
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 1000));
    for (int round = 0; round < 2; round++) {
        rank_work work[3];
        pthread_t threads[3];
        for (int r = 0; r < 3; r++) {
            work[r] = (rank_work){.recorder = recorder, .rank = r};
            assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &work[r]), 0);
        }
        for (int r = 0; r < 3; r++) {
            assert_int_equal(pthread_join(threads[r], NULL), 0);
            assert_true(work[r].ok);
        }
    }
    int64_t calls[3] = {0};
    int tracks = 0;
    for (const carry_track *track; (track = carry_recorder_track(recorder, tracks)) != NULL; tracks++) {
        const carry_span_sum *out = sum_named(track, "give out");
        calls[track->rank] += out != NULL ? out->calls : 0;
    }
    assert_int_equal(tracks, 6);
    assert_true(calls[0] == 40 && calls[1] == 40 && calls[2] == 40);
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
}

static void test_absurd_wishes_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_recorder *recorder;
    assert_refused(ctx, CARRY_EARGUMENT, "events", carry_recorder_new(ctx, &recorder, -1));
    assert_refused(ctx, CARRY_EARGUMENT, "events", carry_recorder_new(ctx, &recorder, INT64_MAX));
    assert_ok(ctx, carry_recorder_new(ctx, &recorder, 0));
    assert_ok(ctx, carry_recorder_attach(recorder, ctx, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "already", carry_recorder_attach(recorder, ctx, 0));
    carry_ctx_free(ctx);
    carry_recorder_free(recorder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_recorded_without_a_recorder),
        cmocka_unit_test(test_self_time_is_without_children_and_nesting_is_counted_once),
        cmocka_unit_test(test_events_nest_and_say_where_they_are),
        cmocka_unit_test(test_a_full_track_drops_and_counts),
        cmocka_unit_test(test_spans_deeper_than_a_track_holds_are_left_out),
        cmocka_unit_test(test_threads_have_tracks_of_their_own),
        cmocka_unit_test(test_ranks_share_a_recorder),
        cmocka_unit_test(test_absurd_wishes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
