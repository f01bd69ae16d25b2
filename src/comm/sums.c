/* The CPU side of comm/sums.h: ranks exchange the addresses of their memory, once. */
#include "comm/sums.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend.h"
#include "comm/sums_device.h"
#include "core/context.h"
#include "device/backend.h"

/* Shared by all ranks. Other ranks may still read the memory of one that closes: the last one frees all of it. */
typedef struct group {
    atomic_int users;
    void *memory[CARRY_SUMS_RANKS];
    int ordinal[CARRY_SUMS_RANKS];
    int *over; /* carry_sums_device */
} group;

struct carry_sums {
    carry_ctx *ctx;
    carry_sums_device d;
    int device;
    group *shared;
};

#ifndef CARRY_HAVE_CUDA
carry_status carry_sums_alloc(carry_ctx *ctx, void **memory, int ordinal, const int *ordinals, int ranks,
                              size_t bytes) {
    (void)memory;
    (void)ordinal;
    (void)ordinals;
    (void)ranks;
    (void)bytes;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "sums in the memory of GPUs: this build has no CUDA");
}

int carry_sums_sharing(void) {
    return 0;
}

void carry_sums_free(int ordinal, void *memory) {
    (void)ordinal;
    (void)memory;
}

carry_status carry_sums_enqueue(carry_ctx *ctx, const carry_sums_device *d, void *data, int64_t count, carry_dtype type,
                                carry_stream *stream) {
    (void)d;
    (void)data;
    (void)count;
    (void)type;
    (void)stream;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "sums in the memory of GPUs: this build has no CUDA");
}
#endif

/* All ranks succeed, or none. */
static carry_status agree(carry_comm *over, carry_status own) {
    int64_t worst = (int64_t)own;
    char reason[256];
    (void)snprintf(reason, sizeof reason, "%s", own == CARRY_OK ? "" : carry_ctx_error(over->ctx));
    CARRY_TRY(carry_all_reduce(over, &worst, 1, CARRY_I64, CARRY_REDUCE_MAX));
    if (worst == CARRY_OK) {
        return CARRY_OK;
    }
    return carry_fail(over->ctx, (carry_status)worst, "%s",
                      own != CARRY_OK ? reason : "another rank cannot open sums in the memory of its GPU");
}

/* Rank 0 makes the group. */
static carry_status make_group(carry_comm *over, group **shared) {
    *shared = carry_comm_rank(over) == 0 ? calloc(1, sizeof **shared) : NULL;
    if (carry_comm_rank(over) > 0) {
        return CARRY_OK;
    }
    if (*shared == NULL) {
        return carry_fail(over->ctx, CARRY_EMEMORY, "out of memory: sums over ranks");
    }
    atomic_init(&(*shared)->users, carry_comm_size(over));
    const carry_status status =
        carry_host_alloc(over->ctx, (void **)&(*shared)->over, CARRY_SUMS_RANKS * sizeof *(*shared)->over);
    if (status == CARRY_OK) {
        memset((*shared)->over, 0, CARRY_SUMS_RANKS * sizeof *(*shared)->over);
    } else {
        free(*shared);
        *shared = NULL;
    }
    return status;
}

static carry_status open_memory(carry_sums *sums, size_t bytes) {
    carry_sums_device *d = &sums->d;
    group *shared = sums->shared;
    if (bytes > SIZE_MAX / 4) {
        return carry_fail(sums->ctx, CARRY_ESIZE, "sums of %zu bytes are too large", bytes);
    }
    d->bytes = (bytes + 15) / 16 * 16;
    return carry_sums_alloc(sums->ctx, &shared->memory[d->rank], d->ordinal, shared->ordinal, d->ranks,
                            CARRY_SUMS_HEAD + 2 * d->bytes);
}

/* A failure here is one of all ranks, each of which then closes. */
static carry_status join_group(carry_sums *sums, carry_comm *over, size_t bytes) {
    carry_sums_device *d = &sums->d;
    group *shared = sums->shared;
    shared->ordinal[d->rank] = d->ordinal;
    CARRY_TRY(carry_barrier(over));
    for (int r = 0; r < d->ranks; r++) { /* the same on every rank */
        int sharing = 0;
        for (int other = 0; other < d->ranks; other++) {
            sharing += shared->ordinal[other] == shared->ordinal[r];
        }
        if (sharing > carry_sums_sharing()) {
            return carry_fail(over->ctx, CARRY_EUNSUPPORTED,
                              "%d ranks share CUDA device %d: sums in the memory of GPUs are for at most %d", sharing,
                              shared->ordinal[r], carry_sums_sharing());
        }
    }
    CARRY_TRY(agree(over, open_memory(sums, bytes)));
    memcpy(d->memory, shared->memory, sizeof d->memory); /* agree was a barrier */
    d->over = shared->over;
    return CARRY_OK;
}

