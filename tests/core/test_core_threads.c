/* The pool: every item runs exactly once, and each worker index is used by one thread at a time, for any number of
   items, threads and tasks. Tasks run on threads where an assertion cannot fail a test, so they count errors and the
   test checks the counts afterwards. */
#include <pthread.h>
#include <stdatomic.h>

#include "core/threads.h"
#include "support.h"

#define MOST_THREADS 8
#define MOST_ITEMS 100000

typedef struct watch {
    int64_t count, grain;
    int threads;
    _Atomic unsigned char *hits; /* MOST_ITEMS */
    atomic_bool busy[MOST_THREADS];
    atomic_int wrong_range, wrong_worker, shared_worker, pieces;
} watch;

static void touch(void *argument, int64_t begin, int64_t end, int worker) {
    watch *w = argument;
    atomic_fetch_add(&w->pieces, 1);
    if (begin < 0 || begin >= end || end > w->count || (w->threads > 1 && end - begin > w->grain)) {
        atomic_fetch_add(&w->wrong_range, 1);
        return;
    }
    if (worker < 0 || worker >= w->threads) {
        atomic_fetch_add(&w->wrong_worker, 1);
        return;
    }
    if (atomic_exchange(&w->busy[worker], true)) {
        atomic_fetch_add(&w->shared_worker, 1);
    }
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(&w->hits[i], 1);
    }
    atomic_store(&w->busy[worker], false);
}

static bool every_item_once(carry_ctx *ctx, watch *w, int64_t count, int64_t grain) {
    w->count = count;
    w->grain = grain;
    w->threads = carry_ctx_threads(ctx);
    for (int64_t i = 0; i < MOST_ITEMS; i++) {
        atomic_store_explicit(&w->hits[i], 0, memory_order_relaxed);
    }
    atomic_store(&w->pieces, 0);
    carry_parallel(ctx, count, grain, touch, w);
    for (int64_t i = 0; i < MOST_ITEMS; i++) {
        if (atomic_load_explicit(&w->hits[i], memory_order_relaxed) != (i < count ? 1 : 0)) {
            return false;
        }
    }
    return atomic_load(&w->wrong_range) == 0 && atomic_load(&w->wrong_worker) == 0 &&
           atomic_load(&w->shared_worker) == 0;
}

static void watch_start(watch *w) {
    *w = (watch){.hits = calloc(MOST_ITEMS, sizeof *w->hits)};
}

static void test_every_item_is_done_exactly_once(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 8};
    static const int64_t counts[] = {0, 1, 2, 7, 1000, MOST_ITEMS};
    static const int64_t grains[] = {1, 3, 64, 1000000};
    watch w;
    watch_start(&w);
    assert_non_null(w.hits);
    for (int t = 0; t < 4; t++) {
        carry_ctx *ctx = support_ctx(threads[t], NULL, NULL);
        for (int c = 0; c < 6; c++) {
            for (int g = 0; g < 4; g++) {
                if (!every_item_once(ctx, &w, counts[c], grains[g])) {
                    fail_msg("%lld items by %lld on %d threads: %d ranges wrong, %d workers wrong, %d used by two",
                             (long long)counts[c], (long long)grains[g], threads[t], atomic_load(&w.wrong_range),
                             atomic_load(&w.wrong_worker), atomic_load(&w.shared_worker));
                }
            }
        }
        carry_ctx_free(ctx);
    }
    free(w.hits);
}

static void test_counts_and_grains_below_one(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(3, NULL, NULL);
    watch w;
    watch_start(&w);
    assert_non_null(w.hits);
    carry_parallel(ctx, -1, 1, touch, &w);
    carry_parallel(ctx, INT64_MIN, 1, touch, &w);
    assert_int_equal(atomic_load(&w.pieces), 0);
    w.count = 100;
    w.grain = 1; /* a grain below 1 counts as 1 */
    w.threads = 3;
    carry_parallel(ctx, 100, 0, touch, &w);
    carry_parallel(ctx, 100, -5, touch, &w);
    assert_int_equal(atomic_load(&w.wrong_range), 0);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(atomic_load(&w.hits[i]), 2);
    }
    free(w.hits);
    carry_ctx_free(ctx);
}

typedef struct nest {
    carry_ctx *ctx;
    atomic_int inner_items, elsewhere, wrong_worker;
} nest;

typedef struct nest_inner {
    nest *outer;
    pthread_t caller;
} nest_inner;

