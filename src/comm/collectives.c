/* Collectives, written once over messages.

   A barrier uses rounds of doubling distance, a broadcast a binomial tree. The other collectives are one exchange
   between all pairs of ranks: every byte is sent once, and nothing is forwarded. In a reduction each rank reduces one
   slice, in the order of ranks; an all-reduce of n elements then gathers the slices: each of P ranks sends
   2 n (P - 1) / P elements, as in a ring.
   With more than two ranks, small pieces in CPU memory (together at most SMALL bytes) are gathered in rounds of
   doubling distance instead: a rank sends log2 P messages, rounded up. A small all-reduce gathers the data of all
   ranks, and every rank reduces it: among a thousand ranks, each sends ten messages.
   A communicator kind for GPU memory may implement collectives itself (`collect` in backend.h). */
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "comm/backend.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"

#define SMALL 32768 /* bytes of all ranks together */

/* Where each rank's part of a buffer is: parts of equal size, parts of given sizes, or slices of a number of
   elements. */
typedef struct layout {
    size_t bytes;       /* bytes of each part if all are equal, else 0 */
    const size_t *each; /* NULL, or the bytes of each part */
    int64_t count;      /* otherwise: total number of elements */
    size_t element;     /* bytes of an element */
    int size;
} layout;

/* The first element of a rank's slice of count elements. The sizes of slices differ by at most one. Not computed as
   count * rank / size, since count * rank could overflow. */
static int64_t slice_begin(int64_t count, int rank, int size) {
    const int64_t each = count / size, rest = count % size;
    return each * rank + (rank < rest ? rank : rest);
}

static size_t part_offset(const layout *l, int rank) {
    if (l->element > 0) {
        return (size_t)slice_begin(l->count, rank, l->size) * l->element;
    }
    size_t offset = (size_t)rank * l->bytes;
    for (int i = 0; i < rank && l->each != NULL; i++) {
        offset += l->each[i];
    }
    return offset;
}

static size_t part_bytes(const layout *l, int rank) {
    if (l->element > 0) {
        return part_offset(l, rank + 1) - part_offset(l, rank);
    }
    return l->each != NULL ? l->each[rank] : l->bytes;
}

/* Runs a collective that the kind implements itself. Its buffers must be memory of the communicator's device. */
static carry_status collect(carry_comm *comm, const carry_collective *what) {
    const carry_deadline deadline = carry_deadline_from_now(comm, what->operation);
    CARRY_TRY(carry_device_check_pointer(comm->ctx, what->operation, what->from, comm->wire->device));
    CARRY_TRY(carry_device_check_pointer(comm->ctx, what->operation, what->to, comm->wire->device));
    carry_comm_post_collective(comm, comm->requests, what);
    return carry_comm_wait_all(comm, comm->requests, 1, &deadline);
}

static bool is_native(const carry_comm *comm) {
    return comm->wire->kind->collect != NULL;
}

/* The buffers of one rank in an exchange. Its own part is not moved. */
typedef struct exchange {
    const char *operation;
    int tag;
    const char *from;
    char *to;
    layout send;    /* parts of from, by receiver */
    layout receive; /* parts of to, by sender */
    bool same;      /* all ranks get the same bytes: this rank's part in `send`, which starts at from */
} exchange;

static carry_status run(carry_comm *comm, const exchange *x) {
    const carry_deadline deadline = carry_deadline_from_now(comm, x->operation);
    carry_request *request = comm->requests;
    /* Each rank starts with a different peer, so that not all of them send to rank 0 at once. */
    for (int step = 1; step < comm->size; step++) {
        const int peer = (comm->rank + comm->size - step) % comm->size;
        carry_comm_post_recv(comm, request++, x->operation, x->to + part_offset(&x->receive, peer),
                             part_bytes(&x->receive, peer), peer, x->tag);
    }
    for (int step = 1; step < comm->size; step++) {
        const int peer = (comm->rank + step) % comm->size;
        const char *from = x->same ? x->from : x->from + part_offset(&x->send, peer);
        const size_t bytes = part_bytes(&x->send, x->same ? comm->rank : peer);
        carry_comm_post_send(comm, request++, x->operation, from, bytes, peer, x->tag);
    }
    return carry_comm_wait_all(comm, comm->requests, 2 * (comm->size - 1), &deadline);
}

