/* Diagonal transitions on CUDA: chooses the kernel and its shape, and estimates its cost. */
#include <math.h>
#include <stdio.h>

extern "C" {
#include "core/error.h"
}
#include "scan/cuda/diagonal.cuh"

namespace {

constexpr int LANES = 32;

/* True if a thread can have `channels` channels: all of them must be in one row, and accesses aligned to 16 bytes.
   is_wide also asks for enough channels to keep the GPU busy. Otherwise a thread has one channel. */
bool can_be_wide(const carry_scan_shape *s, int channels) {
    const carry_scan_array *arrays[] = {&s->b, &s->h};
    if (s->width % channels != 0) {
        return false;
    }
    for (const carry_scan_array *a : arrays) {
        if ((uintptr_t)a->data % 16 != 0 || a->item % channels != 0 || a->step % channels != 0) {
            return false;
        }
    }
    return true;
}

double channels_of(const carry_scan_shape *s) {
    return (double)s->batch * (double)s->n * (double)s->width;
}

bool is_wide(const carry_scan_shape *s, carry_cuda_method method) {
    int channels = s->b.dtype == CARRY_F32 || method != CARRY_CUDA_SEQUENTIAL ? 4 : 8;
    /* Threads of one segment for each multiprocessor. */
    double threads_wanted = method == CARRY_CUDA_SEQUENTIAL ? 256.0 : 16.0;
    return can_be_wide(s, channels) && channels_of(s) / channels >= threads_wanted * s->gpu->units;
}

int channel_blocks(const carry_scan_shape *s, bool wide) {
    int64_t threads = s->n * s->width / (wide ? 4 : 1);
    return (int)((threads + LANES - 1) / LANES);
}

int lookback_tiles(const carry_scan_shape *s) {
    return (int)((s->steps + CARRY_LOOKBACK_STEPS - 1) / CARRY_LOOKBACK_STEPS);
}

bool applies(const carry_scan_shape *s, carry_cuda_method method, char *why, size_t why_size) {
    if (s->n * s->width > (1 << 30) || s->batch > 65535) {
        (void)snprintf(why, why_size, "at most 65535 sequences of 2^30 channels");
        return false;
    }
    if (method == CARRY_CUDA_MATMUL && s->width % 8 != 0) {
        (void)snprintf(why, why_size, "a width that is not a multiple of 8 leaves the tensor cores idle");
        return false;
    }
    double blocks = (double)s->batch * channel_blocks(s, false) * lookback_tiles(s);
    if (method == CARRY_CUDA_LOOKBACK && blocks > 1e9) {
        (void)snprintf(why, why_size, "more tiles than a grid has blocks");
        return false;
    }
    return true;
}

double bytes_of(const carry_scan_shape *s) {
    double steps = (double)s->batch * (double)s->steps;
    return steps * (double)s->n *
           ((double)carry_dtype_size(s->A.dtype) +
            (double)s->width * (double)(carry_dtype_size(s->b.dtype) + carry_dtype_size(s->h.dtype)));
}

/* Returns the predicted seconds: the time to move the data at the rate of memory or of the cache or, if there are too
   few threads to fill the GPU, one latency for every batch of loads that a thread waits for. */
double cost(const carry_scan_shape *s, carry_cuda_method method) {
    const carry_gpu *gpu = s->gpu;
    double bytes = bytes_of(s);
    double movement = bytes / (bytes < 0.6 * (double)gpu->cache ? gpu->cache_bytes_s : gpu->copy_bytes_s);
    double tiles;       /* batches of loads that follow each other */
    double extra = 0.0; /* barriers and exchange for each tile */
    switch (method) {
    case CARRY_CUDA_SEQUENTIAL:
        tiles = ceil((double)s->steps / 8.0);
        break;
    case CARRY_CUDA_LOOKBACK:
        tiles = 1.0 + (double)lookback_tiles(s) / 16.0;
        extra = 1.5e-6;
        movement *= 1.3;
        break;
    case CARRY_CUDA_MATMUL:
        tiles = ceil((double)s->steps / 256.0);
        extra = 0.6e-6 + (s->radix == 4 ? 0.5e-6 : s->radix == 8 ? 0.25e-6 : 0.0);
        movement *= 1.25;
        break;
    default:
        tiles = ceil((double)s->steps / 256.0);
        extra = method == CARRY_CUDA_CHUNKWISE ? 0.2e-6 : 0.35e-6;
        movement *= 1.25;
        break;
    }
    return gpu->launch_s + fmax(movement, tiles * (gpu->latency_s + extra));
}

bool workspace(const carry_scan_shape *s, carry_cuda_method method, size_t *bytes) {
    *bytes = 0;
    if (method != CARRY_CUDA_LOOKBACK) {
        return true;
    }
    size_t most = 0; /* for the larger of both forms, one or four channels for each thread */
    for (int wide = 0; wide < 2; wide++) {
        const int64_t records[] = {s->batch, channel_blocks(s, wide != 0), lookback_tiles(s)};
        size_t form;
        if (!carry_size_product(&form, records, 3,
                                (wide ? 1 + 2 * 4 : 1 + 2) * LANES * sizeof(float) + sizeof(unsigned))) {
            return false;
        }
        most = form > most ? form : most;
    }
    return carry_size_add(bytes, most, 512);
}

carry_lane_array lane_array(const carry_scan_array *a) {
    return {a->data, (int64_t)a->item, (int)a->step, a->dtype};
}

/* Returns the number of additions and multiplications: for each element of b one multiply-add (sequential), the
   products with triangles (matmul), or one multiply-add to reduce and one to fill in. */
double flops_of(const carry_scan_work *w, carry_cuda_method method) {
    double elements = channels_of(w) * (double)w->steps;
    switch (method) {
    case CARRY_CUDA_SEQUENTIAL:
        return 2.0 * elements;
    case CARRY_CUDA_MATMUL:
        return (2.0 * 12.0 * (w->b.dtype == CARRY_F32 ? 3.0 : 2.0) + 2.0) *
               elements; /* 3 of the 4 quarters of 16 x 16 are not zero */
    default:
        return 4.0 * elements;
    }
}

carry_status run(carry_scan_work *w, carry_cuda_method method) {
    carry_diagonal d = {};
    cudaStream_t stream = (cudaStream_t)w->stream;
    bool wide = is_wide(w, method);
    d.A = lane_array(&w->A);
    d.b = lane_array(&w->b);
    d.h = lane_array(&w->h);
    d.h0 = lane_array(&w->h0);
    d.steps = w->steps;
    d.channels = (int)(w->n * w->width);
    d.width = (int)w->width;
    d.width_log2 = (w->width & (w->width - 1)) == 0 ? __builtin_ctz((unsigned)w->width) : -1;
    d.items = (int)w->batch;
    for (const carry_scan_array *a : {&w->A, &w->b, &w->h}) {
        if (a->step > CARRY_MOST_STEP || a->step < -CARRY_MOST_STEP) {
            return carry_fail(w->ctx, CARRY_ESTRIDE,
                              "steps of a diagonal scan on CUDA must be at most 2^26 elements apart");
        }
    }
    cudaError_t error = cudaSetDevice(w->gpu->ordinal);
    if (error == cudaSuccess && method == CARRY_CUDA_SEQUENTIAL) {
        error = carry_diagonal_sequential(d, wide, stream);
    } else if (error == cudaSuccess && method == CARRY_CUDA_MATMUL) {
        if (!can_be_wide(w, 8)) {
            return carry_fail(w->ctx, CARRY_EALIGN, "the matmul scans on CUDA need b and h on 16-byte boundaries");
        }
        error = carry_diagonal_matmul(d, (int)w->radix, wide, stream);
    } else if (error == cudaSuccess && method == CARRY_CUDA_LOOKBACK) {
        d.tiles = lookback_tiles(w);
        d.channel_blocks = channel_blocks(w, wide);
        size_t records = (size_t)d.tiles * (size_t)d.channel_blocks * (size_t)d.items;
        uintptr_t start = ((uintptr_t)w->workspace + 255) / 256 * 256;
        d.totals = (float *)start;
        d.flags = (unsigned *)(start + records * (wide ? 1 + 2 * 4 : 1 + 2) * LANES * sizeof(float));
        error = carry_diagonal_lookback(d, wide, stream);
    } else if (error == cudaSuccess) {
        error = carry_diagonal_segments(d, wide, method, stream);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return carry_fail(w->ctx, CARRY_EDEVICE, "CUDA device %d: a diagonal scan could not be started: %s",
                          w->gpu->ordinal, cudaGetErrorString(error));
    }
    w->products += 2 * w->batch * w->steps;
    w->flops += flops_of(w, method);
    return CARRY_OK;
}

} // namespace

const carry_cuda_family carry_cuda_diagonal = {applies, cost, workspace, run};
