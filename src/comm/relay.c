/* The list of requests, and their progress. */
#include "comm/relay.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"

#define TAG_MASK ((1 << CARRY_TAG_BITS) - 1)
#define LOOKS 200    /* passes over all items before the thread yields the processor */
#define PAUSE 100e-6 /* longest wait, in seconds, for one host message while there are other items */

/* Exchanged and compared by the ranks when they open. */
typedef struct record {
    char device[64];
    int32_t number, status;
} record;

void carry_relay_settle(carry_relay_item *item, carry_request_state state, size_t other_bytes) {
    if (item->request != NULL) {
        item->request->state = (int)state;
        item->request->other_bytes = other_bytes;
        item->request->native.pointer = NULL;
        item->request = NULL;
    }
}

/* Fails the request of a host message that has failed. */
static void take_failure(carry_wire *wire, carry_relay_item *item, const carry_request *message) {
    const carry_relay *relay = wire->state;
    const carry_wire *over = relay->forth->wire;
    if (over->ended_by >= 0) {
        wire->ended_by = over->ended_by;
    }
    memcpy(wire->reason, over->reason, sizeof wire->reason);
    const bool is_misfit = message->state == CARRY_REQUEST_MISFIT;
    const carry_request_state state =
        over->ended_by >= 0 && !is_misfit ? CARRY_REQUEST_ENDED : (carry_request_state)message->state;
    carry_relay_settle(item, state, message->other_bytes);
    item->stage = -1;
}

static void break_off(carry_wire *wire, carry_relay_item *item) {
    const carry_relay *relay = wire->state;
    (void)snprintf(wire->reason, sizeof wire->reason, "%.*s", CARRY_COMM_REASON - 1, carry_ctx_error(relay->ctx));
    carry_relay_settle(item, CARRY_REQUEST_BROKEN, 0);
    item->stage = -1;
}

static bool has_failed(const carry_request *message) {
    return message->state > CARRY_REQUEST_DONE;
}

static bool is_behind(const carry_relay *relay, const carry_relay_item *item) {
    for (const carry_relay_item *at = relay->first; at != item; at = at->next) {
        if (at->request != NULL && at->sends == item->sends && at->peer == item->peer && at->tag == item->tag) {
            return true;
        }
    }
    return false;
}

/* Tries once to advance an item. */
static void advance(carry_wire *wire, carry_relay_item *item) {
    carry_relay *relay = wire->state;
    for (bool moved = true; moved && item->stage >= 0;) {
        moved = false;
        if (relay->way->advance(relay, item, &moved) != CARRY_OK) {
            break_off(wire, item);
        } else if (has_failed(&item->forth)) {
            take_failure(wire, item, &item->forth);
        } else if (has_failed(&item->back)) {
            take_failure(wire, item, &item->back);
        }
    }
}

/* Cancels the item's host messages. Its events and pinned memory are kept for the next item. */
static void put_away(carry_relay *relay, carry_relay_item *item) {
    carry_comm_withdraw(&item->back, 1);
    carry_comm_withdraw(&item->forth, 1);
    item->next = relay->spare;
    relay->spare = item;
}

static void advance_all(carry_wire *wire) {
    carry_relay *relay = wire->state;
    for (carry_relay_item **at = &relay->first; *at != NULL;) {
        carry_relay_item *item = *at;
        if (item->request == NULL || !is_behind(relay, item)) {
            advance(wire, item);
        }
        if (item->stage < 0) {
            *at = item->next;
            put_away(relay, item);
        } else {
            at = &item->next;
        }
    }
}

static carry_relay_item *take_item(carry_relay *relay) {
    carry_relay_item *item = relay->spare;
    if (item != NULL) {
        relay->spare = item->next;
        const carry_relay_item old = *item;
        *item = (carry_relay_item){.ready = old.ready, .taken = old.taken};
        item->pinned = old.pinned;
        item->exchange = old.exchange;
        item->pinned_bytes = old.pinned_bytes;
        return item;
    }
    return calloc(1, sizeof *item);
}

void carry_relay_post(carry_wire *wire, carry_request *request) {
    carry_relay *relay = wire->state;
    carry_relay_item *item = take_item(relay);
    if (item == NULL) {
        (void)snprintf(wire->reason, sizeof wire->reason, "out of memory: posting a message");
        request->state = CARRY_REQUEST_BROKEN;
        return;
    }
    item->request = request;
    item->sends = request->to == NULL;
    item->from = request->from;
    item->to = request->to;
    item->bytes = request->bytes;
    item->peer = request->world;
    item->tag = request->tag & TAG_MASK;
    item->stream = carry_ctx_stream(relay->ctx, relay->device);
    request->native.pointer = item;
    carry_relay_item **end = &relay->first;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = item;
    if (relay->way->post(relay, item) != CARRY_OK) {
        break_off(wire, item);
    }
}

static bool is_open(const carry_request *request) {
    return request->state == CARRY_REQUEST_PENDING || request->state == CARRY_REQUEST_BUSY;
}

/* Sleeps until the host message that the request needs has arrived, or for PAUSE if there are other items. */
static void wait_for(const carry_relay *relay, const carry_request *request, double until) {
    carry_relay_item *item = request->native.pointer;
    if (item == NULL) {
        return;
    }
    const bool alone = relay->first == item && item->next == NULL;
    const double pause = carry_seconds() + PAUSE;
    carry_request *message = is_open(&item->forth) ? &item->forth : &item->back;
    if (is_open(message)) {
        carry_wire *over = message->comm->wire;
        over->kind->progress(over, message, alone || until < pause ? until : pause);
    } else {
        (void)sched_yield();
    }
}

