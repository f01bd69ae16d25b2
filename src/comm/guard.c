/* A call has a number, which is odd while the call lasts. The thread checks twice a second and ends the process after
   LOOKS checks in a row that find the same call past `until`. Time alone would not do: after the process was stopped or
   the machine suspended, the first check finds the call far past `until`, but the call may return before the next. */
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

#define LOOKS 5           /* consecutive checks that find the same call past its time */
#define PERIOD 500000000L /* ns between two checks */

static struct {
    pthread_once_t once;
    atomic_uint_least64_t call;
    _Atomic(const char *) operation;
    atomic_int peer;
    _Atomic double until;
} guard = {.once = PTHREAD_ONCE_INIT};

/* Does not use stdio: the thread inside MPI may hold its locks. */
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

/* The thread blocks all signals, so that the handlers run on the program's other threads. */
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
