/* Collectives and messages of communicators that move memory of a device, against plain loops. */
#ifndef CARRY_TESTS_COMM_BUFFERS_H
#define CARRY_TESTS_COMM_BUFFERS_H

#include "comm_support.h"

enum { MOST = 70000 };

static const int64_t counts[] = {1, 2, 127, 1024, 1025, MOST};
static int64_t most = MOST; /* of them that are tried */

typedef struct buffers {
    carry_ctx *ctx;
    int device;
    char *from, *to; /* in GPU memory, [RANKS, MOST] doubles each */
    double *host;    /* as much */
} buffers;

static inline carry_status make_buffers(buffers *b, carry_comm *comm, int device) {
    const size_t bytes = (size_t)(RANKS * most) * sizeof(double);
    *b = (buffers){.ctx = carry_comm_ctx(comm), .device = device, .host = malloc(bytes)};
    EXPECT(comm, b->host != NULL, "memory");
    TRY(carry_device_alloc(b->ctx, (void **)&b->from, device, bytes));
    return carry_device_alloc(b->ctx, (void **)&b->to, device, bytes);
}

static inline void free_buffers(buffers *b) {
    carry_device_free(b->ctx, b->device, b->from);
    carry_device_free(b->ctx, b->device, b->to);
    free(b->host);
}

/* Small integers, whose sums are the same in every order. */
static inline double element(int rank, int64_t at) {
    return (double)(draw(11, (uint64_t)rank, (uint64_t)at) % 1000);
}

/* Puts this rank's numbers on the GPU and poisons `to`. Does not wait for the copies: a send must be ordered after
   them. */
static inline carry_status fill(buffers *b, int rank, int64_t count, carry_dtype type) {
    const size_t size = type == CARRY_F32 ? 4 : 8;
    for (int64_t i = 0; i < count; i++) {
        const double x = element(rank, i);
        if (type == CARRY_F32) {
            ((float *)b->host)[i] = (float)x;
        } else if (type == CARRY_F64) {
            b->host[i] = x;
        } else {
            ((int64_t *)b->host)[i] = (int64_t)x;
        }
    }
    TRY(carry_device_copy(b->ctx, b->from, b->device, b->host, 0, (size_t)count * size, NULL));
    return carry_device_fill(b->ctx, b->to, b->device, 0xff, (size_t)RANKS * (size_t)count * 8, NULL);
}

static inline carry_status fetch(buffers *b, const char *what, int64_t count, carry_dtype type) {
    return carry_device_copy(b->ctx, b->host, 0, what, b->device, (size_t)count * (type == CARRY_F32 ? 4 : 8), NULL);
}

static inline double got(const buffers *b, int64_t at, carry_dtype type) {
    return type == CARRY_F32   ? (double)((const float *)b->host)[at]
           : type == CARRY_F64 ? b->host[at]
                               : (double)((const int64_t *)b->host)[at];
}

static inline double reduced(int size, int64_t at, carry_reduce reduce) {
    double result = element(0, at);
    for (int rank = 1; rank < size; rank++) {
        const double x = element(rank, at);
        result = reduce == CARRY_REDUCE_SUM ? result + x : x > result ? x : result;
    }
    return result;
}

static inline carry_status check_reductions(buffers *b, carry_comm *gpus, int64_t count) {
    static const carry_dtype types[] = {CARRY_F32, CARRY_F64, CARRY_I64};
    const int rank = carry_comm_rank(gpus), size = carry_comm_size(gpus);
    for (int i = 0; i < 6; i++) {
        const carry_dtype type = types[i % 3];
        const carry_reduce reduce = (carry_reduce)(i / 3);
        TRY(fill(b, rank, count, type));
        TRY(carry_all_reduce(gpus, b->from, count, type, reduce));
        TRY(fetch(b, b->from, count, type));
        for (int64_t at = 0; at < count; at++) {
            EXPECT(gpus, got(b, at, type) == reduced(size, at, reduce), "all-reduce %d", i);
        }
        const int64_t part = count / size;
        TRY(fill(b, rank, count, type));
        TRY(carry_reduce_scatter(gpus, b->to, b->from, part, type, reduce));
        TRY(fetch(b, b->to, part, type));
        for (int64_t at = 0; at < part; at++) {
            EXPECT(gpus, got(b, at, type) == reduced(size, part * rank + at, reduce), "reduce-scatter %d", i);
        }
    }
    return CARRY_OK;
}

