/* A pool of threads that take pieces of a range from a shared counter.

   The caller publishes a task by setting `open`, works on it too, closes the task when the counter has run out, and
   waits only for threads that had joined: a thread that is still waking up costs nothing. Idle threads spin for a
   while, since the levels of a scan follow each other within microseconds, then sleep. */
#include "core/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/limit.h"
#include "core/span.h"

/* Long enough to bridge the gap between two levels of a scan, and short enough not to waste a shared machine. Under
   sanitizers, where no time is measured, tests with threads spent a tenth of their processor time here. */
#define SPIN_SECONDS CARRY_MEASURED(100e-6, 20e-6)
#define SPINS_PER_LOOK 64

struct carry_pool {
    int threads;
    int most;           /* threads that a task may use (carry_limit_threads) */
    pthread_t *handles; /* threads - 1 */
    int started;

    carry_task task;
    void *argument;
    int64_t count, grain;
    _Atomic int64_t next;    /* first item not yet taken */
    _Atomic uint64_t serial; /* incremented for every task; idle threads watch it */
    atomic_bool open;        /* threads may join the task */
    atomic_int joined;       /* threads that are working on the task now */
    atomic_bool stop;
    bool inside;                 /* a task is running: nested calls run in place */
    carry_ctx *recorded;         /* the task's context if spans are recorded, else NULL */
    const carry_span_site *site; /* the span that started the task; its pieces get this name */

    pthread_mutex_t lock; /* guards sleeping only */
    pthread_cond_t wake;
    atomic_int sleepers;
};

typedef struct worker {
    carry_pool *pool;
    int index;
} worker;

/* The worker of this thread. Thread-local, so that it need not be passed to a task. */
static _Thread_local const worker *this_worker;

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* While a task runs on x86, subnormal f32 numbers count as zero: otherwise a long product of decays spends a hundred
   cycles on each of its subnormal entries (dense chunkwise scan, n = 64, T = 4096, 16 threads: 29.9 ms against 4.0).
   The caller's mode is restored afterwards. ARM has no such penalty. Processors exempt conversions from and to f16 from
   this mode; qemu 7.2 does not, so tools/check builds without it for qemu (CARRY_KEEP_SUBNORMALS). */
static unsigned flush_subnormals(void) {
#if defined(__x86_64__) && !defined(CARRY_KEEP_SUBNORMALS)
    const unsigned flush_and_treat_as_zero = 0x8040u;
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | flush_and_treat_as_zero);
    return mode;
#else
    return 0;
#endif
}

static void restore_mode(unsigned mode) {
#if defined(__x86_64__) && !defined(CARRY_KEEP_SUBNORMALS)
    __builtin_ia32_ldmxcsr(mode);
#else
    (void)mode;
#endif
}

static int64_t pieces_of(const carry_pool *pool, int64_t items) {
    return items / pool->grain + (items % pool->grain != 0);
}

/* Runs a piece and records the number of pieces left. A piece on another thread than the caller's is also recorded as
   a span on that thread's track; the caller's pieces are part of the caller's open span. */
static void record_piece(carry_pool *pool, int64_t begin, int64_t end, int index) {
    static const carry_span_site nameless = {"threads", "piece", __FILE__, __LINE__};
    carry_ctx *ctx = pool->recorded;
    carry_track *track = NULL;
    carry_count(ctx, "queue", (double)pieces_of(pool, pool->count - end));
    if (index > 0) {
        track = carry_span_open_piece(ctx, pool->site != NULL ? pool->site : &nameless);
    }
    pool->task(pool->argument, begin, end, index);
    carry_span_end(&track);
}

static void take_pieces(carry_pool *pool, int index) {
    for (;;) {
        int64_t begin = atomic_fetch_add(&pool->next, pool->grain);
        if (begin >= pool->count) {
            return;
        }
        int64_t end = pool->count - begin < pool->grain ? pool->count : begin + pool->grain;
        if (pool->recorded != NULL) {
            record_piece(pool, begin, end, index);
        } else {
            pool->task(pool->argument, begin, end, index);
        }
    }
}

/* A thread announces that it joins before it reads `open`, and the caller closes before it reads `joined`: either
   the caller sees this thread, or this thread sees that the task is closed. */
static void join_task(carry_pool *pool, int index) {
    atomic_fetch_add(&pool->joined, 1);
    if (atomic_load(&pool->open) && index < pool->most) { /* `most` is written only while no task is open */
        take_pieces(pool, index);
    }
    atomic_fetch_sub(&pool->joined, 1);
}

