/* Kernels of comm/sums.h, except the wait (sums_system.cu). */
#include <cuda_bf16.h>

#include "device/cuda.h"

extern "C" {
#include "comm/sums_device.h"
}

namespace {

constexpr int THREADS = 512, BLOCKS = 264;

__host__ __device__ carry_sums_state *state_of(const carry_sums_device &d, int rank) {
    return (carry_sums_state *)d.memory[rank];
}

__device__ char *buffer_of(const carry_sums_device &d, int rank, unsigned long long round) {
    return (char *)d.memory[rank] + CARRY_SUMS_HEAD + (round & 1) * d.bytes;
}

__device__ float value_of(float x) {
    return x;
}

__device__ float value_of(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

__device__ float rounded(float x, const float *) {
    return x;
}

__device__ __nv_bfloat16 rounded(float x, const __nv_bfloat16 *) {
    return __float2bfloat16(x);
}

/* N elements that are loaded and stored at once. */
template <typename T, int N> struct alignas(N * sizeof(T)) pack { T x[N]; };

/* Adds in the order of ranks and rounds after each addition, as reduce.c does. */
template <typename T, int N>
__device__ pack<T, N> sum(const carry_sums_device &d, const pack<T, N> &own, unsigned long long round, int64_t i) {
    pack<T, N> total = d.rank == 0 ? own : ((const pack<T, N> *)buffer_of(d, 0, round))[i];
    for (int r = 1; r < d.ranks; r++) {
        const pack<T, N> more = r == d.rank ? own : ((const pack<T, N> *)buffer_of(d, r, round))[i];
        for (int k = 0; k < N; k++) {
            total.x[k] = rounded(value_of(total.x[k]) + value_of(more.x[k]), (const T *)0);
        }
    }
    return total;
}

__device__ void raise(const carry_sums_device &d, int flag, unsigned long long round) {
    for (int r = 0; r < d.ranks; r++) {
        *(volatile unsigned long long *)&state_of(d, r)->flag[flag][d.rank] = round;
    }
}

/* The last block to finish raises the flag, after the writes of all blocks are visible to the other ranks. */
__device__ void finish(const carry_sums_device &d, int flag, unsigned long long round) {
    __syncthreads();
    if (threadIdx.x == 0) {
        carry_sums_state *state = state_of(d, d.rank);
        __threadfence_system();
        if (atomicAdd(&state->blocks, 1u) == gridDim.x - 1) {
            state->blocks = 0;
            state->round = round;
            __threadfence_system();
            raise(d, flag, round);
        }
    }
}

template <typename T, int N>
__global__ void publish(const __grid_constant__ carry_sums_device d, const T *data, int64_t packs) {
    const unsigned long long round = state_of(d, d.rank)->round + 1;
    pack<T, N> *to = (pack<T, N> *)buffer_of(d, d.rank, round);
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += step) {
        to[i] = ((const pack<T, N> *)data)[i];
    }
    finish(d, 0, round);
}

__device__ int64_t begin_of(int64_t packs, int ranks, int rank) {
    return packs / ranks * rank + (rank < packs % ranks ? rank : packs % ranks);
}

/* Adds all elements. With more than two ranks it adds only this rank's slice, which the other ranks then copy from its
   buffer. */
template <typename T, int N> __global__ void add(const __grid_constant__ carry_sums_device d, T *data, int64_t packs) {
    const unsigned long long round = state_of(d, d.rank)->round;
    const bool is_slice = d.ranks > 2;
    const int64_t begin = is_slice ? begin_of(packs, d.ranks, d.rank) : 0;
    const int64_t end = is_slice ? begin_of(packs, d.ranks, d.rank + 1) : packs;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    pack<T, N> *own = (pack<T, N> *)data;
    for (int64_t i = begin + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        own[i] = sum<T, N>(d, own[i], round, i);
        if (is_slice) {
            ((pack<T, N> *)buffer_of(d, d.rank, round))[i] = own[i];
        }
    }
    if (is_slice) {
        finish(d, 1, round);
    }
}

template <typename T, int N>
__global__ void gather(const __grid_constant__ carry_sums_device d, T *data, int64_t packs) {
    const unsigned long long round = state_of(d, d.rank)->round;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int k = 1; k < d.ranks; k++) {
        const int r = (d.rank + k) % d.ranks;
        const pack<T, N> *from = (const pack<T, N> *)buffer_of(d, r, round);
        const int64_t end = begin_of(packs, d.ranks, r + 1);
        for (int64_t i = begin_of(packs, d.ranks, r) + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end;
             i += step) {
            ((pack<T, N> *)data)[i] = from[i];
        }
    }
}

