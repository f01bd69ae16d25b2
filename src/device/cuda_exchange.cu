/* Memory of NVIDIA GPUs that other processes read from. */
#include "device/cuda.h"

#include <string.h>

extern "C" {
#include "device/exchange.h"
}

static_assert(sizeof(cudaIpcMemHandle_t) <= sizeof(carry_exchange_name), "CUDA's handle fits into ours");

extern "C" carry_status carry_cuda_export(carry_ctx *ctx, void **data, carry_exchange_name *name, int ordinal,
                                          size_t bytes) {
    cudaIpcMemHandle_t handle;
    *data = NULL;
    memset(name, 0, sizeof *name);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    cudaError_t error = cudaMalloc(data, bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0;
        size_t total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&available, &total);
        return carry_fail(ctx, CARRY_EMEMORY, "CUDA device %d: %zu bytes to exchange asked for and %zu of %zu are free",
                          ordinal, bytes, available, total);
    }
    if (error != cudaSuccess) {
        return carry_cuda_failed(ctx, error, "cannot allocate memory to exchange", ordinal);
    }
    error = cudaIpcGetMemHandle(&handle, *data);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaFree(*data);
        *data = NULL;
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "CUDA device %d: its memory cannot be exported (CUDA IPC): %s",
                          ordinal, cudaGetErrorString(error));
    }
    memcpy(name, &handle, sizeof handle);
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_import(carry_ctx *ctx, void **data, int ordinal, const carry_exchange_name *name) {
    cudaIpcMemHandle_t handle;
    memcpy(&handle, name, sizeof handle);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    cudaError_t error = cudaIpcOpenMemHandle(data, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
        *data = NULL;
        (void)cudaGetLastError();
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "CUDA device %d: memory of another process cannot be opened (CUDA IPC): %s", ordinal,
                          cudaGetErrorString(error));
    }
    return CARRY_OK;
}

extern "C" void carry_cuda_import_end(carry_ctx *ctx, int ordinal, void *data) {
    (void)ctx;
    if (cudaSetDevice(ordinal) == cudaSuccess) {
        (void)cudaIpcCloseMemHandle(data);
    }
    (void)cudaGetLastError();
}

extern "C" carry_status carry_cuda_identity(carry_ctx *ctx, char *identity, int ordinal) {
    CARRY_CUDA_TRY(cudaDeviceGetPCIBusId(identity, CARRY_DEVICE_IDENTITY, ordinal), "it does not tell its bus number");
    return CARRY_OK;
}