static void inner_task(void *argument, int64_t begin, int64_t end, int worker) {
    nest_inner *inner = argument;
    atomic_fetch_add(&inner->outer->inner_items, (int)(end - begin));
    if (!pthread_equal(pthread_self(), inner->caller)) {
        atomic_fetch_add(&inner->outer->elsewhere, 1);
    }
    if (worker < 0 || worker >= carry_ctx_threads(inner->outer->ctx)) {
        atomic_fetch_add(&inner->outer->wrong_worker, 1);
    }
}

static void outer_task(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    nest *n = argument;
    for (int64_t i = begin; i < end; i++) {
        nest_inner inner = {.outer = n, .caller = pthread_self()};
        carry_parallel(n->ctx, 50, 1, inner_task, &inner);
    }
}

static void test_a_call_inside_a_task_runs_in_place(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        nest n = {.ctx = support_ctx(threads, NULL, NULL)};
        carry_parallel(n.ctx, 200, 1, outer_task, &n);
        assert_int_equal(atomic_load(&n.inner_items), 200 * 50);
        assert_int_equal(atomic_load(&n.wrong_worker), 0);
        /* A range that is not split leaves the pool free: then the inner range may be split. */
        assert_true(threads == 1 || atomic_load(&n.elsewhere) == 0);
        carry_ctx_free(n.ctx);
    }
}

static void add_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    _Atomic int64_t *sum = argument;
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(sum, i + 1);
    }
}

/* Between two tasks, threads join late, fall asleep or are woken. */
static void test_many_tiny_tasks_in_a_row(void **state) {
    (void)state;
    static const int threads[] = {2, 8};
    for (int t = 0; t < 2; t++) {
        carry_ctx *ctx = support_ctx(threads[t], NULL, NULL);
        for (int64_t task = 0; task < 2000; task++) {
            _Atomic int64_t sum = 0;
            int64_t count = 1 + task % 5;
            carry_parallel(ctx, count, 1, add_range, &sum);
            assert_int_equal(atomic_load(&sum), count * (count + 1) / 2);
        }
        carry_ctx_free(ctx);
    }
}

/* The caller reads the plain memory that a task wrote, without a lock of its own. */
static void write_squares(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    int64_t *squares = argument;
    for (int64_t i = begin; i < end; i++) {
        squares[i] = i * i;
    }
}

static void test_results_are_visible_to_the_caller(void **state) {
    (void)state;
    enum { ITEMS = 500 };
    int64_t squares[ITEMS];
    carry_ctx *ctx = support_ctx(4, NULL, NULL);
    for (int task = 0; task < 200; task++) {
        memset(squares, 0xff, sizeof squares);
        carry_parallel(ctx, ITEMS, 7, write_squares, squares);
        for (int64_t i = 0; i < ITEMS; i++) {
            assert_int_equal(squares[i], i * i);
        }
    }
    carry_ctx_free(ctx);
}

static void *use_own_context(void *argument) {
    atomic_int *failures = argument;
    carry_ctx *ctx;
    watch w;
    watch_start(&w);
    if (w.hits == NULL || carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 3,
                                                                   .log = support_silent}) != CARRY_OK) {
        atomic_fetch_add(failures, 1);
        return NULL;
    }
    for (int64_t i = 0; i < 50; i++) {
        if (!every_item_once(ctx, &w, 1 + i * 37, 1 + i % 4)) {
            atomic_fetch_add(failures, 1);
        }
    }
    carry_ctx_free(ctx);
    free(w.hits);
    return NULL;
}

static void test_two_contexts_work_side_by_side(void **state) {
    (void)state;
    pthread_t threads[2];
    atomic_int failures = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, use_own_context, &failures), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&failures), 0);
}

static void test_contexts_end_while_their_threads_sleep_or_start(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++) {
        carry_ctx *ctx = support_ctx(1 + i % MOST_THREADS, NULL, NULL);
        if (i % 10 == 0) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* longer than threads spin */
        }
        carry_ctx_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_is_done_exactly_once),
        cmocka_unit_test(test_counts_and_grains_below_one),
        cmocka_unit_test(test_a_call_inside_a_task_runs_in_place),
        cmocka_unit_test(test_many_tiny_tasks_in_a_row),
        cmocka_unit_test(test_results_are_visible_to_the_caller),
        cmocka_unit_test(test_two_contexts_work_side_by_side),
        cmocka_unit_test(test_contexts_end_while_their_threads_sleep_or_start),
    };
    return cmocka_run_group_tests_name("core threads", tests, NULL, NULL);
}
