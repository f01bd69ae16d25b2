/* Opening and splitting communicators, messages, and waiting for them with a deadline. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "comm/backend.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/sized.h"
#include "core/span.h"

/* Sends the last error message of this rank to the other ranks, and returns its status. */
static carry_status end_all(carry_comm *comm, carry_status status) {
    if (comm->wire->ended_by < 0) {
        carry_comm_abort(comm, carry_ctx_error(comm->ctx));
    }
    return status;
}

static carry_status has_ended(carry_comm *comm, const carry_deadline *deadline) {
    const carry_wire *wire = comm->wire;
    return carry_fail(comm->ctx, CARRY_EPEER, "%s: rank %d%s ended the communicator (%.3f s waited): %s",
                      deadline->operation, wire->ended_by, wire->ended_by == wire->rank ? ", this one," : "",
                      carry_seconds() - deadline->start, wire->reason);
}

static void count_message(carry_comm *comm, const carry_request *request) {
    carry_comm_counts *counts = &comm->counts;
    if (request->peer < 0) {
        return; /* a collective of the backend itself, whose messages are not visible here */
    }
    if (request->to != NULL) {
        counts->bytes_received += (int64_t)request->bytes;
        counts->messages_received++;
    } else {
        counts->bytes_sent += (int64_t)request->bytes;
        counts->messages_sent++;
    }
}

/* The name of the peer that was waited for, for messages. */
static const char *peer_of(char text[24], const carry_request *request) {
    if (request->peer < 0) {
        return "a rank"; /* NCCL does not report which rank */
    }
    (void)snprintf(text, 24, "rank %d", request->peer);
    return text;
}

static bool is_open(const carry_request *request) {
    return request->state == CARRY_REQUEST_PENDING || request->state == CARRY_REQUEST_BUSY;
}

/* Ends the communicator before it cancels the request: otherwise a late peer could match a later message of this rank
   with its part of this one. */
static carry_status time_out(carry_comm *comm, carry_request *request, const carry_deadline *deadline) {
    char peer[24];
    const carry_status status =
        end_all(comm, carry_fail(comm->ctx, CARRY_ETIMEOUT, "%s: %s did not come within the deadline (%.3f s waited)",
                                 deadline->operation, peer_of(peer, request), carry_seconds() - deadline->start));
    comm->wire->kind->cancel(comm->wire, request);
    request->state = CARRY_REQUEST_NONE;
    return status;
}

/* Turns the outcome of a request into a status and message. The request is empty afterwards. */
static carry_status settle(carry_comm *comm, carry_request *request, const carry_deadline *deadline) {
    carry_ctx *ctx = comm->ctx;
    if (is_open(request)) { /* check again: this process may have been suspended since the last check */
        comm->wire->kind->progress(comm->wire, request, carry_seconds());
    }
    if (is_open(request)) {
        return time_out(comm, request, deadline);
    }
    const carry_request_state state = (carry_request_state)request->state;
    const double waited = carry_seconds() - deadline->start;
    char peer[24];
    request->state = CARRY_REQUEST_NONE;
    switch (state) {
    case CARRY_REQUEST_DONE:
        count_message(comm, request);
        return CARRY_OK;
    case CARRY_REQUEST_MISFIT:
        return end_all(comm,
                       carry_fail(ctx, CARRY_ESHAPE, "%s: rank %d has %zu bytes where rank %d has %zu (%.3f s waited)",
                                  deadline->operation, request->peer, request->other_bytes, comm->rank, request->bytes,
                                  waited));
    case CARRY_REQUEST_GONE:
        return end_all(comm, carry_fail(ctx, CARRY_EPEER, "%s: %s has left (%.3f s waited)", deadline->operation,
                                        peer_of(peer, request), waited));
    case CARRY_REQUEST_ENDED:
        return has_ended(comm, deadline);
    default:
        return end_all(comm, carry_fail(ctx, CARRY_EPEER, "%s: %s cannot be reached (%.3f s waited): %s",
                                        deadline->operation, peer_of(peer, request), waited, comm->wire->reason));
    }
}

/* Errors are reported to the rank that waits. */
static void post(carry_comm *comm, carry_request *request, const char *operation, int peer, int tag) {
    request->comm = comm;
    request->operation = operation;
    request->peer = peer;
    request->world_self = comm->wire->rank;
    request->world = comm->members[peer];
    request->tag = comm->group << CARRY_TAG_BITS | tag;
    if (comm->wire->ended_by >= 0) {
        request->state = CARRY_REQUEST_ENDED;
        return;
    }
    request->state = CARRY_REQUEST_PENDING;
    comm->wire->kind->post(comm->wire, request);
}

