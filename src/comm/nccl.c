/* Ranks with a GPU each, through NCCL. NCCL is opened at run time: on a machine without it only this kind is
   missing.

   Requests are queued when posted. When one is waited for, all queued requests start as one NCCL group, a batch, on
   a stream of this communicator: if they were started one by one, two ranks that send to each other would each wait
   in their stream for a receive that is behind the send. A collective is a batch by itself. An event after each
   batch shows that it has completed. NCCL runs in non-blocking mode, so that the deadline applies to it too; a late
   operation is aborted. */
#include "comm/nccl.h"

#include <sched.h>
#include <stdio.h>

#include "carry/device.h"
#include "core/clock.h"

static bool is_good(ncclResult_t code) {
    return code == ncclSuccess || code == ncclInProgress;
}

static ncclDataType_t type_of(carry_dtype type) {
    return type == CARRY_F32    ? ncclFloat32
           : type == CARRY_F64  ? ncclFloat64
           : type == CARRY_BF16 ? ncclBfloat16
                                : ncclInt64;
}

/* Every rank is the root of its own part. */
static ncclResult_t gather_parts(const carry_wire *wire, const carry_nccl_room *r, const carry_collective *what) {
    ncclResult_t code = ncclSuccess;
    char *part = what->to;
    for (int rank = 0; rank < wire->size && is_good(code); rank++) {
        code = carry_nccl.ncclBroadcast(rank == wire->rank ? what->from : part, part, what->each[rank], ncclUint8, rank,
                                        r->comm, r->stream);
        part += what->each[rank];
    }
    return code;
}

static ncclResult_t exchange_parts(const carry_wire *wire, const carry_nccl_room *r, const carry_collective *what) {
    ncclResult_t code = ncclSuccess;
    for (int rank = 0; rank < wire->size && is_good(code); rank++) {
        const size_t offset = (size_t)rank * what->bytes;
        code = carry_nccl.ncclSend((const char *)what->from + offset, what->bytes, ncclUint8, rank, r->comm, r->stream);
        code = code == ncclSuccess
                   ? carry_nccl.ncclRecv((char *)what->to + offset, what->bytes, ncclUint8, rank, r->comm, r->stream)
                   : code;
    }
    return code;
}

static ncclResult_t call_collective(const carry_wire *wire, const carry_nccl_room *r, const carry_collective *what) {
    const ncclRedOp_t reduce = what->reduce == CARRY_REDUCE_SUM ? ncclSum : ncclMax;
    const size_t count = (size_t)what->count;
    switch (what->which) {
    case CARRY_COLLECT_BROADCAST:
        return carry_nccl.ncclBroadcast(what->to, what->to, what->bytes, ncclUint8, what->root, r->comm, r->stream);
    case CARRY_COLLECT_ALL_REDUCE:
        return carry_nccl.ncclAllReduce(what->to, what->to, count, type_of(what->type), reduce, r->comm, r->stream);
    case CARRY_COLLECT_ALL_GATHER:
        return carry_nccl.ncclAllGather(what->from, what->to, what->bytes, ncclUint8, r->comm, r->stream);
    case CARRY_COLLECT_ALL_GATHERV:
        return gather_parts(wire, r, what);
    case CARRY_COLLECT_REDUCE_SCATTER:
        return carry_nccl.ncclReduceScatter(what->from, what->to, count, type_of(what->type), reduce, r->comm,
                                            r->stream);
    case CARRY_COLLECT_ALL_TO_ALL:
        return exchange_parts(wire, r, what);
    default:
        return carry_nccl.ncclAllReduce(r->token, r->token, 1, ncclFloat32, ncclMax, r->comm, r->stream);
    }
}

static ncclResult_t call_message(const carry_nccl_room *r, const carry_request *request) {
    return request->to != NULL
               ? carry_nccl.ncclRecv(request->to, request->bytes, ncclUint8, request->world, r->comm, r->stream)
               : carry_nccl.ncclSend(request->from, request->bytes, ncclUint8, request->world, r->comm, r->stream);
}

static carry_request *take(carry_nccl_room *r) {
    carry_request *request = r->first;
    r->first = request->native.pointer;
    r->last = r->first != NULL ? r->last : NULL;
    request->state = CARRY_REQUEST_BUSY;
    request->native.number = (long)r->started;
    return request;
}

