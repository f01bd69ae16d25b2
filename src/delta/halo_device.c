/* The halo on a GPU: the same messages as on the CPU, [tokens, B, channels] in f32, but in device memory. Kernels on
   the context's stream pack and unpack them, and their memory is allocated and freed in the order of that stream. */
#include "carry/device.h"
#include "core/context.h"
#include "core/memory.h"
#include "delta/halo.h"

#ifndef CARRY_HAVE_CUDA
carry_status carry_halo_move(carry_ctx *ctx, int device, carry_halo_rows to, carry_halo_rows from, int64_t tokens,
                             int64_t batch, int64_t channels, int adds) {
    (void)to, (void)from, (void)tokens, (void)batch, (void)channels, (void)adds;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "this build has no halo on device %d: it has no CUDA", device);
}
#endif

static carry_stream *stream_of(const carry_halo *h) {
    return carry_ctx_stream(h->ctx, h->device);
}

/* mine and one: [tail, row]; others: [window, row]. */
static carry_status take(carry_halo *h, void **memory) {
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        carry_arena arena = carry_arena_over(pass == 0 ? NULL : *memory, bytes);
        h->mine = carry_arena_take(&arena, (size_t)(h->tail * h->row), sizeof(float));
        h->one = carry_arena_take(&arena, (size_t)(h->tail * h->row), sizeof(float));
        h->others = carry_arena_take(&arena, (size_t)(h->window * h->row), sizeof(float));
        if (pass == 0) {
            (void)carry_arena_total(&arena, &bytes); /* cannot overflow: halo.c has counted the same size */
            CARRY_TRY(carry_device_alloc_on(h->ctx, memory, h->device, bytes, stream_of(h)));
        }
    }
    return CARRY_OK;
}

static carry_halo_rows message(const carry_halo *h, float *data) {
    return (carry_halo_rows){.data = data, .dtype = CARRY_F32, .token = h->row, .sequence = h->channels};
}

/* The last tokens of x or dx. */
static carry_halo_rows tail_of(const carry_halo *h) {
    const carry_tensor *x = h->own;
    const int64_t first = (x->shape[1] - h->tail) * x->stride[1];
    return (carry_halo_rows){.data = (char *)x->data + (size_t)first * carry_dtype_size(x->dtype),
                             .dtype = x->dtype,
                             .token = x->stride[1],
                             .sequence = x->stride[0]};
}

static carry_halo_rows before_of(const carry_halo *h) {
    return (carry_halo_rows){
        .data = h->before->data, .dtype = CARRY_F32, .token = h->channels, .sequence = h->window * h->channels};
}

static carry_status move(const carry_halo *h, carry_halo_rows to, carry_halo_rows from, int64_t tokens, int adds) {
    return carry_halo_move(h->ctx, h->device, to, from, tokens, h->batch, h->channels, adds);
}

static carry_status clear(const carry_halo *h, float *data, int64_t tokens) {
    return carry_device_fill(h->ctx, data, h->device, 0, (size_t)(tokens * h->row) * sizeof(float), stream_of(h));
}

/* Messages go from owners to the ranks that need their tokens; gradients go the other way. */
static carry_status send(carry_halo *h, const float *from, int64_t count, int to) {
    return carry_isend(h->comm, &h->requests[to], from, (size_t)(count * h->row) * sizeof(float), to, CARRY_HALO_TAG);
}

static carry_status receive(carry_halo *h, float *to, int64_t count, int from) {
    return carry_recv(h->comm, to, (size_t)(count * h->row) * sizeof(float), from, CARRY_HALO_TAG);
}

static carry_status exchange_tokens(carry_halo *h) {
    carry_status status = CARRY_OK;
    int64_t between;
    for (int r = h->rank + 1; status == CARRY_OK && r < h->size; r++) {
        const int64_t count = carry_halo_wanted(h, h->rank, r, &between);
        status = count > 0 ? send(h, h->mine + (h->tail - count) * h->row, count, r) : CARRY_OK;
    }
    for (int r = h->rank - 1; status == CARRY_OK && r >= 0; r--) {
        const int64_t count = carry_halo_wanted(h, r, h->rank, &between);
        status = count > 0 ? receive(h, h->others + (h->window - between - count) * h->row, count, r) : CARRY_OK;
    }
    return carry_halo_wait_all(h, status);
}

/* Sums gradients in the order of ranks before adding them to dx, so that 16-bit types are rounded once. */
static carry_status exchange_gradients(carry_halo *h) {
    carry_status status = CARRY_OK;
    int64_t between;
    for (int r = 0; status == CARRY_OK && r < h->rank; r++) {
        const int64_t count = carry_halo_wanted(h, r, h->rank, &between);
        status = count > 0 ? send(h, h->others + (h->window - between - count) * h->row, count, r) : CARRY_OK;
    }
    for (int r = h->rank + 1; status == CARRY_OK && r < h->size; r++) {
        const int64_t count = carry_halo_wanted(h, h->rank, r, &between);
        if (count > 0) {
            status = receive(h, h->one, count, r);
            status = status == CARRY_OK
                         ? move(h, message(h, h->mine + (h->tail - count) * h->row), message(h, h->one), count, 1)
                         : status;
        }
    }
    return carry_halo_wait_all(h, status);
}

carry_status carry_halo_device_tokens(carry_halo *h) {
    void *memory = NULL;
    CARRY_TRY(take(h, &memory));
    carry_status status = move(h, message(h, h->mine), tail_of(h), h->tail, 0);
    status = status == CARRY_OK ? clear(h, h->others, h->window) : status;
    status = status == CARRY_OK ? exchange_tokens(h) : status;
    status = status == CARRY_OK ? move(h, before_of(h), message(h, h->others), h->window, 0) : status;
    carry_device_free_on(h->ctx, h->device, memory, stream_of(h));
    return status;
}

carry_status carry_halo_device_gradients(carry_halo *h) {
    void *memory = NULL;
    CARRY_TRY(take(h, &memory));
    carry_status status = move(h, message(h, h->others), before_of(h), h->window, 0);
    status = status == CARRY_OK ? clear(h, h->mine, h->tail) : status;
    status = status == CARRY_OK ? exchange_gradients(h) : status;
    status = status == CARRY_OK ? move(h, tail_of(h), message(h, h->mine), h->tail, 1) : status;
    carry_device_free_on(h->ctx, h->device, memory, stream_of(h));
    return status;
}
