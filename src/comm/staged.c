/* GPU memory through pinned CPU memory and the messages of the communicator below: the fallback, which works over
   every other kind, between processes and machines, with or without a CUDA-aware MPI.

   A send copies into pinned memory on its stream; when the copy has completed, the bytes are sent. When the bytes
   have arrived, the receive copies them to the GPU on its stream, and is done when that copy is in the stream. */
#include "comm/relay.h"

#include "core/context.h"

enum { COPYING, SENDING, DRAINING, OVER = -1 };

static carry_status grow_pinned(carry_relay *relay, carry_relay_item *item) {
    if (item->bytes <= item->pinned_bytes) {
        return CARRY_OK;
    }
    carry_host_free(relay->ctx, item->pinned);
    item->pinned = NULL;
    item->pinned_bytes = 0;
    CARRY_TRY(carry_host_alloc(relay->ctx, &item->pinned, item->bytes));
    item->pinned_bytes = item->bytes;
    return CARRY_OK;
}

static carry_status post(carry_relay *relay, carry_relay_item *item) {
    carry_ctx *ctx = relay->ctx;
    CARRY_TRY(grow_pinned(relay, item));
    if (item->ready == NULL) {
        CARRY_TRY(carry_event_new(ctx, &item->ready, relay->device));
    }
    if (!item->sends) {
        carry_comm_post_recv(relay->forth, &item->forth, "receive", item->pinned, item->bytes, item->peer, item->tag);
        return CARRY_OK;
    }
    if (item->bytes > 0) {
        CARRY_TRY(carry_device_copy(ctx, item->pinned, 0, item->from, relay->device, item->bytes, item->stream));
    }
    return carry_event_record(ctx, relay->device, item->ready, item->stream);
}

static carry_status advance_send(carry_relay *relay, carry_relay_item *item, bool *moved) {
    if (item->stage == COPYING) {
        int done;
        CARRY_TRY(carry_event_test(relay->ctx, relay->device, item->ready, &done));
        *moved = done != 0;
        if (done) {
            carry_comm_post_send(relay->forth, &item->forth, "send", item->pinned, item->bytes, item->peer, item->tag);
            item->stage = SENDING;
        }
        return CARRY_OK;
    }
    *moved = carry_comm_peek(&item->forth) == 1;
    if (*moved) {
        carry_relay_settle(item, CARRY_REQUEST_DONE, 0);
        item->stage = OVER;
    }
    return CARRY_OK;
}

static carry_status advance_receive(carry_relay *relay, carry_relay_item *item, bool *moved) {
    carry_ctx *ctx = relay->ctx;
    int done = 0;
    if (item->stage == DRAINING) { /* the pinned memory is read */
        CARRY_TRY(carry_event_test(ctx, relay->device, item->ready, &done));
        *moved = done != 0;
        item->stage = done ? OVER : item->stage;
        return CARRY_OK;
    }
    *moved = carry_comm_peek(&item->forth) == 1;
    if (!*moved) {
        return CARRY_OK;
    }
    if (item->bytes > 0) {
        CARRY_TRY(carry_device_copy(ctx, item->to, relay->device, item->pinned, 0, item->bytes, item->stream));
    }
    CARRY_TRY(carry_event_record(ctx, relay->device, item->ready, item->stream));
    item->stage = DRAINING;
    carry_relay_settle(item, CARRY_REQUEST_DONE, 0);
    return CARRY_OK;
}

static carry_status advance(carry_relay *relay, carry_relay_item *item, bool *moved) {
    return item->sends ? advance_send(relay, item, moved) : advance_receive(relay, item, moved);
}

static const carry_relay_way way = {.post = post, .advance = advance};

static carry_status open_staged(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    return carry_relay_open(ctx, wire, options, &way);
}

const carry_comm_kind carry_comm_staged = {
    .name = "staged",
    .about = "memory of GPUs through pinned memory of the CPU, over any other communicator",
    .on_gpu = true,
    .open = open_staged,
    .post = carry_relay_post,
    .progress = carry_relay_progress,
    .cancel = carry_relay_cancel,
    .abort = carry_relay_abort,
    .close = carry_relay_close,
};
