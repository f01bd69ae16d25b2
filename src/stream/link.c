#include "stream/link.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/rates.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

#define MAGIC 0x4c595243u /* "CRYL" */
/* Slots in addition to those for `depth`: a NOOP or SHUTDOWN, and heartbeats while the other end works. */
#define SPARE 8
#define MOST_SLOTS 32
#define SIGNS 4.0 /* heartbeats per deadline */

enum { TAG_PRELUDE = 1, TAG_LETTER = 2 };

typedef struct prelude {
    uint32_t magic, kind;
    uint64_t bytes;
} prelude;

/* A message that is being sent. With a communicator, the slot is in use until both requests are done; in a pair,
   until the other end has read it. */
typedef struct slot {
    unsigned char *bytes;
    prelude prelude;
    carry_request request[2];
    bool is_full; /* in a pair: not yet read */
} slot;

/* A posted receive of a prelude. Several are posted ahead, so that queued messages are noticed when they arrive. */
typedef struct arrival {
    prelude prelude;
    carry_request request;
} arrival;

struct carry_link {
    carry_ctx *ctx;
    carry_comm *world; /* NULL: the end of a pair */
    carry_link *other; /* the other end of a pair */
    int peer;
    carry_link_options options;
    slot out[MOST_SLOTS];
    /* Index of the next slot to write; in a pair, the oldest that the other end has not read. */
    int slots, next, oldest;
    unsigned char *box;
    arrival in[MOST_SLOTS]; /* a ring; no receive is posted before the first look */
    int first, come;        /* index of the oldest; number that have arrived, starting there */
    bool is_open, heartbeats_stopped;
    /* carry_comm_peek of the first prelude that has not arrived; those that have arrived are delivered first. */
    int next_state;
    carry_status ended; /* the error of that receive, once it has been reported */
    double heard, said; /* times of the last message received and sent, by carry_seconds */
    carry_status (*turn)(void *user);
    void *user;
};

static carry_status new_end(carry_ctx *ctx, carry_link **made, const carry_link_options *options) {
    carry_link *link = calloc(1, sizeof *link);
    *made = link;
    if (link == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a link");
    }
    link->ctx = ctx;
    link->options = *options;
    link->slots = 2 * options->depth + SPARE; /* a carry_about is sent before every result */
    if (options->depth < 1 || link->slots > MOST_SLOTS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a link for %d messages: 1 to %d", options->depth,
                          (MOST_SLOTS - SPARE) / 2);
    }
    link->box = carry_aligned_new(options->in_most);
    bool has_all = link->box != NULL;
    for (int i = 0; i < link->slots && has_all; i++) {
        link->out[i].bytes = carry_aligned_new(options->out_most);
        has_all = link->out[i].bytes != NULL;
    }
    return has_all ? CARRY_OK
                   : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a link of %d messages of %zu bytes", link->slots,
                                options->out_most);
}

carry_status carry_link_open(carry_comm *world, carry_link **made, int peer, const carry_link_options *options) {
    const carry_status status = new_end(carry_comm_ctx(world), made, options);
    if (status != CARRY_OK) {
        carry_link_free(*made);
        *made = NULL;
        return status;
    }
    (*made)->world = world;
    (*made)->peer = peer;
    return CARRY_OK;
}

carry_status carry_link_pair(carry_ctx *ctx, carry_link **stage, carry_link **leader,
                             const carry_link_options *options) {
    const carry_link_options back = {
        .depth = options->depth, .out_most = options->in_most, .in_most = options->out_most, .group = "mesh"};
    *leader = NULL;
    carry_status status = new_end(ctx, stage, options);
    status = status == CARRY_OK ? new_end(ctx, leader, &back) : status;
    if (status != CARRY_OK) {
        carry_link_free(*stage);
        carry_link_free(*leader);
        *stage = *leader = NULL;
        return status;
    }
    (*stage)->other = *leader;
    (*leader)->other = *stage;
    return CARRY_OK;
}

