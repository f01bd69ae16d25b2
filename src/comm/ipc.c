/* Processes of one machine that share a GPU, or have one each: the sender copies into memory that the others can open
   (device/exchange.h), and the receiver copies from there, on its own stream.

       sender                                    receiver
       copies into the exchange memory
       after the copy: sends its name
                                                 opens it, once per region, and copies
                                                 after the copy: answers
       may use the exchange memory again

   No GPU waits for the work of another process, since it would wait forever if that process were killed: each process
   checks itself whether its copy has completed. A send is done when the name is sent, a receive when its copy is in
   the stream. */
#include "comm/relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/context.h"

enum { COPYING, NAMING, LENT };                   /* of a send */
enum { WAITING, DRAINING, ANSWERING, OVER = -1 }; /* of a receive */

#define HOST 64

/* A region of another process. */
typedef struct region {
    struct region *next;
    carry_exchange_name name;
    void *data;
} region;

static carry_status grow(carry_relay *relay, carry_relay_item *item) {
    if (item->bytes == 0 || (item->exchange != NULL && item->exchange->bytes >= item->bytes)) {
        return CARRY_OK;
    }
    carry_exchange_give(item->exchange);
    item->exchange = NULL;
    return carry_exchange_take(relay->ctx, &item->exchange, relay->device, item->bytes);
}

static carry_status post(carry_relay *relay, carry_relay_item *item) {
    carry_ctx *ctx = relay->ctx;
    if (item->ready == NULL) {
        CARRY_TRY(carry_event_new(ctx, &item->ready, relay->device));
    }
    if (!item->sends) {
        carry_comm_post_recv(relay->forth, &item->forth, "receive", &item->piece, sizeof item->piece, item->peer,
                             item->tag);
        return CARRY_OK;
    }
    CARRY_TRY(grow(relay, item));
    item->piece = (carry_relay_piece){.bytes = (uint64_t)item->bytes};
    if (item->bytes > 0) {
        item->piece.name = item->exchange->name;
        item->piece.offset = item->exchange->offset;
        item->piece.local = item->exchange->data;
        CARRY_TRY(carry_device_copy(ctx, item->exchange->data, relay->device, item->from, relay->device, item->bytes,
                                    item->stream));
    }
    return carry_event_record(ctx, relay->device, item->ready, item->stream);
}

static carry_status advance_send(carry_relay *relay, carry_relay_item *item, bool *moved) {
    int done = 0;
    if (item->stage == COPYING) {
        CARRY_TRY(carry_event_test(relay->ctx, relay->device, item->ready, &done));
        *moved = done != 0;
        if (done) {
            carry_comm_post_recv(relay->back, &item->back, "send", &item->answer, sizeof item->answer, item->peer,
                                 item->tag);
            carry_comm_post_send(relay->forth, &item->forth, "send", &item->piece, sizeof item->piece, item->peer,
                                 item->tag);
            item->stage = NAMING;
        }
        return CARRY_OK;
    }
    if (item->stage == NAMING) {
        *moved = carry_comm_peek(&item->forth) == 1;
        if (*moved) {
            carry_relay_settle(item, CARRY_REQUEST_DONE, 0);
            item->stage = LENT;
        }
        return CARRY_OK;
    }
    *moved = carry_comm_peek(&item->back) == 1;
    item->stage = *moved ? OVER : item->stage;
    return CARRY_OK;
}

static carry_status find_region(carry_relay *relay, const carry_exchange_name *name, region **found) {
    for (*found = relay->regions; *found != NULL; *found = (*found)->next) {
        if (memcmp((*found)->name.bytes, name->bytes, sizeof name->bytes) == 0) {
            return CARRY_OK;
        }
    }
    void *data;
    CARRY_TRY(carry_exchange_open(relay->ctx, &data, relay->device, name));
    region *new = calloc(1, sizeof *new);
    if (new == NULL) {
        carry_exchange_close(relay->ctx, relay->device, data);
        return carry_fail(relay->ctx, CARRY_EMEMORY, "out of memory: noting a region of another process");
    }
    *new = (region){.next = relay->regions, .name = *name, .data = data};
    relay->regions = *found = new;
    return CARRY_OK;
}

