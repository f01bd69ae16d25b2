/* Which communicator moves the memory of a GPU, over ranks that have a communicator already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/device.h"
#include "comm/backend.h"
#include "core/context.h"
#include "device/exchange.h"

#define HOST 64

/* Where a rank's GPU is. */
typedef struct place {
    char host[HOST], gpu[CARRY_DEVICE_IDENTITY];
} place;

/* Has every rank a GPU that no other rank has? Numbers do not tell: launchers show every process its own as the first.
 */
static carry_status all_differ(carry_comm *over, int device, bool *differ) {
    const int size = carry_comm_size(over);
    place mine;
    place *all = calloc((size_t)size, sizeof *all);
    if (all == NULL) {
        return carry_fail(over->ctx, CARRY_EMEMORY, "no memory for %d ranks", size);
    }
    memset(&mine, 0, sizeof mine); /* all of it travels */
    (void)gethostname(mine.host, HOST - 1);
    if (carry_device_identity(over->ctx, mine.gpu, device) != CARRY_OK) {
        (void)snprintf(mine.gpu, sizeof mine.gpu, "device %d", device); /* opening says what is wrong with it */
    }
    const carry_status status = carry_all_gather(over, all, &mine, sizeof mine);
    *differ = true;
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < i; j++) {
            *differ = *differ && memcmp(&all[i], &all[j], sizeof *all) != 0;
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

/* Did all ranks open it? Where one did not, none has it afterwards, and the reasons are in the log. */
static carry_status all_opened(carry_comm *over, carry_comm **comm, carry_status own, bool *opened) {
    int64_t worst = (int64_t)own;
    if (own != CARRY_OK) {
        carry_log(over->ctx, own == CARRY_EUNSUPPORTED ? CARRY_LOG_INFO : CARRY_LOG_WARNING, "NCCL is gone around: %s",
                  carry_ctx_error(over->ctx));
    }
    const carry_status status = carry_all_reduce(over, &worst, 1, CARRY_REDUCE_I64, CARRY_REDUCE_MAX);
    *opened = status == CARRY_OK && worst == CARRY_OK;
    if (!*opened) {
        carry_comm_free(*comm);
        *comm = NULL;
    }
    return status;
}

carry_status carry_comm_open_device(carry_comm *over, carry_comm **comm, int device, const char *way) {
    carry_comm_options options = {.deadline = carry_comm_deadline(over), .device = device, .over = over};
    const char *kind = carry_comm_name(over);
    const bool threads = strcmp(kind, "threads") == 0 || strcmp(kind, "self") == 0;
    const bool is_nccl = way != NULL && strcmp(way, "nccl") == 0;
    *comm = NULL;
    if (way != NULL && !is_nccl) {
        return carry_comm_open(over->ctx, comm, way, &options);
    }
    bool differ = false, opened = false;
    CARRY_TRY(all_differ(over, device, &differ));
    if (is_nccl && !differ) {
        return carry_fail(over->ctx, CARRY_EUNSUPPORTED,
                          "\"nccl\" needs a GPU for every rank, and some of %d ranks share one: use \"%s\"",
                          carry_comm_size(over), threads ? "peer" : "ipc");
    }
    if (is_nccl) {
        return carry_comm_open(over->ctx, comm, "nccl", &options);
    }
    if (differ && carry_comm_size(over) > 1 && carry_comm_find("nccl") != NULL) {
        const carry_status status = carry_comm_open(over->ctx, comm, "nccl", &options);
        CARRY_TRY(all_opened(over, comm, status, &opened)); /* it may not be installed, or fail at its start */
        if (opened) {
            return CARRY_OK;
        }
    }
    if (!threads) {
        const carry_status status = carry_comm_open(over->ctx, comm, "ipc", &options);
        if (status != CARRY_EUNSUPPORTED) { /* which every rank says: several machines, or a driver without it */
            return status;
        }
    }
    return carry_comm_open(over->ctx, comm, threads ? "peer" : "staged", &options);
}
