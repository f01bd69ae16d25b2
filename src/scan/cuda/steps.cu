/* Copies steps from one type and layout to another. */
#include <stdint.h>

extern "C" {
#include "core/error.h"
}
#include "scan/cuda/cuda_types.cuh"

namespace {

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS)
    copy_steps(carry_scan_array to, carry_scan_array from, int64_t steps, int64_t size, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t step = i / size;
        int64_t at = i - step * size;
        int64_t item = step / steps;
        step -= item * steps;
        float x = carry_load_any(from.data, from.dtype, item * from.item + step * from.step + at);
        carry_store_any(to.data, to.dtype, item * to.item + step * to.step + at, x);
    }
}

} // namespace

carry_status carry_cuda_copy_steps(carry_ctx *ctx, const carry_gpu *gpu, carry_stream *stream, carry_scan_array to,
                                   carry_scan_array from, int64_t batch, int64_t steps, int64_t size) {
    int64_t count = batch * steps * size;
    int64_t blocks = (count + THREADS - 1) / THREADS;
    int64_t most = (int64_t)gpu->units * 16;
    cudaError_t error = cudaSetDevice(gpu->ordinal);
    if (error == cudaSuccess) {
        copy_steps<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, (cudaStream_t)stream>>>(to, from, steps,
                                                                                                    size, count);
        error = cudaGetLastError();
    }
    return error == cudaSuccess
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDEVICE, "CUDA device %d: a copy of steps could not be started: %s",
                            gpu->ordinal, cudaGetErrorString(error));
}
