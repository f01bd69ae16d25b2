/* NVIDIA GPUs as devices: memory, copies, streams, events, properties.

   The runtime is linked statically and asks for a driver when the first device is counted: without one there are no CUDA
   devices and nothing else changes, so one binary serves machines with and without a GPU. */
#include <cuda_runtime.h>

#include <stdio.h>

extern "C" {
#include "core/error.h"
#include "device/backend.h"

extern const carry_backend carry_backend_cuda;
}

static carry_status failed(carry_ctx *ctx, cudaError_t error, const char *what, int ordinal) {
    (void)cudaGetLastError(); /* an error that is told must not come up again in the next call */
    return carry_fail(ctx, error == cudaErrorMemoryAllocation ? CARRY_EMEMORY : CARRY_EDEVICE, "CUDA device %d: %s: %s",
                      ordinal, what, cudaGetErrorString(error));
}

#define CUDA_TRY(call, what)                                                                                           \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            return failed(ctx, error_, what, ordinal);                                                                 \
        }                                                                                                              \
    } while (0)

static int count(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return devices;
}

static carry_status describe(carry_ctx *ctx, int ordinal, carry_device_properties *properties) {
    cudaDeviceProp p;
    CUDA_TRY(cudaGetDeviceProperties(&p, ordinal), "its properties cannot be read");
    *properties = carry_device_properties{};
    (void)snprintf(properties->name, sizeof properties->name, "%.95s", p.name);
    (void)snprintf(properties->backend, sizeof properties->backend, "cuda");
    (void)snprintf(properties->kernels, sizeof properties->kernels, "sm_%d%d", p.major, p.minor);
    properties->units = p.multiProcessorCount;
    properties->memory = p.totalGlobalMem;
    properties->cache = (size_t)p.l2CacheSize;
    properties->cache_inner = p.sharedMemPerMultiprocessor;
    return CARRY_OK;
}

static carry_status alloc(carry_ctx *ctx, void **data, int ordinal, size_t bytes) {
    CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    cudaError_t error = cudaMalloc(data, bytes > 0 ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0;
        size_t total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total);
        return carry_fail(ctx, CARRY_EMEMORY, "CUDA device %d: %zu bytes asked for and %zu of %zu are free", ordinal, bytes,
                          free_bytes, total);
    }
    CUDA_TRY(error, "memory cannot be had");
    return CARRY_OK;
}

static void free_data(carry_ctx *ctx, int ordinal, void *data) {
    (void)ctx;
    if (cudaSetDevice(ordinal) == cudaSuccess) {
        (void)cudaFree(data);
    }
}

static carry_status copy(carry_ctx *ctx, int ordinal, void *to, const void *from, size_t bytes, carry_copy_way way,
                         carry_stream *stream) {
    cudaMemcpyKind kind = way == CARRY_COPY_TO_DEVICE ? cudaMemcpyHostToDevice
                          : way == CARRY_COPY_TO_HOST ? cudaMemcpyDeviceToHost
                                                      : cudaMemcpyDeviceToDevice;
    CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kind, (cudaStream_t)stream), "a copy failed");
    if (stream == NULL && way == CARRY_COPY_TO_HOST) {
        CUDA_TRY(cudaStreamSynchronize(NULL), "a copy failed"); /* the caller reads next, and has no stream to wait on */
    }
    return CARRY_OK;
}

static carry_status fill(carry_ctx *ctx, int ordinal, void *to, unsigned char byte, size_t bytes, carry_stream *stream) {
    CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CUDA_TRY(cudaMemsetAsync(to, byte, bytes, (cudaStream_t)stream), "a fill failed");
    return CARRY_OK;
}

static carry_status stream_new(carry_ctx *ctx, carry_stream **stream, int ordinal) {
    cudaStream_t made;
    CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CUDA_TRY(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "a stream cannot be made");
    *stream = (carry_stream *)made;
    return CARRY_OK;
}

static carry_status stream_wait(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CUDA_TRY(cudaStreamSynchronize((cudaStream_t)stream), "work on a stream failed");
    return CARRY_OK;
}

static void stream_free(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    (void)ctx;
    if (cudaSetDevice(ordinal) == cudaSuccess) {
        (void)cudaStreamDestroy((cudaStream_t)stream);
    }
}

static carry_status event_new(carry_ctx *ctx, carry_event **event, int ordinal) {
    cudaEvent_t made;
    CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CUDA_TRY(cudaEventCreate(&made), "an event cannot be made");
    *event = (carry_event *)made;
    return CARRY_OK;
}

static carry_status event_record(carry_ctx *ctx, int ordinal, carry_event *event, carry_stream *stream) {
    CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CUDA_TRY(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "an event cannot be recorded");
    return CARRY_OK;
}

static carry_status event_elapsed(carry_ctx *ctx, int ordinal, double *seconds, carry_event *from, carry_event *to) {
    float milliseconds = 0.0f;
    CUDA_TRY(cudaEventSynchronize((cudaEvent_t)to), "work before an event failed");
    CUDA_TRY(cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to), "events cannot be compared");
    *seconds = 1e-3 * (double)milliseconds;
    return CARRY_OK;
}

static void event_free(carry_ctx *ctx, int ordinal, carry_event *event) {
    (void)ctx;
    (void)ordinal;
    (void)cudaEventDestroy((cudaEvent_t)event);
}

const carry_backend carry_backend_cuda = {
    .name = "cuda",
    .about = "NVIDIA GPUs",
    .count = count,
    .describe = describe,
    .alloc = alloc,
    .free = free_data,
    .copy = copy,
    .fill = fill,
    .stream_new = stream_new,
    .stream_wait = stream_wait,
    .stream_free = stream_free,
    .event_new = event_new,
    .event_record = event_record,
    .event_elapsed = event_elapsed,
    .event_free = event_free,
};