static void free_group(carry_ctx *ctx, group *shared) {
    if (shared != NULL) {
        carry_host_free(ctx, shared->over);
        free(shared);
    }
}

static carry_status open_shared(carry_comm *over, carry_sums **made, int device, int ordinal, size_t bytes) {
    group *shared = NULL;
    const double deadline = carry_comm_deadline(over);
    carry_status status = agree(over, make_group(over, &shared));
    if (status != CARRY_OK) {
        free_group(over->ctx, shared);
        return status;
    }
    // NOLINTNEXTLINE(bugprone-sizeof-expression,clang-analyzer-unix.Malloc): the pointer itself is sent to the others
    CARRY_TRY(carry_broadcast(over, &shared, sizeof(shared), 0));
    carry_sums *sums = calloc(1, sizeof *sums);
    if (sums == NULL) { /* the others find it out by agree */
        atomic_fetch_sub(&shared->users, 1);
        return agree(over, carry_fail(over->ctx, CARRY_EMEMORY, "out of memory: sums over ranks"));
    }
    *sums = (carry_sums){.ctx = over->ctx,
                         .device = device,
                         .shared = shared,
                         .d = {.rank = carry_comm_rank(over),
                               .ranks = carry_comm_size(over),
                               .ordinal = ordinal,
                               .patience = (unsigned long long)(1e9 * deadline)}};
    status = agree(over, CARRY_OK);
    status = status == CARRY_OK ? join_group(sums, over, bytes) : status;
    if (status != CARRY_OK) {
        carry_sums_close(sums);
        return status;
    }
    *made = sums;
    return CARRY_OK;
}

carry_status carry_sums_open(carry_comm *over, carry_sums **made, int device, size_t bytes) {
    int ordinal;
    *made = NULL;
    if (strcmp(carry_comm_name(over), "threads") != 0 || carry_comm_size(over) > CARRY_SUMS_RANKS || device == 0 ||
        carry_backend_of(device, &ordinal) == NULL) { /* the same on every rank */
        return carry_fail(over->ctx, CARRY_EUNSUPPORTED,
                          "sums in the memory of GPUs are for up to %d ranks that are threads of one process",
                          CARRY_SUMS_RANKS);
    }
    return open_shared(over, made, device, ordinal, bytes);
}

void carry_sums_close(carry_sums *sums) {
    if (sums == NULL) {
        return;
    }
    group *shared = sums->shared;
    *(volatile int *)&shared->over[sums->d.rank] = 1;
    if (atomic_fetch_sub(&shared->users, 1) == 1) {
        for (int r = 0; r < sums->d.ranks; r++) {
            carry_sums_free(shared->ordinal[r], shared->memory[r]);
        }
        free_group(sums->ctx, shared);
    }
    free(sums);
}

carry_status carry_sums_add(carry_sums *sums, void *data, int64_t count, carry_dtype type) {
    if (type != CARRY_F32 && type != CARRY_BF16) {
        return carry_fail(sums->ctx, CARRY_EDTYPE, "sums of %s: expected f32 or bf16", carry_dtype_name(type));
    }
    if (count < 0 || (uint64_t)count > sums->d.bytes / carry_dtype_size(type)) {
        return carry_fail(sums->ctx, CARRY_ESIZE, "a sum of %lld numbers where %zu bytes are the most",
                          (long long)count, sums->d.bytes);
    }
    return carry_sums_enqueue(sums->ctx, &sums->d, data, count, type, carry_ctx_stream(sums->ctx, sums->device));
}

carry_status carry_sums_check(const carry_sums *sums) {
    return *(volatile const int *)&sums->d.over[sums->d.rank] == 0
               ? CARRY_OK
               : carry_fail(sums->ctx, CARRY_ETIMEOUT,
                            "all-reduce on the GPU: a rank has ended, or did not arrive within %.3f s",
                            1e-9 * (double)sums->d.patience);
}
