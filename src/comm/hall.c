/* Matching sends with receives under one lock; waiting with a deadline by one condition variable a seat. */
#include "comm/hall.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct seat {
    pthread_cond_t changed;
    carry_request *sends;    /* announced to this rank */
    carry_request *receives; /* that this rank waits for */
    bool taken, gone;
    int busy; /* copies from or to this rank's buffers */
} seat;

struct carry_hall {
    pthread_mutex_t lock;
    int size;
    int ended_by;
    char reason[CARRY_COMM_REASON];
    seat seat[];
};

static carry_request **list_of(carry_hall *hall, const carry_request *request) {
    return request->to != NULL ? &hall->seat[request->world_self].receives : &hall->seat[request->world].sends;
}

static void append(carry_request **list, carry_request *request) {
    while (*list != NULL) {
        list = &(*list)->next;
    }
    request->next = NULL;
    *list = request;
}

static void take_out(carry_request **list, const carry_request *request) {
    while (*list != NULL && *list != request) {
        list = &(*list)->next;
    }
    if (*list != NULL) {
        *list = request->next;
    }
}

static void withdraw(carry_hall *hall, carry_request *request, carry_request_state state) {
    take_out(list_of(hall, request), request);
    request->state = state;
}

/* The other half of a request, the first that was announced. */
static carry_request *find_other(carry_hall *hall, const carry_request *request) {
    carry_request *other =
        request->to != NULL ? hall->seat[request->world_self].sends : hall->seat[request->world].receives;
    while (other != NULL &&
           (other->world_self != request->world || other->world != request->world_self || other->tag != request->tag)) {
        other = other->next;
    }
    return other;
}

static void wake_all(carry_hall *hall) {
    for (int i = 0; i < hall->size; i++) {
        pthread_cond_broadcast(&hall->seat[i].changed);
    }
}

/* Under the lock, which is let go for the copy. */
static void copy(carry_hall *hall, carry_request *mine, carry_request *other) {
    seat *here = &hall->seat[mine->world_self], *there = &hall->seat[other->world_self];
    mine->state = other->state = CARRY_REQUEST_BUSY;
    here->busy++;
    there->busy++;
    pthread_mutex_unlock(&hall->lock);
    carry_request *to = mine->to != NULL ? mine : other, *from = mine->to != NULL ? other : mine;
    if (to->bytes > 0) {
        memcpy(to->to, from->from, to->bytes);
    }
    pthread_mutex_lock(&hall->lock);
    here->busy--;
    there->busy--;
    mine->state = other->state = CARRY_REQUEST_DONE;
    pthread_cond_broadcast(&there->changed);
}

static void match(carry_hall *hall, carry_request *mine, carry_request *other) {
    take_out(list_of(hall, other), other);
    if (mine->bytes == other->bytes) {
        copy(hall, mine, other);
        return;
    }
    mine->other_bytes = other->bytes;
    other->other_bytes = mine->bytes;
    mine->state = other->state = CARRY_REQUEST_MISFIT;
    pthread_cond_broadcast(&hall->seat[other->world_self].changed);
}

static struct timespec time_of(double seconds) {
    struct timespec at = {.tv_sec = (time_t)seconds};
    at.tv_nsec = (long)((seconds - (double)at.tv_sec) * 1e9);
    return at;
}

static void learn_of_end(const carry_hall *hall, carry_wire *wire) {
    if (hall->ended_by >= 0 && wire->ended_by < 0) {
        wire->ended_by = hall->ended_by;
        memcpy(wire->reason, hall->reason, sizeof wire->reason);
    }
}

