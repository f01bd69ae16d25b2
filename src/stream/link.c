#include "stream/link.h"

#include <stdlib.h>
#include <string.h>

#include "comm/rates.h"
#include "core/error.h"
#include "core/memory.h"

#define MAGIC 0x4c595243u /* "CRYL" */
#define SPARE 2           /* slots beside those of depth: a NOOP or SHUTDOWN, and what comes after a result */
#define MOST_SLOTS 32

enum { TAG_PRELUDE = 1, TAG_LETTER = 2 };

typedef struct prelude {
    uint32_t magic, kind;
    uint64_t bytes;
} prelude;

/* A letter on its way: with a communicator until both requests are done, in a pair until the other end has read it. */
typedef struct slot {
    unsigned char *bytes;
    prelude prelude;
    carry_request request[2];
    bool is_full; /* of a pair */
} slot;

struct carry_link {
    carry_ctx *ctx;
    carry_comm *world; /* NULL: of a pair */
    carry_link *other; /* of a pair */
    int peer;
    carry_link_options options;
    slot out[MOST_SLOTS];
    int slots, next, oldest; /* next to be written; oldest that the other end of a pair has not read */
    unsigned char *box;
    prelude incoming;
    carry_request coming;
    bool is_coming, has_come;
    carry_status (*turn)(void *user);
    void *user;
};

static carry_status new_end(carry_ctx *ctx, carry_link **made, const carry_link_options *options) {
    carry_link *link = calloc(1, sizeof *link);
    *made = link;
    if (link == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a link");
    }
    link->ctx = ctx;
    link->options = *options;
    link->slots = 2 * options->depth + SPARE; /* a result has what is about it before it */
    if (options->depth < 1 || link->slots > MOST_SLOTS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a link for %d letters: 1 to %d", options->depth,
                          (MOST_SLOTS - SPARE) / 2);
    }
    link->box = carry_aligned_new(options->in_most);
    bool has_all = link->box != NULL;
    for (int i = 0; i < link->slots && has_all; i++) {
        link->out[i].bytes = carry_aligned_new(options->out_most);
        has_all = link->out[i].bytes != NULL;
    }
    return has_all ? CARRY_OK
                   : carry_fail(ctx, CARRY_EMEMORY, "no memory for a link of %d letters of %zu bytes", link->slots,
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
        carry_comm_withdraw(&link->coming, 1);
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

carry_status carry_link_slot(carry_link *link, void **room) {
    slot *s = &link->out[link->next];
    if (link->world != NULL) {
        CARRY_TRY(carry_wait(&s->request[0]));
        CARRY_TRY(carry_wait(&s->request[1]));
    } else if (s->is_full) {
        return carry_fail(link->ctx, CARRY_ESIZE, "%s: %d letters are on their way and none has been read",
                          link->options.group, link->slots);
    }
    *room = s->bytes;
    return CARRY_OK;
}

size_t carry_link_room(const carry_link *link) {
    return link->options.out_most;
}

carry_status carry_link_send(carry_link *link, carry_letter_kind kind, size_t bytes) {
    slot *s = &link->out[link->next];
    if (bytes > link->options.out_most) {
        return carry_fail(link->ctx, CARRY_ERANGE, "%s: a letter of %zu bytes where %zu is the most",
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
    return CARRY_OK;
}

carry_status carry_link_tell(carry_link *link, carry_letter_kind kind, const void *bytes, size_t size) {
    void *room;
    CARRY_TRY(carry_link_slot(link, &room));
    const size_t kept = size < link->options.out_most ? size : link->options.out_most;
    if (kept > 0) {
        memcpy(room, bytes, kept);
    }
    return carry_link_send(link, kind, kept);
}

carry_status carry_link_flush(carry_link *link) {
    for (int i = 0; i < link->slots && link->world != NULL; i++) {
        const int at = (link->next + i) % link->slots; /* the oldest first */
        CARRY_TRY(carry_wait(&link->out[at].request[0]));
        CARRY_TRY(carry_wait(&link->out[at].request[1]));
    }
    return CARRY_OK;
}

static carry_status expect(carry_link *link) {
    if (!link->is_coming) {
        CARRY_TRY(
            carry_irecv(link->world, &link->coming, &link->incoming, sizeof link->incoming, link->peer, TAG_PRELUDE));
        link->is_coming = true;
    }
    return CARRY_OK;
}

carry_status carry_link_poll(carry_link *link, bool *there) {
    *there = false;
    if (link->world == NULL) {
        *there = link->other->out[link->other->oldest].is_full;
        return CARRY_OK;
    }
    for (int i = 0; i < link->slots; i++) {
        int done;
        CARRY_TRY(carry_test(&link->out[i].request[0], &done));
        CARRY_TRY(carry_test(&link->out[i].request[1], &done));
    }
    CARRY_TRY(expect(link));
    if (!link->has_come) {
        int done;
        CARRY_TRY(carry_test(&link->coming, &done));
        link->has_come = done != 0;
    }
    *there = link->has_come;
    return CARRY_OK;
}

static carry_status check_prelude(const carry_link *link, const prelude *p) {
    if (p->magic != MAGIC || p->kind < CARRY_LETTER_ENVELOPE || p->kind > CARRY_LETTER_CLOSE) {
        return carry_fail(link->ctx, CARRY_EFORMAT, "%s: a letter starts with %08x %u, which is none of ours",
                          link->options.group, p->magic, p->kind);
    }
    if (p->bytes > link->options.in_most) {
        return carry_fail(link->ctx, CARRY_ERANGE, "%s: a letter of %llu bytes where %zu is the most",
                          link->options.group, (unsigned long long)p->bytes, link->options.in_most);
    }
    return CARRY_OK;
}

static carry_status receive_local(carry_link *link, carry_letter *letter) {
    carry_link *other = link->other;
    for (bool there = false; !there;) {
        CARRY_TRY(carry_link_poll(link, &there));
        if (!there && link->turn == NULL) {
            return carry_fail(link->ctx, CARRY_ETIMEOUT, "%s: nothing has been sent and nobody would",
                              link->options.group);
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
    *letter = (carry_letter){.kind = (carry_letter_kind)s->prelude.kind, .bytes = link->box, .size = s->prelude.bytes};
    return CARRY_OK;
}

carry_status carry_link_receive(carry_link *link, carry_letter *letter) {
    if (link->world == NULL) {
        return receive_local(link, letter);
    }
    CARRY_TRY(expect(link));
    if (!link->has_come) {
        CARRY_TRY(carry_wait(&link->coming));
    }
    link->is_coming = link->has_come = false;
    const prelude p = link->incoming;
    CARRY_TRY(check_prelude(link, &p));
    if (p.bytes > 0) {
        CARRY_TRY(carry_recv(link->world, link->box, p.bytes, link->peer, TAG_LETTER));
    }
    *letter = (carry_letter){.kind = (carry_letter_kind)p.kind, .bytes = link->box, .size = p.bytes};
    return CARRY_OK;
}
