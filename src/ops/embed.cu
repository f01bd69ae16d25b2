/* Rows of a table by number on NVIDIA GPUs, and back.

   Backward, a warp has a row of the table and up to 1024 of its columns in registers: it looks through all ids, 32 at a
   time, and adds the rows of those that are its own, in the order of tokens, so the sums are those of embed.c. */
#include <math.h>

#include "ops/nn.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int EACH = 32; /* columns of a lane */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(row_of<T> y, mixed table, const int64_t *ids, int64_t tokens, int64_t n, int64_t vocabulary) {
    for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        const int64_t id = ids[t];
        const bool known = id >= 0 && id < vocabulary;
        for (int64_t i = threadIdx.x; i < n; i += THREADS) {
            y.put(t * n + i, known ? table[id * n + i] : NAN);
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    scatter_kernel(float *table, row_of<T> dy, const int64_t *ids, int64_t tokens, int64_t n, int64_t vocabulary) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.y * (32 * EACH) + lane;
    float sum[EACH];
    bool touched = false;
    if (row >= vocabulary) {
        return;
    }
    for (int64_t first = 0; first < tokens; first += 32) {
        bool mine = first + lane < tokens && ids[first + lane] == row;
        for (unsigned left = __ballot_sync(0xffffffffu, mine); left != 0; left &= left - 1) {
            const int64_t t = first + __ffs((int)left) - 1;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const int64_t at = column + j * 32;
                if (at < n) {
                    sum[j] = (touched ? sum[j] : table[row * n + at]) + dy.get(t * n + at);
                }
            }
            touched = true;
        }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (touched && column + j * 32 < n) {
            table[row * n + column + j * 32] = sum[j];
        }
    }
}

extern "C" carry_status carry_cuda_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, carry_tensor ids) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, y.device));
    if (carry_tensor_count(&y) == 0) {
        return CARRY_OK;
    }
    with_type(y.dtype, [&](auto type) {
        using T = decltype(type);
        gather_kernel<T><<<blocks_for(y.shape[0], 1), THREADS, 0, at.stream>>>(
            row<T>(y), mixed_of(table), (const int64_t *)ids.data, y.shape[0], y.shape[1], table.shape[0]);
    });
    return launched(ctx, at, "embed cannot be launched");
}

extern "C" carry_status carry_cuda_embed_backward(carry_ctx *ctx, carry_tensor dtable, carry_tensor dy,
                                                  carry_tensor ids) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, dy.device));
    const int64_t tokens = dy.shape[0], n = dy.shape[1], vocabulary = dtable.shape[0];
    if (tokens == 0 || n == 0 || vocabulary == 0) {
        return CARRY_OK;
    }
    const dim3 grid((unsigned)((vocabulary + WARPS - 1) / WARPS), (unsigned)((n + 32 * EACH - 1) / (32 * EACH)));
    with_type(dy.dtype, [&](auto type) {
        using T = decltype(type);
        scatter_kernel<T><<<grid, THREADS, 0, at.stream>>>((float *)dtable.data, row<T>(dy), (const int64_t *)ids.data,
                                                           tokens, n, vocabulary);
    });
    return launched(ctx, at, "embed_backward cannot be launched");
}
