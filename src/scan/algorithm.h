/* The interface of an algorithm, and its arguments.

   A scan of a whole batch (carry_scan_work) is in the order of the recurrence: steps s = 0..steps-1, for either
   direction of time, and with A transposed or not (the scan of the gradient uses it transposed). Two kinds of
   algorithms use it:

   - those that walk through time (sequential, chunkwise) go through carry_scan_walk (walk.h), which converts 16-bit
     storage block by block;
   - those that combine elements by doubling or over a tree (hillis_steele, blelloch, cyclic, matmul, matmul_log) get
     one sequence at a time as a carry_scan_item, all f32 (element.h). */
#ifndef CARRY_SCAN_ALGORITHM_H
#define CARRY_SCAN_ALGORITHM_H

#include "carry/device.h"
#include "carry/scan.h"
#include "core/memory.h"
#include "core/span.h"
#include "device/gpu.h"
#include "ops/kernels/kernels.h"
#include "ops/product/rates.h"

/* An array over (batch, step), in elements of its type; step s of item i starts at data + i*item + s*step. */
typedef struct carry_scan_array {
    void *data;
    carry_dtype dtype;
    ptrdiff_t item, step;
} carry_scan_array;

typedef struct carry_scan_work {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    carry_scan_kind kind;
    int64_t batch, steps, n, width;
    int64_t radix; /* radix of the algorithm */
    int64_t chunk; /* steps of a chunk for chunkwise; 0: it chooses */
    bool transposed;
    carry_scan_array A, b, h;
    carry_scan_array h0; /* step is unused; data is NULL for zero */
    void *workspace;
    size_t workspace_bytes;
    const struct carry_scan_algorithm *algorithm;
    const carry_gpu *gpu; /* NULL on the CPU */
    carry_stream *stream; /* of the device; NULL: the default stream */
    int64_t products;     /* products computed so far */
    double flops;
} carry_scan_work;

/* The shape alone, for cost and workspace: a carry_scan_work without data. */
typedef carry_scan_work carry_scan_shape;

typedef struct carry_scan_algorithm {
    const char *name, *about;
    carry_span_site span; /* span of its runs */
    int64_t radix;        /* for algorithms with several radices, else 0 */
    int method;           /* for algorithms that share their functions (cuda.c) */
    bool by_value;        /* works only for some values of A and b, so the planner never chooses it */
    /* Returns true if it applies; otherwise writes the reason, which is never empty, to `why`. */
    bool (*applies)(const carry_scan_shape *shape, char *why, size_t why_size);
    double (*cost)(const carry_scan_shape *shape, const carry_rates_table *rates, int threads); /* seconds */
    bool (*workspace)(const carry_scan_shape *shape, int threads, size_t *bytes);               /* false: overflow */
    carry_status (*run)(carry_scan_work *work);
} carry_scan_algorithm;

/* table.c: algorithms of the CPU or of GPUs, or NULL past the end. */
const carry_scan_algorithm *carry_scan_at(bool on_gpu, int index);

/* GPU functions for gradients besides the scans; NULL in a build without CUDA (table.c). */
struct carry_cuda_gradients;
typedef struct carry_scan_gpu_steps {
    carry_status (*copy)(carry_ctx *ctx, const carry_gpu *gpu, carry_stream *stream, carry_scan_array to,
                         carry_scan_array from, int64_t batch, int64_t steps, int64_t size);
    carry_status (*gradients)(carry_ctx *ctx, const struct carry_cuda_gradients *gradients);
} carry_scan_gpu_steps;

const carry_scan_gpu_steps *carry_scan_gpu(void);

/* `applies` of an algorithm without restrictions. */
bool carry_scan_always(const carry_scan_shape *shape, char *why, size_t why_size);

/* Elements in one step of A, and in one step of b and h. */
static inline int64_t carry_scan_A_size(const carry_scan_shape *shape) {
    return shape->kind == CARRY_SCAN_DENSE ? shape->n * shape->n : shape->n;
}

static inline int64_t carry_scan_b_size(const carry_scan_shape *shape) {
    return shape->n * shape->width;
}

#endif
