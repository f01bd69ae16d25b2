/* Rotary positions of halves on NVIDIA GPUs: a thread rotates one pair, or copies one element that is not rotated; or
   eight of them at once where sizes and addresses allow it. Also copies columns between rows. */
#include "ops/cuda/wide.cuh"

/* The same as rotary_halves_kernel by vectors: size and half are multiples of ONCE. units: vectors of pairs and, unless
   y is x, vectors that are only copied. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    rotary_wide_kernel(row_of<T> y, row_of<T> x, const float2 *table, int64_t units, unsigned of_head, unsigned heads,
                       int64_t size, int64_t half, float sign) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    const unsigned pairs = (unsigned)(half / ONCE);
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < units; i += step) {
        const int64_t row = i / of_head;
        const unsigned at = (unsigned)(i - row * of_head);
        const int64_t first = row * size + (int64_t)at * ONCE;
        if (at >= pairs) {
            *(several<T, ONCE> *)(y.data + first + half) = *(const several<T, ONCE> *)(x.data + first + half);
            continue;
        }
        const float4 *turns = (const float4 *)(table + row / heads * half + (int64_t)at * ONCE);
        const packed<T, ONCE> low = load_packed<T, ONCE>(x.data + first);
        const packed<T, ONCE> high = load_packed<T, ONCE>(x.data + first + half);
        float a[ONCE], b[ONCE];
#pragma unroll
        for (int j = 0; j < ONCE; j += 2) {
            const float4 turn = turns[j / 2];
            const float s = sign * turn.y, t = sign * turn.w;
            const float p = element_of<T, ONCE>(low, j), q = element_of<T, ONCE>(high, j);
            const float u = element_of<T, ONCE>(low, j + 1), v = element_of<T, ONCE>(high, j + 1);
            a[j] = p * turn.x - q * s;
            b[j] = q * turn.x + p * s;
            a[j + 1] = u * turn.z - v * t;
            b[j + 1] = v * turn.z + u * t;
        }
        store_all<T, ONCE>(y.data + first, a);
        store_all<T, ONCE>(y.data + first + half, b);
    }
}

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
    const int64_t size = x.shape[2], rows = x.shape[0] * x.shape[1];
    const bool wide = size % ONCE == 0 && half % ONCE == 0 && is_aligned(x.data) && is_aligned(y.data) &&
                      is_aligned(table.data) && size <= INT32_MAX && x.shape[1] <= INT32_MAX;
    const int64_t of_head = (x.data == y.data ? half : size - half) / ONCE;
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        if (wide && of_head > 0) {
            rotary_wide_kernel<T><<<blocks_for(rows * of_head, THREADS), THREADS, 0, at.stream>>>(
                row<T>(y), row<T>(x), (const float2 *)table.data, rows * of_head, (unsigned)of_head,
                (unsigned)x.shape[1], size, half, inverse ? -1.0f : 1.0f);
            return;
        }
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

/* Copies `count` pieces of 16 bytes; widths, offsets and rows are in pieces. */
__global__ void __launch_bounds__(THREADS)
    copy_pieces_kernel(uint4 *to, const uint4 *from, int64_t count, unsigned width, int64_t to_row, int64_t from_row) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const int64_t row = i / width;
        const unsigned at = (unsigned)(i - row * width);
        to[row * to_row + at] = from[row * from_row + at];
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
    const int64_t each = 16 / (int64_t)carry_dtype_size(from.dtype);
    if (width % each == 0 && into % each == 0 && first % each == 0 && to.shape[1] % each == 0 &&
        from.shape[1] % each == 0 && width / each <= INT32_MAX && is_aligned(to.data) && is_aligned(from.data)) {
        const int64_t pieces = count / each;
        copy_pieces_kernel<<<blocks_for(pieces, THREADS), THREADS, 0, at.stream>>>(
            (uint4 *)to.data + into / each, (const uint4 *)from.data + first / each, pieces, (unsigned)(width / each),
            to.shape[1] / each, from.shape[1] / each);
        return launched(ctx, at, "copy_columns cannot be launched");
    }
    with_type(from.dtype, [&](auto type) {
        using T = decltype(type);
        copy_columns_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
            row<T>(to), row<T>(from), count, width, into, to.shape[1], first, from.shape[1]);
    });
    return launched(ctx, at, "copy_columns cannot be launched");
}
