/* GPU memory through an MPI that accepts GPU pointers (CUDA-aware, mostly through UCX): between machines, without
   further copies. MPI is asked whether it accepts them; CARRY_MPI_CUDA=1 or 0 replaces the answer, for an MPI that
   cannot be asked.

   MPI does not know streams: a message starts when the work before it in the stream has finished, and is complete
   when its bytes have arrived. */
#include <string.h>

#include "comm/relay.h"
#include "core/context.h"

enum { WAITING, MOVING, OVER = -1 };

static carry_status post(carry_relay *relay, carry_relay_item *item) {
    if (item->ready == NULL) {
        CARRY_TRY(carry_event_new(relay->ctx, &item->ready, relay->device));
    }
    return carry_event_record(relay->ctx, relay->device, item->ready, item->stream);
}

static carry_status advance(carry_relay *relay, carry_relay_item *item, bool *moved) {
    int done = 0;
    if (item->stage == WAITING) {
        CARRY_TRY(carry_event_test(relay->ctx, relay->device, item->ready, &done));
        *moved = done != 0;
        if (done && item->sends) {
            carry_comm_post_send(relay->forth, &item->forth, "send", item->from, item->bytes, item->peer, item->tag);
        } else if (done) {
            carry_comm_post_recv(relay->forth, &item->forth, "receive", item->to, item->bytes, item->peer, item->tag);
        }
        item->stage = done ? MOVING : item->stage;
        return CARRY_OK;
    }
    *moved = carry_comm_peek(&item->forth) == 1;
    if (*moved) {
        carry_relay_settle(item, CARRY_REQUEST_DONE, 0);
        item->stage = OVER;
    }
    return CARRY_OK;
}

static const carry_relay_way way = {.post = post, .advance = advance};

#ifndef CARRY_HAVE_MPI
bool carry_mpi_takes_gpus(char *which, size_t size) {
    if (size > 0) {
        which[0] = '\0';
    }
    return false;
}
#endif

static carry_status open_aware(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    char which[96];
    if (options->over == NULL || strcmp(carry_comm_name(options->over), "mpi") != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "\"mpi-gpu\" is opened over \"mpi\", not over \"%s\"",
                          options->over != NULL ? carry_comm_name(options->over) : "nothing");
    }
    if (!carry_mpi_takes_gpus(which, sizeof which)) {
        return carry_fail(
            ctx, CARRY_EUNSUPPORTED,
            "\"mpi-gpu\" needs an MPI that takes memory of GPUs (CUDA-aware), and %s does not: use \"ipc\" "
            "or \"staged\" (CARRY_MPI_CUDA=1 says that it does)",
            which);
    }
    carry_log(ctx, CARRY_LOG_INFO, "messages between GPUs through %s", which);
    return carry_relay_open(ctx, wire, options, &way);
}

const carry_comm_kind carry_comm_aware = {
    .name = "mpi-gpu",
    .about = "GPU memory through an MPI that accepts it (CUDA-aware, for example with UCX); over mpi",
    .on_gpu = true,
    .open = open_aware,
    .post = carry_relay_post,
    .progress = carry_relay_progress,
    .cancel = carry_relay_cancel,
    .abort = carry_relay_abort,
    .close = carry_relay_close,
};
