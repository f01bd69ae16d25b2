/* Layer norm on NVIDIA GPUs: first the mean, then the squared differences from it, as in layer_norm.c. Rows and sums
   over tokens are divided as in norm.cu. */
#include "ops/cuda/nn.cuh"

extern "C" {
#include "ops/nn.h"
}

constexpr int WARPS = THREADS / 32;

template <typename T> struct layer_args {
    row_of<T> y, x, dx, dy;
    mixed w, b;
    float *partial; /* [blocks, 2, n]: dw, db; or NULL */
    int64_t rows, n, block;
    float plus, eps;
    bool accumulate;
};

struct measured {
    float mean, scale;
};

template <typename T, int GROUP>
static __device__ __forceinline__ measured measure(const layer_args<T> &a, int64_t row, int lane, float *parts) {
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = lane; i < a.n; i += GROUP) {
        sum += a.x.get(row * a.n + i);
    }
    const float mean = group_sum<GROUP>(sum, parts) / (float)a.n;
    for (int64_t i = lane; i < a.n; i += GROUP) {
        float off = a.x.get(row * a.n + i) - mean;
        squares = fmaf(off, off, squares);
    }
    return measured{mean, 1.0f / sqrtf(group_sum<GROUP>(squares, parts) / (float)a.n + a.eps)};
}

template <typename T, int GROUP> __global__ void __launch_bounds__(THREADS) layer_norm_kernel(layer_args<T> a) {
    __shared__ float parts[WARPS];
    const int lane = (int)threadIdx.x % GROUP;
    const int64_t groups = (int64_t)gridDim.x * (THREADS / GROUP);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP; row < a.rows; row += groups) {
        const measured m = measure<T, GROUP>(a, row, lane, parts);
        for (int64_t i = lane; i < a.n; i += GROUP) {
            float value = (a.x.get(row * a.n + i) - m.mean) * m.scale;
            value = a.w.here() ? value * (a.w[i] + a.plus) : value;
            a.y.put(row * a.n + i, a.b.here() ? value + a.b[i] : value);
        }
    }
}

/* sums: dw and db of this group's columns, n elements apart; or NULL. */
template <typename T, int GROUP>
static __device__ __forceinline__ void backward_row(const layer_args<T> &a, int64_t row, int lane, float *parts,
                                                    float *sums) {
    const measured m = measure<T, GROUP>(a, row, lane, parts);
    float level = 0.0f, back = 0.0f;
    for (int64_t i = lane; i < a.n; i += GROUP) {
        float off = (a.x.get(row * a.n + i) - m.mean) * m.scale;
        float g = a.dy.get(row * a.n + i) * (a.w.here() ? a.w[i] + a.plus : 1.0f);
        level += g;
        back = fmaf(g, off, back);
    }
    level = group_sum<GROUP>(level, parts) / (float)a.n;
    back = group_sum<GROUP>(back, parts) / (float)a.n;
    for (int64_t i = lane; i < a.n; i += GROUP) {
        int64_t at = row * a.n + i;
        float off = (a.x.get(at) - m.mean) * m.scale;
        float dy = a.dy.get(at);
        float g = dy * (a.w.here() ? a.w[i] + a.plus : 1.0f);
        if (sums != NULL) {
            sums[i] += dy * off;
            sums[a.n + i] += dy;
        }
        if (a.dx.here()) {
            float value = m.scale * (g - level - off * back);
            a.dx.put(at, a.accumulate ? a.dx.get(at) + value : value);
        }
    }
}

/* A thread block processes long rows one after the other. Each thread adds dw and db of its columns directly to the
   thread block's row of the workspace. */
template <typename T> __global__ void __launch_bounds__(THREADS) layer_backward_kernel(layer_args<T> a) {
    __shared__ float parts[WARPS];
    float *sums = a.partial != NULL ? a.partial + blockIdx.x * 2 * a.n : NULL;
    for (int64_t i = threadIdx.x; sums != NULL && i < 2 * a.n; i += THREADS) {
        sums[i] = 0.0f;
    }
    __syncthreads();
    const int64_t first = blockIdx.x * a.block;
    const int64_t last = first + a.block < a.rows ? first + a.block : a.rows;
    for (int64_t row = first; row < last; row++) {
        backward_row<T, THREADS>(a, row, (int)threadIdx.x, parts, sums);
    }
}

/* A warp or the block holds a row of up to GROUP * EACH elements in registers: all loads are issued before the first
   is waited for. Sums over the group's rows are in registers too; those of warps are then added in order through
   shared memory, [WARPS, 2, n]. */
