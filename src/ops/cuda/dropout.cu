/* Dropout on a GPU: four elements share one block of the generator, as on the CPU. */
#include "ops/cuda/nn.cuh"
#include "ops/cuda/philox.cuh"

extern "C" {
#include "ops/dropout.h"
}

template <typename T>
__global__ void __launch_bounds__(THREADS) dropout_kernel(row_of<T> y, row_of<T> x, int64_t count, uint32_t bound,
                                                          float factor, uint64_t seed, uint64_t stream) {
    const int64_t blocks = (count + 3) / 4;
    for (int64_t b = (int64_t)blockIdx.x * THREADS + threadIdx.x; b < blocks; b += (int64_t)gridDim.x * THREADS) {
        uint32_t words[4];
        carry_philox_words(seed, stream, (uint64_t)b, words);
        for (int i = 0; i < 4 && 4 * b + i < count; i++) {
            y.put(4 * b + i, words[i] < bound ? 0.0f : x.get(4 * b + i) * factor);
        }
    }
}

extern "C" carry_status carry_cuda_dropout(carry_ctx *ctx, carry_tensor y, carry_tensor x, double share, uint64_t seed,
                                           uint64_t stream) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t count = carry_tensor_count(&x);
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        dropout_kernel<T><<<blocks_for((count + 3) / 4, THREADS), THREADS, 0, at.stream>>>(
            row<T>(y), row<T>(x), count, carry_dropout_bound(share), (float)(1.0 / (1.0 - share)), seed, stream);
    });
    return launched(ctx, at, "dropout cannot be launched");
}
