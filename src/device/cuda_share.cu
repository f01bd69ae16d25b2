/* Streams on a share of the multiprocessors: green contexts of the driver (CUDA 12.5 or later), which are looked up at
   run time, so that older drivers work without them. A green context belongs to one stream here and ends with it. */
#include <cuda.h>

#include "device/cuda.h"

typedef struct driver_calls {
    decltype(&cuDeviceGetDevResource) get_resource;
    decltype(&cuDevSmResourceSplitByCount) split;
    decltype(&cuDevResourceGenerateDesc) describe;
    decltype(&cuGreenCtxCreate) create;
    decltype(&cuGreenCtxDestroy) destroy;
    decltype(&cuGreenCtxStreamCreate) create_stream;
    decltype(&cuStreamGetGreenCtx) context_of;
    bool is_complete;
} driver_calls;

template <typename F> static bool find(F *call, const char *name) {
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
    const bool is_found =
        cudaGetDriverEntryPointByVersion(name, &found, 12050, cudaEnableDefault, &result) == cudaSuccess &&
        result == cudaDriverEntryPointSuccess;
    (void)cudaGetLastError();
    *call = (F)found;
    return is_found;
}

static driver_calls ask_driver() {
    driver_calls c = {};
    c.is_complete = find(&c.get_resource, "cuDeviceGetDevResource") && find(&c.split, "cuDevSmResourceSplitByCount") &&
                    find(&c.describe, "cuDevResourceGenerateDesc") && find(&c.create, "cuGreenCtxCreate") &&
                    find(&c.destroy, "cuGreenCtxDestroy") && find(&c.create_stream, "cuGreenCtxStreamCreate") &&
                    find(&c.context_of, "cuStreamGetGreenCtx");
    return c;
}

static const driver_calls &driver() {
    static const driver_calls known = ask_driver();
    return known;
}

static carry_status failed(carry_ctx *ctx, int ordinal, const char *what, CUresult result) {
    return carry_fail(ctx, CARRY_EDEVICE, "CUDA device %d: %s (error %d of the driver)", ordinal, what, (int)result);
}

/* Divides the GPU and writes the wanted part. */
static carry_status divide(carry_ctx *ctx, CUdevResource *part, int ordinal, int multiprocessors, bool rest) {
    CUdevResource all, first, others;
    unsigned groups = 1;
    CUresult result = driver().get_resource(ordinal, &all, CU_DEV_RESOURCE_TYPE_SM);
    if (result != CUDA_SUCCESS) {
        return failed(ctx, ordinal, "its multiprocessors cannot be listed", result);
    }
    const unsigned total = all.sm.smCount;
    if (multiprocessors < 1 || (unsigned)multiprocessors >= total) {
        return carry_fail(ctx, CARRY_EARGUMENT, "CUDA device %d: %d of its %u multiprocessors: expected 1 to %u",
                          ordinal, multiprocessors, total, total - 1);
    }
    result = driver().split(&first, &groups, &all, &others, 0, (unsigned)multiprocessors);
    if (result != CUDA_SUCCESS || groups != 1 || first.sm.smCount >= total) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "CUDA device %d: %d of its %u multiprocessors cannot be separated from the others", ordinal,
                          multiprocessors, total);
    }
    *part = rest ? others : first;
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_stream_new_share(carry_ctx *ctx, carry_stream **stream, int ordinal,
                                                    int multiprocessors, bool rest) {
    CUdevResource part;
    CUdevResourceDesc description;
    CUgreenCtx context;
    CUstream made;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    if (!driver().is_complete) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "CUDA device %d: the driver cannot divide its multiprocessors",
                          ordinal);
    }
    CARRY_TRY(divide(ctx, &part, ordinal, multiprocessors, rest));
    CUresult result = driver().describe(&description, &part, 1);
    if (result == CUDA_SUCCESS) {
        result = driver().create(&context, description, ordinal, CU_GREEN_CTX_DEFAULT_STREAM);
    }
    if (result != CUDA_SUCCESS) {
        return failed(ctx, ordinal, "a part of its multiprocessors cannot be used", result);
    }
    result = driver().create_stream(&made, context, CU_STREAM_NON_BLOCKING, 0);
    if (result != CUDA_SUCCESS) {
        (void)driver().destroy(context);
        return failed(ctx, ordinal, "a stream cannot be made", result);
    }
    *stream = (carry_stream *)made;
    return CARRY_OK;
}

extern "C" void *carry_cuda_share_of(carry_stream *stream) {
    CUgreenCtx context = NULL;
    const bool is_asked = stream != NULL && driver().is_complete;
    return is_asked && driver().context_of((CUstream)stream, &context) == CUDA_SUCCESS ? context : NULL;
}

extern "C" void carry_cuda_share_end(void *share) {
    if (share != NULL) {
        (void)driver().destroy((CUgreenCtx)share);
    }
}
