/* Rotary positions of halves on NVIDIA GPUs: a thread rotates one pair, or copies one element that is not rotated.
   Also copies columns between rows. */
#include "ops/cuda/nn.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS)
    rotary_halves_kernel(row_of<T> y, row_of<T> x, const float2 *table, int64_t units, int64_t heads, int64_t size,
                         int64_t half, float sign) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    int64_t of_head = size - half; /* pairs, and elements past them */
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < units; i += step) {
        int64_t row = i / of_head;
        int64_t at = i % of_head;
        int64_t first = row * size + at;
        if (at >= half) {
            y.put(first + half, x.get(first + half));
            continue;
        }
        float2 turn = table[row / heads * half + at];
        float a = x.get(first);
        float b = x.get(first + half);
        float s = sign * turn.y;
        y.put(first, a * turn.x - b * s);
        y.put(first + half, b * turn.x + a * s);
    }
}

extern "C" carry_status carry_cuda_rotary_halves(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table,
                                                 bool inverse) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    int64_t half = table.shape[1];
    int64_t units = x.shape[0] * x.shape[1] * (x.shape[2] - half);
    if (units == 0) {
        return CARRY_OK;
    }
    if ((uintptr_t)table.data % sizeof(float2) != 0) {
        return carry_fail(ctx, CARRY_EALIGN, "table is at an address that is not a multiple of 8, which a GPU needs");
    }
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        rotary_halves_kernel<T><<<blocks_for(units, THREADS), THREADS, 0, at.stream>>>(
            row<T>(y), row<T>(x), (const float2 *)table.data, units, x.shape[1], x.shape[2], half,
            inverse ? -1.0f : 1.0f);
    });
    return launched(ctx, at, "rotary_halves cannot be launched");
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    copy_columns_kernel(row_of<T> to, row_of<T> from, int64_t count, int64_t width, int64_t into, int64_t to_row,
                        int64_t first, int64_t from_row) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        to.put(i / width * to_row + into + i % width, from.get(i / width * from_row + first + i % width));
    }
}

extern "C" carry_status carry_cuda_copy_columns(carry_ctx *ctx, carry_tensor to, int64_t into, carry_tensor from,
                                                int64_t first, int64_t width) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, from.device));
    int64_t count = from.shape[0] * width;
    if (count == 0) {
        return CARRY_OK;
    }
    with_type(from.dtype, [&](auto type) {
        using T = decltype(type);
        copy_columns_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
            row<T>(to), row<T>(from), count, width, into, to.shape[1], first, from.shape[1]);
    });
    return launched(ctx, at, "copy_columns cannot be launched");
}