static inline carry_status check_moves(buffers *b, carry_comm *gpus, int64_t count) {
    const int rank = carry_comm_rank(gpus), size = carry_comm_size(gpus);
    const int64_t part = count / size;
    const size_t bytes = (size_t)count * 8;
    size_t each[RANKS];
    TRY(fill(b, rank, count, CARRY_F64));
    TRY(carry_all_gather(gpus, b->to, b->from, bytes));
    TRY(fetch(b, b->to, count * size, CARRY_F64));
    for (int64_t at = 0; at < count * size; at++) {
        EXPECT(gpus, b->host[at] == element((int)(at / count), at % count), "all-gather");
    }
    int64_t all = 0;
    for (int r = 0; r < size; r++) {
        each[r] = 8 * (size_t)(count > r ? count - r : 0);
        all += (int64_t)each[r] / 8;
    }
    TRY(fill(b, rank, count, CARRY_F64));
    TRY(carry_all_gatherv(gpus, b->to, b->from, each));
    TRY(fetch(b, b->to, all, CARRY_F64));
    for (int64_t at = 0, r = 0, begin = 0; at < all; at++) {
        while (at - begin >= (int64_t)each[r] / 8) {
            begin += (int64_t)each[r++] / 8;
        }
        EXPECT(gpus, b->host[at] == element((int)r, at - begin), "all-gatherv");
    }
    TRY(fill(b, rank, count, CARRY_F64));
    TRY(carry_all_to_all(gpus, b->to, b->from, (size_t)part * 8));
    TRY(fetch(b, b->to, part * size, CARRY_F64));
    for (int64_t at = 0; at < part * size; at++) {
        EXPECT(gpus, b->host[at] == element((int)(at / part), rank * part + at % part), "all-to-all");
    }
    TRY(fill(b, rank, count, CARRY_F64));
    TRY(carry_broadcast(gpus, b->from, bytes, size - 1));
    TRY(fetch(b, b->from, count, CARRY_F64));
    for (int64_t at = 0; at < count; at++) {
        EXPECT(gpus, b->host[at] == element(size - 1, at), "broadcast");
    }
    return carry_barrier(gpus);
}

/* Messages around a ring, with send and receive posted before either is waited for; a single rank sends to itself. */
static inline carry_status check_messages(buffers *b, carry_comm *gpus, int64_t count) {
    const int rank = carry_comm_rank(gpus), size = carry_comm_size(gpus), last = (rank + size - 1) % size;
    const size_t bytes = (size_t)count * 8;
    carry_comm_counts before = {CARRY_INIT(carry_comm_counts)}, after = before;
    TRY(carry_comm_counted(gpus, &before));
    carry_request send[2], receive[2];
    int done = 0;
    TRY(fill(b, rank, 2 * count <= most ? 2 * count : count, CARRY_F64));
    for (int i = 0; i < 2; i++) {
        const size_t offset = i == 1 && 2 * count <= most ? bytes : 0;
        TRY(carry_isend(gpus, &send[i], b->from + offset, bytes, (rank + 1) % size, i));
        TRY(carry_irecv(gpus, &receive[i], b->to + (size_t)i * bytes, bytes, last, i));
    }
    while (!done) {
        TRY(carry_test(&receive[0], &done));
    }
    TRY(carry_wait(&receive[1]));
    TRY(carry_wait(&send[0]));
    TRY(carry_wait(&send[1]));
    TRY(fetch(b, b->to, 2 * count, CARRY_F64));
    for (int64_t at = 0; at < 2 * count; at++) {
        EXPECT(gpus, b->host[at] == element(last, 2 * count <= most ? at : at % count), "message");
    }
    TRY(carry_comm_counted(gpus, &after));
    EXPECT(gpus, after.bytes_sent - before.bytes_sent == 2 * (int64_t)bytes, "sent");
    EXPECT(gpus, after.messages_received - before.messages_received == 2, "received");
    return CARRY_OK;
}

static inline carry_status check_all(carry_comm *gpus, int device) {
    buffers b;
    carry_status status = make_buffers(&b, gpus, device);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && counts[i] <= most && status == CARRY_OK; i++) {
        status = check_reductions(&b, gpus, counts[i]);
        status = status == CARRY_OK ? check_moves(&b, gpus, counts[i]) : status;
        status = status == CARRY_OK ? check_messages(&b, gpus, counts[i]) : status;
    }
    free_buffers(&b);
    return status;
}

#endif
