/* Reduces rows of several ranks to their sum or maximum, in the order of ranks as on the CPU (collectives.c), so
   that the bits are the same. */
#include <cuda_bf16.h>

#include "device/cuda.h"

extern "C" {
#include "comm/backend.h"
}

namespace {

constexpr int THREADS = 256;

__device__ float joined(float a, float b, bool adds) {
    return adds ? a + b : b > a || isnan(b) ? b : a;
}

__device__ double joined(double a, double b, bool adds) {
    return adds ? a + b : b > a || isnan(b) ? b : a;
}

__device__ int64_t joined(int64_t a, int64_t b, bool adds) {
    return adds ? (int64_t)((uint64_t)a + (uint64_t)b) : b > a ? b : a;
}

__device__ __nv_bfloat16 joined(__nv_bfloat16 a, __nv_bfloat16 b, bool adds) {
    return __float2bfloat16(joined(__bfloat162float(a), __bfloat162float(b), adds));
}

template <typename T> __global__ void reduce_rows(T *rows, int size, int64_t count, bool adds) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        T value = rows[i];
        for (int r = 1; r < size; r++) {
            value = joined(value, rows[r * count + i], adds);
        }
        rows[i] = value;
    }
}

template <typename T> void launch(void *rows, int size, int64_t count, bool adds, cudaStream_t stream) {
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    reduce_rows<T><<<(unsigned)(blocks < 2048 ? blocks : 2048), THREADS, 0, stream>>>((T *)rows, size, count, adds);
}

} // namespace

extern "C" carry_status carry_comm_reduce_rows_on_gpu(carry_ctx *ctx, int device, void *rows, int size, int64_t count,
                                                      carry_dtype type, carry_reduce reduce) {
    int ordinal = 0;
    const bool adds = reduce == CARRY_REDUCE_SUM;
    cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, device);
    (void)carry_backend_of(device, &ordinal);
    if (count == 0) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    switch (type) {
    case CARRY_F32:
        launch<float>(rows, size, count, adds, stream);
        break;
    case CARRY_F64:
        launch<double>(rows, size, count, adds, stream);
        break;
    case CARRY_I64:
        launch<int64_t>(rows, size, count, adds, stream);
        break;
    case CARRY_BF16:
        launch<__nv_bfloat16>(rows, size, count, adds, stream);
        break;
    default: /* refused before */
        break;
    }
    CARRY_CUDA_TRY(cudaGetLastError(), "a reduction cannot be started");
    return CARRY_OK;
}
