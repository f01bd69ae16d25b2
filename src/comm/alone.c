/* Only the thread that started MPI may enter it (mpi.c). The work therefore runs in a thread of its own, and the
   thread that owns the communicator sends the heartbeats. */
#include "comm/alone.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "comm/backend.h"
#include "core/clock.h"
#include "core/error.h"

#define BEATS 5.0        /* in a deadline */
#define LONGEST 1.0      /* seconds between two heartbeats at most, so that peers need not know a long deadline */
#define BEAT INT64_C(-1) /* no status */

typedef struct job {
    carry_status (*work)(void *user);
    void *user;
    carry_status status;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
} job;

static void *run_job(void *argument) {
    job *j = argument;
    j->status = j->work(j->user);
    pthread_mutex_lock(&j->lock);
    j->is_done = true;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* Sends a heartbeat to every rank that has received the last one. */
static void beat(carry_comm *comm, const char *operation, const int64_t *value) {
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer != comm->rank && carry_comm_peek(&comm->requests[peer]) > 0) {
            carry_comm_post_send(comm, &comm->requests[peer], operation, value, sizeof *value, peer, CARRY_TAG_ALONE);
        }
    }
}

/* Returns false after `until`. */
static bool wait_done(job *j, double until) {
    const struct timespec end = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    int code = 0;
    pthread_mutex_lock(&j->lock);
    while (!j->is_done && code == 0) {
        code = pthread_cond_timedwait(&j->changed, &j->lock, &end);
    }
    const bool is_done = j->is_done;
    pthread_mutex_unlock(&j->lock);
    return is_done;
}

static carry_status work_beating(carry_comm *comm, const char *operation, job *j) {
    static const int64_t value = BEAT; /* static: the message may still be in flight when this function returns */
    const double period = comm->deadline / BEATS < LONGEST ? comm->deadline / BEATS : LONGEST;
    const double start = carry_seconds();
    pthread_condattr_t monotonic;
    pthread_t thread;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&thread, NULL, run_job, j) == 0) {
        while (!wait_done(j, carry_seconds() + period)) {
            if (carry_seconds() < start + CARRY_COMM_ALONE) {
                beat(comm, operation, &value);
            }
        }
        pthread_join(thread, NULL);
    } else {
        (void)run_job(j); /* without heartbeats */
    }
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    return j->status;
}

static carry_status tell_outcome(carry_comm *comm, const char *operation, const int64_t *outcome) {
    const carry_deadline deadline = carry_deadline_from_now(comm, operation);
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer != comm->rank) {
            carry_comm_post_send(comm, &comm->requests[comm->size + peer], operation, outcome, sizeof *outcome, peer,
                                 CARRY_TAG_ALONE);
        }
    }
    /* Waits for the last heartbeats first. */
    return carry_comm_wait_all(comm, comm->requests, 2 * comm->size, &deadline);
}

static carry_status wait_outcome(carry_comm *comm, int root, const char *operation, int64_t *outcome) {
    do {
        const carry_deadline deadline = carry_deadline_from_now(comm, operation); /* counts from the last heartbeat */
        carry_comm_post_recv(comm, comm->requests, operation, outcome, sizeof *outcome, root, CARRY_TAG_ALONE);
        CARRY_TRY(carry_comm_wait_all(comm, comm->requests, 1, &deadline));
    } while (*outcome == BEAT);
    return CARRY_OK;
}

carry_status carry_comm_alone(carry_comm *comm, int root, const char *operation, carry_status (*work)(void *user),
                              void *user, carry_status *outcome) {
    int64_t value = 0;
    *outcome = CARRY_OK;
    if (comm->size == 1) {
        *outcome = work(user);
        return CARRY_OK;
    }
    memset(comm->requests, 0, 2 * (size_t)comm->size * sizeof *comm->requests);
    if (comm->rank != root) {
        CARRY_TRY(wait_outcome(comm, root, operation, &value));
        *outcome = (carry_status)value;
        return CARRY_OK;
    }
    job j = {.work = work, .user = user};
    value = *outcome = work_beating(comm, operation, &j);
    return tell_outcome(comm, operation, &value);
}