carry_hall *carry_hall_new(int size) {
    carry_hall *hall = calloc(1, sizeof *hall + (size_t)size * sizeof(seat));
    if (hall == NULL) {
        return NULL;
    }
    hall->size = size;
    hall->ended_by = -1;
    pthread_mutex_init(&hall->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int i = 0; i < size; i++) {
        pthread_cond_init(&hall->seat[i].changed, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
    return hall;
}

void carry_hall_free(carry_hall *hall) {
    for (int i = 0; i < hall->size; i++) {
        pthread_cond_destroy(&hall->seat[i].changed);
    }
    pthread_mutex_destroy(&hall->lock);
    free(hall);
}

bool carry_hall_enter(carry_hall *hall, int rank) {
    pthread_mutex_lock(&hall->lock);
    bool is_free = !hall->seat[rank].taken;
    hall->seat[rank].taken = true;
    pthread_mutex_unlock(&hall->lock);
    return is_free;
}

void carry_hall_leave(carry_hall *hall, int rank) {
    pthread_mutex_lock(&hall->lock);
    seat *here = &hall->seat[rank];
    here->receives = NULL;
    for (int i = 0; i < hall->size; i++) {
        carry_request **at = &hall->seat[i].sends;
        while (*at != NULL) {
            if ((*at)->world_self == rank) {
                *at = (*at)->next;
            } else {
                at = &(*at)->next;
            }
        }
    }
    while (here->busy > 0) {
        pthread_cond_wait(&here->changed, &hall->lock);
    }
    here->taken = here->gone = true;
    wake_all(hall);
    pthread_mutex_unlock(&hall->lock);
}

void carry_hall_post(carry_wire *wire, carry_request *request) {
    carry_hall *hall = wire->state;
    pthread_mutex_lock(&hall->lock);
    learn_of_end(hall, wire);
    carry_request *other = find_other(hall, request);
    if (hall->ended_by >= 0) {
        request->state = CARRY_REQUEST_ENDED;
    } else if (other != NULL) {
        match(hall, request, other);
    } else {
        append(list_of(hall, request), request);
    }
    pthread_mutex_unlock(&hall->lock);
}

void carry_hall_progress(carry_wire *wire, carry_request *request, double until) {
    carry_hall *hall = wire->state;
    seat *here = &hall->seat[request->world_self];
    const struct timespec end = time_of(until);
    int code = 0;
    pthread_mutex_lock(&hall->lock);
    learn_of_end(hall, wire);
    while (request->state == CARRY_REQUEST_BUSY || request->state == CARRY_REQUEST_PENDING) {
        if (request->state == CARRY_REQUEST_BUSY) { /* as long as memory takes, not as long as a peer may */
            pthread_cond_wait(&here->changed, &hall->lock);
        } else if (hall->ended_by >= 0) {
            learn_of_end(hall, wire);
            withdraw(hall, request, CARRY_REQUEST_ENDED);
        } else if (hall->seat[request->world].gone) {
            withdraw(hall, request, CARRY_REQUEST_GONE);
        } else if (code != 0 || until <= 0) {
            break;
        } else {
            code = pthread_cond_timedwait(&here->changed, &hall->lock, &end);
        }
    }
    pthread_mutex_unlock(&hall->lock);
}

void carry_hall_cancel(carry_wire *wire, carry_request *request) {
    carry_hall *hall = wire->state;
    pthread_mutex_lock(&hall->lock);
    while (request->state == CARRY_REQUEST_BUSY) {
        pthread_cond_wait(&hall->seat[request->world_self].changed, &hall->lock);
    }
    if (request->state == CARRY_REQUEST_PENDING) {
        withdraw(hall, request, CARRY_REQUEST_NONE);
    }
    pthread_mutex_unlock(&hall->lock);
}

void carry_hall_abort(carry_wire *wire, const char *reason) {
    carry_hall *hall = wire->state;
    pthread_mutex_lock(&hall->lock);
    if (hall->ended_by < 0) {
        hall->ended_by = wire->rank;
        (void)snprintf(hall->reason, sizeof hall->reason, "%s", reason);
        wake_all(hall);
    }
    learn_of_end(hall, wire);
    pthread_mutex_unlock(&hall->lock);
}