void carry_link_free(carry_link *link) {
    if (link == NULL) {
        return;
    }
    if (link->world != NULL) {
        for (int i = 1; i <= link->slots; i++) { /* the newest first */
            carry_comm_withdraw(link->out[(link->next + link->slots - i) % link->slots].request, 2);
        }
        for (int i = MOST_SLOTS - 1; i >= 0; i--) {
            carry_comm_withdraw(&link->in[(link->first + i) % MOST_SLOTS].request, 1);
        }
    }
    for (int i = 0; i < MOST_SLOTS; i++) {
        free(link->out[i].bytes);
    }
    free(link->box);
    free(link);
}

void carry_link_set_turn(carry_link *link, carry_status (*turn)(void *user), void *user) {
    link->turn = turn;
    link->user = user;
}

static carry_status expect(carry_link *link, arrival *a) {
    return carry_irecv(link->world, &a->request, &a->prelude, sizeof a->prelude, link->peer, TAG_PRELUDE);
}

/* Removes the oldest prelude, and posts its slot for the next receive. */
static carry_status pass_on(carry_link *link) {
    arrival *a = &link->in[link->first];
    link->first = (link->first + 1) % MOST_SLOTS;
    link->come--;
    return expect(link, a);
}

/* True if the newest message is CLOSE: no message follows, and the sender may have left. */
static bool has_closed(const carry_link *link) {
    return link->come > 0 && link->in[(link->first + link->come - 1) % MOST_SLOTS].prelude.kind == CARRY_MESSAGE_CLOSE;
}

static arrival *next_arrival(carry_link *link) {
    return &link->in[(link->first + link->come) % MOST_SLOTS];
}

/* Takes note of messages that have arrived, and removes heartbeats from the front of the queue. If the other end has
   left, the messages that it sent before are still delivered: no error is reported here. */
static carry_status look(carry_link *link) {
    if (link->ended != CARRY_OK) {
        return carry_fail(link->ctx, link->ended, "%s: the link has ended", link->options.group);
    }
    if (!link->is_open) {
        link->heard = link->said = carry_seconds();
        for (int i = 0; i < MOST_SLOTS; i++) {
            CARRY_TRY(expect(link, &link->in[i]));
        }
        link->is_open = true;
    }
    link->next_state = 1;
    while (link->next_state > 0 && link->come < MOST_SLOTS && !has_closed(link)) {
        link->next_state = carry_comm_peek(&next_arrival(link)->request);
        if (link->next_state > 0) {
            link->come++;
            link->heard = carry_seconds();
        }
    }
    while (link->come > 0 && link->in[link->first].prelude.kind == CARRY_MESSAGE_HEARTBEAT &&
           link->in[link->first].prelude.magic == MAGIC) {
        CARRY_TRY(pass_on(link));
    }
    return CARRY_OK;
}

/* Waits for the other end to complete a request. The deadline counts from the last message that it sent. */
static carry_status wait_for(carry_link *link, carry_request *request) {
    int done;
    CARRY_TRY(carry_test(request, &done));
    if (!done) {
        CARRY_TRY(look(link));
        CARRY_TRY(carry_comm_wait_since(request, link->heard, INFINITY, &done));
    }
    return CARRY_OK;
}

carry_status carry_link_slot(carry_link *link, void **room) {
    slot *s = &link->out[link->next];
    if (link->world != NULL) {
        CARRY_TRY(wait_for(link, &s->request[0]));
        CARRY_TRY(wait_for(link, &s->request[1]));
    } else if (s->is_full) {
        return carry_fail(link->ctx, CARRY_ESIZE, "%s: %d messages are on their way and none has been read",
                          link->options.group, link->slots);
    }
    *room = s->bytes;
    return CARRY_OK;
}

size_t carry_link_capacity(const carry_link *link) {
    return link->options.out_most;
}

