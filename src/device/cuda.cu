/* NVIDIA GPUs as devices: properties, copies, streams, events. Memory is in cuda_memory.cu, graphs in cuda_graph.cu,
   streams on a part of the GPU in cuda_share.cu, profiling in cuda_activity.cu.

   The runtime is linked statically and looks for a driver when the first device is counted. Without a driver there
   are no CUDA devices and nothing else changes, so one binary serves machines with and without a GPU. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "device/stream_end.h"

extern "C" {
extern const carry_backend carry_backend_cuda;
}

/* After these errors the driver refuses every further call of the process. */
static bool is_final(cudaError_t error) {
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
        return true;
    default:
        return false;
    }
}

extern "C" carry_status carry_cuda_failed(carry_ctx *ctx, cudaError_t error, const char *what, int ordinal) {
    (void)cudaGetLastError();
    return carry_fail(ctx, error == cudaErrorMemoryAllocation ? CARRY_EMEMORY : CARRY_EDEVICE,
                      "CUDA device %d: %s: %s (%s)%s", ordinal, what, cudaGetErrorString(error),
                      cudaGetErrorName(error), is_final(error) ? "; this process cannot use the GPU any more" : "");
}

/* Every check of a pointer calls this. The count is kept once it is above 0; until then each call asks the driver. */
static int count(void) {
    static int found; /* all threads set the same value */
    int devices = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (devices > 0) {
        return devices;
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    __atomic_store_n(&found, devices, __ATOMIC_RELAXED);
    return devices;
}

/* The version of the driver, from the driver itself, since the runtime does not report a driver that it refuses. 0:
   no driver. */
static int driver_version(void) {
    int version = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*ask)(int *) = driver != NULL ? (int (*)(int *))dlsym(driver, "cuDriverGetVersion") : NULL;
    if (ask != NULL && ask(&version) != 0) {
        version = 0;
    }
    if (driver != NULL) {
        (void)dlclose(driver);
    }
    return version;
}

/* A missing driver and an old one give the same error: only the driver's version tells them apart. */
static void absence(char *line, size_t size) {
    int devices = 0;
    int driver = driver_version();
    int runtime = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaGetLastError();
    if (driver == 0) {
        (void)snprintf(line, size, "there is no NVIDIA driver here");
    } else if (error == cudaErrorInsufficientDriver && driver < runtime) {
        (void)snprintf(
            line, size,
            "the driver is for CUDA %d.%d and this library was built with CUDA %d.%d: install a newer driver",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    } else if (error == cudaErrorNoDevice || error == cudaSuccess) {
        (void)snprintf(line, size, "there is a driver and no GPU that this process may see");
    } else {
        (void)snprintf(line, size, "%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
    }
}

/* Returns 0 if the driver does not report the attribute. */
static int attribute(cudaDeviceAttr which, int ordinal) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return value;
}

static carry_status ask(carry_ctx *ctx, int ordinal, carry_device_properties *properties) {
    cudaDeviceProp p;
    CARRY_CUDA_TRY(cudaGetDeviceProperties(&p, ordinal), "its properties cannot be read");
    *properties = carry_device_properties{};
    (void)snprintf(properties->name, sizeof properties->name, "%.95s", p.name);
    (void)snprintf(properties->backend, sizeof properties->backend, "cuda");
    (void)snprintf(properties->kernels, sizeof properties->kernels, "sm_%d%d", p.major, p.minor);
    properties->units = p.multiProcessorCount;
    properties->memory = p.totalGlobalMem;
    properties->cache = (size_t)p.l2CacheSize;
    properties->cache_inner = p.sharedMemPerMultiprocessor;
    properties->shared = p.sharedMemPerBlockOptin;
    properties->clock_hz = 1e3 * attribute(cudaDevAttrClockRate, ordinal);
    /* Two transfers a clock; the width is in bits. */
    properties->memory_bytes_s = 2e3 * attribute(cudaDevAttrMemoryClockRate, ordinal) *
                                 attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8.0;
    CARRY_CUDA_TRY(cudaDriverGetVersion(&properties->driver), "the driver does not tell its version");
    CARRY_CUDA_TRY(cudaRuntimeGetVersion(&properties->runtime), "the runtime does not tell its version");
    return CARRY_OK;
}

/* Every plan needs the properties, and the driver takes 2 ms, so they are read once per process. */
static carry_status describe(carry_ctx *ctx, int ordinal, carry_device_properties *properties) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static carry_device_properties known[CARRY_MAX_DEVICES];
    if (ordinal >= CARRY_MAX_DEVICES) {
        return ask(ctx, ordinal, properties);
    }
    pthread_mutex_lock(&lock);
    carry_status status = known[ordinal].units > 0 ? CARRY_OK : ask(ctx, ordinal, properties);
    if (status == CARRY_OK && known[ordinal].units == 0) {
        known[ordinal] = *properties;
    }
    *properties = status == CARRY_OK ? known[ordinal] : carry_device_properties{};
    pthread_mutex_unlock(&lock);
    return status;
}

