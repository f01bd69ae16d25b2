/* Scans with dense transitions on GPUs: the family of kernels that scan/cuda/cuda.c uses. The kernels are in
   dense_cyclic.cu, dense_tree.cu, dense_groups.cu, dense_chunks.cu, dense_doubling.cu and dense_hopper.cu; dense.cuh
   has their shared declarations. */
#include <cuda_runtime.h>

#include <math.h>

#include "scan/cuda/dense_hopper.cuh"
#include "scan/cuda/dense_layout.cuh"

extern "C" {
#include "core/error.h"
}

using dense::layout;
using dense::work_count;

static bool applies(const carry_scan_shape *shape, carry_cuda_method method, char *why, size_t why_size) {
    carry_arena arena = carry_arena_over(NULL, 0);
    layout l;
    return dense::lay_out(&l, shape, method, &arena, why, why_size);
}

static bool workspace(const carry_scan_shape *shape, carry_cuda_method method, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    layout l;
    char why[160];
    return dense::lay_out(&l, shape, method, &arena, why, sizeof why) && !arena.overflowed &&
           carry_arena_total(&arena, bytes);
}

static double at_least(double rate, double least) {
    return rate > least ? rate : least;
}

/* Matrices that are moved, as a multiple of all transitions: read on the way up, written, read on the way down. */
static double passes(const layout *l, carry_cuda_method method) {
    switch (method) {
    case CARRY_CUDA_CYCLIC:
        return 2.1;
    case CARRY_CUDA_BLELLOCH:
        return 3.1;
    case CARRY_CUDA_MATMUL:
        return 3.2;
    case CARRY_CUDA_HILLIS_STEELE: {
        double slots = l->p.slots;
        double kept = slots - ldexp(1.0, l->p.rounds) + 1.0;
        double rounds = ceil(log2((double)l->p.steps + 0.5));
        return ceil(rounds / l->p.rounds) * (slots / kept + 1.0);
    }
    default:
        return l->p.chunks > 1 ? 2.0 : 1.0;
    }
}

/* Time beyond arithmetic and data movement: dependent products, barriers and loads, measured on an H200 with batch 1 (n
   = 32, 64, 128; T = 1024 to 8192). For trees it grows with the levels, for a walk with the steps. */
static double latency_of(const carry_scan_shape *shape, carry_cuda_method method) {
    double levels = log2((double)shape->steps + 1.0);
    if (method == CARRY_CUDA_SEQUENTIAL) {
        return (double)shape->steps * (shape->n > 64 ? 1.4e-6 : 0.8e-6);
    }
    return levels * (method == CARRY_CUDA_CYCLIC ? 4.5e-6 : 8e-6);
}

static double cost(const carry_scan_shape *shape, carry_cuda_method method) {
    carry_arena arena = carry_arena_over(NULL, 0);
    layout l;
    char why[160];
    if (shape->gpu == NULL || !dense::lay_out(&l, shape, method, &arena, why, sizeof why)) {
        return HUGE_VAL;
    }
    const carry_gpu *gpu = shape->gpu;
    work_count work = dense::count_work(&l, shape, method);
    double batch = (double)shape->batch;
    double element = shape->A.dtype == CARRY_F32 ? 4.0 : 2.0;
    double A_bytes = batch * (double)(shape->steps * shape->n * shape->n) * element;
    double b_bytes = batch * (double)(shape->steps * shape->n * shape->width) * 4.0;
    double rate = at_least(A_bytes < 0.5 * (double)gpu->cache ? gpu->cache_bytes_s : gpu->copy_bytes_s, 1e10);
    double units = at_least((double)gpu->units, 1.0);
    double busy = fmin((double)l.blocks, units * l.per_unit) / l.per_unit;
    busy = busy < 1.0 ? 1.0 : busy;
    double apply_s = 0.3 * l.product_s / l.per_unit + 2.0 * (double)(shape->n * shape->n * shape->width) /
                                                          at_least(0.3 * gpu->plain_flops_s / units, 1e9);
    double products = batch * (work.composed * l.product_s / l.per_unit + work.applied * apply_s) / busy;
    /* A block's data rate is at most its share of the whole GPU's. */
    double moved = passes(&l, method) * (A_bytes + b_bytes) / (rate * fmin(1.0, busy / units));
    double barriers = 2.0 * at_least(gpu->barrier_s, 1e-7) * (double)l.p.levels;
    if (method == CARRY_CUDA_CHUNKWISE && l.p.chunks > 1) {
        barriers = 2.0 * gpu->barrier_s + (double)l.p.chunks * (apply_s * l.per_unit + 1e-7);
    } else if (method == CARRY_CUDA_HILLIS_STEELE) {
        barriers = at_least(gpu->barrier_s, 1e-7) * ceil(log2((double)shape->steps + 0.5) / l.p.rounds);
    }
    double waits = latency_of(shape, method);
    if (method == CARRY_CUDA_SEQUENTIAL) { /* other sequences fill the waiting times of a walk */
        return gpu->launch_s + fmax(waits, fmax(products, moved));
    }
    return gpu->launch_s + fmax(products, moved) + barriers + waits;
}

