/* Keys and values of a pool in 8 bits (ops/f8.h) on NVIDIA GPUs. */
#include "ops/cuda/f8.cuh"
#include "ops/cuda/nn.cuh"

/* A warp writes one head of one token. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    put_rows_f8_kernel(uint8_t *to, uint8_t *scales, row_of<T> from, const int64_t *rows, int64_t count, int heads,
                       int width) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    const int lane = (int)threadIdx.x % 32;
    if (i >= count * heads) {
        return; /* a whole warp */
    }
    const int64_t head = rows[i / heads] * heads + i % heads;
    uint32_t largest = 0;
    for (int d = lane; d < width; d += 32) {
        const uint32_t size = f8_size(from.get(i * width + d));
        largest = size > largest ? size : largest;
    }
    const uint32_t e = carry_f8_scale_of(f8_largest_of_warp(largest));
    const float inverse = carry_f8_inverse(e);
    for (int d = lane; d < width; d += 32) {
        to[head * width + d] = carry_f8_round(from.get(i * width + d) * inverse);
    }
    if (lane == 0) {
        scales[head] = (uint8_t)e;
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    take_pages_f8_kernel(row_of<T> to, const uint8_t *from, const uint8_t *scales, const int32_t *pages, int64_t count,
                         int heads, int width) {
    const int64_t step = (int64_t)gridDim.x * THREADS, each = (int64_t)heads * width;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count * each; i += step) {
        const int64_t t = i / each, at = i % each;
        const int64_t row = (int64_t)pages[t / CARRY_POOL_PAGE] * CARRY_POOL_PAGE + t % CARRY_POOL_PAGE;
        to.put(i, carry_f8_value(from[row * each + at]) * carry_f8_scale(scales[row * heads + at / width]));
    }
}

/* Four elements a thread: width is a multiple of 4, and heads begin at multiples of 4 bytes. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    take_fours_f8_kernel(row_of<T> to, const uint32_t *from, const uint8_t *scales, const int32_t *pages, int64_t count,
                         int heads, int fours) {
    const int64_t step = (int64_t)gridDim.x * THREADS, each = (int64_t)heads * fours;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count * each; i += step) {
        const int64_t t = i / each, at = i % each;
        const int64_t row = (int64_t)pages[t / CARRY_POOL_PAGE] * CARRY_POOL_PAGE + t % CARRY_POOL_PAGE;
        const float scale = carry_f8_scale(scales[row * heads + at / fours]);
        const float4 x = f8_four(from[row * each + at]);
        to.put(4 * i, x.x * scale);
        to.put(4 * i + 1, x.y * scale);
        to.put(4 * i + 2, x.z * scale);
        to.put(4 * i + 3, x.w * scale);
    }
}

extern "C" carry_status carry_cuda_put_rows_f8(carry_ctx *ctx, carry_f8_pool to, carry_tensor from,
                                               const int64_t *rows) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, from.device));
    const int64_t warps = from.shape[0] * from.shape[1];
    with_type(from.dtype, [&](auto type) {
        using T = decltype(type);
        if (warps * from.shape[2] > 0) {
            put_rows_f8_kernel<T><<<(unsigned)((warps * 32 + THREADS - 1) / THREADS), THREADS, 0, at.stream>>>(
                (uint8_t *)to.numbers.data, (uint8_t *)to.scales.data, row<T>(from), rows, from.shape[0],
                (int)from.shape[1], (int)from.shape[2]);
        }
    });
    return launched(ctx, at, "put_rows_f8 cannot be launched");
}

extern "C" carry_status carry_cuda_take_pages_f8(carry_ctx *ctx, carry_tensor to, carry_f8_pool from,
                                                 const int32_t *pages) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, to.device));
    const int64_t count = to.shape[0] * to.shape[1] * to.shape[2];
    const int heads = (int)to.shape[1], width = (int)to.shape[2];
    const uint8_t *scales = (const uint8_t *)from.scales.data;
    with_type(to.dtype, [&](auto type) {
        using T = decltype(type);
        if (count > 0 && width % 4 == 0) {
            take_fours_f8_kernel<T><<<blocks_for(count / 4, THREADS), THREADS, 0, at.stream>>>(
                row<T>(to), (const uint32_t *)from.numbers.data, scales, pages, to.shape[0], heads, width / 4);
        } else if (count > 0) {
            take_pages_f8_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
                row<T>(to), (const uint8_t *)from.numbers.data, scales, pages, to.shape[0], heads, width);
        }
    });
    return launched(ctx, at, "take_pages_f8 cannot be launched");
}