void carry_relay_progress(carry_wire *wire, carry_request *request, double until) {
    carry_relay *relay = wire->state;
    for (int looks = 0; is_open(request); looks++) {
        advance_all(wire);
        if (!is_open(request) || until <= 0 || carry_seconds() > until) {
            return;
        }
        if (looks > LOOKS) {
            wait_for(relay, request, until);
        }
    }
}

/* A receiver may be reading what was posted. That is harmless: a message is cancelled only when the communicator has
   ended, and the receiver no longer uses the data. */
void carry_relay_cancel(carry_wire *wire, carry_request *request) {
    carry_relay_item *item = request->native.pointer;
    if (item != NULL) {
        carry_relay_settle(item, CARRY_REQUEST_NONE, 0);
        item->stage = -1;
        advance_all(wire);
    }
    request->state = CARRY_REQUEST_NONE;
}

void carry_relay_abort(carry_wire *wire, const char *reason) {
    const carry_relay *relay = wire->state;
    wire->ended_by = wire->rank;
    (void)snprintf(wire->reason, sizeof wire->reason, "%s", reason);
    carry_comm_abort(relay->forth, reason);
}

static void free_relay(carry_relay *relay) {
    while (relay->first != NULL) {
        carry_relay_item *item = relay->first;
        relay->first = item->next;
        put_away(relay, item);
    }
    for (carry_relay_item *item = relay->spare, *next; item != NULL; item = next) {
        next = item->next;
        carry_event_free(relay->ctx, relay->device, item->ready);
        carry_event_free(relay->ctx, relay->device, item->taken);
        carry_host_free(relay->ctx, item->pinned);
        carry_exchange_give(item->exchange);
        free(item);
    }
    if (relay->way->close != NULL) {
        relay->way->close(relay);
    }
    carry_comm_close(relay->forth);
    carry_comm_close(relay->back);
    free(relay->devices);
    free(relay);
}

void carry_relay_close(carry_wire *wire) {
    carry_relay *relay = wire->state;
    if (relay->device != 0) { /* peers may still read from this device, and it from them */
        (void)carry_stream_wait(relay->ctx, relay->device, carry_ctx_stream(relay->ctx, relay->device));
    }
    const double until = carry_seconds() + relay->forth->deadline;
    while (wire->ended_by < 0 && relay->first != NULL && relay->first->request == NULL && carry_seconds() < until) {
        advance_all(wire); /* acknowledgements */
    }
    free_relay(relay);
}

/* Exchanges the name of each rank's GPU and whether the rank has one. */
static carry_status compare(carry_relay *relay, const record *mine, int size) {
    record *all = calloc((size_t)size, sizeof *all);
    if (all == NULL) {
        return carry_fail(relay->ctx, CARRY_EMEMORY, "out of memory: %d ranks", size);
    }
    carry_status status = carry_all_gather(relay->forth, all, mine, sizeof *mine);
    for (int r = 0; r < size && status == CARRY_OK; r++) {
        all[r].device[sizeof all[r].device - 1] = '\0';
        if (all[r].status != CARRY_OK) {
            status = carry_fail(relay->ctx, CARRY_EDEVICE, "rank %d cannot use its device %d", r, (int)all[r].number);
        } else if (strcmp(all[r].device, all[0].device) != 0) {
            status = carry_fail(relay->ctx, CARRY_EARGUMENT, "the ranks differ: rank 0 has a %s and rank %d a %s",
                                all[0].device, r, all[r].device);
        }
        relay->devices[r] = all[r].number;
    }
    free(all);
    return status;
}

static carry_status meet(carry_relay *relay, const carry_comm_options *options) {
    const int rank = carry_comm_rank(options->over), size = carry_comm_size(options->over);
    carry_device_properties properties = {CARRY_INIT(carry_device_properties)};
    CARRY_TRY(carry_comm_split(options->over, &relay->forth, 0, rank));
    CARRY_TRY(carry_comm_split(options->over, &relay->back, 0, rank));
    CARRY_TRY(carry_comm_set_deadline(relay->forth, options->deadline));
    record mine = {.number = options->device};
    const carry_status described = carry_device_properties_of(relay->ctx, &properties, options->device);
    mine.status = (int32_t)described;
    (void)snprintf(mine.device, sizeof mine.device, "%.63s", properties.name);
    const carry_status status = compare(relay, &mine, size);
    return described != CARRY_OK ? carry_device_properties_of(relay->ctx, &properties, options->device) : status;
}

carry_status carry_relay_open(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options,
                              const carry_relay_way *way) {
    if (options->over == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "\"%s\" is opened over another communicator: options->over is missing",
                          wire->kind->name);
    }
    if (options->over->wire->kind->on_gpu) {
        return carry_fail(ctx, CARRY_EARGUMENT, "\"%s\" is opened over a communicator of host memory, not \"%s\"",
                          wire->kind->name, options->over->wire->kind->name);
    }
    carry_relay *relay = calloc(1, sizeof *relay);
    wire->rank = carry_comm_rank(options->over);
    wire->size = carry_comm_size(options->over);
    wire->device = options->device;
    wire->state = relay;
    if (relay == NULL || (relay->devices = calloc((size_t)wire->size, sizeof *relay->devices)) == NULL) {
        free(relay);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of %d ranks", wire->size);
    }
    relay->ctx = ctx;
    relay->way = way;
    relay->device = options->device;
    relay->rank = wire->rank;
    const carry_status status = meet(relay, options);
    if (status != CARRY_OK) {
        free_relay(relay);
    }
    return status;
}