template <typename T, int N>
cudaError_t launch(const carry_sums_device &d, T *data, int64_t packs, cudaStream_t stream) {
    const int64_t wanted = (packs + THREADS - 1) / THREADS;
    const unsigned blocks = (unsigned)(wanted < 1 ? 1 : wanted < BLOCKS ? wanted : BLOCKS);
    publish<T, N><<<blocks, THREADS, 0, stream>>>(d, data, packs);
    int error = carry_sums_wait(&d, 0, stream);
    add<T, N><<<blocks, THREADS, 0, stream>>>(d, data, packs);
    if (d.ranks > 2) {
        error = error != 0 ? error : carry_sums_wait(&d, 1, stream);
        gather<T, N><<<blocks, THREADS, 0, stream>>>(d, data, packs);
    }
    return error != 0 ? (cudaError_t)error : cudaGetLastError();
}

template <typename T> cudaError_t choose(const carry_sums_device &d, T *data, int64_t count, cudaStream_t stream) {
    constexpr int N = 16 / sizeof(T);
    return (uintptr_t)data % 16 == 0 && count % N == 0 ? launch<T, N>(d, data, count / N, stream)
                                                       : launch<T, 1>(d, data, count, stream);
}

template <typename T, int N> cudaError_t load_kernels() {
    cudaFuncAttributes loaded;
    cudaError_t error = cudaFuncGetAttributes(&loaded, publish<T, N>);
    error = error != cudaSuccess ? error : cudaFuncGetAttributes(&loaded, add<T, N>);
    return error != cudaSuccess ? error : cudaFuncGetAttributes(&loaded, gather<T, N>);
}

/* Loads all kernels in advance. CUDA loads a kernel at its first launch, which may wait for all work on the device:
   that must not happen while a kernel waits for another rank. */
cudaError_t load_all() {
    cudaError_t error = load_kernels<float, 4>();
    error = error != cudaSuccess ? error : load_kernels<float, 1>();
    error = error != cudaSuccess ? error : load_kernels<__nv_bfloat16, 8>();
    return error != cudaSuccess ? error : load_kernels<__nv_bfloat16, 1>();
}

} // namespace

extern "C" carry_status carry_sums_alloc(carry_ctx *ctx, void **memory, int ordinal, const int *ordinals, int ranks,
                                         size_t bytes) {
    static_assert(sizeof(carry_sums_state) <= CARRY_SUMS_HEAD, "the state fits before the buffers");
    *memory = NULL;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    for (int r = 0; r < ranks; r++) {
        if (carry_sums_reach(ordinal, ordinals[r]) != 0) {
            (void)cudaGetLastError();
            return carry_fail(ctx, CARRY_EUNSUPPORTED, "CUDA device %d cannot read the memory of device %d", ordinal,
                              ordinals[r]);
        }
    }
    CARRY_CUDA_TRY(load_all(), "kernels for sums over ranks cannot be loaded");
    CARRY_CUDA_TRY(cudaMalloc(memory, bytes), "out of memory: sums over ranks");
    CARRY_CUDA_TRY(cudaMemset(*memory, 0, bytes), "memory for sums cannot be zeroed");
    CARRY_CUDA_TRY(cudaDeviceSynchronize(), "memory for sums cannot be zeroed");
    return CARRY_OK;
}

extern "C" void carry_sums_free(int ordinal, void *memory) {
    if (memory != NULL && cudaSetDevice(ordinal) == cudaSuccess) {
        (void)cudaFree(memory);
    }
    (void)cudaGetLastError();
}

extern "C" carry_status carry_sums_enqueue(carry_ctx *ctx, const carry_sums_device *d, void *data, int64_t count,
                                           carry_dtype type, carry_stream *stream) {
    const int ordinal = d->ordinal;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(type == CARRY_BF16 ? choose(*d, (__nv_bfloat16 *)data, count, (cudaStream_t)stream)
                                      : choose(*d, (float *)data, count, (cudaStream_t)stream),
                   "a sum over ranks cannot be started");
    return CARRY_OK;
}