static carry_status check_message(const carry_comm *comm, const char *operation, const void *data, size_t bytes,
                                  int peer, int tag) {
    if (peer < 0 || peer >= comm->size) {
        return carry_fail(comm->ctx, CARRY_EARGUMENT, "%s: there is no rank %d among %d", operation, peer, comm->size);
    }
    if (tag < 0 || tag >= CARRY_MAX_COMM_TAGS) {
        return carry_fail(comm->ctx, CARRY_EARGUMENT, "%s: tag %d: expected 0 to %d", operation, tag,
                          CARRY_MAX_COMM_TAGS - 1);
    }
    if (data == NULL && bytes > 0) {
        return carry_fail(comm->ctx, CARRY_EARGUMENT, "%s: %zu bytes at no address", operation, bytes);
    }
    return comm->wire->device > 0 ? carry_device_check_pointer(comm->ctx, operation, data, comm->wire->device)
                                  : CARRY_OK;
}

static carry_status check_deadline(carry_ctx *ctx, double seconds) {
    if (!(seconds > 0) || !isfinite(seconds) || seconds > 1e8) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a deadline of %g seconds: give more than 0 and at most 1e8", seconds);
    }
    return CARRY_OK;
}

static void close_wire(carry_wire *wire) {
    wire->kind->close(wire);
    free(wire);
}

carry_deadline carry_deadline_from_now(const carry_comm *comm, const char *operation) {
    const double now = carry_seconds();
    return (carry_deadline){.operation = operation, .start = now, .until = now + comm->deadline};
}

void carry_comm_post_send(carry_comm *comm, carry_request *request, const char *operation, const void *from,
                          size_t bytes, int peer, int tag) {
    *request = (carry_request){.from = from, .bytes = bytes};
    post(comm, request, operation, peer, tag);
}

void carry_comm_post_recv(carry_comm *comm, carry_request *request, const char *operation, void *to, size_t bytes,
                          int peer, int tag) {
    /* A request with a non-NULL `to` is a receive, so an empty one points to the request itself. */
    *request = (carry_request){.to = to != NULL ? to : request, .bytes = bytes};
    post(comm, request, operation, peer, tag);
}

void carry_comm_post_collective(carry_comm *comm, carry_request *request, const carry_collective *what) {
    *request = (carry_request){.comm = comm, .operation = what->operation, .peer = -1, .world = -1};
    request->world_self = comm->wire->rank;
    request->state = comm->wire->ended_by >= 0 ? CARRY_REQUEST_ENDED : CARRY_REQUEST_PENDING;
    if (request->state == CARRY_REQUEST_PENDING) {
        comm->wire->kind->collect(comm->wire, request, what);
    }
}

carry_status carry_comm_wait_all(carry_comm *comm, carry_request *requests, int count, const carry_deadline *deadline) {
    carry_wire *wire = comm->wire;
    CARRY_SPAN(comm->ctx, "comm", "wait");
    const double start = carry_seconds();
    carry_status status = CARRY_OK;
    for (int i = 0; i < count; i++) {
        carry_request *request = &requests[i];
        if (request->state == CARRY_REQUEST_NONE) {
            continue;
        }
        if (status == CARRY_OK) {
            wire->kind->progress(wire, request, deadline->until);
            status = settle(comm, request, deadline);
        } else if (is_open(request)) { /* the order does not matter: the communicator has ended */
            wire->kind->cancel(wire, request);
        }
        request->state = CARRY_REQUEST_NONE;
    }
    comm->counts.waited += carry_seconds() - start;
    return status;
}

void carry_comm_withdraw(carry_request *requests, int64_t count) {
    for (int64_t i = count - 1; i >= 0; i--) { /* last first, so that a peer cannot match messages out of order */
        carry_request *request = &requests[i];
        if (is_open(request)) {
            carry_wire *wire = request->comm->wire;
            wire->kind->cancel(wire, request);
        }
        request->state = CARRY_REQUEST_NONE;
    }
}