static carry_status failed(carry_ctx *ctx, cudaError_t error, const char *what) {
    (void)cudaGetLastError(); /* clears the error, which was reported, so that the next call does not see it */
    return carry_fail(ctx, CARRY_EDEVICE, "a dense scan on a CUDA device: %s: %s", what, cudaGetErrorString(error));
}

/* The number of blocks: all that can be resident at once, since they wait for each other, but no more than have
   work. */
static cudaError_t blocks_of(const layout *l, int *blocks) {
    int device = 0;
    int units = 0;
    int each = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
    }
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(l->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l->shared_bytes);
    }
    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, l->kernel, dense::THREADS, l->shared_bytes);
    }
    int64_t resident = (int64_t)units * (each < l->per_unit ? each : l->per_unit);
    *blocks = (int)(l->blocks < resident ? l->blocks : resident);
    return error;
}

/* If the GPU and the shape allow it, runs the way up of the first level of a cyclic reduction with Hopper's warpgroup
   products (dense_hopper.cu). The kernel of the scan (l->kernel) does the rest. */
static cudaError_t fold_first(layout *l, const carry_scan_work *work, carry_cuda_method method) {
    dense::level_data *first = &l->p.level[0];
    bool fits = method == CARRY_CUDA_CYCLIC && l->p.levels > 1 && l->p.n == 128 && l->p.width == 1 &&
                !l->p.transposed && work->A.dtype != CARRY_F32 && (uintptr_t)first->A.data % 16 == 0 &&
                first->A.item % 8 == 0 && first->A.step % 8 == 0 && first->at.complete >= first->at.radix;
    int device = 0;
    int units = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess || !fits || !dense::fold_works(device)) {
        return error;
    }
    dense::fold_job job = {};
    job.visits = first->at.complete / first->at.radix;
    job.tasks = l->p.batch * job.visits;
    job.radix = first->at.radix;
    job.A = first->A;
    job.made = first->made;
    job.b = l->p.b;
    job.values = l->p.values;
    error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) {
        int blocks = (int)(job.tasks < units ? job.tasks : units);
        error = dense::fold(job, (int)work->A.dtype, blocks, (cudaStream_t)work->stream);
        l->p.folded = 1;
    }
    return error;
}

static carry_status run(carry_scan_work *work, carry_cuda_method method) {
    carry_arena arena = carry_arena_over(work->workspace, work->workspace_bytes);
    layout l;
    char why[160];
    if (!dense::lay_out(&l, work, method, &arena, why, sizeof why)) {
        return carry_fail(work->ctx, CARRY_EUNSUPPORTED, "%s", why);
    }
    if (arena.overflowed) {
        return carry_fail(work->ctx, CARRY_EWORKSPACE, "the workspace has %zu bytes, too few", work->workspace_bytes);
    }
    int blocks = 0;
    cudaError_t error = work->gpu != NULL ? cudaSetDevice(work->gpu->ordinal) : cudaSuccess;
    if (error == cudaSuccess) {
        error = blocks_of(&l, &blocks);
    }
    if (error != cudaSuccess || blocks < 1) {
        return failed(work->ctx, error, "its kernel does not fit");
    }
    error = fold_first(&l, work, method);
    if (error != cudaSuccess) {
        return failed(work->ctx, error, "its first kernel cannot be started");
    }
    void *arguments[] = {&l.p, &l.shared_bytes};
    error = cudaLaunchCooperativeKernel(l.kernel, dim3((unsigned)blocks), dim3(dense::THREADS), arguments,
                                        l.shared_bytes, (cudaStream_t)work->stream);
    if (error != cudaSuccess) {
        return failed(work->ctx, error, "its kernel cannot be started");
    }
    work_count count = dense::count_work(&l, work, method);
    double n = (double)work->n;
    double batch = (double)work->batch;
    work->products += (int64_t)(batch * (count.composed + count.applied));
    work->flops += batch * (2.0 * n * n * n * count.composed + 2.0 * n * n * (double)work->width * count.applied);
    return CARRY_OK;
}

extern "C" const carry_cuda_family carry_cuda_dense = {
    .applies = applies, .cost = cost, .workspace = workspace, .run = run};