carry_status carry_link_send(carry_link *link, carry_message_kind kind, size_t bytes) {
    slot *s = &link->out[link->next];
    if (bytes > link->options.out_most) {
        return carry_fail(link->ctx, CARRY_ERANGE, "%s: a message of %zu bytes where %zu is the most",
                          link->options.group, bytes, link->options.out_most);
    }
    s->prelude = (prelude){.magic = MAGIC, .kind = (uint32_t)kind, .bytes = bytes};
    if (link->world != NULL) {
        CARRY_TRY(carry_isend(link->world, &s->request[0], &s->prelude, sizeof s->prelude, link->peer, TAG_PRELUDE));
        if (bytes > 0) {
            CARRY_TRY(carry_isend(link->world, &s->request[1], s->bytes, bytes, link->peer, TAG_LETTER));
        }
    } else {
        s->is_full = true;
    }
    link->next = (link->next + 1) % link->slots;
    link->said = carry_seconds();
    return CARRY_OK;
}

carry_status carry_link_tell(carry_link *link, carry_message_kind kind, const void *bytes, size_t size) {
    void *room;
    CARRY_TRY(carry_link_slot(link, &room));
    const size_t kept = size < link->options.out_most ? size : link->options.out_most;
    if (kept > 0) {
        memcpy(room, bytes, kept);
    }
    return carry_link_send(link, kind, kept);
}

carry_status carry_link_flush(carry_link *link) {
    const double start = carry_seconds(); /* one deadline for all requests */
    for (int i = 0; i < link->slots && link->world != NULL; i++) {
        slot *s = &link->out[(link->next + i) % link->slots]; /* the oldest first */
        int done;
        if (s->prelude.kind != CARRY_MESSAGE_HEARTBEAT) {
            CARRY_TRY(carry_comm_wait_since(&s->request[0], start, INFINITY, &done));
            CARRY_TRY(carry_comm_wait_since(&s->request[1], start, INFINITY, &done));
        }
    }
    return CARRY_OK;
}

void carry_link_stop_heartbeats(carry_link *link) {
    link->heartbeats_stopped = true;
}

/* Sends a heartbeat, unless no slot is free: then the other end still has messages to read. */
static carry_status give_sign(carry_link *link) {
    slot *s = &link->out[link->next];
    link->said = carry_seconds();
    const bool is_free = carry_comm_peek(&s->request[0]) > 0 && carry_comm_peek(&s->request[1]) > 0;
    return is_free && !link->heartbeats_stopped ? carry_link_send(link, CARRY_MESSAGE_HEARTBEAT, 0) : CARRY_OK;
}

carry_status carry_link_poll(carry_link *link, bool *there) {
    *there = false;
    if (link->world == NULL) {
        *there = link->other->out[link->other->oldest].is_full;
        return CARRY_OK;
    }
    for (int i = 0; i < link->slots; i++) { /* a failed request is reported by the caller that waits for its slot */
        (void)carry_comm_peek(&link->out[i].request[0]);
        (void)carry_comm_peek(&link->out[i].request[1]);
    }
    CARRY_TRY(look(link));
    *there = link->come > 0;
    int done;
    const bool is_over = link->next_state == -2 || (link->next_state < 0 && !*there);
    link->ended = is_over ? carry_test(&next_arrival(link)->request, &done) : CARRY_OK;
    return link->ended;
}

static carry_status check_prelude(const carry_link *link, const prelude *p) {
    if (p->magic != MAGIC || p->kind < CARRY_MESSAGE_ENVELOPE || p->kind > CARRY_MESSAGE_CLOSE) {
        return carry_fail(link->ctx, CARRY_EFORMAT, "%s: a message starts with %08x %u, which is not a Carry message",
                          link->options.group, p->magic, p->kind);
    }
    if (p->bytes > link->options.in_most) {
        return carry_fail(link->ctx, CARRY_ERANGE, "%s: a message of %llu bytes where %zu is the most",
                          link->options.group, (unsigned long long)p->bytes, link->options.in_most);
    }
    return CARRY_OK;
}

