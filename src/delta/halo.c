/* The halo of a causal convolution: the last W-1 tokens before a rank's own tokens, which may come from several ranks,
   and the return of their gradients to those ranks. The ranks exchange their numbers of tokens; then each owner sends
   directly to each rank that needs some of its tokens, which are always its last ones. Messages are [tokens, B,
   channels] in f32, so that the last tokens of a block are contiguous. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"
#include "delta/halo.h"
#include "ops/convert.h"

static carry_status check(carry_ctx *ctx, int device, const carry_tensor *before, const carry_tensor *x,
                          const char *before_name, const char *name) {
    if (before->rank != 3 || x->rank != 3 || before->shape[0] != x->shape[0] || before->shape[2] != x->shape[2] ||
        x->shape[0] < 1 || x->shape[2] < 1) {
        char has[2][CARRY_SHAPE_TEXT];
        return carry_fail(ctx, CARRY_ESHAPE, "%s has shape %s and %s %s: [B, W-1, channels] and [B, n, channels]",
                          before_name, carry_shape_text(has[0], before->rank, before->shape), name,
                          carry_shape_text(has[1], x->rank, x->shape));
    }
    CARRY_TRY(carry_tensor_expect(ctx, before_name, before, 3, before->shape));
    CARRY_TRY(carry_tensor_expect(ctx, name, x, 3, x->shape));
    if (before->dtype != CARRY_F32 || !carry_tensor_is_packed(before, 0) || before->device != device) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s must be packed f32 on device %d", before_name, device);
    }
    if (!carry_dtype_is_real(x->dtype) || x->device != device || !carry_tensor_is_packed(x, 2)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s must be f32, bf16 or f16 on device %d, channels packed", name, device);
    }
    return CARRY_OK;
}

/* The address of token t of sequence b. */
static void *place(const carry_tensor *x, int64_t b, int64_t t) {
    return (char *)x->data + (b * x->stride[0] + t * x->stride[1]) * (int64_t)carry_dtype_size(x->dtype);
}

int64_t carry_halo_wanted(const carry_halo *h, int owner, int wants, int64_t *between) {
    *between = 0;
    for (int r = owner + 1; r < wants && *between < h->window; r++) {
        *between += h->all[r].tokens < h->window ? h->all[r].tokens : h->window;
    }
    int64_t room = h->window - *between;
    int64_t most = h->all[owner].tokens < room ? h->all[owner].tokens : room;
    return most > 0 ? most : 0;
}

static carry_status compare(const carry_halo *h) {
    for (int r = 0; r < h->size; r++) {
        const carry_halo_record *a = &h->all[0];
        const carry_halo_record *b = &h->all[r];
        if (b->status != CARRY_OK) {
            return carry_fail(h->ctx, CARRY_EARGUMENT, "rank %d has refused its tensors of the halo", r);
        }
        if (b->tokens < 0 || a->batch != b->batch || a->window != b->window || a->channels != b->channels) {
            return carry_fail(h->ctx, CARRY_EARGUMENT,
                              "rank 0 has a halo of %" PRId64 " x %" PRId64 " tokens x %" PRId64
                              " channels, rank %d one of %" PRId64 " x %" PRId64 " x %" PRId64,
                              a->batch, a->window, a->channels, r, b->batch, b->window, b->channels);
        }
    }
    return CARRY_OK;
}

/* Allocates the memory of a call: [size] records and requests, then messages. */
static carry_status take(carry_halo *h) {
    if (h->window > 0) { /* otherwise there is nothing to do, or the tensors were refused */
        h->tail = h->own->shape[1] < h->window ? h->own->shape[1] : h->window;
    }
    const int64_t floats[] = {h->window, 4, h->batch, h->channels};
    size_t bytes;
    if (!carry_size_product(&bytes, floats, 4, sizeof(float))) {
        return carry_fail(h->ctx, CARRY_ESIZE, "the halo is larger than memory can be");
    }
    h->row = h->batch * h->channels;
    h->device = carry_comm_device(h->comm);
    const size_t item = h->device == 0 ? sizeof(float) : 0; /* on a GPU, messages are in device memory */
    for (int pass = 0; pass < 2; pass++) {
        carry_arena arena = carry_arena_over(h->block, pass == 0 ? 0 : bytes);
        h->all = carry_arena_take(&arena, (size_t)h->size, sizeof *h->all);
        h->requests = carry_arena_take(&arena, (size_t)h->size, sizeof *h->requests);
        h->mine = carry_arena_take(&arena, (size_t)(h->tail * h->row), item);
        h->one = carry_arena_take(&arena, (size_t)(h->tail * h->row), item);
        h->others = carry_arena_take(&arena, (size_t)(h->window * h->row), item);
        if (pass == 0 && (!carry_arena_total(&arena, &bytes) || (h->block = malloc(bytes)) == NULL)) {
            return carry_fail(h->ctx, CARRY_EMEMORY, "out of memory: a halo");
        }
    }
    memset(h->requests, 0, (size_t)h->size * sizeof *h->requests);
    return CARRY_OK;
}

carry_status carry_halo_wait_all(carry_halo *h, carry_status status) {
    for (int r = 0; r < h->size; r++) {
        carry_status waited = carry_wait(&h->requests[r]);
        status = status != CARRY_OK ? status : waited;
    }
    return status;
}

static void load_mine(const carry_halo *h) {
    int64_t first = h->own->shape[1] - h->tail;
    for (int64_t t = 0; t < h->tail; t++) {
        for (int64_t b = 0; b < h->batch; b++) {
            carry_widen(h->kernels, h->mine + t * h->row + b * h->channels, place(h->own, b, first + t), h->own->dtype,
                        h->channels);
        }
    }
}

