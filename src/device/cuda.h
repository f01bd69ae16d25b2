/* Shared by the CUDA source files: error reporting, and the parts of the CUDA backend that have their own files.

   It needs C++ and CUDA's headers, so only *.cu and *.cuh files include it. */
#ifndef CARRY_DEVICE_CUDA_H
#define CARRY_DEVICE_CUDA_H

#include <cuda_runtime.h>

extern "C" {
#include "core/error.h"
#include "device/backend.h"

/* Clears CUDA's own record of the error, so that the next call does not report it again, and fails with a message that
   contains `what` and CUDA's description. */
carry_status carry_cuda_failed(carry_ctx *ctx, cudaError_t error, const char *what, int ordinal);

carry_status carry_cuda_memory(carry_ctx *ctx, int ordinal, size_t *available, size_t *total);
size_t carry_cuda_held(carry_ctx *ctx, int ordinal);
carry_status carry_cuda_alloc(carry_ctx *ctx, void **data, int ordinal, size_t bytes);
void carry_cuda_free(carry_ctx *ctx, int ordinal, void *data);
carry_status carry_cuda_alloc_on(carry_ctx *ctx, void **data, int ordinal, size_t bytes, carry_stream *stream);
void carry_cuda_free_on(carry_ctx *ctx, int ordinal, void *data, carry_stream *stream);
carry_status carry_cuda_host_alloc(carry_ctx *ctx, void **data, size_t bytes);
void carry_cuda_host_free(carry_ctx *ctx, void *data);
carry_memory_place carry_cuda_where(const void *pointer, int *ordinal);

/* A share is a part of the GPU's multiprocessors with one stream (carry_stream_new_share). share_of returns a stream's
   share, or NULL if the stream uses the whole GPU. Call share_end after the stream is destroyed. */
carry_status carry_cuda_stream_new_share(carry_ctx *ctx, carry_stream **stream, int ordinal, int multiprocessors,
                                         bool rest);
void *carry_cuda_share_of(carry_stream *stream);
void carry_cuda_share_end(void *share);

carry_status carry_cuda_graph_begin(carry_ctx *ctx, int ordinal, carry_stream *stream);
carry_status carry_cuda_graph_end(carry_ctx *ctx, carry_graph **graph, int ordinal, carry_stream *stream);
carry_status carry_cuda_graph_launch(carry_ctx *ctx, int ordinal, carry_graph *graph, carry_stream *stream);
void carry_cuda_graph_free(carry_ctx *ctx, int ordinal, carry_graph *graph);

carry_status carry_cuda_activity_start(carry_ctx *ctx, struct carry_activity_log *log);
carry_status carry_cuda_activity_stop(carry_ctx *ctx, struct carry_activity_log *log);

carry_status carry_cuda_export(carry_ctx *ctx, void **data, struct carry_exchange_name *name, int ordinal,
                               size_t bytes);
carry_status carry_cuda_import(carry_ctx *ctx, void **data, int ordinal, const struct carry_exchange_name *name);
void carry_cuda_import_end(carry_ctx *ctx, int ordinal, void *data);
carry_status carry_cuda_identity(carry_ctx *ctx, char *identity, int ordinal);

carry_status carry_cuda_measure(carry_ctx *ctx, int ordinal, carry_gpu *gpu);
}

/* Returns from the caller if a CUDA call fails; uses the caller's ctx and ordinal. */
#define CARRY_CUDA_TRY(call, what)                                \
    do {                                                          \
        cudaError_t error_ = (call);                              \
        if (error_ != cudaSuccess) {                              \
            return carry_cuda_failed(ctx, error_, what, ordinal); \
        }                                                         \
    } while (0)

/* Gives the kernel's multiprocessors as much shared memory as they can have. Two kernels run on a multiprocessor at the
   same time only if its memory is divided into cache and shared memory alike for both; by default each kernel gets what
   its own blocks need. */
template <typename Kernel> static inline cudaError_t carry_cuda_share_most(Kernel *kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

#endif
