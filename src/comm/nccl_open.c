/* Finding NCCL, meeting the other ranks, and leaving them. */
#include "comm/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "device/backend.h"

#define LIBRARY "libnccl.so.2"
#define PARTING 1.0 /* seconds for operations in progress when it is closed or aborted */

carry_nccl_functions carry_nccl;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Looks where CARRY_NCCL says, on the loader's path, and where NVIDIA's installer puts it. */
static void load(void) {
    const char *requested = getenv("CARRY_NCCL");
    const char *const names[] = {requested != NULL && requested[0] != '\0' ? requested : LIBRARY, LIBRARY,
                                 "/usr/local/cuda/lib64/" LIBRARY, "/usr/local/cuda/lib/" LIBRARY};
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof names / sizeof names[0]; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    carry_nccl.found = library != NULL;
#define X(name)                                                                                       \
    carry_nccl.name = carry_nccl.found ? (__typeof__(name) *)(uintptr_t)dlsym(library, #name) : NULL; \
    carry_nccl.found = carry_nccl.found && carry_nccl.name != NULL;
    CARRY_NCCL_FUNCTIONS(X)
#undef X
}

/* Waits until NCCL has settled. Returns false if time runs out or NCCL has failed; *state tells which. */
static bool settle_until(const carry_nccl_room *r, double until, ncclResult_t *state) {
    *state = ncclInProgress;
    while (carry_nccl.ncclCommGetAsyncError(r->comm, state) == ncclSuccess && *state == ncclInProgress) {
        if (carry_seconds() > until) {
            return false;
        }
        (void)sched_yield();
    }
    return *state == ncclSuccess;
}

void carry_nccl_break_off(carry_wire *wire, const char *reason) {
    carry_nccl_room *r = wire->state;
    if (!r->broken) {
        (void)snprintf(wire->reason, sizeof wire->reason, "%s", reason);
    }
    r->broken = true;
}

bool carry_nccl_is_fine(carry_wire *wire, cudaError_t error) {
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        carry_nccl_break_off(wire, cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

const char *carry_nccl_words(const carry_nccl_room *r, ncclResult_t code) {
    const char *last = r->comm != NULL ? carry_nccl.ncclGetLastError(r->comm) : NULL;
    return last != NULL && last[0] != '\0' ? last : carry_nccl.ncclGetErrorString(code);
}

void carry_nccl_give_up(carry_nccl_room *r) {
    if (r->comm == NULL) {
        return;
    }
    (void)cudaSetDevice(r->ordinal);
    (void)carry_nccl.ncclCommAbort(r->comm);
    r->comm = NULL;
    const double until = carry_seconds() + PARTING;
    while (cudaStreamQuery(r->stream) == cudaErrorNotReady && carry_seconds() < until) {
        (void)sched_yield();
    }
    (void)cudaGetLastError();
}

static void free_room(carry_nccl_room *r) {
    (void)cudaSetDevice(r->ordinal);
    for (int i = 0; i < CARRY_NCCL_BATCHES; i++) {
        if (r->after[i] != NULL) {
            (void)cudaEventDestroy(r->after[i]);
        }
    }
    if (r->before != NULL) {
        (void)cudaEventDestroy(r->before);
    }
    if (r->stream != NULL) {
        (void)cudaStreamDestroy(r->stream);
    }
    (void)cudaFree(r->token);
    (void)cudaGetLastError();
    free(r);
}

void carry_nccl_close(carry_wire *wire) {
    carry_nccl_room *r = wire->state;
    ncclResult_t state = ncclSuccess;
    if (r->comm != NULL && !r->broken && cudaSetDevice(r->ordinal) == cudaSuccess) {
        (void)carry_nccl.ncclCommFinalize(r->comm);
        if (settle_until(r, carry_seconds() + PARTING, &state)) {
            (void)carry_nccl.ncclCommDestroy(r->comm);
            r->comm = NULL;
        }
    }
    carry_nccl_give_up(r);
    free_room(r);
}

static bool make_events(carry_wire *wire) {
    carry_nccl_room *r = wire->state;
    bool fine = carry_nccl_is_fine(wire, cudaSetDevice(r->ordinal)) &&
                carry_nccl_is_fine(wire, cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking)) &&
                carry_nccl_is_fine(wire, cudaEventCreateWithFlags(&r->before, cudaEventDisableTiming)) &&
                carry_nccl_is_fine(wire, cudaMalloc(&r->token, sizeof(float))) &&
                carry_nccl_is_fine(wire, cudaMemset(r->token, 0, sizeof(float)));
    for (int i = 0; fine && i < CARRY_NCCL_BATCHES; i++) {
        fine = carry_nccl_is_fine(wire, cudaEventCreateWithFlags(&r->after[i], cudaEventDisableTiming));
    }
    return fine;
}

/* Rank 0 makes the unique id with which all ranks meet. If it fails, it tells the others. */
static carry_status agree_on_name(carry_ctx *ctx, const carry_wire *wire, carry_comm *over, ncclUniqueId *name) {
    struct {
        ncclUniqueId name;
        int code;
    } card;
    memset(&card, 0, sizeof card);
    if (wire->rank == 0) {
        card.code = (int)carry_nccl.ncclGetUniqueId(&card.name);
    }
    if (over != NULL) {
        CARRY_TRY(carry_broadcast(over, &card, sizeof card, 0));
    }
    *name = card.name;
    return card.code == (int)ncclSuccess
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDEVICE, "NCCL: rank 0 could not make a name to meet under: %s",
                            carry_nccl.ncclGetErrorString((ncclResult_t)card.code));
}

static carry_status meet(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    carry_nccl_room *r = wire->state;
    ncclUniqueId name;
    CARRY_TRY(agree_on_name(ctx, wire, options->over, &name));
    if (!make_events(wire)) {
        return carry_fail(ctx, CARRY_EDEVICE, "CUDA device %d: %s", r->ordinal, wire->reason);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t state = carry_nccl.ncclCommInitRankConfig(&r->comm, wire->size, name, wire->rank, &config);
    if (state == ncclSuccess || state == ncclInProgress) {
        const double until = carry_seconds() + options->deadline;
        (void)settle_until(r, until, &state);
    }
    if (state == ncclInProgress) {
        return carry_fail(ctx, CARRY_ETIMEOUT, "open: not all of %d ranks came to NCCL within the deadline of %g s",
                          wire->size, options->deadline);
    }
    return state == ncclSuccess ? CARRY_OK
                                : carry_fail(ctx, CARRY_EDEVICE, "NCCL, rank %d of %d on device %d: %s", wire->rank,
                                             wire->size, options->device, carry_nccl_words(r, state));
}

static carry_status check_gpu(carry_ctx *ctx, int device, int *ordinal) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    if (backend != NULL && strcmp(backend->name, "cuda") == 0) {
        return CARRY_OK;
    }
    if (carry_device_count() > 1) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "\"nccl\" moves the memory of a GPU, and device %d is not a GPU: give 1 to %d", device,
                          carry_device_count() - 1);
    }
    const char *absence = carry_device_absence(ctx, 0);
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "\"nccl\" needs a GPU: %s",
                      absence != NULL ? absence : "this build has no CUDA");
}

carry_status carry_nccl_open(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    int ordinal = 0;
    CARRY_TRY(check_gpu(ctx, options->device, &ordinal));
    (void)pthread_once(&once, load);
    if (!carry_nccl.found) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "\"nccl\" needs " LIBRARY
                          ", which was not found: install NCCL, or say where it is in CARRY_NCCL");
    }
    wire->rank = options->over != NULL ? carry_comm_rank(options->over) : 0;
    wire->size = options->over != NULL ? carry_comm_size(options->over) : 1;
    wire->device = options->device;
    carry_nccl_room *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of %d ranks", wire->size);
    }
    r->ordinal = ordinal;
    r->ctx = ctx;
    wire->state = r;
    carry_status status = meet(ctx, wire, options);
    if (status != CARRY_OK) {
        carry_nccl_give_up(r);
        free_room(r);
    }
    return status;
}