static carry_status give_tokens(carry_halo *h) {
    load_mine(h);
    carry_status status = CARRY_OK;
    for (int r = h->rank + 1; status == CARRY_OK && r < h->size; r++) {
        int64_t between;
        int64_t count = carry_halo_wanted(h, h->rank, r, &between);
        if (count > 0) {
            status = carry_isend(h->comm, &h->requests[r], h->mine + (h->tail - count) * h->row,
                                 (size_t)(count * h->row) * sizeof(float), r, CARRY_HALO_TAG);
        }
    }
    memset(h->others, 0, (size_t)(h->window * h->row) * sizeof(float));
    for (int r = h->rank - 1; status == CARRY_OK && r >= 0; r--) {
        int64_t between;
        int64_t count = carry_halo_wanted(h, r, h->rank, &between);
        if (count > 0) {
            status = carry_recv(h->comm, h->others + (h->window - between - count) * h->row,
                                (size_t)(count * h->row) * sizeof(float), r, CARRY_HALO_TAG);
        }
    }
    status = carry_halo_wait_all(h, status);
    for (int64_t i = 0; status == CARRY_OK && i < h->window * h->batch; i++) {
        int64_t b = i % h->batch;
        memcpy((float *)h->before->data + (b * h->window + i / h->batch) * h->channels, h->others + i * h->channels,
               (size_t)h->channels * sizeof(float));
    }
    return status;
}

/* Sums all received gradients in the order of ranks before adding them, so that 16-bit types are rounded once. */
static carry_status give_gradients(carry_halo *h) {
    carry_status status = CARRY_OK;
    for (int64_t i = 0; i < h->window * h->batch; i++) {
        int64_t b = i % h->batch;
        memcpy(h->others + i * h->channels,
               (const float *)h->before->data + (b * h->window + i / h->batch) * h->channels,
               (size_t)h->channels * sizeof(float));
    }
    for (int r = 0; status == CARRY_OK && r < h->rank; r++) {
        int64_t between;
        int64_t count = carry_halo_wanted(h, r, h->rank, &between);
        if (count > 0) {
            status = carry_isend(h->comm, &h->requests[r], h->others + (h->window - between - count) * h->row,
                                 (size_t)(count * h->row) * sizeof(float), r, CARRY_HALO_TAG);
        }
    }
    float *sum = h->mine;
    float *one = h->one;
    memset(sum, 0, (size_t)(h->tail * h->row) * sizeof(float));
    for (int r = h->rank + 1; status == CARRY_OK && r < h->size; r++) {
        int64_t between;
        int64_t count = carry_halo_wanted(h, h->rank, r, &between);
        if (count == 0) {
            continue;
        }
        status = carry_recv(h->comm, one, (size_t)(count * h->row) * sizeof(float), r, CARRY_HALO_TAG);
        for (int64_t i = 0; status == CARRY_OK && i < count * h->row; i++) {
            sum[(h->tail - count) * h->row + i] += one[i];
        }
    }
    status = carry_halo_wait_all(h, status);
    int64_t first = h->own->shape[1] - h->tail;
    for (int64_t i = 0; status == CARRY_OK && i < h->tail * h->batch; i++) {
        void *dx = place(h->own, i % h->batch, first + i / h->batch);
        carry_widen(h->kernels, one, dx, h->own->dtype, h->channels);
        for (int64_t c = 0; c < h->channels; c++) {
            one[c] += sum[i * h->channels + c];
        }
        carry_narrow(h->kernels, dx, one, h->own->dtype, h->channels);
    }
    return status;
}

static carry_status run(carry_halo *h, const char *before_name, const char *name, carry_status (*give)(carry_halo *h)) {
    h->ctx = carry_comm_ctx(h->comm);
    h->rank = carry_comm_rank(h->comm);
    h->size = carry_comm_size(h->comm);
    carry_halo_record mine = {.status =
                                  check(h->ctx, carry_comm_device(h->comm), h->before, h->own, before_name, name)};
    if (mine.status == CARRY_OK) {
        h->batch = mine.batch = h->own->shape[0];
        h->window = mine.window = h->before->shape[1];
        h->channels = mine.channels = h->own->shape[2];
        mine.tokens = h->own->shape[1];
        mine.status = carry_kernels_of(h->ctx, &h->kernels);
    }
    carry_status status = take(h);
    if (status == CARRY_OK) { /* a rank that refuses must tell the others, which would otherwise wait for it */
        status = carry_all_gather(carry_comm_host(h->comm), h->all, &mine, sizeof mine);
    } else {
        carry_comm_abort(h->comm, carry_ctx_error(h->ctx));
    }
    if (status == CARRY_OK && mine.status == CARRY_OK) {
        status = compare(h);
    }
    if (status == CARRY_OK && mine.status == CARRY_OK) {
        status = give(h);
    }
    free(h->block);
    return mine.status != CARRY_OK ? (carry_status)mine.status : status;
}

carry_status carry_halo_forward(carry_comm *comm, carry_tensor before, carry_tensor x) {
    carry_halo h = {.comm = comm, .own = &x, .before = &before};
    CARRY_SPAN(carry_comm_ctx(comm), "delta", "halo");
    return run(&h, "before", "x", carry_comm_device(comm) > 0 ? carry_halo_device_tokens : give_tokens);
}

carry_status carry_halo_backward(carry_comm *comm, carry_tensor dx, carry_tensor dbefore) {
    carry_halo h = {.comm = comm, .own = &dx, .before = &dbefore};
    CARRY_SPAN(carry_comm_ctx(comm), "delta", "halo back");
    return run(&h, "dbefore", "dx", carry_comm_device(comm) > 0 ? carry_halo_device_gradients : give_gradients);
}