/* Starts the messages at the head of the queue, or the collective there, as one batch. */
static void start_batch(carry_wire *wire) {
    carry_nccl_room *r = wire->state;
    cudaStream_t callers = (cudaStream_t)carry_ctx_stream(r->ctx, wire->device);
    if (!carry_nccl_is_fine(wire, cudaEventRecord(r->before, callers)) ||
        !carry_nccl_is_fine(wire, cudaStreamWaitEvent(r->stream, r->before, 0))) {
        return;
    }
    r->started++;
    ncclResult_t code = carry_nccl.ncclGroupStart();
    if (r->first->peer < 0) {
        (void)take(r);
        code = is_good(code) ? call_collective(wire, r, r->collective) : code;
    } else {
        while (r->first != NULL && r->first->peer >= 0) {
            const carry_request *request = take(r);
            code = is_good(code) ? call_message(r, request) : code;
        }
    }
    const ncclResult_t end = carry_nccl.ncclGroupEnd();
    code = is_good(code) ? end : code;
    if (!is_good(code)) {
        carry_nccl_break_off(wire, carry_nccl_words(r, code));
        return;
    }
    r->launching = true;
}

/* Makes progress without waiting: checks for completed operations, starts queued ones. */
static void advance(carry_wire *wire) {
    carry_nccl_room *r = wire->state;
    if (r->comm == NULL || r->broken || !carry_nccl_is_fine(wire, cudaSetDevice(r->ordinal))) {
        return;
    }
    for (bool again = true; again && !r->broken;) {
        ncclResult_t state = ncclInProgress;
        const ncclResult_t code = carry_nccl.ncclCommGetAsyncError(r->comm, &state);
        if (code != ncclSuccess || !is_good(state)) {
            carry_nccl_break_off(wire, carry_nccl_words(r, code != ncclSuccess ? code : state));
            return;
        }
        if (state == ncclInProgress) {
            return;
        }
        if (r->launching) { /* the batch is now in the stream */
            r->launching = false;
            (void)carry_nccl_is_fine(wire, cudaEventRecord(r->after[r->started % CARRY_NCCL_BATCHES], r->stream));
        }
        while (!r->broken && r->finished < r->started) {
            const cudaError_t error = cudaEventQuery(r->after[(r->finished + 1) % CARRY_NCCL_BATCHES]);
            if (error == cudaErrorNotReady) {
                break;
            }
            r->finished += carry_nccl_is_fine(wire, error) ? 1 : 0;
        }
        again = !r->broken && r->first != NULL && r->started - r->finished < CARRY_NCCL_BATCHES;
        if (again) {
            start_batch(wire);
        }
    }
}

static void post(carry_wire *wire, carry_request *request) {
    carry_nccl_room *r = wire->state;
    request->native.pointer = NULL;
    if (r->last != NULL) {
        r->last->native.pointer = request;
    } else {
        r->first = request;
    }
    r->last = request;
}

static void collect(carry_wire *wire, carry_request *request, const carry_collective *what) {
    carry_nccl_room *r = wire->state;
    r->collective = what; /* one at a time, since the caller waits for it at once */
    post(wire, request);
}

static void progress(carry_wire *wire, carry_request *request, double until) {
    carry_nccl_room *r = wire->state;
    for (;;) {
        advance(wire);
        if (request->state == CARRY_REQUEST_BUSY && request->native.number <= r->finished) {
            request->state = CARRY_REQUEST_DONE;
        }
        if (request->state != CARRY_REQUEST_PENDING && request->state != CARRY_REQUEST_BUSY) {
            return;
        }
        if (r->broken || r->comm == NULL) {
            carry_nccl_give_up(r);
            r->first = r->last = NULL;
            request->state = wire->ended_by >= 0 ? CARRY_REQUEST_ENDED : CARRY_REQUEST_BROKEN;
            return;
        }
        if (until <= 0 || carry_seconds() > until) {
            return;
        }
        (void)sched_yield();
    }
}

/* Queued operations are cancelled; those that NCCL has begun end only with the communicator. */
static void cancel(carry_wire *wire, carry_request *request) {
    carry_nccl_room *r = wire->state;
    if (request->state == CARRY_REQUEST_BUSY) {
        carry_nccl_give_up(r);
    }
    carry_request *before = NULL;
    for (carry_request *at = r->first; at != NULL && request->state == CARRY_REQUEST_PENDING;
         before = at, at = at->native.pointer) {
        if (at == request) {
            *(before != NULL ? &before->native.pointer : (void **)&r->first) = at->native.pointer;
            r->last = r->last == at ? before : r->last;
            break;
        }
    }
    request->state = CARRY_REQUEST_NONE;
}

static void abort_nccl(carry_wire *wire, const char *reason) {
    wire->ended_by = wire->rank;
    (void)snprintf(wire->reason, sizeof wire->reason, "%s", reason);
    carry_nccl_give_up(wire->state);
}

const carry_comm_kind carry_comm_nccl = {
    .name = "nccl",
    .about = "ranks have a GPU each, whose memory it moves; matched in order, without tags",
    .on_gpu = true,
    .open = carry_nccl_open,
    .post = post,
    .collect = collect,
    .progress = progress,
    .cancel = cancel,
    .abort = abort_nccl,
    .close = carry_nccl_close,
};
