/* Ranks that are processes of one machine, without MPI, with a socket between every two of them. The launcher (such
   as carry --processes) sets CARRY_RANK, CARRY_RANKS and CARRY_MEET, a folder of this run where the processes find
   each other.

   A message is a header and its bytes. A message that arrives before its receive is posted is set aside. A rank
   reads from all others while it waits for one, so that two ranks that send to each other both make progress. When a
   process dies, its sockets close and the others notice at once; a process that is stopped is noticed at their
   deadline. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/backend.h"
#include "comm/meeting.h"
#include "core/clock.h"
#include "core/error.h"

#define LOOKS 50  /* polls before the thread yields the processor */
#define PAUSE 0.1 /* longest sleep, in seconds */
#define READS 256 /* reads from one peer before the other peers and the deadline are checked */

typedef struct header {
    uint64_t bytes;
    int32_t tag, reserved;
} header;

/* A message whose receive is not posted yet. */
typedef struct parcel {
    struct parcel *next;
    int tag;
    size_t bytes;
    char data[];
} parcel;

/* Requests are in lists in the order of posting, linked by native.pointer. */
typedef struct peer {
    int socket; /* -1 for a peer that has left, and for this rank itself */
    carry_request *sends, *receives;
    parcel *arrived;
    size_t written; /* bytes of the first send that are written, header included */
    header head;    /* header of the incoming message */
    size_t read;    /* bytes of the incoming message read so far, header included */
    carry_request *into;
    parcel *aside; /* both NULL: the message is dropped */
} peer;

typedef struct connections {
    int size;
    struct pollfd *polled; /* [size] */
    peer peers[];
} connections;

static void append(carry_request **first, carry_request *request) {
    request->native.pointer = NULL;
    if (*first == NULL) {
        *first = request;
        return;
    }
    carry_request *last = *first;
    while (last->native.pointer != NULL) {
        last = last->native.pointer;
    }
    last->native.pointer = request;
}

static void take_out(carry_request **first, const carry_request *request) {
    if (*first == request) {
        *first = request->native.pointer;
        return;
    }
    for (carry_request *at = *first; at != NULL; at = at->native.pointer) {
        if (at->native.pointer == request) {
            at->native.pointer = request->native.pointer;
            return;
        }
    }
}

static carry_request *find(carry_request *list, int tag) {
    while (list != NULL && list->tag != tag) {
        list = list->native.pointer;
    }
    return list;
}

static void append_parcel(peer *p, parcel *new) {
    parcel **list = &p->arrived;
    while (*list != NULL) {
        list = &(*list)->next;
    }
    new->next = NULL;
    *list = new;
}

static parcel *new_parcel(int tag, size_t bytes) {
    parcel *new = malloc(sizeof *new + bytes);
    if (new != NULL) {
        new->next = NULL;
        new->tag = tag;
        new->bytes = bytes;
    }
    return new;
}

/* Bytes that are already written stay with the kernel, which delivers them. */
static void hang_up(peer *p) {
    if (p->socket >= 0) {
        (void)close(p->socket);
        p->socket = -1;
    }
}

static void settle(carry_request *request, size_t bytes) {
    request->state = request->bytes == bytes ? CARRY_REQUEST_DONE : CARRY_REQUEST_MISFIT;
    request->other_bytes = bytes;
}

/* Returns true if more can be written to the peer at once. */
static bool write_some(peer *p) {
    carry_request *request = p->sends;
    const header head = {.bytes = (uint64_t)request->bytes, .tag = request->tag};
    const bool in_head = p->written < sizeof head;
    const char *from =
        in_head ? (const char *)&head + p->written : (const char *)request->from + p->written - sizeof head;
    const size_t left = in_head ? sizeof head - p->written : request->bytes + sizeof head - p->written;
    const ssize_t count = left > 0 ? send(p->socket, from, left, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    if (count < 0) {
        /* A peer that has left may have sent its reason: its messages are read first, then the end of the
           connection. */
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != EPIPE && errno != ECONNRESET) {
            hang_up(p);
        }
        return false;
    }
    p->written += (size_t)count;
    if (p->written == sizeof head + request->bytes) {
        p->sends = request->native.pointer;
        p->written = 0;
        request->state = CARRY_REQUEST_DONE;
    }
    return (size_t)count == left;
}

static void write_all(peer *p) {
    while (p->socket >= 0 && p->sends != NULL && write_some(p)) {
    }
}

/* A length that would overflow, or a notice of the wrong size, cannot come from a build of this program: the peer is
   broken or hostile, and is cut off before anything is allocated. */
static bool is_sound(const header *head) {
    return head->reserved == 0 && head->bytes <= (uint64_t)PTRDIFF_MAX - sizeof(parcel) - sizeof *head &&
           (head->tag != CARRY_TAG_NOTICE || head->bytes == CARRY_COMM_REASON);
}

