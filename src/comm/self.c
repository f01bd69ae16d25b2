/* One rank alone, in a hall of its own: it may send to itself. */
#include "comm/hall.h"
#include "core/error.h"

static carry_status open_self(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    (void)options;
    wire->rank = 0;
    wire->size = 1;
    wire->state = carry_hall_new(1);
    return wire->state != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "no memory for a communicator of one rank");
}

static void close_self(carry_wire *wire) {
    carry_hall_free(wire->state);
}

const carry_comm_kind carry_comm_self = {
    .name = "self",
    .about = "one rank alone",
    .open = open_self,
    .post = carry_hall_post,
    .progress = carry_hall_progress,
    .cancel = carry_hall_cancel,
    .abort = carry_hall_abort,
    .close = close_self,
};
