/* Softmax of scores with a bias by distance on NVIDIA GPUs: a warp has a row, and reads it three times. */
#include "ops/cuda/nn.cuh"

static __device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    return value;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    relative_softmax_kernel(row_of<T> p, const float *scores, const float *bias, int64_t rows, int64_t queries,
                            int64_t all, int64_t keys) {
    const int lane = threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < rows; row += step) {
        const float *s = scores + row * all;
        const float *b = bias + row / queries * (queries + all - 1) + (queries - 1 - row % queries);
        float largest = -INFINITY, sum = 0.0f;
        for (int64_t i = lane; i < keys; i += 32) {
            largest = fmaxf(largest, s[i] + b[i]);
        }
        largest = warp_largest(largest);
        for (int64_t i = lane; i < keys; i += 32) {
            sum += expf(s[i] + b[i] - largest);
        }
        sum = 1.0f / warp_sum(sum);
        for (int64_t i = lane; i < all; i += 32) { /* p may be scores: each element is read before it is written */
            p.put(row * all + i, i < keys ? expf(s[i] + b[i] - largest) * sum : 0.0f);
        }
    }
}

extern "C" carry_status carry_cuda_relative_softmax(carry_ctx *ctx, carry_tensor p, carry_tensor scores,
                                                    carry_tensor bias, int64_t keys) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, scores.device));
    const int64_t rows = scores.shape[0] * scores.shape[1];
    if (rows == 0) {
        return CARRY_OK;
    }
    with_type(p.dtype, [&](auto type) {
        using T = decltype(type);
        relative_softmax_kernel<T><<<blocks_for(rows, THREADS / 32), THREADS, 0, at.stream>>>(
            row<T>(p), (const float *)scores.data, (const float *)bias.data, rows, scores.shape[1], scores.shape[2],
            keys);
    });
    return launched(ctx, at, "relative_softmax cannot be launched");
}
