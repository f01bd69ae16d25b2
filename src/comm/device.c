/* Chooses the communicator that moves GPU memory, over ranks that already have a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/device.h"
#include "comm/backend.h"
#include "core/context.h"
#include "device/exchange.h"

#define HOST 64

/* The machine and GPU of a rank. */
typedef struct place {
    char host[HOST], gpu[CARRY_DEVICE_IDENTITY];
} place;

/* *most: the largest number of ranks that share one GPU. Device numbers cannot be compared: launchers show every
   process its own GPU as the first. */
static carry_status count_sharing(carry_comm *over, int device, int *most) {
    const int size = carry_comm_size(over);
    place mine;
    place *all = calloc((size_t)size, sizeof *all);
    if (all == NULL) {
        return carry_fail(over->ctx, CARRY_EMEMORY, "out of memory: %d ranks", size);
    }
    memset(&mine, 0, sizeof mine); /* all bytes are sent, including padding */
    (void)gethostname(mine.host, HOST - 1);
    if (carry_device_identity(over->ctx, mine.gpu, device) != CARRY_OK) {
        (void)snprintf(mine.gpu, sizeof mine.gpu, "device %d", device); /* opening reports the error */
    }
    const carry_status status = carry_all_gather(over, all, &mine, sizeof mine);
    *most = 1;
    for (int i = 0; i < size; i++) {
        int same = 0;
        for (int j = 0; j < size; j++) {
            same += memcmp(&all[i], &all[j], sizeof *all) == 0;
        }
        *most = same > *most ? same : *most;
    }
    free(all);
    return status;
}

carry_status carry_comm_sharing(carry_comm *comm, int *most) {
    *most = 1;
    return comm->wire->device > 0 ? count_sharing(carry_comm_host(comm), comm->wire->device, most) : CARRY_OK;
}

#ifndef CARRY_HAVE_CUDA
carry_status carry_comm_reduce_rows_on_gpu(carry_ctx *ctx, int device, void *rows, int size, int64_t count,
                                           carry_dtype type, carry_reduce reduce) {
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

/* *opened: whether all ranks opened it. If one rank failed, the others close theirs, and the reasons are in the log. */
static carry_status all_opened(carry_comm *over, carry_comm **comm, carry_status own, const char *what, bool *opened) {
    int64_t worst = (int64_t)own;
    if (own != CARRY_OK) {
        carry_log(over->ctx, own == CARRY_EUNSUPPORTED ? CARRY_LOG_INFO : CARRY_LOG_WARNING, "%s is not used: %s", what,
                  carry_ctx_error(over->ctx));
    }
    const carry_status status = carry_all_reduce(over, &worst, 1, CARRY_I64, CARRY_REDUCE_MAX);
    *opened = status == CARRY_OK && worst == CARRY_OK;
    if (!*opened) {
        carry_comm_close(*comm);
        *comm = NULL;
    }
    return status;
}

carry_status carry_comm_open_device(carry_comm *over, carry_comm **comm, int device, const char *way) {
    carry_comm_options options = {CARRY_INIT(carry_comm_options), .deadline = carry_comm_deadline(over),
                                  .device = device, .over = over};
    const char *kind = carry_comm_name(over);
    const bool threads = strcmp(kind, "threads") == 0 || strcmp(kind, "self") == 0;
    const bool is_nccl = way != NULL && strcmp(way, "nccl") == 0;
    *comm = NULL;
    if (way != NULL && !is_nccl) {
        return carry_comm_open(over->ctx, comm, way, &options);
    }
    bool opened = false;
    int sharing = 1;
    CARRY_TRY(count_sharing(over, device, &sharing));
    const bool differ = sharing == 1;
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
        CARRY_TRY(all_opened(over, comm, status, "NCCL", &opened)); /* NCCL may be missing or fail to start */
        if (opened) {
            return CARRY_OK;
        }
    }
    if (!threads) {
        const carry_status status = carry_comm_open(over->ctx, comm, "ipc", &options);
        if (status != CARRY_EUNSUPPORTED) { /* CARRY_EUNSUPPORTED is the same on every rank: several machines, or a
                                               driver without support */
            return status;
        }
    }
    if (strcmp(kind, "mpi") == 0) {
        const carry_status status = carry_comm_open(over->ctx, comm, "mpi-gpu", &options);
        CARRY_TRY(all_opened(over, comm, status, "a CUDA-aware MPI", &opened));
        if (opened) {
            return CARRY_OK;
        }
    }
    return carry_comm_open(over->ctx, comm, threads ? "peer" : "staged", &options);
}
