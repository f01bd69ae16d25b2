/* Matching sends with receives under one lock; waiting with a deadline by one condition variable a seat. */
#include "comm/hall.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One half of a message, as it was announced; what others see of a request. */
typedef struct half {
    struct half *next;    /* in the list that it stands in */
    struct half *earlier; /* of all that were made, to be freed in the end */
    carry_request what;   /* its state is the one that counts */
} half;

typedef struct seat {
    pthread_cond_t changed;
    half *sends;    /* announced to this rank */
    half *receives; /* that this rank waits for */
    bool taken, gone;
    int busy; /* copies from or to this rank's buffers */
} seat;

struct carry_hall {
    pthread_mutex_t lock;
    int size;
    int ended_by;
    char reason[CARRY_COMM_REASON];
    half *made, *spare;
    seat seat[];
};

static half **list_of(carry_hall *hall, const carry_request *what) {
    return what->to != NULL ? &hall->seat[what->world_self].receives : &hall->seat[what->world].sends;
}

static void append(half **list, half *h) {
    while (*list != NULL) {
        list = &(*list)->next;
    }
    h->next = NULL;
    *list = h;
}

static void take_out(half **list, const half *h) {
    while (*list != NULL && *list != h) {
        list = &(*list)->next;
    }
    if (*list != NULL) {
        *list = h->next;
    }
}

static half *take_spare(carry_hall *hall) {
    half *h = hall->spare;
    if (h != NULL) {
        hall->spare = h->next;
        return h;
    }
    h = calloc(1, sizeof *h);
    if (h != NULL) {
        h->earlier = hall->made;
        hall->made = h;
    }
    return h;
}

static bool is_open(const half *h) {
    return h->what.state == CARRY_REQUEST_PENDING || h->what.state == CARRY_REQUEST_BUSY;
}

static void withdraw(carry_hall *hall, half *h, carry_request_state state) {
    take_out(list_of(hall, &h->what), h);
    h->what.state = (int)state;
}

/* The rank that asked learns how it stands; once it is over, the half is spare. */
static void report(carry_hall *hall, half *h, carry_request *request) {
    request->state = h->what.state;
    request->other_bytes = h->what.other_bytes;
    if (!is_open(h)) {
        h->next = hall->spare;
        hall->spare = h;
        request->native.pointer = NULL;
    }
}

/* The other half of a message, the first that was announced. */
static half *find_other(carry_hall *hall, const carry_request *what) {
    half *other = what->to != NULL ? hall->seat[what->world_self].sends : hall->seat[what->world].receives;
    while (other != NULL && (other->what.world_self != what->world || other->what.world != what->world_self ||
                             other->what.tag != what->tag)) {
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
    const carry_request *to = mine->to != NULL ? mine : other, *from = mine->to != NULL ? other : mine;
    if (to->bytes > 0) {
        memcpy(to->to, from->from, to->bytes);
    }
    pthread_mutex_lock(&hall->lock);
    here->busy--;
    there->busy--;
    mine->state = other->state = CARRY_REQUEST_DONE;
    pthread_cond_broadcast(&there->changed);
}

/* mine is a request, which nobody else sees. */
static void match(carry_hall *hall, carry_request *mine, half *other) {
    take_out(list_of(hall, &other->what), other);
    if (mine->bytes == other->what.bytes) {
        copy(hall, mine, &other->what);
        return;
    }
    mine->other_bytes = other->what.bytes;
    other->what.other_bytes = mine->bytes;
    mine->state = other->what.state = CARRY_REQUEST_MISFIT;
    pthread_cond_broadcast(&hall->seat[other->what.world_self].changed);
}

static void announce(carry_hall *hall, carry_wire *wire, carry_request *request) {
    half *h = take_spare(hall);
    if (h == NULL) {
        (void)snprintf(wire->reason, sizeof wire->reason, "no memory to announce a message");
        request->state = CARRY_REQUEST_BROKEN;
        return;
    }
    h->what = *request;
    append(list_of(hall, request), h);
    request->native.pointer = h;
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
    for (half *h = hall->made, *earlier; h != NULL; h = earlier) {
        earlier = h->earlier;
        free(h);
    }
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
        half **at = &hall->seat[i].sends;
        while (*at != NULL) {
            if ((*at)->what.world_self == rank) {
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
    half *other = find_other(hall, request);
    if (hall->ended_by >= 0) {
        request->state = CARRY_REQUEST_ENDED;
    } else if (other != NULL) {
        match(hall, request, other);
    } else {
        announce(hall, wire, request);
    }
    pthread_mutex_unlock(&hall->lock);
}

void carry_hall_progress(carry_wire *wire, carry_request *request, double until) {
    carry_hall *hall = wire->state;
    half *h = request->native.pointer;
    if (h == NULL) {
        return;
    }
    seat *here = &hall->seat[wire->rank];
    const struct timespec end = time_of(until);
    int code = 0;
    pthread_mutex_lock(&hall->lock);
    while (is_open(h)) {
        const bool is_busy = h->what.state == CARRY_REQUEST_BUSY;
        if (is_busy && until > 0) { /* as long as memory takes, not as long as a peer may */
            pthread_cond_wait(&here->changed, &hall->lock);
        } else if (!is_busy && hall->ended_by >= 0) {
            withdraw(hall, h, CARRY_REQUEST_ENDED);
        } else if (!is_busy && hall->seat[h->what.world].gone) {
            withdraw(hall, h, CARRY_REQUEST_GONE);
        } else if (code != 0 || until <= 0) {
            break;
        } else {
            code = pthread_cond_timedwait(&here->changed, &hall->lock, &end);
        }
    }
    learn_of_end(hall, wire);
    report(hall, h, request);
    pthread_mutex_unlock(&hall->lock);
}

void carry_hall_cancel(carry_wire *wire, carry_request *request) {
    carry_hall *hall = wire->state;
    half *h = request->native.pointer;
    if (h == NULL) {
        return;
    }
    pthread_mutex_lock(&hall->lock);
    while (h->what.state == CARRY_REQUEST_BUSY) {
        pthread_cond_wait(&hall->seat[wire->rank].changed, &hall->lock);
    }
    if (h->what.state == CARRY_REQUEST_PENDING) {
        withdraw(hall, h, CARRY_REQUEST_NONE);
    }
    report(hall, h, request);
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
