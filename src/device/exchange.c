/* Pieces of regions. Their sizes are powers of two, and freed pieces are kept for the next request. */
#include "device/exchange.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "device/backend.h"

/* Smallest size: a smaller allocation might share a page with memory that should not be exported. */
#define REGION ((size_t)2 << 20)
#define PIECE ((size_t)64 << 10)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static carry_exchange *spare; /* one list per process */

static const carry_backend *backend_of(int device, int *ordinal) {
    const carry_backend *backend = carry_backend_of(device, ordinal);
    return backend != NULL && backend->give_name != NULL ? backend : NULL;
}

static carry_status cannot(carry_ctx *ctx, int device) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "memory of device %d cannot be read by other processes", device);
}

/* 0: too many. */
static size_t round_up(size_t bytes) {
    size_t size = PIECE;
    while (size < bytes && size <= SIZE_MAX / 4) {
        size *= 2;
    }
    return size < bytes ? 0 : size;
}

bool carry_exchange_fits(uint64_t offset, size_t bytes) {
    const size_t size = round_up(bytes);
    return size >= REGION ? offset == 0 : size > 0 && offset % size == 0 && offset <= REGION - size;
}

static carry_exchange *take_spare(int device, size_t bytes) {
    carry_exchange **at = &spare;
    while (*at != NULL && ((*at)->device != device || (*at)->bytes != bytes)) {
        at = &(*at)->next;
    }
    carry_exchange *found = *at;
    if (found != NULL) {
        *at = found->next;
    }
    return found;
}

static carry_status add_region(carry_ctx *ctx, int device, size_t piece) {
    int ordinal;
    const carry_backend *backend = backend_of(device, &ordinal);
    const size_t bytes = piece > REGION ? piece : REGION;
    carry_exchange_name name;
    void *data;
    if (backend == NULL) {
        return cannot(ctx, device);
    }
    CARRY_TRY(backend->give_name(ctx, &data, &name, ordinal, bytes));
    for (size_t offset = 0; offset < bytes; offset += piece) {
        carry_exchange *new = calloc(1, sizeof *new);
        if (new == NULL) { /* the rest of the region stays unused */
            return offset > 0 ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a list of exchange memory");
        }
        *new = (carry_exchange){.next = spare,
                                .data = (char *)data + offset,
                                .bytes = piece,
                                .device = device,
                                .name = name,
                                .offset = (uint64_t)offset};
        spare = new;
    }
    return CARRY_OK;
}

carry_status carry_exchange_take(carry_ctx *ctx, carry_exchange **piece, int device, size_t bytes) {
    const size_t size = round_up(bytes);
    carry_status status = CARRY_OK;
    *piece = NULL;
    if (size == 0) {
        return carry_fail(ctx, CARRY_ESIZE, "%zu bytes are more than can be exchanged", bytes);
    }
    pthread_mutex_lock(&lock);
    *piece = take_spare(device, size);
    if (*piece == NULL) {
        status = add_region(ctx, device, size);
        *piece = status == CARRY_OK ? take_spare(device, size) : NULL;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void carry_exchange_give(carry_exchange *piece) {
    if (piece != NULL) {
        pthread_mutex_lock(&lock);
        piece->next = spare;
        spare = piece;
        pthread_mutex_unlock(&lock);
    }
}

carry_status carry_exchange_open(carry_ctx *ctx, void **data, int device, const carry_exchange_name *name) {
    int ordinal;
    const carry_backend *backend = backend_of(device, &ordinal);
    *data = NULL;
    return backend != NULL ? backend->open_name(ctx, data, ordinal, name) : cannot(ctx, device);
}

void carry_exchange_close(carry_ctx *ctx, int device, void *data) {
    int ordinal;
    const carry_backend *backend = backend_of(device, &ordinal);
    if (backend != NULL && data != NULL) {
        backend->close_name(ctx, ordinal, data);
    }
}

carry_status carry_device_identity(carry_ctx *ctx, char identity[CARRY_DEVICE_IDENTITY], int device) {
    int ordinal;
    const carry_backend *backend = carry_backend_of(device, &ordinal);
    if (backend != NULL && backend->identity != NULL) {
        return backend->identity(ctx, identity, ordinal);
    }
    (void)snprintf(identity, CARRY_DEVICE_IDENTITY, "device %d", device);
    return CARRY_OK;
}