/* Waits until the oldest prelude that has arrived belongs to a message. */
static carry_status wait_letter(carry_link *link) {
    const double deadline = carry_comm_deadline(link->world);
    for (;;) {
        CARRY_TRY(look(link));
        const bool is_silent = carry_seconds() > link->heard + deadline && link->come < MOST_SLOTS &&
                               !has_closed(link) && link->next_state >= 0;
        if (link->come > 0 && !is_silent) {
            return CARRY_OK;
        }
        int done;
        const double until = is_silent ? INFINITY : link->said + deadline / SIGNS;
        link->ended = carry_comm_wait_since(&next_arrival(link)->request, link->heard, until, &done);
        CARRY_TRY(link->ended);
        if (!done) {
            CARRY_TRY(give_sign(link));
        }
    }
}

carry_status carry_link_wait(carry_link *link, double seconds, bool *there) {
    if (link->world == NULL) {
        return carry_link_poll(link, there);
    }
    const double deadline = carry_comm_deadline(link->world);
    const double now = carry_seconds();
    const double sign = link->said + deadline / SIGNS;
    CARRY_TRY(look(link));
    /* carry_link_receive reports the error. */
    *there = link->come > 0 || link->next_state < 0 || now > link->heard + deadline;
    if (*there) {
        return CARRY_OK;
    }
    int done = 0;
    link->ended = carry_comm_wait_since(&next_arrival(link)->request, link->heard, fmin(now + seconds, sign), &done);
    CARRY_TRY(link->ended);
    return done || carry_seconds() < sign ? CARRY_OK : give_sign(link);
}

carry_status carry_link_next_is(carry_link *link, carry_message_kind kind, bool *is_next) {
    bool there;
    CARRY_TRY(carry_link_poll(link, &there));
    const prelude *p =
        link->world == NULL ? &link->other->out[link->other->oldest].prelude : &link->in[link->first].prelude;
    *is_next = there && p->magic == MAGIC && p->kind == (uint32_t)kind;
    return CARRY_OK;
}

static carry_status receive_local(carry_link *link, carry_message *message) {
    carry_link *other = link->other;
    for (bool there = false; !there;) {
        CARRY_TRY(carry_link_poll(link, &there));
        if (!there && link->turn == NULL) {
            return carry_fail(link->ctx, CARRY_ETIMEOUT,
                              "%s: no message has been sent, and the other end cannot send one", link->options.group);
        }
        if (!there) {
            CARRY_TRY(link->turn(link->user));
        }
    }
    slot *s = &other->out[other->oldest];
    CARRY_TRY(check_prelude(link, &s->prelude));
    memcpy(link->box, s->bytes, s->prelude.bytes);
    s->is_full = false;
    other->oldest = (other->oldest + 1) % other->slots;
    *message =
        (carry_message){.kind = (carry_message_kind)s->prelude.kind, .bytes = link->box, .size = s->prelude.bytes};
    return CARRY_OK;
}

carry_status carry_link_receive(carry_link *link, carry_message *message) {
    if (link->world == NULL) {
        return receive_local(link, message);
    }
    CARRY_TRY(wait_letter(link));
    const prelude p = link->in[link->first].prelude;
    CARRY_TRY(pass_on(link));
    CARRY_TRY(check_prelude(link, &p));
    if (p.bytes > 0) {
        carry_request request;
        CARRY_TRY(carry_irecv(link->world, &request, link->box, p.bytes, link->peer, TAG_LETTER));
        CARRY_TRY(wait_for(link, &request));
    }
    *message = (carry_message){.kind = (carry_message_kind)p.kind, .bytes = link->box, .size = p.bytes};
    return CARRY_OK;
}
