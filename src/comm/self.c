/* One rank alone, in a mailbox of its own: it may send to itself. */
#include "comm/mailbox.h"
#include "core/error.h"

static carry_status open_self(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    (void)options;
    wire->rank = 0;
    wire->size = 1;
    wire->state = carry_mailbox_new(1);
    return wire->state != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of one rank");
}

static void close_self(carry_wire *wire) {
    carry_mailbox_free(wire->state);
}

const carry_comm_kind carry_comm_self = {
    .name = "self",
    .about = "one rank alone",
    .open = open_self,
    .post = carry_mailbox_post,
    .progress = carry_mailbox_progress,
    .cancel = carry_mailbox_cancel,
    .abort = carry_mailbox_abort,
    .close = close_self,
};
