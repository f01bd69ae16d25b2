/* The event loop: runs the ranks in the order of their clocks. */
#include <stdlib.h>

#include "scan/all_scan/all_scan_simulate.h"

/* Messages from one rank to another that have been sent and not yet received. */
typedef struct queue {
    double *arrival, *gone; /* the times at which each has arrived, and at which its bytes have left */
    int64_t count, room;
    int64_t received, sent_waited; /* how many were waited for, by the receiver and by the sender */
} queue;

typedef struct rank {
    double clock;
    int64_t next;
    int waits_for; /* a rank that has not sent yet, or -1 */
} rank;

typedef struct world {
    const carry_all_scan_trace *traces;
    const carry_all_scan_network *network;
    int ranks;
    rank *rank;
    queue *queues;     /* [ranks, ranks]: by sender and receiver */
    double *out, *in;  /* [ranks, 2]: the time at which each port is free */
    int *heap, *place; /* heap of ranks that can go on, by clock; the index of each rank in it, or -1 */
    int waiting;
} world;

static bool is_before(const world *w, int a, int b) {
    const double x = w->rank[a].clock, y = w->rank[b].clock;
    return x < y || (x == y && a < b); /* ties are broken by rank, so that results are reproducible */
}

static void put_at(world *w, int at, int r) {
    w->heap[at] = r;
    w->place[r] = at;
}

static void rise(world *w, int at) {
    const int r = w->heap[at];
    while (at > 0 && is_before(w, r, w->heap[(at - 1) / 2])) {
        put_at(w, at, w->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put_at(w, at, r);
}

static void sink(world *w, int at) {
    const int r = w->heap[at];
    for (int child; (child = 2 * at + 1) < w->waiting; at = child) {
        child += child + 1 < w->waiting && is_before(w, w->heap[child + 1], w->heap[child]);
        if (!is_before(w, w->heap[child], r)) {
            break;
        }
        put_at(w, at, w->heap[child]);
    }
    put_at(w, at, r);
}

static void push(world *w, int r) {
    put_at(w, w->waiting++, r);
    rise(w, w->place[r]);
}

static int pop(world *w) {
    const int first = w->heap[0];
    w->place[first] = -1;
    if (--w->waiting > 0) {
        put_at(w, 0, w->heap[w->waiting]);
        sink(w, 0);
    }
    return first;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static bool grow(double **numbers, int64_t room) {
    double *grown = realloc(*numbers, (size_t)room * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    *numbers = grown;
    return true;
}

static bool send(world *w, int from, int to, double bytes) {
    queue *q = &w->queues[(size_t)from * (size_t)w->ranks + (size_t)to];
    if (q->count == q->room) {
        const int64_t room = q->room > 0 ? 2 * q->room : 2;
        if (!grow(&q->arrival, room) || !grow(&q->gone, room)) {
            return false;
        }
        q->room = room;
    }
    const int far = from / w->network->node != to / w->network->node;
    double *out = &w->out[2 * from + far], *in = &w->in[2 * to + far];
    const double start = larger(w->rank[from].clock, larger(*out, *in));
    *out = *in = start + bytes / w->network->bandwidth[far];
    q->gone[q->count] = *out;
    q->arrival[q->count++] = *out + w->network->latency[far];
    if (w->rank[to].waits_for == from) {
        w->rank[to].waits_for = -1;
        push(w, to);
    }
    return true;
}

/* Runs one step of a rank. Returns false if out of memory. A rank that waits for a message that is not sent yet is not
   put back into the heap. */
static bool step(world *w, int r) {
    rank *me = &w->rank[r];
    const carry_all_scan_step *s = &w->traces[r].steps[me->next];
    queue *q;
    switch (s->kind) {
    case CARRY_STEP_COMPUTE:
        me->clock += s->amount;
        break;
    case CARRY_STEP_SEND:
        if (!send(w, r, s->peer, s->amount)) {
            return false;
        }
        break;
    case CARRY_STEP_SENT:
        q = &w->queues[(size_t)r * (size_t)w->ranks + (size_t)s->peer];
        if (q->gone == NULL || q->sent_waited == q->count) {
            return false; /* the message was never sent, which no valid trace contains */
        }
        me->clock = larger(me->clock, q->gone[q->sent_waited++]);
        break;
    case CARRY_STEP_RECEIVED:
        q = &w->queues[(size_t)s->peer * (size_t)w->ranks + (size_t)r];
        if (q->received == q->count) {
            me->waits_for = s->peer;
            return true;
        }
        me->clock = larger(me->clock, q->arrival[q->received++]);
        break;
    }
    if (++me->next < w->traces[r].count) {
        push(w, r);
    }
    return true;
}

static double run(world *w) {
    double last = 0.0;
    for (int r = 0; r < w->ranks; r++) {
        w->rank[r] = (rank){.waits_for = -1};
        w->place[r] = -1;
        if (w->traces[r].count > 0) {
            push(w, r);
        }
    }
    while (w->waiting > 0) {
        const int r = pop(w);
        if (!step(w, r)) {
            return -1.0;
        }
    }
    for (int r = 0; r < w->ranks; r++) {
        if (w->rank[r].next < w->traces[r].count) {
            return -1.0; /* it waits for a message that no rank sends */
        }
        last = larger(last, w->rank[r].clock);
    }
    return last;
}

double carry_all_scan_replay(const carry_all_scan_trace *traces, int ranks, const carry_all_scan_network *network) {
    const size_t n = (size_t)ranks;
    world w = {.traces = traces, .network = network, .ranks = ranks};
    double seconds = -1.0;
    w.rank = calloc(n, sizeof *w.rank);
    w.queues = calloc(n * n, sizeof *w.queues);
    w.out = calloc(2 * n, sizeof *w.out);
    w.in = calloc(2 * n, sizeof *w.in);
    w.heap = calloc(n, sizeof *w.heap);
    w.place = calloc(n, sizeof *w.place);
    if (w.rank != NULL && w.queues != NULL && w.out != NULL && w.in != NULL && w.heap != NULL && w.place != NULL) {
        seconds = run(&w);
    }
    for (size_t i = 0; i < n * n && w.queues != NULL; i++) {
        free(w.queues[i].arrival);
        free(w.queues[i].gone);
    }
    free(w.rank);
    free(w.queues);
    free(w.out);
    free(w.in);
    free(w.heap);
    free(w.place);
    return seconds;
}
