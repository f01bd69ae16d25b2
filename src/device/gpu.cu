/* Measures the rates of a GPU that cost models need. Each is the best of a few short runs between two events.

   Memory: a copy far larger than the L2, by a kernel or by CUDA, whichever is faster. L2: a kernel's copy of an eighth
   of its size to another eighth, at shifted addresses, so that the first level of cache cannot help. Launch: a chain of
   empty kernels in a graph. Barrier: barriers of a grid with one block per multiprocessor. Latency: a chain of
   dependent loads over memory that was just evicted from the L2. Products: loops of multiply-adds into independent
   sums. If a measurement fails, the estimate from clock and width is kept. */
#include <cooperative_groups.h>
#include <stdint.h>

#include "device/cuda.h"

extern "C" {
#include "core/context.h"
}

constexpr int THREADS = 256;
constexpr int LAUNCHES = 64;
constexpr int BARRIERS = 64;
constexpr int HOPS = 1024;
constexpr int HOP_BYTES = 98432; /* not a power of two, so that hops spread over the memory channels */
constexpr int PASSES = 16;
constexpr int CHAINS = 8; /* independent sums per thread */
constexpr int REPEATS = 3;

typedef struct rig {
    cudaStream_t stream;
    cudaEvent_t from, to;
    char *data; /* two halves: read, written */
    size_t half;
} rig;

/* In each pass, copies element i + pass * shift, wrapping around, so that a multiprocessor reads what another one
   copied in the pass before. */
__global__ void copy_kernel(uint4 *to, const uint4 *from, size_t count, int passes, size_t shift) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int pass = 0; pass < passes; pass++) {
        size_t offset = (size_t)pass * shift % count;
        for (size_t i = first; i < count; i += 4 * step) {
            uint4 held[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                size_t at = i + (size_t)j * step + offset;
                if (i + (size_t)j * step < count) {
                    held[j] = __ldcg(&from[at < count ? at : at - count]);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                size_t at = i + (size_t)j * step + offset;
                if (i + (size_t)j * step < count) {
                    __stcg(&to[at < count ? at : at - count], held[j]);
                }
            }
        }
    }
}

__global__ void empty_kernel() {
}

__global__ void barrier_kernel(int barriers) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    for (int i = 0; i < barriers; i++) {
        grid.sync();
    }
}

/* Hop i leads to hop (5 i + 1) % HOPS. HOPS is a power of two, so this is one cycle through all hops, in an order that
   a prefetcher cannot predict. */
__global__ void chain_kernel(char *data) {
    for (unsigned i = threadIdx.x; i < HOPS; i += blockDim.x) {
        *(unsigned *)(data + (size_t)i * HOP_BYTES) = (i * 5u + 1u) % HOPS;
    }
}

__global__ void chase_kernel(const char *data, unsigned *last) {
    unsigned at = 0;
    for (int i = 0; i < HOPS; i++) {
        at = __ldcg((const unsigned *)(data + (size_t)at * HOP_BYTES));
    }
    *last = at;
}

__global__ void tensor_kernel(float *to, int rounds) {
    float sum[CHAINS][4] = {};
    unsigned a[4] = {threadIdx.x, 0, threadIdx.x, 0};
    unsigned b[2] = {threadIdx.x, 0};
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int j = 0; j < CHAINS; j++) {
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        }
    }
    float all = 0.0f;
    for (int j = 0; j < CHAINS; j++) {
        all += sum[j][0] + sum[j][1] + sum[j][2] + sum[j][3];
    }
    to[blockIdx.x * blockDim.x + threadIdx.x] = all;
}

__global__ void plain_kernel(float *to, int rounds, float factor) {
    float sum[2 * CHAINS];
    for (int j = 0; j < 2 * CHAINS; j++) {
        sum[j] = (float)(threadIdx.x + j);
    }
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int j = 0; j < 2 * CHAINS; j++) {
            sum[j] = fmaf(sum[j], factor, 1.0f);
        }
    }
    float all = 0.0f;
    for (int j = 0; j < 2 * CHAINS; j++) {
        all += sum[j];
    }
    to[blockIdx.x * blockDim.x + threadIdx.x] = all;
}

/* Returns the seconds of the fastest of REPEATS runs after one to warm up; 0 if something failed. `before` runs
   outside the timed part. */
template <typename Before, typename Work> static double seconds_of(const rig *r, Before before, Work work) {
    double best = 0.0;
    for (int i = 0; i <= REPEATS; i++) {
        float milliseconds = 0.0f;
        before();
        (void)cudaEventRecord(r->from, r->stream);
        work();
        (void)cudaEventRecord(r->to, r->stream);
        if (cudaGetLastError() != cudaSuccess || cudaEventSynchronize(r->to) != cudaSuccess ||
            cudaEventElapsedTime(&milliseconds, r->from, r->to) != cudaSuccess) {
            (void)cudaGetLastError();
            return 0.0;
        }
        double seconds = 1e-3 * (double)milliseconds;
        best = i == 1 || (i > 1 && seconds < best) ? seconds : best;
    }
    return best;
}