/* rows: [size, count] in the communicator's memory. Reduces all rows, in their order, into the first. */
static carry_status reduce_rows(const carry_comm *comm, void *rows, int64_t count, size_t element, carry_dtype type,
                                carry_reduce reduce) {
    if (comm->wire->device > 0) {
        return carry_comm_reduce_rows_on_gpu(comm->ctx, comm->wire->device, rows, comm->size, count, type, reduce);
    }
    for (int rank = 1; rank < comm->size; rank++) {
        carry_comm_reduce_into(rows, (const char *)rows + (size_t)(rank * count) * element, count, type, reduce);
    }
    return CARRY_OK;
}

/* Copies within the communicator's memory; on a GPU, in the context's stream. */
static carry_status move(const carry_comm *comm, void *to, const void *from, size_t bytes) {
    const int device = comm->wire->device;
    if (bytes == 0 || to == from) {
        return CARRY_OK;
    }
    if (device > 0) {
        return carry_device_copy(comm->ctx, to, device, from, device, bytes, carry_ctx_stream(comm->ctx, device));
    }
    memcpy(to, from, bytes);
    return CARRY_OK;
}

static carry_status check_reduction(carry_ctx *ctx, const char *operation, int64_t count, int parts, carry_dtype type,
                                    carry_reduce reduce, size_t *element) {
    if (type != CARRY_F32 && type != CARRY_F64 && type != CARRY_I64 && type != CARRY_BF16) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s of %s: expected f32, f64, i64 or bf16", operation,
                          carry_dtype_name(type));
    }
    if ((unsigned)reduce > CARRY_REDUCE_MAX) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s: reduction %d is not known", operation, (int)reduce);
    }
    *element = carry_dtype_size(type);
    if (count < 0 || count > INT64_MAX / 16 / parts) {
        return carry_fail(ctx, CARRY_ESIZE, "%s: %lld elements", operation, (long long)count);
    }
    return CARRY_OK;
}

void carry_comm_free_scratch(carry_comm *comm) {
    if (comm->scratch != NULL && comm->wire->device > 0) {
        carry_device_free(comm->ctx, comm->wire->device, comm->scratch);
    } else {
        free(comm->scratch);
    }
    comm->scratch = NULL;
    comm->scratch_bytes = 0;
}

/* If memory runs out, this rank tells its peers, which would otherwise wait for it. */
static carry_status grow_scratch(carry_comm *comm, size_t bytes) {
    if (bytes <= comm->scratch_bytes) {
        return CARRY_OK;
    }
    carry_comm_free_scratch(comm);
    if (comm->wire->device > 0) {
        if (carry_device_alloc(comm->ctx, &comm->scratch, comm->wire->device, bytes) != CARRY_OK) {
            comm->scratch = NULL;
        }
    } else {
        comm->scratch = malloc(bytes);
    }
    comm->scratch_bytes = comm->scratch != NULL ? bytes : 0;
    if (comm->scratch == NULL) {
        const carry_status status =
            carry_fail(comm->ctx, CARRY_EMEMORY, "out of memory: a reduction of %zu bytes", bytes);
        carry_comm_abort(comm, carry_ctx_error(comm->ctx));
        return status;
    }
    return CARRY_OK;
}

/* Reduces this rank's part of `all` over all ranks, in the order of ranks, and writes the result to `out`, which may be
   inside this rank's part. */