template <typename T, int GROUP, int EACH>
__global__ void __launch_bounds__(THREADS) layer_backward_held_kernel(layer_args<T> a) {
    extern __shared__ float shared[];
    __shared__ float parts[WARPS];
    const int lane = (int)threadIdx.x % GROUP, group = (int)threadIdx.x / GROUP;
    const int64_t first = blockIdx.x * a.block;
    const int64_t last = first + a.block < a.rows ? first + a.block : a.rows;
    const float over = 1.0f / (float)a.n;
    float dw[EACH] = {}, db[EACH] = {}, w[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        w[j] = a.w.here() && lane + GROUP * j < a.n ? a.w[lane + GROUP * j] + a.plus : 1.0f;
    }
    for (int64_t row = first + group; row < last; row += THREADS / GROUP) {
        float x[EACH], dy[EACH], sum = 0.0f, squares = 0.0f, level = 0.0f, back = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const bool there = lane + GROUP * j < a.n;
            const int64_t at = row * a.n + lane + GROUP * j;
            x[j] = there ? a.x.get(at) : 0.0f;
            dy[j] = there ? a.dy.get(at) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            sum += x[j];
        }
        const float mean = group_sum<GROUP>(sum, parts) * over;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            x[j] = lane + GROUP * j < a.n ? x[j] - mean : 0.0f;
            squares = fmaf(x[j], x[j], squares);
        }
        const float scale = 1.0f / sqrtf(group_sum<GROUP>(squares, parts) * over + a.eps);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            x[j] *= scale;
            level = fmaf(dy[j], w[j], level);
            back = fmaf(dy[j] * w[j], x[j], back);
        }
        level = group_sum<GROUP>(level, parts) * over;
        back = group_sum<GROUP>(back, parts) * over;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t at = row * a.n + lane + GROUP * j;
            dw[j] = fmaf(dy[j], x[j], dw[j]);
            db[j] += dy[j];
            if (a.dx.here() && lane + GROUP * j < a.n) {
                const float value = scale * (dy[j] * w[j] - level - x[j] * back);
                a.dx.put(at, a.accumulate ? a.dx.get(at) + value : value);
            }
        }
    }
    if (a.partial == NULL) {
        return;
    }
    float *to = GROUP == 32 ? shared + group * 2 * a.n : a.partial + blockIdx.x * 2 * a.n;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (lane + GROUP * j < a.n) {
            to[lane + GROUP * j] = dw[j];
            to[a.n + lane + GROUP * j] = db[j];
        }
    }
    if (GROUP != 32) {
        return;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < 2 * a.n; i += THREADS) {
        float total = shared[i];
        for (int g = 1; g < WARPS; g++) {
            total += shared[g * 2 * a.n + i];
        }
        a.partial[blockIdx.x * 2 * a.n + i] = total;
    }
}

extern "C" carry_status carry_cuda_layer_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w,
                                              carry_tensor b, float plus, float eps) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    if (carry_tensor_count(&x) == 0) {
        return CARRY_OK;
    }
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        layer_args<T> a = {};
        a.y = row<T>(y);
        a.x = row<T>(x);
        a.w = mixed_of(w);
        a.b = mixed_of(b);
        a.rows = x.shape[0];
        a.n = x.shape[1];
        a.plus = plus;
        a.eps = eps;
        if (a.n <= WARP_ROW) {
            layer_norm_kernel<T, 32><<<blocks_for(a.rows, WARPS), THREADS, 0, at.stream>>>(a);
        } else {
            layer_norm_kernel<T, THREADS><<<blocks_for(a.rows, 1), THREADS, 0, at.stream>>>(a);
        }
    });
    return launched(ctx, at, "layer_norm cannot be launched");
}

extern "C" carry_status carry_cuda_layer_norm_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dw,
                                                       carry_tensor db, carry_tensor dy, carry_tensor x, carry_tensor w,
                                                       float plus, float eps, bool accumulate, void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t rows = x.shape[0], n = x.shape[1];
    const int64_t block = carry_token_block(rows);
    const int64_t blocks = (rows + block - 1) / block;
    if (blocks == 0 || n == 0) {
        return CARRY_OK;
    }
    float *partial = dw.data != NULL || db.data != NULL ? (float *)workspace : NULL;
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        layer_args<T> a = {};
        a.dx = row<T>(dx);
        a.dy = row<T>(dy);
        a.x = row<T>(x);
        a.w = mixed_of(w);
        a.partial = partial;
        a.rows = rows;
        a.n = n;
        a.block = block;
        a.plus = plus;
        a.eps = eps;
        a.accumulate = accumulate;
        const size_t shared = partial != NULL && n <= 256 ? (size_t)(WARPS * 2 * n) * sizeof(float) : 0;
        if (n <= 256) {
            layer_backward_held_kernel<T, 32, 8><<<(unsigned)blocks, THREADS, shared, at.stream>>>(a);
        } else if (n <= 8 * THREADS) {
            layer_backward_held_kernel<T, THREADS, 8><<<(unsigned)blocks, THREADS, 0, at.stream>>>(a);
        } else if (n <= 24 * THREADS) {
            layer_backward_held_kernel<T, THREADS, 24><<<(unsigned)blocks, THREADS, 0, at.stream>>>(a);
        } else {
            layer_backward_kernel<T><<<(unsigned)blocks, THREADS, 0, at.stream>>>(a);
        }
    });
    CARRY_TRY(launched(ctx, at, "layer_norm_backward cannot be launched"));
    if (dw.data != NULL) {
        CARRY_TRY(carry_cuda_add_blocks(ctx, dw, partial, blocks, n, 2 * n));
    }
    return db.data != NULL ? carry_cuda_add_blocks(ctx, db, partial + n, blocks, n, 2 * n) : CARRY_OK;
}