static void nothing() {
}

static void measure_copies(const rig *r, carry_gpu *gpu) {
    size_t count = r->half / sizeof(uint4);
    uint4 *from = (uint4 *)r->data;
    uint4 *to = (uint4 *)(r->data + r->half);
    unsigned blocks = (unsigned)gpu->units * 8u;
    (void)cudaMemsetAsync(r->data, 0, r->half, r->stream);
    double seconds =
        seconds_of(r, nothing, [&] { copy_kernel<<<blocks, THREADS, 0, r->stream>>>(to, from, count, 1, 0); });
    double others =
        seconds_of(r, nothing, [&] { (void)cudaMemcpyAsync(to, from, r->half, cudaMemcpyDeviceToDevice, r->stream); });
    if (others > 0.0 && (seconds == 0.0 || others < seconds)) {
        seconds = others;
    }
    if (seconds > 0.0) {
        gpu->copy_bytes_s = 2.0 * (double)r->half / seconds;
    }
    size_t inside = gpu->cache / 8 / sizeof(uint4);
    inside = inside < count ? inside : count;
    seconds = seconds_of(
        r, nothing, [&] { copy_kernel<<<blocks, THREADS, 0, r->stream>>>(to, from, inside, PASSES, 3 * THREADS * 4); });
    if (seconds > 0.0 && inside > 0) {
        double rate = 2.0 * PASSES * (double)(inside * sizeof(uint4)) / seconds;
        gpu->cache_bytes_s = rate > gpu->copy_bytes_s ? rate : gpu->copy_bytes_s;
    }
}

static void measure_launch(const rig *r, carry_gpu *gpu) {
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t ready = NULL;
    if (cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess) {
        for (int i = 0; i < LAUNCHES; i++) {
            empty_kernel<<<1, 32, 0, r->stream>>>();
        }
        if (cudaStreamEndCapture(r->stream, &recorded) == cudaSuccess &&
            cudaGraphInstantiate(&ready, recorded, 0) == cudaSuccess) {
            double seconds = seconds_of(r, nothing, [&] { (void)cudaGraphLaunch(ready, r->stream); });
            gpu->launch_s = seconds > 0.0 ? seconds / LAUNCHES : gpu->launch_s;
        }
    }
    if (ready != NULL) {
        (void)cudaGraphExecDestroy(ready);
    }
    if (recorded != NULL) {
        (void)cudaGraphDestroy(recorded);
    }
    (void)cudaGetLastError();
}

/* Subtracts the time of a kernel without barriers from that of one with barriers. */
static void measure_barrier(const rig *r, carry_gpu *gpu) {
    double seconds[2];
    for (int which = 0; which < 2; which++) {
        int barriers = which * BARRIERS;
        void *arguments[] = {&barriers};
        seconds[which] = seconds_of(r, nothing, [&] {
            (void)cudaLaunchCooperativeKernel((const void *)barrier_kernel, dim3((unsigned)gpu->units), dim3(THREADS),
                                              arguments, 0, r->stream);
        });
    }
    if (seconds[0] > 0.0 && seconds[1] > seconds[0]) {
        gpu->barrier_s = (seconds[1] - seconds[0]) / BARRIERS;
    }
}

static void measure_latency(const rig *r, carry_gpu *gpu) {
    if (r->half < (size_t)HOPS * HOP_BYTES) {
        return;
    }
    unsigned *last = (unsigned *)(r->data + r->half);
    chain_kernel<<<1, THREADS, 0, r->stream>>>(r->data);
    double seconds = seconds_of(
        r, [&] { (void)cudaMemsetAsync(r->data + r->half, 0, r->half, r->stream); },
        [&] { chase_kernel<<<1, 1, 0, r->stream>>>(r->data, last); });
    gpu->latency_s = seconds > 0.0 ? seconds / HOPS : gpu->latency_s;
}

