/* Which communicator moves the memory of a GPU, over ranks that have a communicator already. */
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "comm/backend.h"
#include "core/context.h"

/* Has every rank a GPU that no other rank of its machine has? What differs between processes on other machines cannot
   be told from numbers: there NCCL itself refuses. */
static carry_status all_differ(carry_comm *over, int device, bool *differ) {
    const int size = carry_comm_size(over);
    const int64_t mine = device;
    int64_t *all = calloc((size_t)size, sizeof *all);
    if (all == NULL) {
        return carry_fail(over->ctx, CARRY_EMEMORY, "no memory for %d ranks", size);
    }
    const carry_status status = carry_all_gather(over, all, &mine, sizeof mine);
    *differ = true;
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < i; j++) {
            *differ = *differ && all[i] != all[j];
        }
    }
    free(all);
    return status;
}

#ifndef CARRY_HAVE_CUDA
carry_status carry_comm_reduce_rows_on_gpu(carry_ctx *ctx, int device, void *rows, int size, int64_t count,
                                           carry_reduce_type type, carry_reduce reduce) {
    (void)rows;
    (void)size;
    (void)count;
    (void)type;
    (void)reduce;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "this build cannot add up on device %d: it has no CUDA", device);
}
#endif

carry_comm *carry_comm_host(carry_comm *comm) {
    return comm->over != NULL ? comm->over : comm;
}

int carry_comm_device(const carry_comm *comm) {
    return comm->wire->device;
}

carry_status carry_comm_open_device(carry_comm *over, carry_comm **comm, int device, const char *way) {
    carry_comm_options options = {.deadline = carry_comm_deadline(over), .device = device, .over = over};
    const char *kind = carry_comm_name(over);
    const bool threads = strcmp(kind, "threads") == 0 || strcmp(kind, "self") == 0;
    *comm = NULL;
    if (way != NULL) {
        return carry_comm_open(over->ctx, comm, way, &options);
    }
    bool differ = false;
    CARRY_TRY(all_differ(over, device, &differ));
    if (differ && carry_comm_size(over) > 1 && carry_comm_find("nccl") != NULL) {
        const carry_status status = carry_comm_open(over->ctx, comm, "nccl", &options);
        if (status != CARRY_EUNSUPPORTED) { /* which every rank says: it is not installed */
            return status;
        }
    }
    return carry_comm_open(over->ctx, comm, threads ? "peer" : "staged", &options);
}