static carry_status reduce_part(carry_comm *comm, const char *operation, void *out, const char *all,
                                const layout *parts, size_t element, carry_dtype type, carry_reduce reduce) {
    const size_t bytes = part_bytes(parts, comm->rank);
    const char *own = all + part_offset(parts, comm->rank);
    CARRY_TRY(grow_scratch(comm, bytes * (size_t)comm->size));
    char *from_rank = comm->scratch;
    const exchange x = {.operation = operation,
                        .tag = CARRY_TAG_REDUCE,
                        .from = all,
                        .to = from_rank,
                        .send = *parts,
                        .receive = {.bytes = bytes, .size = comm->size}};
    CARRY_TRY(run(comm, &x));
    if (bytes == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(move(comm, from_rank + (size_t)comm->rank * bytes, own, bytes));
    CARRY_TRY(reduce_rows(comm, from_rank, (int64_t)(bytes / element), element, type, reduce));
    return move(comm, out, from_rank, bytes);
}

static bool is_small(const carry_comm *comm, size_t bytes) {
    return comm->wire->device == 0 && comm->size > 2 && bytes <= SMALL / (size_t)comm->size;
}

/* row: [size, bytes]. On entry it starts with this rank's piece; on return the pieces of the following ranks come
   after it, wrapping around. */
static carry_status gather_row(carry_comm *comm, const char *operation, int tag, char *row, size_t bytes) {
    const carry_deadline deadline = carry_deadline_from_now(comm, operation);
    for (int distance = 1; distance < comm->size; distance *= 2) {
        const int pieces = distance < comm->size - distance ? distance : comm->size - distance;
        const int ahead = (comm->rank + distance) % comm->size;
        const int behind = (comm->rank + comm->size - distance) % comm->size;
        carry_request *r = comm->requests;
        carry_comm_post_recv(comm, &r[0], operation, row + (size_t)distance * bytes, (size_t)pieces * bytes, ahead,
                             tag);
        carry_comm_post_send(comm, &r[1], operation, row, (size_t)pieces * bytes, behind, tag);
        CARRY_TRY(carry_comm_wait_all(comm, r, 2, &deadline));
    }
    return CARRY_OK;
}

static carry_status gather_small(carry_comm *comm, const char *operation, char *all, const void *piece, size_t bytes) {
    CARRY_TRY(grow_scratch(comm, bytes * (size_t)comm->size));
    char *row = comm->scratch;
    if (bytes > 0) {
        memcpy(row, piece, bytes);
    }
    CARRY_TRY(gather_row(comm, operation, CARRY_TAG_GATHER, row, bytes));
    for (int i = 0; i < comm->size && bytes > 0; i++) {
        memcpy(all + (size_t)((comm->rank + i) % comm->size) * bytes, row + (size_t)i * bytes, bytes);
    }
    return CARRY_OK;
}

/* Every rank reduces the data of all ranks in the order of ranks. Large reductions use the same tag: if the ranks
   disagree about the number of elements, and one calls a small and another a large reduction, the messages match and
   the wrong size is detected at once instead of at the deadline. */
static carry_status reduce_small(carry_comm *comm, const char *operation, void *data, int64_t count, size_t element,
                                 carry_dtype type, carry_reduce reduce) {
    const size_t bytes = (size_t)count * element;
    CARRY_TRY(grow_scratch(comm, bytes * (size_t)comm->size));
    char *row = comm->scratch;
    if (bytes > 0) {
        memcpy(row, data, bytes);
    }
    CARRY_TRY(gather_row(comm, operation, CARRY_TAG_REDUCE, row, bytes));
    for (int rank = 0; rank < comm->size && bytes > 0; rank++) {
        const char *from = row + (size_t)((rank + comm->size - comm->rank) % comm->size) * bytes;
        if (rank == 0) {
            memcpy(data, from, bytes);
        } else {
            carry_comm_reduce_into(data, from, count, type, reduce);
        }
    }
    return CARRY_OK;
}

static carry_status gather_parts(carry_comm *comm, const char *operation, char *all, const void *piece,
                                 const layout *parts) {
    char *own = all + part_offset(parts, comm->rank);
    const size_t bytes = part_bytes(parts, comm->rank);
    CARRY_TRY(move(comm, own, piece, bytes));
    const exchange x = {.operation = operation,
                        .tag = CARRY_TAG_GATHER,
                        .from = own,
                        .to = all,
                        .send = *parts,
                        .receive = *parts,
                        .same = true};
    return run(comm, &x);
}

static carry_status check_open(const carry_comm *comm, const char *operation) {
    return comm->barred == NULL ? CARRY_OK
                                : carry_fail(comm->ctx, CARRY_EARGUMENT, "%s: rank %d of %d: %s", operation, comm->rank,
                                             comm->size, comm->barred);
}

void carry_comm_bar(carry_comm *comm, const char *why) {
    comm->barred = why;
}

carry_status carry_barrier(carry_comm *comm) {
    CARRY_SPAN(comm->ctx, "comm", "barrier");
    CARRY_TRY(check_open(comm, "barrier"));
    if (is_native(comm)) {
        return collect(comm, &(carry_collective){.operation = "barrier", .which = CARRY_COLLECT_BARRIER});
    }
    const carry_deadline deadline = carry_deadline_from_now(comm, "barrier");
    for (int distance = 1; distance < comm->size; distance *= 2) {
        const int ahead = (comm->rank + distance) % comm->size;
        const int behind = (comm->rank + comm->size - distance) % comm->size;
        carry_request *r = comm->requests;
        carry_comm_post_recv(comm, &r[0], "barrier", NULL, 0, behind, CARRY_TAG_BARRIER);
        carry_comm_post_send(comm, &r[1], "barrier", NULL, 0, ahead, CARRY_TAG_BARRIER);
        CARRY_TRY(carry_comm_wait_all(comm, r, 2, &deadline));
    }
    return CARRY_OK;
}

carry_status carry_broadcast(carry_comm *comm, void *data, size_t bytes, int root) {
    CARRY_SPAN(comm->ctx, "comm", "broadcast");
    CARRY_TRY(check_open(comm, "broadcast"));
    if (root < 0 || root >= comm->size) {
        return carry_fail(comm->ctx, CARRY_EARGUMENT, "broadcast: there is no rank %d among %d", root, comm->size);
    }
    if (is_native(comm)) {
        return collect(
            comm,
            &(carry_collective){
                .operation = "broadcast", .which = CARRY_COLLECT_BROADCAST, .to = data, .bytes = bytes, .root = root});
    }
    const carry_deadline deadline = carry_deadline_from_now(comm, "broadcast");
    const int place = (comm->rank + comm->size - root) % comm->size; /* position relative to the root */
    /* This rank passes the data on to place + 1, + 2, + 4, ... up to place + below / 2. */
    int below = 1;
    while (below < comm->size && (place & below) == 0) {
        below *= 2;
    }
    if (place > 0) {
        const int parent = (place - below + root) % comm->size;
        carry_comm_post_recv(comm, comm->requests, "broadcast", data, bytes, parent, CARRY_TAG_BROADCAST);
        CARRY_TRY(carry_comm_wait_all(comm, comm->requests, 1, &deadline));
    }
    for (int step = below / 2; step > 0; step /= 2) {
        if (place + step < comm->size) {
            const int child = (place + step + root) % comm->size;
            carry_comm_post_send(comm, comm->requests, "broadcast", data, bytes, child, CARRY_TAG_BROADCAST);
            CARRY_TRY(carry_comm_wait_all(comm, comm->requests, 1, &deadline));
        }
    }
    return CARRY_OK;
}

carry_status carry_all_reduce(carry_comm *comm, void *data, int64_t count, carry_dtype type, carry_reduce reduce) {
    CARRY_SPAN(comm->ctx, "comm", "all-reduce");
    CARRY_TRY(check_open(comm, "all-reduce"));
    size_t element;
    CARRY_TRY(check_reduction(comm->ctx, "all-reduce", count, 1, type, reduce, &element));
    if (is_native(comm)) {
        return collect(comm, &(carry_collective){.operation = "all-reduce",
                                                 .which = CARRY_COLLECT_ALL_REDUCE,
                                                 .to = data,
                                                 .count = count,
                                                 .type = type,
                                                 .reduce = reduce});
    }
    if (is_small(comm, (size_t)count * element)) {
        return reduce_small(comm, "all-reduce", data, count, element, type, reduce);
    }
    const layout parts = {.count = count, .element = element, .size = comm->size};
    char *own = (char *)data + part_offset(&parts, comm->rank);
    CARRY_TRY(reduce_part(comm, "all-reduce", own, data, &parts, element, type, reduce));
    return gather_parts(comm, "all-reduce", data, own, &parts);
}

carry_status carry_all_gather(carry_comm *comm, void *all, const void *piece, size_t bytes) {
    CARRY_SPAN(comm->ctx, "comm", "all-gather");
    CARRY_TRY(check_open(comm, "all-gather"));
    if (is_native(comm)) {
        return collect(comm, &(carry_collective){.operation = "all-gather",
                                                 .which = CARRY_COLLECT_ALL_GATHER,
                                                 .from = piece,
                                                 .to = all,
                                                 .bytes = bytes});
    }
    if (is_small(comm, bytes)) {
        return gather_small(comm, "all-gather", all, piece, bytes);
    }
    const layout parts = {.bytes = bytes, .size = comm->size};
    return gather_parts(comm, "all-gather", all, piece, &parts);
}

carry_status carry_all_gatherv(carry_comm *comm, void *all, const void *piece, const size_t *bytes) {
    CARRY_SPAN(comm->ctx, "comm", "all-gatherv");
    CARRY_TRY(check_open(comm, "all-gatherv"));
    if (is_native(comm)) {
        return collect(comm, &(carry_collective){.operation = "all-gatherv",
                                                 .which = CARRY_COLLECT_ALL_GATHERV,
                                                 .from = piece,
                                                 .to = all,
                                                 .each = bytes});
    }
    const layout parts = {.each = bytes, .size = comm->size};
    return gather_parts(comm, "all-gatherv", all, piece, &parts);
}

carry_status carry_reduce_scatter(carry_comm *comm, void *piece, const void *all, int64_t count, carry_dtype type,
                                  carry_reduce reduce) {
    CARRY_SPAN(comm->ctx, "comm", "reduce-scatter");
    CARRY_TRY(check_open(comm, "reduce-scatter"));
    size_t element;
    CARRY_TRY(check_reduction(comm->ctx, "reduce-scatter", count, comm->size, type, reduce, &element));
    if (is_native(comm)) {
        return collect(comm, &(carry_collective){.operation = "reduce-scatter",
                                                 .which = CARRY_COLLECT_REDUCE_SCATTER,
                                                 .from = all,
                                                 .to = piece,
                                                 .count = count,
                                                 .type = type,
                                                 .reduce = reduce});
    }
    const layout parts = {.count = count * comm->size, .element = element, .size = comm->size};
    return reduce_part(comm, "reduce-scatter", piece, all, &parts, element, type, reduce);
}

carry_status carry_all_to_all(carry_comm *comm, void *to, const void *from, size_t bytes) {
    CARRY_SPAN(comm->ctx, "comm", "all-to-all");
    CARRY_TRY(check_open(comm, "all-to-all"));
    if (is_native(comm)) {
        return collect(
            comm,
            &(carry_collective){
                .operation = "all-to-all", .which = CARRY_COLLECT_ALL_TO_ALL, .from = from, .to = to, .bytes = bytes});
    }
    const layout parts = {.bytes = bytes, .size = comm->size};
    const size_t own = part_offset(&parts, comm->rank);
    CARRY_TRY(move(comm, (char *)to + own, (const char *)from + own, bytes));
    const exchange x = {
        .operation = "all-to-all", .tag = CARRY_TAG_TO_ALL, .from = from, .to = to, .send = parts, .receive = parts};
    return run(comm, &x);
}