static carry_status outside(carry_relay *relay, int peer) {
    return carry_fail(relay->ctx, CARRY_EPEER, "rank %d names memory outside of its region", peer);
}

/* A copy from this rank itself opens no region. */
static carry_status copy(carry_relay *relay, const carry_relay_item *item) {
    const void *from = item->piece.local;
    if (item->bytes == 0) {
        return CARRY_OK;
    }
    if (item->peer != relay->rank) {
        region *where;
        if (!carry_exchange_fits(item->piece.offset, item->bytes)) {
            return outside(relay, item->peer);
        }
        CARRY_TRY(find_region(relay, &item->piece.name, &where));
        from = (const char *)where->data + item->piece.offset;
    }
    return carry_device_copy(relay->ctx, item->to, relay->device, from, relay->device, item->bytes, item->stream);
}

static void answer(carry_relay *relay, carry_relay_item *item) {
    item->answer = (uint64_t)item->bytes;
    carry_comm_post_send(relay->back, &item->back, "receive", &item->answer, sizeof item->answer, item->peer,
                         item->tag);
    item->stage = ANSWERING;
}

/* Answers are sent in the order of the messages, whichever streams the copies used. */
static bool is_first_to_answer(const carry_relay *relay, const carry_relay_item *item) {
    for (const carry_relay_item *at = relay->first; at != item; at = at->next) {
        if (!at->sends && at->peer == item->peer && at->tag == item->tag && at->stage == DRAINING) {
            return false;
        }
    }
    return true;
}

static carry_status advance_receive(carry_relay *relay, carry_relay_item *item, bool *moved) {
    carry_ctx *ctx = relay->ctx;
    int done = 0;
    switch (item->stage) {
    case WAITING:
        *moved = carry_comm_peek(&item->forth) == 1;
        if (*moved && item->piece.bytes == (uint64_t)item->bytes) {
            CARRY_TRY(copy(relay, item));
            CARRY_TRY(carry_event_record(ctx, relay->device, item->ready, item->stream));
            item->stage = DRAINING;
            carry_relay_settle(item, CARRY_REQUEST_DONE, 0);
        } else if (*moved) {
            answer(relay, item);
            carry_relay_settle(item, CARRY_REQUEST_MISFIT, (size_t)item->piece.bytes);
        }
        return CARRY_OK;
    case DRAINING:
        CARRY_TRY(carry_event_test(ctx, relay->device, item->ready, &done));
        *moved = done != 0 && is_first_to_answer(relay, item);
        if (*moved) {
            answer(relay, item);
        }
        return CARRY_OK;
    default:
        *moved = carry_comm_peek(&item->back) == 1;
        item->stage = *moved ? OVER : item->stage;
        return CARRY_OK;
    }
}

static carry_status advance(carry_relay *relay, carry_relay_item *item, bool *moved) {
    return item->sends ? advance_send(relay, item, moved) : advance_receive(relay, item, moved);
}

static void close_regions(carry_relay *relay) {
    for (region *at = relay->regions, *next; at != NULL; at = next) {
        next = at->next;
        carry_exchange_close(relay->ctx, relay->device, at->data);
        free(at);
    }
    relay->regions = NULL;
}

/* The message that a rank sends to the others when it opens. */
typedef struct trial {
    char host[HOST];
    carry_exchange_name name;
    uint64_t offset;
    int32_t status;
    char reason[CARRY_COMM_REASON];
} trial;

static void note(carry_relay *relay, trial *mine, carry_status status) {
    mine->status = (int32_t)status;
    (void)snprintf(mine->reason, sizeof mine->reason, "%.*s", CARRY_COMM_REASON - 1,
                   status == CARRY_OK ? "" : carry_ctx_error(relay->ctx));
}