/* Called when a header is complete: decides where the message's bytes go. */
static void open_message(carry_wire *wire, peer *p) {
    if (!is_sound(&p->head)) {
        (void)snprintf(wire->reason, sizeof wire->reason, "it sent a malformed header: tag %d, %llu bytes",
                       (int)p->head.tag, (unsigned long long)p->head.bytes);
        hang_up(p);
        return;
    }
    carry_request *request = p->head.tag == CARRY_TAG_NOTICE ? NULL : find(p->receives, p->head.tag);
    if (request == NULL) {
        p->aside = new_parcel(p->head.tag, (size_t)p->head.bytes);
        if (p->aside == NULL) {
            (void)snprintf(wire->reason, sizeof wire->reason, "out of memory: a message of %llu bytes",
                           (unsigned long long)p->head.bytes);
            hang_up(p);
        }
        return;
    }
    if (request->bytes == p->head.bytes) {
        request->state = CARRY_REQUEST_BUSY;
        p->into = request;
    } else {
        take_out(&p->receives, request);
        settle(request, (size_t)p->head.bytes);
    }
}

static void deliver(carry_request *request, parcel *from) {
    settle(request, from->bytes);
    if (request->state == CARRY_REQUEST_DONE && from->bytes > 0) {
        memcpy(request->to, from->data, from->bytes);
    }
    free(from);
}

/* The receive may have been posted while the message arrived. */
static void hand_over(peer *p, parcel *whole) {
    carry_request *request = find(p->receives, whole->tag);
    if (request == NULL) {
        append_parcel(p, whole);
        return;
    }
    take_out(&p->receives, request);
    deliver(request, whole);
}

static void close_message(carry_wire *wire, peer *p) {
    if (p->into != NULL) {
        take_out(&p->receives, p->into);
        settle(p->into, (size_t)p->head.bytes);
    } else if (p->aside != NULL && p->head.tag == CARRY_TAG_NOTICE) {
        if (wire->ended_by < 0) {
            const connections *h = wire->state;
            wire->ended_by = (int)(p - h->peers);
            (void)snprintf(wire->reason, sizeof wire->reason, "%.*s", (int)p->aside->bytes, p->aside->data);
        }
        free(p->aside);
    } else if (p->aside != NULL) {
        hand_over(p, p->aside);
    }
    p->into = NULL;
    p->aside = NULL;
    p->read = 0;
}

/* Returns true if there may be more to read at once. */
static bool read_some(carry_wire *wire, peer *p) {
    char dropped[4096];
    char *to = (char *)&p->head + p->read;
    size_t left = sizeof p->head - p->read;
    if (p->read >= sizeof p->head) {
        const size_t at = p->read - sizeof p->head;
        left = (size_t)p->head.bytes - at;
        to = p->into != NULL ? (char *)p->into->to + at : p->aside != NULL ? p->aside->data + at : dropped;
        left = to == dropped && left > sizeof dropped ? sizeof dropped : left;
    }
    const ssize_t count = left > 0 ? recv(p->socket, to, left, MSG_DONTWAIT) : 0;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return false;
    }
    if (count < 0 || (count == 0 && left > 0)) {
        hang_up(p);
        return false;
    }
    p->read += (size_t)count;
    if (p->read == sizeof p->head && count > 0) {
        open_message(wire, p);
    }
    if (p->socket >= 0 && p->read >= sizeof p->head && p->read - sizeof p->head == p->head.bytes) {
        close_message(wire, p);
    }
    return p->socket >= 0 && (size_t)count == left;
}

/* Polls all peers once. Sleeps for at most `seconds` if nothing is ready. */
static void look(carry_wire *wire, double seconds) {
    connections *h = wire->state;
    for (int i = 0; i < h->size; i++) {
        const peer *p = &h->peers[i];
        h->polled[i] = (struct pollfd){.fd = p->socket, .events = (short)(POLLIN | (p->sends != NULL ? POLLOUT : 0))};
    }
    const struct timespec most = {.tv_nsec = (long)(1e9 * seconds)};
    if (ppoll(h->polled, (nfds_t)h->size, &most, NULL) <= 0) {
        return;
    }
    for (int i = 0; i < h->size; i++) {
        peer *p = &h->peers[i];
        const short happened = h->polled[i].revents;
        if (p->socket >= 0 && (happened & (POLLIN | POLLHUP | POLLERR)) != 0) {
            for (int reads = 0; reads < READS && read_some(wire, p); reads++) {
            }
        }
        if ((happened & POLLOUT) != 0) {
            write_all(p);
        }
    }
}

static void post_receive(peer *p, carry_request *request) {
    parcel **list = &p->arrived;
    while (*list != NULL && (*list)->tag != request->tag) {
        list = &(*list)->next;
    }
    parcel *found = *list;
    if (found == NULL) {
        append(&p->receives, request);
        return;
    }
    *list = found->next;
    deliver(request, found);
}

