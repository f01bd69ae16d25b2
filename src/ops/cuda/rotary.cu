/* Rotary positions on NVIDIA GPUs: a thread rotates one pair. */
#include "ops/cuda/nn.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS) rotary_kernel(row_of<T> y, row_of<T> x, const float2 *table, int64_t pairs,
                                                         int64_t heads, int64_t half, float sign) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < pairs; i += step) {
        int64_t row = i / half;
        float2 turn = table[row / heads * half + i % half];
        float a = x.get(2 * i);
        float b = x.get(2 * i + 1);
        float s = sign * turn.y;
        y.put(2 * i, a * turn.x - b * s);
        y.put(2 * i + 1, a * s + b * turn.x);
    }
}

extern "C" carry_status carry_cuda_rotary(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table,
                                          bool inverse) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    int64_t pairs = carry_tensor_count(&x) / 2;
    if (pairs == 0) {
        return CARRY_OK;
    }
    if ((uintptr_t)table.data % sizeof(float2) != 0) {
        return carry_fail(ctx, CARRY_EALIGN, "table is at an address that is not a multiple of 8, which a GPU needs");
    }
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        rotary_kernel<T><<<blocks_for(pairs, THREADS), THREADS, 0, at.stream>>>(
            row<T>(y), row<T>(x), (const float2 *)table.data, pairs, x.shape[1], x.shape[2] / 2,
            inverse ? -1.0f : 1.0f);
    });
    return launched(ctx, at, "rotary cannot be launched");
}
