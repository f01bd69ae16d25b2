/* Threads of one process that share a GPU, or have one each. The receiver copies from the sender's memory into its
   own, on its own stream, after the sender's earlier work and before the sender's next use of that memory. The CPU
   matches sends with receives and orders the two streams by events. It does not wait for the GPU, so a message is done
   when its copy has been enqueued.

       sender                                  receiver
       record `ready`, send address and events
                                               stream waits for `ready`, copies, records `taken`, answers
       stream waits for `taken`

   Both events belong to the sender and are not used after the answer. `taken` is made for the receiver's GPU and
   recorded there. */
#include "comm/relay.h"

#include <string.h>

#include "core/context.h"

enum { WAITING, ANSWERED, OVER = -1 };

static carry_status post(carry_relay *relay, carry_relay_item *item) {
    carry_ctx *ctx = relay->ctx;
    if (!item->sends) {
        carry_comm_post_recv(relay->forth, &item->forth, "receive", &item->words, sizeof item->words, item->peer,
                             item->tag);
        return CARRY_OK;
    }
    if (item->ready == NULL) {
        CARRY_TRY(carry_event_new(ctx, &item->ready, relay->device));
    }
    if (item->taken != NULL && relay->devices[item->peer] != relay->device) { /* it may be another peer's */
        carry_event_free(ctx, relay->device, item->taken);
        item->taken = NULL;
    }
    if (item->taken == NULL) {
        CARRY_TRY(carry_event_new(ctx, &item->taken, relay->devices[item->peer]));
    }
    CARRY_TRY(carry_event_record(ctx, relay->device, item->ready, item->stream));
    item->words = (carry_relay_words){
        .from = item->from, .ready = item->ready, .taken = item->taken, .bytes = (uint64_t)item->bytes};
    carry_comm_post_recv(relay->back, &item->back, "send", &item->answer, sizeof item->answer, item->peer, item->tag);
    carry_comm_post_send(relay->forth, &item->forth, "send", &item->words, sizeof item->words, item->peer, item->tag);
    return CARRY_OK;
}

static carry_status copy(carry_relay *relay, const carry_relay_item *item) {
    carry_ctx *ctx = relay->ctx;
    const int device = relay->device;
    if (item->bytes > 0) {
        CARRY_TRY(carry_stream_after(ctx, device, item->stream, item->words.ready));
        CARRY_TRY(carry_device_copy(ctx, item->to, device, item->words.from, relay->devices[item->peer], item->bytes,
                                    item->stream));
    }
    return carry_event_record(ctx, device, item->words.taken, item->stream);
}

/* Called when the sender's message with address and bytes has arrived. */
static carry_status take(carry_relay *relay, carry_relay_item *item) {
    const size_t theirs = (size_t)item->words.bytes;
    if (theirs == item->bytes) {
        CARRY_TRY(copy(relay, item));
    }
    item->answer = (uint64_t)item->bytes;
    carry_comm_post_send(relay->back, &item->back, "receive", &item->answer, sizeof item->answer, item->peer,
                         item->tag);
    item->stage = ANSWERED;
    carry_relay_settle(item, theirs == item->bytes ? CARRY_REQUEST_DONE : CARRY_REQUEST_MISFIT, theirs);
    return CARRY_OK;
}

static carry_status finish_send(carry_relay *relay, carry_relay_item *item) {
    const size_t theirs = (size_t)item->answer;
    if (theirs == item->bytes) {
        CARRY_TRY(carry_stream_after(relay->ctx, relay->device, item->stream, item->taken));
    }
    carry_relay_settle(item, theirs == item->bytes ? CARRY_REQUEST_DONE : CARRY_REQUEST_MISFIT, theirs);
    item->stage = OVER;
    return CARRY_OK;
}

static carry_status advance(carry_relay *relay, carry_relay_item *item, bool *moved) {
    if (item->sends) {
        *moved = carry_comm_peek(&item->forth) == 1 && carry_comm_peek(&item->back) == 1;
        return *moved ? finish_send(relay, item) : CARRY_OK;
    }
    if (item->stage == WAITING) {
        *moved = carry_comm_peek(&item->forth) == 1;
        return *moved ? take(relay, item) : CARRY_OK;
    }
    *moved = carry_comm_peek(&item->back) == 1;
    item->stage = *moved ? OVER : item->stage;
    return CARRY_OK;
}

static const carry_relay_way way = {.post = post, .advance = advance};

/* Addresses are valid in one process only. */
static carry_status open_peer(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    const char *over = options->over != NULL ? carry_comm_name(options->over) : "threads";
    if (strcmp(over, "threads") != 0 && strcmp(over, "self") != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "\"peer\" is for ranks that are threads of one process, not for \"%s\": use \"staged\"",
                          over);
    }
    return carry_relay_open(ctx, wire, options, &way);
}

const carry_comm_kind carry_comm_peer = {
    .name = "peer",
    .about = "threads of one process, whose GPUs copy from each other or share one; over threads",
    .on_gpu = true,
    .open = open_peer,
    .post = carry_relay_post,
    .progress = carry_relay_progress,
    .cancel = carry_relay_cancel,
    .abort = carry_relay_abort,
    .close = carry_relay_close,
};
