/* Memory of NVIDIA GPUs, and pinned memory of the CPU.

   Each context has its own pool per device, with a release threshold that keeps everything. Freed memory is reused
   without a call into the system, and other libraries in the process, which share the driver's default pool, are not
   affected. When memory runs out, the pool returns its unused memory and the request is repeated. For a request that is
   too large, a pool first takes all free memory of the card, so that other processes find none for a moment: large
   requests are therefore compared with the free memory first.

   A pool that is destroyed lives on in the driver until its last piece is freed, so memory may outlive its context. */
#include "device/cuda.h"

#include <stdint.h>
#include <stdlib.h>

extern "C" {
#include "core/context.h"
}

#define LARGE ((size_t)1 << 30) /* bytes; for smaller requests the check costs more than it saves */

typedef struct pools {
    cudaMemPool_t pool[CARRY_MAX_DEVICES];
} pools;

static void pools_free(void *data) {
    pools *all = (pools *)data;
    for (int i = 0; i < CARRY_MAX_DEVICES; i++) {
        if (all->pool[i] != NULL) {
            (void)cudaMemPoolDestroy(all->pool[i]);
        }
    }
    (void)cudaGetLastError();
    free(all);
}

static bool has_pools(int ordinal) {
    int supported = 0;
    return cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, ordinal) == cudaSuccess &&
           supported != 0;
}

static carry_status pool_new(carry_ctx *ctx, cudaMemPool_t *pool, int ordinal) {
    cudaMemPoolProps properties = {};
    uint64_t keep = UINT64_MAX;
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = ordinal;
    CARRY_CUDA_TRY(cudaMemPoolCreate(pool, &properties), "a memory pool cannot be made");
    CARRY_CUDA_TRY(cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &keep),
                   "a memory pool cannot be set");
    return CARRY_OK;
}

/* *pool is NULL if the device's driver has no pools. */
static carry_status pool_of(carry_ctx *ctx, cudaMemPool_t *pool, int ordinal) {
    pools *all = (pools *)ctx->slots[CARRY_SLOT_POOLS].data;
    *pool = NULL;
    if (ordinal >= CARRY_MAX_DEVICES || !has_pools(ordinal)) {
        return CARRY_OK;
    }
    if (all == NULL) {
        all = (pools *)calloc(1, sizeof *all);
        if (all == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the memory pools of GPUs");
        }
        ctx->slots[CARRY_SLOT_POOLS].data = all;
        ctx->slots[CARRY_SLOT_POOLS].free = pools_free;
    }
    if (all->pool[ordinal] == NULL) {
        CARRY_TRY(pool_new(ctx, &all->pool[ordinal], ordinal));
    }
    *pool = all->pool[ordinal];
    return CARRY_OK;
}

static cudaError_t take(void **data, cudaMemPool_t pool, size_t bytes, cudaStream_t stream) {
    bytes = bytes > 0 ? bytes : 1;
    return pool != NULL ? cudaMallocFromPoolAsync(data, bytes, pool, stream) : cudaMalloc(data, bytes);
}

/* Returns the unused memory of the pool to the driver, after waiting for frees that are still queued. */
static void give_back(cudaMemPool_t pool) {
    (void)cudaGetLastError();
    if (pool != NULL) {
        (void)cudaDeviceSynchronize();
        (void)cudaMemPoolTrimTo(pool, 0);
    }
    (void)cudaGetLastError();
}

static carry_status refuse(carry_ctx *ctx, int ordinal, size_t bytes, size_t available, size_t total) {
    return carry_fail(ctx, CARRY_EMEMORY, "CUDA device %d: %zu bytes asked for and %zu of %zu are free", ordinal, bytes,
                      available, total);
}

static carry_status alloc(carry_ctx *ctx, void **data, int ordinal, size_t bytes, cudaStream_t stream) {
    cudaMemPool_t pool;
    *data = NULL;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_TRY(pool_of(ctx, &pool, ordinal));
    if (bytes >= LARGE) {
        size_t free_bytes = 0;
        size_t all = 0;
        CARRY_TRY(carry_cuda_memory(ctx, ordinal, &free_bytes, &all));
        if (bytes > free_bytes) {
            return refuse(ctx, ordinal, bytes, free_bytes, all);
        }
    }
    cudaError_t error = take(data, pool, bytes, stream);
    if (error == cudaErrorMemoryAllocation) {
        give_back(pool);
        error = take(data, pool, bytes, stream);
    }
    if (error == cudaSuccess) {
        return CARRY_OK;
    }
    /* A pool keeps the memory that it took towards a request that it could not meet: on an H200 the whole card. */
    give_back(pool);
    size_t available = 0;
    size_t total = 0;
    *data = NULL;
    (void)cudaGetLastError();
    /* Some drivers report a huge size as an invalid value, so the size is compared with the free memory too. */
    bool known = cudaMemGetInfo(&available, &total) == cudaSuccess;
    (void)cudaGetLastError();
    if (known && (error == cudaErrorMemoryAllocation || bytes > available)) {
        return refuse(ctx, ordinal, bytes, available, total);
    }
    return carry_cuda_failed(ctx, error, "cannot allocate memory", ordinal);
}