static void wait_for_work(carry_pool *pool, uint64_t seen) {
    double until = carry_seconds() + SPIN_SECONDS;
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (atomic_load(&pool->serial) != seen || atomic_load(&pool->stop)) {
                return;
            }
            relax();
        }
    } while (carry_seconds() < until);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->serial) == seen && !atomic_load(&pool->stop)) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument) {
    worker self = *(worker *)argument;
    free(argument);
    uint64_t seen = 0;
    this_worker = &self;
    (void)flush_subnormals();
    while (!atomic_load(&self.pool->stop)) {
        wait_for_work(self.pool, seen);
        seen = atomic_load(&self.pool->serial);
        join_task(self.pool, self.index);
    }
    this_worker = NULL;
    return NULL;
}

static void wake_sleepers(carry_pool *pool) {
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

static carry_status start_worker(carry_ctx *ctx, carry_pool *pool, int index) {
    worker *self = malloc(sizeof *self);
    if (self == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: thread %d of %d", index, pool->threads);
    }
    *self = (worker){.pool = pool, .index = index};
    int code = pthread_create(&pool->handles[index - 1], NULL, worker_main, self);
    if (code != 0) {
        free(self);
        return carry_fail(ctx, CARRY_EMEMORY, "thread %d of %d could not be started (%s): ask for fewer threads", index,
                          pool->threads, strerror(code));
    }
    pool->started++;
    return CARRY_OK;
}

/* Waits for threads that have joined and are still working. */
static void wait_for_joined(carry_ctx *ctx, carry_pool *pool) {
    if (atomic_load(&pool->joined) == 0) {
        return;
    }
    CARRY_SPAN(ctx, "threads", "wait");
    for (int spins = 0; atomic_load(&pool->joined) > 0; spins++) {
        relax();
        if (spins > 4096) {
            sched_yield(); /* there are more threads than cores: let another one run */
        }
    }
}

int carry_cores(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores > 0 ? cores : 1;
}

carry_status carry_pool_new(carry_ctx *ctx, carry_pool **pool, int threads) {
    carry_pool *made = calloc(1, sizeof *made);
    *pool = made;
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a pool of %d threads", threads);
    }
    made->threads = made->most = threads;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->wake, NULL);
    made->handles = calloc((size_t)threads, sizeof *made->handles);
    if (made->handles == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a pool of %d threads", threads);
    }
    for (int i = 1; i < threads; i++) {
        CARRY_TRY(start_worker(ctx, made, i));
    }
    return CARRY_OK;
}

void carry_pool_free(carry_pool *pool) {
    if (pool == NULL) {
        return;
    }
    atomic_store(&pool->stop, true);
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++) {
        pthread_join(pool->handles[i], NULL);
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->handles);
    free(pool);
}

int carry_worker(const carry_ctx *ctx) {
    return this_worker != NULL && this_worker->pool == ctx->pool ? this_worker->index : 0;
}

int carry_limit_threads(carry_ctx *ctx, int threads) {
    carry_pool *pool = ctx->pool;
    const int before = pool->most;
    if (!pool->inside && threads >= 1 && threads <= pool->threads) {
        pool->most = threads;
        ctx->threads = threads;
    }
    return before;
}

void carry_parallel(carry_ctx *ctx, int64_t count, int64_t grain, carry_task task, void *argument) {
    carry_pool *pool = ctx->pool;
    if (count <= 0) {
        return;
    }
    if (grain < 1) {
        grain = 1;
    }
    unsigned mode = flush_subnormals();
    if (pool->most == 1 || count <= grain || pool->inside) {
        task(argument, 0, count, 0);
        restore_mode(mode);
        return;
    }
    pool->inside = true;
    pool->task = task;
    pool->argument = argument;
    pool->count = count;
    pool->grain = grain;
    pool->recorded = ctx->recording != NULL ? ctx : NULL;
    pool->site = ctx->recording != NULL ? carry_span_here(ctx) : NULL;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->open, true);
    atomic_fetch_add(&pool->serial, 1);
    wake_sleepers(pool);
    take_pieces(pool, 0);
    atomic_store(&pool->open, false);
    wait_for_joined(ctx, pool);
    pool->inside = false;
    restore_mode(mode);
}
