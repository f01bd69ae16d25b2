/* Matching sends with receives under one lock; waiting with a deadline by one condition variable a slot. */
#include "comm/mailbox.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One half of a message (send or receive) as it was posted: the copy of a request that other ranks see. */
typedef struct half {
    struct half *next;    /* in the list that contains it */
    struct half *earlier; /* links all halves that were made, to free them at the end */
    carry_request what;   /* its state is authoritative */
} half;

typedef struct slot {
    pthread_cond_t changed;
    half *sends;    /* posted for this rank */
    half *receives; /* receives that this rank has posted */
    bool taken, gone;
    int busy; /* number of copies in progress from or to this rank's buffers */
} slot;

struct carry_mailbox {
    pthread_mutex_t lock;
    int size;
    int ended_by;
    char reason[CARRY_COMM_REASON];
    half *made, *spare;
    slot slot[];
};

static half **list_of(carry_mailbox *mailbox, const carry_request *what) {
    return what->to != NULL ? &mailbox->slot[what->world_self].receives : &mailbox->slot[what->world].sends;
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

static half *take_spare(carry_mailbox *mailbox) {
    half *h = mailbox->spare;
    if (h != NULL) {
        mailbox->spare = h->next;
        return h;
    }
    h = calloc(1, sizeof *h);
    if (h != NULL) {
        h->earlier = mailbox->made;
        mailbox->made = h;
    }
    return h;
}

static bool is_open(const half *h) {
    return h->what.state == CARRY_REQUEST_PENDING || h->what.state == CARRY_REQUEST_BUSY;
}

static void withdraw(carry_mailbox *mailbox, half *h, carry_request_state state) {
    take_out(list_of(mailbox, &h->what), h);
    h->what.state = (int)state;
}

/* Copies the state of a half to the request of the rank that posted it. A half that is finished can be reused. */
static void report(carry_mailbox *mailbox, half *h, carry_request *request) {
    request->state = h->what.state;
    request->other_bytes = h->what.other_bytes;
    if (!is_open(h)) {
        h->next = mailbox->spare;
        mailbox->spare = h;
        request->native.pointer = NULL;
    }
}

/* Returns the matching half that was posted first, or NULL. */
static half *find_other(carry_mailbox *mailbox, const carry_request *what) {
    half *other = what->to != NULL ? mailbox->slot[what->world_self].sends : mailbox->slot[what->world].receives;
    while (other != NULL && (other->what.world_self != what->world || other->what.world != what->world_self ||
                             other->what.tag != what->tag)) {
        other = other->next;
    }
    return other;
}

static void wake_all(carry_mailbox *mailbox) {
    for (int i = 0; i < mailbox->size; i++) {
        pthread_cond_broadcast(&mailbox->slot[i].changed);
    }
}

/* Called with the lock held; releases it during the copy. */
static void copy(carry_mailbox *mailbox, carry_request *mine, carry_request *other) {
    slot *here = &mailbox->slot[mine->world_self], *there = &mailbox->slot[other->world_self];
    mine->state = other->state = CARRY_REQUEST_BUSY;
    here->busy++;
    there->busy++;
    pthread_mutex_unlock(&mailbox->lock);
    const carry_request *to = mine->to != NULL ? mine : other, *from = mine->to != NULL ? other : mine;
    if (to->bytes > 0) {
        memcpy(to->to, from->from, to->bytes);
    }
    pthread_mutex_lock(&mailbox->lock);
    here->busy--;
    there->busy--;
    mine->state = other->state = CARRY_REQUEST_DONE;
    pthread_cond_broadcast(&there->changed);
}

/* mine is a request that no other thread sees yet. */
static void match(carry_mailbox *mailbox, carry_request *mine, half *other) {
    take_out(list_of(mailbox, &other->what), other);
    if (mine->bytes == other->what.bytes) {
        copy(mailbox, mine, &other->what);
        return;
    }
    mine->other_bytes = other->what.bytes;
    other->what.other_bytes = mine->bytes;
    mine->state = other->what.state = CARRY_REQUEST_MISFIT;
    pthread_cond_broadcast(&mailbox->slot[other->what.world_self].changed);
}

static void announce(carry_mailbox *mailbox, carry_wire *wire, carry_request *request) {
    half *h = take_spare(mailbox);
    if (h == NULL) {
        (void)snprintf(wire->reason, sizeof wire->reason, "out of memory: announcing a message");
        request->state = CARRY_REQUEST_BROKEN;
        return;
    }
    h->what = *request;
    append(list_of(mailbox, request), h);
    request->native.pointer = h;
}

static struct timespec time_of(double seconds) {
    struct timespec at = {.tv_sec = (time_t)seconds};
    at.tv_nsec = (long)((seconds - (double)at.tv_sec) * 1e9);
    return at;
}

static void learn_of_end(const carry_mailbox *mailbox, carry_wire *wire) {
    if (mailbox->ended_by >= 0 && wire->ended_by < 0) {
        wire->ended_by = mailbox->ended_by;
        memcpy(wire->reason, mailbox->reason, sizeof wire->reason);
    }
}

carry_mailbox *carry_mailbox_new(int size) {
    carry_mailbox *mailbox = calloc(1, sizeof *mailbox + (size_t)size * sizeof(slot));
    if (mailbox == NULL) {
        return NULL;
    }
    mailbox->size = size;
    mailbox->ended_by = -1;
    pthread_mutex_init(&mailbox->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int i = 0; i < size; i++) {
        pthread_cond_init(&mailbox->slot[i].changed, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
    return mailbox;
}

void carry_mailbox_free(carry_mailbox *mailbox) {
    for (int i = 0; i < mailbox->size; i++) {
        pthread_cond_destroy(&mailbox->slot[i].changed);
    }
    pthread_mutex_destroy(&mailbox->lock);
    for (half *h = mailbox->made, *earlier; h != NULL; h = earlier) {
        earlier = h->earlier;
        free(h);
    }
    free(mailbox);
}

bool carry_mailbox_enter(carry_mailbox *mailbox, int rank) {
    pthread_mutex_lock(&mailbox->lock);
    bool is_free = !mailbox->slot[rank].taken;
    mailbox->slot[rank].taken = true;
    pthread_mutex_unlock(&mailbox->lock);
    return is_free;
}

void carry_mailbox_leave(carry_mailbox *mailbox, int rank) {
    pthread_mutex_lock(&mailbox->lock);
    slot *here = &mailbox->slot[rank];
    here->receives = NULL;
    for (int i = 0; i < mailbox->size; i++) {
        half **at = &mailbox->slot[i].sends;
        while (*at != NULL) {
            if ((*at)->what.world_self == rank) {
                *at = (*at)->next;
            } else {
                at = &(*at)->next;
            }
        }
    }
    while (here->busy > 0) {
        pthread_cond_wait(&here->changed, &mailbox->lock);
    }
    here->taken = here->gone = true;
    wake_all(mailbox);
    pthread_mutex_unlock(&mailbox->lock);
}

void carry_mailbox_post(carry_wire *wire, carry_request *request) {
    carry_mailbox *mailbox = wire->state;
    pthread_mutex_lock(&mailbox->lock);
    learn_of_end(mailbox, wire);
    half *other = find_other(mailbox, request);
    if (mailbox->ended_by >= 0) {
        request->state = CARRY_REQUEST_ENDED;
    } else if (other != NULL) {
        match(mailbox, request, other);
    } else {
        announce(mailbox, wire, request);
    }
    pthread_mutex_unlock(&mailbox->lock);
}

void carry_mailbox_progress(carry_wire *wire, carry_request *request, double until) {
    carry_mailbox *mailbox = wire->state;
    half *h = request->native.pointer;
    if (h == NULL) {
        return;
    }
    slot *here = &mailbox->slot[wire->rank];
    const struct timespec end = time_of(until);
    int code = 0;
    pthread_mutex_lock(&mailbox->lock);
    while (is_open(h)) {
        const bool is_busy = h->what.state == CARRY_REQUEST_BUSY;
        if (is_busy && until > 0) { /* a copy in progress is waited for without a deadline: it takes bounded time */
            pthread_cond_wait(&here->changed, &mailbox->lock);
        } else if (!is_busy && mailbox->ended_by >= 0) {
            withdraw(mailbox, h, CARRY_REQUEST_ENDED);
        } else if (!is_busy && mailbox->slot[h->what.world].gone) {
            withdraw(mailbox, h, CARRY_REQUEST_GONE);
        } else if (code != 0 || until <= 0) {
            break;
        } else {
            code = pthread_cond_timedwait(&here->changed, &mailbox->lock, &end);
        }
    }
    learn_of_end(mailbox, wire);
    report(mailbox, h, request);
    pthread_mutex_unlock(&mailbox->lock);
}

void carry_mailbox_cancel(carry_wire *wire, carry_request *request) {
    carry_mailbox *mailbox = wire->state;
    half *h = request->native.pointer;
    if (h == NULL) {
        return;
    }
    pthread_mutex_lock(&mailbox->lock);
    while (h->what.state == CARRY_REQUEST_BUSY) {
        pthread_cond_wait(&mailbox->slot[wire->rank].changed, &mailbox->lock);
    }
    if (h->what.state == CARRY_REQUEST_PENDING) {
        withdraw(mailbox, h, CARRY_REQUEST_NONE);
    }
    report(mailbox, h, request);
    pthread_mutex_unlock(&mailbox->lock);
}

void carry_mailbox_abort(carry_wire *wire, const char *reason) {
    carry_mailbox *mailbox = wire->state;
    pthread_mutex_lock(&mailbox->lock);
    if (mailbox->ended_by < 0) {
        mailbox->ended_by = wire->rank;
        (void)snprintf(mailbox->reason, sizeof mailbox->reason, "%s", reason);
        wake_all(mailbox);
    }
    learn_of_end(mailbox, wire);
    pthread_mutex_unlock(&mailbox->lock);
}