carry_status carry_comm_new(carry_ctx *ctx, carry_comm **comm, carry_wire *wire, int rank, int size, int group) {
    carry_comm *c = calloc(1, sizeof *c);
    int *members = calloc((size_t)size, sizeof *members);
    carry_request *requests = calloc(2 * (size_t)size, sizeof *requests);
    *comm = c;
    if (c == NULL || members == NULL || requests == NULL) {
        free(c);
        free(members);
        free(requests);
        *comm = NULL;
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of %d ranks", size);
    }
    *c = (carry_comm){.ctx = ctx, .wire = wire, .deadline = CARRY_COMM_DEADLINE, .rank = rank, .size = size};
    c->group = group;
    c->members = members;
    c->requests = requests;
    for (int i = 0; i < size; i++) {
        members[i] = i;
    }
    wire->users++;
    return CARRY_OK;
}

static carry_status open_wire(carry_ctx *ctx, carry_wire **wire, const carry_comm_kind *kind,
                              const carry_comm_options *options) {
    carry_wire *w = calloc(1, sizeof *w);
    *wire = w;
    if (w == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator");
    }
    w->kind = kind;
    w->ended_by = -1;
    carry_status status = kind->open(ctx, w, options);
    if (status != CARRY_OK) {
        free(w);
        *wire = NULL;
    }
    return status;
}

static carry_status check_options(carry_ctx *ctx, const carry_comm_kind *kind, const carry_comm_options *options) {
    CARRY_TRY(check_deadline(ctx, options->deadline));
    if (kind->on_gpu && options->over != NULL && options->over->ctx != ctx) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the communicator to open \"%s\" over has another context", kind->name);
    }
    if (!kind->on_gpu && options->over != NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "\"%s\" is not opened over another communicator", kind->name);
    }
    if (!kind->on_gpu && options->device != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "\"%s\" does not move the memory of device %d", kind->name,
                          options->device);
    }
    if (options->agreement != NULL && strlen(options->agreement) >= CARRY_MAX_AGREEMENT_BYTES) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the agreement string has %zu characters: at most %d fit",
                          strlen(options->agreement), CARRY_MAX_AGREEMENT_BYTES - 1);
    }
    return CARRY_OK;
}

static carry_status unknown_kind(carry_ctx *ctx, const char *kind) {
    static const struct { const char *kind, *needs; } known[] = {{"mpi", "MPI"}, {"nccl", "CUDA and NCCL"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(kind, known[i].kind) == 0) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "this build has no communicator \"%s\" (it has %s): install %s and build again", kind,
                              carry_comm_names(ctx), known[i].needs);
        }
    }
    return carry_fail(ctx, CARRY_ENOTFOUND, "there is no communicator \"%s\": there are %s", kind,
                      carry_comm_names(ctx));
}

carry_status carry_comm_open(carry_ctx *ctx, carry_comm **comm, const char *kind, const carry_comm_options *options) {
    carry_comm_options given;
    *comm = NULL;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_comm_options, &given, options));
    given.deadline = given.deadline == 0.0 ? CARRY_COMM_DEADLINE : given.deadline;
    const carry_comm_options *o = &given;
    const carry_comm_kind *found = carry_comm_find(kind);
    if (found == NULL) {
        return unknown_kind(ctx, kind);
    }
    CARRY_TRY(check_options(ctx, found, o));
    const char *agreement = o->agreement != NULL ? o->agreement : "";
    if (o->over != NULL) {
        CARRY_TRY(carry_comm_handshake(o->over, agreement)); /* compares through host memory */
    }
    carry_wire *wire;
    CARRY_TRY(open_wire(ctx, &wire, found, o));
    carry_status status = carry_comm_new(ctx, comm, wire, wire->rank, wire->size, 0);
    if (status != CARRY_OK) {
        wire->kind->abort(wire, carry_ctx_error(ctx));
        close_wire(wire);
        return status;
    }
    (*comm)->deadline = o->deadline;
    (*comm)->over = o->over;
    status = found->on_gpu ? CARRY_OK : carry_comm_handshake(*comm, agreement);
    if (status != CARRY_OK) {
        carry_comm_close(*comm);
        *comm = NULL;
    }
    return status;
}

void carry_comm_close(carry_comm *comm) {
    if (comm == NULL) {
        return;
    }
    carry_comm_free_scratch(comm);
    if (--comm->wire->users == 0) {
        close_wire(comm->wire);
    }
    free(comm->requests);
    free(comm->members);
    free(comm);
}

int carry_comm_rank(const carry_comm *comm) {
    return comm->rank;
}