static void measure_products(const rig *r, carry_gpu *gpu) {
    constexpr int BLOCKS = 4;
    constexpr int TENSOR_ROUNDS = 1000;
    constexpr int PLAIN_ROUNDS = 1000;
    unsigned blocks = (unsigned)gpu->units * BLOCKS;
    double threads = (double)blocks * THREADS;
    float *to = (float *)r->data;
    double seconds =
        seconds_of(r, nothing, [&] { tensor_kernel<<<blocks, THREADS, 0, r->stream>>>(to, TENSOR_ROUNDS); });
    if (seconds > 0.0) {
        gpu->tensor_flops_s = threads / 32.0 * CHAINS * TENSOR_ROUNDS * (2.0 * 16 * 8 * 16) / seconds;
    }
    seconds = seconds_of(r, nothing, [&] { plain_kernel<<<blocks, THREADS, 0, r->stream>>>(to, PLAIN_ROUNDS, 0.5f); });
    if (seconds > 0.0) {
        gpu->plain_flops_s = threads * (2 * CHAINS) * PLAIN_ROUNDS * 2.0 / seconds;
    }
}

/* Estimates from typical values of such GPUs per unit and clock; latencies are those of an H100. */
static void estimate(const carry_device_properties *p, carry_gpu *gpu) {
    double clock = p->clock_hz > 0.0 ? p->clock_hz : 1.5e9;
    gpu->units = p->units;
    gpu->shared_bytes = p->shared;
    gpu->cache = p->cache;
    gpu->copy_bytes_s = 0.85 * (p->memory_bytes_s > 0.0 ? p->memory_bytes_s : 1e12);
    gpu->cache_bytes_s = 2.0 * gpu->copy_bytes_s;
    gpu->launch_s = 1.5e-6;
    gpu->barrier_s = 1.5e-6;
    gpu->latency_s = 0.7e-6;
    gpu->tensor_flops_s = clock * p->units * 2048.0;
    gpu->plain_flops_s = clock * p->units * 256.0;
}

/* Returns the size of the source, and of the destination, of the copy that is measured: 2 GiB if more than 16 GiB are
   free, so that the start and end of the copy do not count (1 GB: 4.18 TB/s; 256 MB: 3.8). Otherwise 256 MiB or 4 times
   the L2, whichever is larger. */
static size_t half_of(size_t cache) {
    constexpr size_t LARGE = (size_t)2 << 30;
    constexpr size_t SMALL = (size_t)256 << 20;
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess && free > 8 * LARGE) {
        return LARGE;
    }
    (void)cudaGetLastError();
    return 4 * cache > SMALL ? 4 * cache : SMALL;
}

static bool rig_open(rig *r, carry_ctx *ctx, int ordinal, size_t cache) {
    *r = {};
    if (cudaSetDevice(ordinal) != cudaSuccess ||
        cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreate(&r->from) != cudaSuccess || cudaEventCreate(&r->to) != cudaSuccess) {
        return false;
    }
    size_t half = half_of(cache);
    for (; half >= 2 * cache && half >= ((size_t)16 << 20); half /= 2) {
        void *data;
        if (cudaMalloc(&data, 2 * half) == cudaSuccess) {
            r->data = (char *)data;
            r->half = half / 256 * 256;
            return true;
        }
        (void)cudaGetLastError();
    }
    carry_log(ctx, CARRY_LOG_WARNING,
              "CUDA device %d has too little memory free to be measured: its rates are estimated", ordinal);
    return false;
}

static void rig_close(rig *r) {
    (void)cudaFree(r->data);
    if (r->from != NULL) {
        (void)cudaEventDestroy(r->from);
    }
    if (r->to != NULL) {
        (void)cudaEventDestroy(r->to);
    }
    if (r->stream != NULL) {
        (void)cudaStreamDestroy(r->stream);
    }
    (void)cudaGetLastError();
}

extern "C" carry_status carry_cuda_measure(carry_ctx *ctx, int ordinal, carry_gpu *gpu) {
    rig r;
    carry_device_properties properties{};
    properties.size = sizeof properties;
    CARRY_TRY(carry_device_properties_of(ctx, &properties, gpu->device));
    estimate(&properties, gpu);
    if (rig_open(&r, ctx, ordinal, gpu->cache)) {
        measure_products(&r, gpu); /* first, to raise the clock */
        measure_copies(&r, gpu);
        measure_launch(&r, gpu);
        measure_barrier(&r, gpu);
        measure_latency(&r, gpu);
        (void)cudaStreamSynchronize(r.stream);
    }
    rig_close(&r);
    carry_log(ctx, CARRY_LOG_INFO,
              "CUDA device %d: copies at %.0f GB/s, in cache %.0f GB/s; launch %.2f us, barrier %.2f us, load %.2f us; "
              "tensor %.0f and plain %.1f TFLOP/s",
              ordinal, 1e-9 * gpu->copy_bytes_s, 1e-9 * gpu->cache_bytes_s, 1e6 * gpu->launch_s, 1e6 * gpu->barrier_s,
              1e6 * gpu->latency_s, 1e-12 * gpu->tensor_flops_s, 1e-12 * gpu->plain_flops_s);
    return CARRY_OK;
}
