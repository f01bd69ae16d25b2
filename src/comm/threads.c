/* Ranks that are threads of this process (ranks.h) meet in a mailbox that they share. */
#include "comm/mailbox.h"
#include "comm/ranks.h"
#include "core/error.h"
#include "core/sized.h"

static void *make_hall(int size) {
    return carry_mailbox_new(size);
}

static void leave_hall(void *mailbox, int rank) {
    carry_mailbox_leave(mailbox, rank);
}

static void free_mailbox(void *mailbox) {
    carry_mailbox_free(mailbox);
}

static const carry_rank_shared shared_hall = {.make = make_hall, .leave = leave_hall, .free = free_mailbox};

static carry_status open_threads(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    if (options->rank == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "\"threads\" is opened by ranks that are threads: start them with carry_comm_threads");
    }
    wire->rank = options->rank->rank;
    wire->size = options->rank->size;
    wire->state = carry_rank_share(options->rank, &shared_hall);
    if (wire->state == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of %d ranks", wire->size);
    }
    if (!carry_mailbox_enter(wire->state, wire->rank)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "rank %d has opened its communicator before: split that one",
                          wire->rank);
    }
    return CARRY_OK;
}

static void close_threads(carry_wire *wire) {
    carry_mailbox_leave(wire->state, wire->rank);
}

typedef struct work {
    carry_ctx *const *ctxs;
    carry_comm_options options;
    carry_comm_function function;
    void *user;
} work;

static carry_status rank_main(void *user, const carry_rank *self) {
    const work *w = user;
    carry_comm_options options = w->options;
    options.rank = self;
    carry_comm *comm;
    CARRY_TRY(carry_comm_open(w->ctxs[self->rank], &comm, "threads", &options));
    carry_status status = w->function(w->user, comm);
    if (status != CARRY_OK) {
        carry_comm_abort(comm, carry_ctx_error(w->ctxs[self->rank]));
    }
    carry_comm_close(comm);
    return status;
}

const carry_comm_kind carry_comm_kind_threads = {
    .name = "threads",
    .about = "ranks are threads of one process; one copy from buffer to buffer",
    .open = open_threads,
    .post = carry_mailbox_post,
    .progress = carry_mailbox_progress,
    .cancel = carry_mailbox_cancel,
    .abort = carry_mailbox_abort,
    .close = close_threads,
};

carry_status carry_comm_threads(carry_ctx *const *ctxs, int ranks, const carry_comm_options *options,
                                carry_comm_function function, void *user) {
    work w = {.ctxs = ctxs, .function = function, .user = user};
    CARRY_TRY(CARRY_SIZED_READ(ctxs[0], carry_comm_options, &w.options, options));
    int failed = 0;
    carry_status status = carry_ranks_run_told(ctxs[0], ranks, rank_main, &w, &failed);
    if (failed > 0) {
        return carry_fail(ctxs[0], status, "rank %d: %s", failed, carry_ctx_error(ctxs[failed]));
    }
    return status;
}