extern "C" carry_status carry_cuda_memory(carry_ctx *ctx, int ordinal, size_t *available, size_t *total) {
    cudaMemPool_t pool;
    uint64_t reserved = 0;
    uint64_t used = 0;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaMemGetInfo(available, total), "it does not tell how much memory is free");
    CARRY_TRY(pool_of(ctx, &pool, ordinal));
    if (pool != NULL) {
        CARRY_CUDA_TRY(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved),
                       "a pool cannot be asked");
        CARRY_CUDA_TRY(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), "a pool cannot be asked");
        *available += (size_t)(reserved - used);
    }
    return CARRY_OK;
}

extern "C" size_t carry_cuda_held(carry_ctx *ctx, int ordinal) {
    const pools *all = (const pools *)ctx->slots[CARRY_SLOT_POOLS].data;
    uint64_t reserved = 0;
    if (all == NULL || ordinal >= CARRY_MAX_DEVICES || all->pool[ordinal] == NULL ||
        cudaMemPoolGetAttribute(all->pool[ordinal], cudaMemPoolAttrReservedMemCurrent, &reserved) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (size_t)reserved;
}

/* Allocates on the thread's own stream, which has no other work: waiting for it waits only for the memory. */
extern "C" carry_status carry_cuda_alloc(carry_ctx *ctx, void **data, int ordinal, size_t bytes) {
    CARRY_TRY(alloc(ctx, data, ordinal, bytes, cudaStreamPerThread));
    cudaError_t error = cudaStreamSynchronize(cudaStreamPerThread);
    if (error != cudaSuccess) {
        carry_cuda_free_on(ctx, ordinal, *data, (carry_stream *)cudaStreamPerThread);
        *data = NULL;
        return carry_cuda_failed(ctx, error, "cannot allocate memory", ordinal);
    }
    return CARRY_OK;
}

extern "C" void carry_cuda_free(carry_ctx *ctx, int ordinal, void *data) {
    if (cudaSetDevice(ordinal) == cudaSuccess) {
        (void)cudaDeviceSynchronize(); /* cudaFree does not wait for work that uses a pool's memory */
        carry_cuda_free_on(ctx, ordinal, data, (carry_stream *)cudaStreamPerThread);
    }
    (void)cudaGetLastError();
}

extern "C" carry_status carry_cuda_alloc_on(carry_ctx *ctx, void **data, int ordinal, size_t bytes,
                                            carry_stream *stream) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (stream != NULL) {
        CARRY_CUDA_TRY(cudaStreamIsCapturing((cudaStream_t)stream, &capture), "a stream cannot be asked");
    }
    if (capture != cudaStreamCaptureStatusNone) {
        return carry_fail(
            ctx, CARRY_EUNSUPPORTED,
            "memory cannot be allocated while a stream is being captured: allocate it before carry_graph_begin");
    }
    return alloc(ctx, data, ordinal, bytes, (cudaStream_t)stream);
}

extern "C" void carry_cuda_free_on(carry_ctx *ctx, int ordinal, void *data, carry_stream *stream) {
    (void)ctx;
    if (cudaSetDevice(ordinal) == cudaSuccess) {
        (void)(has_pools(ordinal) ? cudaFreeAsync(data, (cudaStream_t)stream) : cudaFree(data));
    }
    (void)cudaGetLastError();
}

extern "C" carry_status carry_cuda_host_alloc(carry_ctx *ctx, void **data, size_t bytes) {
    cudaError_t error = cudaHostAlloc(data, bytes > 0 ? bytes : 1, cudaHostAllocPortable);
    if (error != cudaSuccess) {
        *data = NULL;
        (void)cudaGetLastError();
        return carry_fail(ctx, CARRY_EMEMORY, "%zu bytes of pinned memory cannot be allocated: %s", bytes,
                          cudaGetErrorString(error));
    }
    return CARRY_OK;
}

extern "C" void carry_cuda_host_free(carry_ctx *ctx, void *data) {
    (void)ctx;
    (void)cudaFreeHost(data);
    (void)cudaGetLastError();
}

extern "C" carry_memory_place carry_cuda_where(const void *pointer, int *ordinal) {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
        (void)cudaGetLastError();
        return CARRY_PLACE_UNKNOWN;
    }
    *ordinal = attributes.device;
    switch (attributes.type) {
    case cudaMemoryTypeHost:
        return CARRY_PLACE_HOST;
    case cudaMemoryTypeDevice:
        return CARRY_PLACE_DEVICE;
    case cudaMemoryTypeManaged:
        return CARRY_PLACE_EVERYWHERE;
    default:
        return CARRY_PLACE_UNKNOWN;
    }
}