int carry_comm_size(const carry_comm *comm) {
    return comm->size;
}

const char *carry_comm_name(const carry_comm *comm) {
    return comm->wire->kind->name;
}

carry_ctx *carry_comm_ctx(const carry_comm *comm) {
    return comm->ctx;
}

double carry_comm_deadline(const carry_comm *comm) {
    return comm->deadline;
}

carry_status carry_comm_set_deadline(carry_comm *comm, double seconds) {
    CARRY_TRY(check_deadline(comm->ctx, seconds));
    comm->deadline = seconds;
    return CARRY_OK;
}

carry_status carry_comm_counted(const carry_comm *comm, carry_comm_counts *counts) {
    return CARRY_SIZED_WRITE(comm->ctx, carry_comm_counts, counts, &comm->counts);
}

void carry_comm_abort(carry_comm *comm, const char *reason) {
    carry_wire *wire = comm->wire;
    if (wire->ended_by < 0) {
        wire->kind->abort(wire, reason != NULL && reason[0] != '\0' ? reason : "no reason was given");
    }
}

carry_status carry_isend(carry_comm *comm, carry_request *request, const void *from, size_t bytes, int to_rank,
                         int tag) {
    *request = (carry_request){0};
    CARRY_TRY(check_message(comm, "send", from, bytes, to_rank, tag));
    carry_comm_post_send(comm, request, "send", from, bytes, to_rank, tag);
    return CARRY_OK;
}

carry_status carry_irecv(carry_comm *comm, carry_request *request, void *to, size_t bytes, int from_rank, int tag) {
    *request = (carry_request){0};
    CARRY_TRY(check_message(comm, "receive", to, bytes, from_rank, tag));
    carry_comm_post_recv(comm, request, "receive", to, bytes, from_rank, tag);
    return CARRY_OK;
}

carry_status carry_wait(carry_request *request) {
    if (request->state == CARRY_REQUEST_NONE) {
        return CARRY_OK;
    }
    const carry_deadline deadline = carry_deadline_from_now(request->comm, request->operation);
    return carry_comm_wait_all(request->comm, request, 1, &deadline);
}

carry_status carry_comm_wait_since(carry_request *request, double start, double until, int *done) {
    *done = 1;
    if (request->state == CARRY_REQUEST_NONE) {
        return CARRY_OK;
    }
    carry_comm *comm = request->comm;
    const carry_deadline deadline = {.operation = request->operation, .start = start, .until = start + comm->deadline};
    if (until >= deadline.until) {
        return carry_comm_wait_all(comm, request, 1, &deadline);
    }
    const double now = carry_seconds();
    comm->wire->kind->progress(comm->wire, request, until);
    comm->counts.waited += carry_seconds() - now;
    *done = !is_open(request);
    return *done ? settle(comm, request, &deadline) : CARRY_OK;
}

carry_status carry_test(carry_request *request, int *done) {
    *done = 1;
    if (request->state == CARRY_REQUEST_NONE) {
        return CARRY_OK;
    }
    carry_comm *comm = request->comm;
    comm->wire->kind->progress(comm->wire, request, 0);
    if (is_open(request)) {
        *done = 0;
        return CARRY_OK;
    }
    const carry_deadline deadline = carry_deadline_from_now(comm, request->operation);
    return settle(comm, request, &deadline);
}

int carry_comm_peek(carry_request *request) {
    if (request->state == CARRY_REQUEST_NONE) {
        return 1;
    }
    carry_comm *comm = request->comm;
    comm->wire->kind->progress(comm->wire, request, 0);
    if (is_open(request)) {
        return 0;
    }
    if (request->state != CARRY_REQUEST_DONE) {
        return request->state == CARRY_REQUEST_ENDED ? -2 : -1;
    }
    count_message(comm, request);
    request->state = CARRY_REQUEST_NONE;
    return 1;
}

carry_status carry_send(carry_comm *comm, const void *from, size_t bytes, int to_rank, int tag) {
    carry_request request;
    CARRY_TRY(carry_isend(comm, &request, from, bytes, to_rank, tag));
    return carry_wait(&request);
}

carry_status carry_recv(carry_comm *comm, void *to, size_t bytes, int from_rank, int tag) {
    carry_request request;
    CARRY_TRY(carry_irecv(comm, &request, to, bytes, from_rank, tag));
    return carry_wait(&request);
}