static carry_status fill_piece(carry_relay *relay, carry_exchange **piece, trial *mine) {
    CARRY_TRY(carry_exchange_take(relay->ctx, piece, relay->device, 1));
    mine->name = (*piece)->name;
    mine->offset = (*piece)->offset;
    CARRY_TRY(carry_device_fill(relay->ctx, (*piece)->data, relay->device, (unsigned char)(relay->rank + 1), 1, NULL));
    return carry_stream_wait(relay->ctx, relay->device, NULL);
}

/* Reads memory of the previous rank, as a test. */
static carry_status read_piece(carry_relay *relay, const trial *theirs, int peer) {
    region *where;
    unsigned char got = 0;
    if (!carry_exchange_fits(theirs->offset, 1)) {
        return outside(relay, peer);
    }
    CARRY_TRY(find_region(relay, &theirs->name, &where));
    CARRY_TRY(
        carry_device_copy(relay->ctx, &got, 0, (const char *)where->data + theirs->offset, relay->device, 1, NULL));
    if (got != (unsigned char)(peer + 1)) {
        return carry_fail(relay->ctx, CARRY_EUNSUPPORTED, "memory of rank %d holds %d instead of %d", peer, got,
                          peer + 1);
    }
    return CARRY_OK;
}

/* Gives the same result on every rank. */
static carry_status judge(carry_relay *relay, const trial *all, int size) {
    for (int r = 0; r < size; r++) {
        if (strncmp(all[r].host, all[0].host, HOST) != 0) {
            return carry_fail(relay->ctx, CARRY_EUNSUPPORTED,
                              "\"ipc\" is for processes of one machine: rank 0 is on %.63s and rank %d on %.63s: use "
                              "\"staged\"",
                              all[0].host, r, all[r].host);
        }
    }
    for (int r = 0; r < size; r++) {
        if (all[r].status != CARRY_OK) {
            return carry_fail(relay->ctx, CARRY_EUNSUPPORTED,
                              "\"ipc\" does not work here (use \"staged\"): rank %d: %.*s", r, CARRY_COMM_REASON - 1,
                              all[r].reason);
        }
    }
    return CARRY_OK;
}

static carry_status try_out(carry_relay *relay, trial *all, int size) {
    carry_exchange *piece = NULL;
    trial mine;
    memset(&mine, 0, sizeof mine); /* all bytes are sent, including padding */
    (void)gethostname(mine.host, HOST - 1);
    note(relay, &mine, fill_piece(relay, &piece, &mine));
    carry_status status = carry_all_gather(relay->forth, all, &mine, sizeof mine);
    status = status == CARRY_OK ? judge(relay, all, size) : status;
    if (status == CARRY_OK && size > 1) {
        const int peer = (relay->rank + size - 1) % size;
        note(relay, &mine, read_piece(relay, &all[peer], peer));
        status = carry_all_gather(relay->forth, all, &mine, sizeof mine);
        status = status == CARRY_OK ? judge(relay, all, size) : status;
    }
    carry_exchange_give(piece);
    return status;
}

static const carry_relay_way way = {.post = post, .advance = advance, .close = close_regions};

static carry_status open_ipc(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    const char *over = options->over != NULL ? carry_comm_name(options->over) : "processes";
    if (strcmp(over, "threads") == 0 || strcmp(over, "self") == 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "\"ipc\" is for ranks that are processes of one machine, not for \"%s\": use \"peer\"", over);
    }
    CARRY_TRY(carry_relay_open(ctx, wire, options, &way));
    trial *all = calloc((size_t)wire->size, sizeof *all);
    carry_status status = CARRY_OK;
    if (all == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of %d ranks", wire->size);
    } else {
        status = try_out(wire->state, all, wire->size);
    }
    free(all);
    if (status != CARRY_OK) {
        carry_relay_close(wire);
    }
    return status;
}

const carry_comm_kind carry_comm_ipc = {
    .name = "ipc",
    .about = "processes of one machine whose GPUs copy from each other or share one (CUDA IPC); over processes or mpi",
    .on_gpu = true,
    .open = open_ipc,
    .post = carry_relay_post,
    .progress = carry_relay_progress,
    .cancel = carry_relay_cancel,
    .abort = carry_relay_abort,
    .close = carry_relay_close,
};