static carry_status copy(carry_ctx *ctx, int ordinal, void *to, const void *from, size_t bytes, carry_copy_way way,
                         carry_stream *stream) {
    cudaMemcpyKind kind = way == CARRY_COPY_TO_DEVICE ? cudaMemcpyHostToDevice
                          : way == CARRY_COPY_TO_HOST ? cudaMemcpyDeviceToHost
                                                      : cudaMemcpyDeviceToDevice;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kind, (cudaStream_t)stream), "a copy failed");
    if (stream == NULL && way == CARRY_COPY_TO_HOST) {
        CARRY_CUDA_TRY(cudaStreamSynchronize(NULL),
                       "a copy failed"); /* the caller reads the data next and has no stream to wait on */
    }
    return CARRY_OK;
}

static carry_status copy_between(carry_ctx *ctx, void *to, int ordinal, const void *from, int from_ordinal,
                                 size_t bytes, carry_stream *stream) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaMemcpyPeerAsync(to, ordinal, from, from_ordinal, bytes, (cudaStream_t)stream),
                   "a copy from another device failed");
    return CARRY_OK;
}

static carry_status fill(carry_ctx *ctx, int ordinal, void *to, unsigned char byte, size_t bytes,
                         carry_stream *stream) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaMemsetAsync(to, byte, bytes, (cudaStream_t)stream), "a fill failed");
    return CARRY_OK;
}

static carry_status stream_new(carry_ctx *ctx, carry_stream **stream, int ordinal) {
    cudaStream_t made;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "a stream cannot be made");
    *stream = (carry_stream *)made;
    return CARRY_OK;
}

static carry_status stream_wait(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaStreamSynchronize((cudaStream_t)stream), "work on a stream failed");
    return CARRY_OK;
}

extern "C" {
void (*carry_cuda_stream_ends)(carry_ctx *ctx, int ordinal, carry_stream *stream);
}

static void stream_free(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    if (cudaSetDevice(ordinal) == cudaSuccess) {
        if (carry_cuda_stream_ends != NULL) {
            carry_cuda_stream_ends(ctx, ordinal, stream);
        }
        void *share = carry_cuda_share_of(stream);
        (void)cudaStreamDestroy((cudaStream_t)stream);
        carry_cuda_share_end(share);
    }
    (void)cudaGetLastError();
}

static carry_status event_new(carry_ctx *ctx, carry_event **event, int ordinal) {
    cudaEvent_t made;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaEventCreate(&made), "an event cannot be made");
    *event = (carry_event *)made;
    return CARRY_OK;
}

static carry_status event_record(carry_ctx *ctx, int ordinal, carry_event *event, carry_stream *stream) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "an event cannot be recorded");
    return CARRY_OK;
}

static carry_status event_wait(carry_ctx *ctx, int ordinal, carry_event *event) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaEventSynchronize((cudaEvent_t)event), "work before an event failed");
    return CARRY_OK;
}

static carry_status event_elapsed(carry_ctx *ctx, int ordinal, double *seconds, carry_event *from, carry_event *to) {
    float milliseconds = 0.0f;
    CARRY_CUDA_TRY(cudaEventSynchronize((cudaEvent_t)to), "work before an event failed");
    CARRY_CUDA_TRY(cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to),
                   "events cannot be compared");
    *seconds = 1e-3 * (double)milliseconds;
    return CARRY_OK;
}

static void event_free(carry_ctx *ctx, int ordinal, carry_event *event) {
    (void)ctx;
    (void)ordinal;
    (void)cudaEventDestroy((cudaEvent_t)event);
    (void)cudaGetLastError();
}

static carry_status stream_after(carry_ctx *ctx, int ordinal, carry_stream *stream, carry_event *event) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0),
                   "a stream cannot wait for an event");
    return CARRY_OK;
}

static carry_status event_test(carry_ctx *ctx, int ordinal, carry_event *event, int *done) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    cudaError_t error = cudaEventQuery((cudaEvent_t)event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(error, "work before an event failed");
    *done = 1;
    return CARRY_OK;
}

const carry_backend carry_backend_cuda = {
    .name = "cuda",
    .about = "NVIDIA GPUs",
    .count = count,
    .absence = absence,
    .describe = describe,
    .measure = carry_cuda_measure,
    .memory = carry_cuda_memory,
    .held = carry_cuda_held,
    .alloc = carry_cuda_alloc,
    .free = carry_cuda_free,
    .alloc_on = carry_cuda_alloc_on,
    .free_on = carry_cuda_free_on,
    .host_alloc = carry_cuda_host_alloc,
    .host_free = carry_cuda_host_free,
    .where = carry_cuda_where,
    .copy = copy,
    .copy_between = copy_between,
    .fill = fill,
    .stream_new = stream_new,
    .stream_new_share = carry_cuda_stream_new_share,
    .stream_wait = stream_wait,
    .stream_free = stream_free,
    .event_new = event_new,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_elapsed = event_elapsed,
    .event_free = event_free,
    .stream_after = stream_after,
    .event_test = event_test,
    .graph_begin = carry_cuda_graph_begin,
    .graph_end = carry_cuda_graph_end,
    .graph_launch = carry_cuda_graph_launch,
    .graph_free = carry_cuda_graph_free,
    .activity_start = carry_cuda_activity_start,
    .activity_stop = carry_cuda_activity_stop,
    .give_name = carry_cuda_export,
    .open_name = carry_cuda_import,
    .close_name = carry_cuda_import_end,
    .identity = carry_cuda_identity,
};