/* A message to this rank itself. */
static void post_to_self(carry_wire *wire, peer *p, carry_request *request) {
    carry_request *receive = find(p->receives, request->tag);
    parcel *new = receive == NULL ? new_parcel(request->tag, request->bytes) : NULL;
    if (receive == NULL && new == NULL) {
        (void)snprintf(wire->reason, sizeof wire->reason, "out of memory: a message of %zu bytes", request->bytes);
        request->state = CARRY_REQUEST_BROKEN;
        return;
    }
    if (receive != NULL) {
        take_out(&p->receives, receive);
        settle(receive, request->bytes);
        request->state = receive->state;
        request->other_bytes = receive->bytes;
    } else {
        append_parcel(p, new);
        request->state = CARRY_REQUEST_DONE;
    }
    if (request->state == CARRY_REQUEST_DONE && request->bytes > 0) {
        memcpy(receive != NULL ? receive->to : new->data, request->from, request->bytes);
    }
}

static void post(carry_wire *wire, carry_request *request) {
    connections *h = wire->state;
    peer *p = &h->peers[request->world];
    if (request->to != NULL) {
        post_receive(p, request);
    } else if (request->world == wire->rank) {
        post_to_self(wire, p, request);
    } else {
        append(&p->sends, request);
        write_all(p);
    }
}

/* A peer that received half of a message cannot be sent anything else. */
static void cancel(carry_wire *wire, carry_request *request) {
    connections *h = wire->state;
    peer *p = &h->peers[request->world];
    if (request->to != NULL) {
        p->into = p->into == request ? NULL : p->into;
        take_out(&p->receives, request);
    } else if (p->sends == request && p->written > 0) {
        take_out(&p->sends, request);
        p->written = 0;
        hang_up(p);
    } else {
        take_out(&p->sends, request);
    }
    request->state = CARRY_REQUEST_NONE;
}

static bool is_open(const carry_request *request) {
    return request->state == CARRY_REQUEST_PENDING || request->state == CARRY_REQUEST_BUSY;
}

static void give_up(carry_wire *wire, carry_request *request) {
    const connections *h = wire->state;
    if (wire->ended_by >= 0) {
        cancel(wire, request);
        request->state = CARRY_REQUEST_ENDED;
    } else if (request->world != wire->rank && h->peers[request->world].socket < 0) {
        cancel(wire, request);
        request->state = wire->reason[0] != '\0' ? CARRY_REQUEST_BROKEN : CARRY_REQUEST_GONE;
    }
}

static void progress(carry_wire *wire, carry_request *request, double until) {
    for (int looks = 0; is_open(request); looks++) {
        const double left = looks > LOOKS && until > 0 ? until - carry_seconds() : 0.0;
        look(wire, left > PAUSE ? PAUSE : left > 0.0 ? left : 0.0);
        if (is_open(request)) {
            give_up(wire, request);
        }
        if (is_open(request) && (until <= 0 || carry_seconds() > until)) {
            return;
        }
    }
}

/* A peer that does not read, or that got half of a message, learns of the abort when the connection is closed. */
static void abort_processes(carry_wire *wire, const char *reason) {
    connections *h = wire->state;
    wire->ended_by = wire->rank;
    (void)snprintf(wire->reason, sizeof wire->reason, "%s", reason);
    struct {
        header head;
        char reason[CARRY_COMM_REASON];
    } notice = {.head = {.bytes = CARRY_COMM_REASON, .tag = CARRY_TAG_NOTICE}};
    (void)snprintf(notice.reason, sizeof notice.reason, "%s", wire->reason);
    for (int i = 0; i < h->size; i++) {
        peer *p = &h->peers[i];
        if (p->socket >= 0 && (p->written > 0 || send(p->socket, &notice, sizeof notice, MSG_NOSIGNAL | MSG_DONTWAIT) !=
                                                     (ssize_t)sizeof notice)) {
            hang_up(p);
        }
    }
}

static void close_processes(carry_wire *wire) {
    connections *h = wire->state;
    for (int i = 0; i < h->size; i++) {
        peer *p = &h->peers[i];
        hang_up(p);
        free(p->aside);
        for (parcel *at = p->arrived, *next; at != NULL; at = next) {
            next = at->next;
            free(at);
        }
    }
    free(h->polled);
    free(h);
}

static carry_status open_processes(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    CARRY_TRY(carry_meeting_find(ctx, &wire->rank, &wire->size));
    const size_t count = (size_t)wire->size;
    connections *h = calloc(1, sizeof *h + count * sizeof h->peers[0]);
    int *sockets = calloc(count, sizeof *sockets);
    struct pollfd *polled = calloc(count, sizeof *polled);
    carry_status status = CARRY_OK;
    if (h == NULL || sockets == NULL || polled == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of %d processes", wire->size);
    } else {
        status = carry_meeting_join(ctx, sockets, options->deadline);
    }
    if (status != CARRY_OK) {
        free(h);
        free(sockets);
        free(polled);
        return status;
    }
    h->size = wire->size;
    h->polled = polled;
    for (int i = 0; i < wire->size; i++) {
        h->peers[i].socket = sockets[i];
    }
    free(sockets);
    wire->state = h;
    return CARRY_OK;
}

const carry_comm_kind carry_comm_processes = {
    .name = "processes",
    .about = "ranks are processes of one machine that carry --processes started; sockets, no MPI",
    .open = open_processes,
    .post = post,
    .progress = progress,
    .cancel = cancel,
    .abort = abort_processes,
    .close = close_processes,
};
