/* The optimizer's state in host memory, for checkpoints: always f32 there, which holds bf16 exactly. */
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "comm/rates.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "model/host.h"
#include "train/optimizer.h"

#define STATE_TAG 2              /* message tag; gradients have tag 1 */
#define PIECE ((int64_t)1 << 20) /* elements that are converted at a time */

static int64_t piece_at(int64_t at, int64_t count) {
    return count - at < PIECE ? count - at : PIECE;
}

static carry_status get_wide(const carry_optimizer *o, float *to, carry_tensor state, int64_t count) {
    return count > 0 ? carry_read(o->ctx, carry_view_1d(to, CARRY_F32, count), state) : CARRY_OK;
}

/* Copies m or v of this rank to host memory as f32. */
static carry_status get(const carry_optimizer *o, float *to, carry_tensor state) {
    if (state.dtype == CARRY_F32) {
        return get_wide(o, to, state, o->count);
    }
    uint16_t *narrow = malloc((size_t)PIECE * sizeof *narrow);
    if (narrow == NULL) {
        return carry_fail(o->ctx, CARRY_EMEMORY, "out of memory: the optimizer's state");
    }
    carry_status status = CARRY_OK;
    for (int64_t at = 0; at < o->count && status == CARRY_OK; at += PIECE) {
        const int64_t count = piece_at(at, o->count);
        const carry_tensor here = carry_view_1d(narrow, CARRY_BF16, count);
        status = carry_read(o->ctx, here, carry_slice(state, at, count));
        status = status == CARRY_OK ? carry_convert(o->ctx, carry_view_1d(to + at, CARRY_F32, count), here) : status;
    }
    free(narrow);
    return status;
}

carry_status carry_optimizer_put(const carry_optimizer *o, carry_tensor state, int64_t first, const float *from,
                                 int64_t count) {
    if (state.dtype == CARRY_F32) {
        return carry_parameters_upload(o->model, state.data, first, from, count);
    }
    uint16_t *narrow = malloc((size_t)PIECE * sizeof *narrow);
    if (narrow == NULL) {
        return carry_fail(o->ctx, CARRY_EMEMORY, "out of memory: the optimizer's state");
    }
    carry_status status = CARRY_OK;
    for (int64_t at = 0; at < count && status == CARRY_OK; at += PIECE) {
        const int64_t some = piece_at(at, count);
        const carry_tensor here = carry_view_1d(narrow, CARRY_BF16, some);
        status = carry_convert(o->ctx, here, carry_view_1d((float *)from + at, CARRY_F32, some));
        status = status == CARRY_OK ? carry_copy(o->ctx, carry_slice(state, first + at, some), here) : status;
        if (status == CARRY_OK && state.device != 0) { /* the copy reads `narrow`, which is used again */
            status = carry_stream_wait(o->ctx, state.device, carry_ctx_stream(o->ctx, state.device));
        }
    }
    free(narrow);
    return status;
}

/* Sends m or v of this rank to rank 0, through host memory. */
static carry_status send_state(const carry_optimizer *o, carry_comm *host, carry_tensor state) {
    const size_t bytes = (size_t)o->count * sizeof(float);
    float *copied = carry_aligned_new(bytes + 1);
    if (copied == NULL) {
        return carry_fail(o->ctx, CARRY_EMEMORY, "out of memory: %lld elements of the optimizer's state",
                          (long long)o->count);
    }
    carry_status status = get(o, copied, state);
    status = status == CARRY_OK ? carry_send(host, copied, bytes, 0, STATE_TAG) : status;
    free(copied);
    return status;
}

carry_status carry_optimizer_gather(carry_optimizer *o, float *m, float *v) {
    carry_comm *host = carry_comm_host(o->comm);
    if (o->rank != 0) {
        CARRY_TRY(send_state(o, host, o->m));
        return send_state(o, host, o->v);
    }
    CARRY_TRY(get(o, m, o->m));
    CARRY_TRY(get(o, v, o->v));
    for (int r = 1; r < o->ranks; r++) {
        int64_t first;
        int64_t count;
        carry_optimizer_slice(o->model->count, r, o->ranks, &first, &count);
        CARRY_TRY(carry_recv(host, m + first, (size_t)count * sizeof(float), r, STATE_TAG));
        CARRY_TRY(carry_recv(host, v + first, (size_t)count * sizeof(float), r, STATE_TAG));
    }
    return CARRY_OK;
}
