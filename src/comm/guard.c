/* A call is a number, odd while it lasts. The thread looks twice a second and counts looks, not seconds: a process that
   was stopped, or a machine that was suspended, finds itself far beyond `until` at one look and goes on before the
   next. */
#include "comm/guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

#define LOOKS 5           /* in a row that find the same call beyond its time */
#define PERIOD 500000000L /* ns between two */

static struct {
    pthread_once_t once;
    atomic_uint_least64_t call;
    _Atomic(const char *) operation;
    atomic_int peer;
    _Atomic double until;
} guard = {.once = PTHREAD_ONCE_INIT};

/* Without stdio, whose locks the thread inside MPI may hold. */
static void end_process(void) {
    char text[256], peer[32] = "";
    const char *operation = atomic_load(&guard.operation);
    const int rank = atomic_load(&guard.peer);
    const double late = carry_seconds() - atomic_load(&guard.until);
    if (rank >= 0) {
        (void)snprintf(peer, sizeof peer, " rank %d:", rank);
    }
    const int length = snprintf(text, sizeof text,
                                "carry: %s:%s MPI has not returned %.1f s after the deadline, which the death of a "
                                "rank can cause: this process ends\n",
                                operation, peer, late);
    const ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    _exit(written < 0 ? 3 : 2);
}

static void *watch(void *unused) {
    const struct timespec period = {.tv_nsec = PERIOD};
    uint_least64_t seen = 0;
    (void)unused;
    for (int looks = 0;;) {
        (void)nanosleep(&period, NULL);
        const uint_least64_t call = atomic_load(&guard.call);
        const bool is_late = call % 2 == 1 && carry_seconds() > atomic_load(&guard.until);
        looks = is_late && call == seen ? looks + 1 : is_late;
        seen = call;
        if (looks == LOOKS) {
            end_process();
        }
    }
    return NULL;
}

/* Signals are for the other threads, whose handlers may expect it. */
static void start(void) {
    sigset_t all, before;
    pthread_t thread;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, watch, NULL) == 0) {
        (void)pthread_detach(thread);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void carry_guard_start(void) {
    (void)pthread_once(&guard.once, start);
}

void carry_guard_enter(const char *operation, int peer, double until) {
    const uint_least64_t call = atomic_load_explicit(&guard.call, memory_order_relaxed);
    atomic_store_explicit(&guard.operation, operation, memory_order_relaxed);
    atomic_store_explicit(&guard.peer, peer, memory_order_relaxed);
    atomic_store_explicit(&guard.until, until, memory_order_relaxed);
    atomic_store_explicit(&guard.call, call + 1 + call % 2, memory_order_release);
}

void carry_guard_leave(void) {
    const uint_least64_t call = atomic_load_explicit(&guard.call, memory_order_relaxed);
    atomic_store_explicit(&guard.call, call + call % 2, memory_order_release);
}
