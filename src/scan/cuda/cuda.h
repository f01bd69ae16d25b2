/* Scans on CUDA devices: the interface of the two families of kernels, diagonal.cu and dense.cu. cuda.c makes
   entries of the table of algorithms from them. This is a C header that needs no CUDA headers.

   run enqueues on work->stream and returns without waiting. Data and workspace are on work->device. Arrays are in
   the order of the recurrence, with strides over batch and step that may be negative, as on the CPU (algorithm.h). */
#ifndef CARRY_SCAN_CUDA_H
#define CARRY_SCAN_CUDA_H

#include "scan/algorithm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum carry_cuda_method {
    CARRY_CUDA_SEQUENTIAL,
    CARRY_CUDA_CHUNKWISE,
    CARRY_CUDA_HILLIS_STEELE,
    CARRY_CUDA_BLELLOCH,
    CARRY_CUDA_LOOKBACK,
    CARRY_CUDA_CYCLIC,
    CARRY_CUDA_MATMUL, /* radix work->radix: 4, 8 or 16 */
} carry_cuda_method;

/* A family of kernels: the same four functions for every method. */
typedef struct carry_cuda_family {
    bool (*applies)(const carry_scan_shape *shape, carry_cuda_method method, char *why, size_t why_size);
    double (*cost)(const carry_scan_shape *shape, carry_cuda_method method); /* seconds, by shape->gpu */
    bool (*workspace)(const carry_scan_shape *shape, carry_cuda_method method, size_t *bytes);
    carry_status (*run)(carry_scan_work *work, carry_cuda_method method); /* adds to work->products and ->flops */
} carry_cuda_family;

extern const carry_cuda_family carry_cuda_diagonal, carry_cuda_dense;

/* backward.cu: dA[t] = l[t] h[t-1]^T (diagonal: only its diagonal) and dh0 = A[0]^T l[0], after the scan has computed
   l. */
/* Reached through carry_scan_gpu in table.c. */
typedef struct carry_cuda_gradients {
    carry_scan_kind kind;
    int64_t batch, steps, n, width;
    carry_scan_array l, h, h0, A; /* in the order of the recurrence of the forward pass */
    carry_scan_array dA, dh0;     /* data is NULL if not wanted */
    carry_stream *stream;
    int device;
} carry_cuda_gradients;

carry_status carry_cuda_scan_gradients(carry_ctx *ctx, const carry_cuda_gradients *gradients);

/* steps.cu: to = from, converted to another type; batch x steps pieces of `size` elements each. */
carry_status carry_cuda_copy_steps(carry_ctx *ctx, const carry_gpu *gpu, carry_stream *stream, carry_scan_array to,
                                   carry_scan_array from, int64_t batch, int64_t steps, int64_t size);

#ifdef __cplusplus
}
#endif
#endif
