/* Root-mean-square norm on NVIDIA GPUs, with a weight and a gate, as a whole or in two steps for rows that are split
   over ranks; norm_wide.cu and norm_block.cu handle rows of whole vectors, up to 4096 elements.

   A warp processes a row of up to WARP_ROW elements, a thread block a longer one. Forward in one step, a row is read
   twice, the second time from a cache. Backward, each thread block takes a.block consecutive rows and writes their dw
   to one row of the workspace: the warps sum dw of their rows in registers and are added in order; for long rows, each
   thread adds dw of its columns directly to the workspace. The rows of the workspace are then added in order to dw. */
#include "ops/cuda/norm.cuh"

extern "C" {
#include "ops/nn.h"
}

constexpr int WARPS = THREADS / 32;

template <typename T, int GROUP>
static __device__ __forceinline__ float squares_of(const norm_args<T> &a, int64_t row, int lane, float *parts) {
    const int64_t x_row = a.x_row > 0 ? a.x_row : a.n;
    float sum = 0.0f;
    for (int64_t i = lane; i < a.n; i += GROUP) {
        float x = a.x.get(row * x_row + i);
        sum = fmaf(x, x, sum);
    }
    return group_sum<GROUP>(sum, parts);
}

/* If y is absent, only the sums are computed. If both sums and y are present, the given sums replace the row's own. */
template <typename T, int GROUP> __global__ void __launch_bounds__(THREADS) norm_kernel(norm_args<T> a) {
    __shared__ float parts[WARPS];
    const int lane = (int)threadIdx.x % GROUP;
    const int64_t groups = (int64_t)gridDim.x * (THREADS / GROUP);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP; row < a.rows; row += groups) {
        float squares = a.sums != NULL && a.y.here() ? a.sums[row] : squares_of<T, GROUP>(a, row, lane, parts);
        if (!a.y.here()) {
            if (lane == 0) {
                a.sums[row] = squares;
            }
            continue;
        }
        const float scale = 1.0f / sqrtf(squares / a.over + a.eps);
        const int64_t z_row = z_at(a, row, a.z_row);
        for (int64_t i = lane; i < a.n; i += GROUP) {
            float value = a.x.get(row * a.n + i) * scale;
            value = a.w.here() ? value * a.w[i] : value;
            value = a.z.here() ? value * silu_of(a.z.get(z_row + i)) : value;
            a.y.put(row * a.n + i, value);
        }
    }
}

/* With s = 1/sqrt(mean x^2 + eps) and g = dy w silu(z): dx = s g - s^3 mean(g x) x. A lane adds dw of its columns to
   its own elements of `dw`. */
template <typename T, int GROUP>
static __device__ __forceinline__ void backward_row(const norm_args<T> &a, int64_t row, int lane, float *parts,
                                                    float *dw) {
    const int64_t z_row = z_at(a, row, a.z_row), dz_row = z_at(a, row, a.dz_row);
    float squares = 0.0f, dots = 0.0f;
    for (int64_t i = lane; i < a.n; i += GROUP) {
        int64_t at = row * a.n + i;
        float x = a.x.get(at);
        float g = a.w.here() ? a.dy.get(at) * a.w[i] : a.dy.get(at);
        g = a.z.here() ? g * silu_of(a.z.get(z_row + i)) : g;
        squares = fmaf(x, x, squares);
        dots = fmaf(g, x, dots);
    }
    squares = group_sum<GROUP>(squares, parts);
    dots = group_sum<GROUP>(dots, parts);
    const float scale = 1.0f / sqrtf(squares / a.over + a.eps);
    const float back = scale * scale * scale * (dots / a.over);
    for (int64_t i = lane; i < a.n; i += GROUP) {
        int64_t at = row * a.n + i;
        float x = a.x.get(at);
        float dy = a.dy.get(at);
        float g = a.w.here() ? dy * a.w[i] : dy;
        float z = a.z.here() ? a.z.get(z_row + i) : 1.0f;
        float s = a.z.here() ? sigmoid_of(z) : 1.0f;
        if (dw != NULL) {
            dw[i] += dy * (x * scale) * (z * s);
        }
        if (a.dx.here()) {
            float value = scale * (g * (z * s)) - back * x;
            a.dx.put(at, a.accumulate ? a.dx.get(at) + value : value);
        }
        if (a.dz.here()) {
            a.dz.put(dz_row + i, g * (x * scale) * silu_slope_of(z, s));
        }
    }
}

/* A thread block processes long rows one after the other. Each thread adds dw of its columns directly to the thread
   block's row of the workspace. */
template <typename T> __global__ void __launch_bounds__(THREADS) norm_backward_kernel(norm_args<T> a) {
    __shared__ float parts[WARPS];
    float *dw = a.partial != NULL ? a.partial + blockIdx.x * a.n : NULL;
    for (int64_t i = threadIdx.x; dw != NULL && i < a.n; i += THREADS) {
        dw[i] = 0.0f;
    }
    const int64_t first = blockIdx.x * a.block;
    const int64_t last = first + a.block < a.rows ? first + a.block : a.rows;
    for (int64_t row = first; row < last; row++) {
        backward_row<T, THREADS>(a, row, (int)threadIdx.x, parts, dw);
    }
}

/* A warp holds a row of up to 32 * EACH elements in registers: all loads are issued before the first is waited for.
   dw of the warp's rows is summed in registers, then over warps in order through shared memory, [warps, n]. */
template <typename T, int EACH, int MOST>
__global__ void __launch_bounds__(MOST) norm_backward_warp_kernel(norm_args<T> a) {
    extern __shared__ float sums[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const int64_t first = blockIdx.x * a.block;
    const int64_t last = first + a.block < a.rows ? first + a.block : a.rows;
    float dw[EACH] = {}, w[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        w[j] = a.w.here() && lane + 32 * j < a.n ? a.w[lane + 32 * j] : 1.0f;
    }
    for (int64_t row = first + warp; row < last; row += warps) {
        float x[EACH], dy[EACH], z[EACH], squares = 0.0f, dots = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const bool there = lane + 32 * j < a.n;
            const int64_t at = row * a.n + lane + 32 * j;
            x[j] = there ? a.x.get(at) : 0.0f;
            dy[j] = there ? a.dy.get(at) : 0.0f;
            z[j] = there && a.z.here() ? a.z.get(z_at(a, row, a.z_row) + lane + 32 * j) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const float gate = a.z.here() ? silu_of(z[j]) : 1.0f;
            squares = fmaf(x[j], x[j], squares);
            dots = fmaf(dy[j] * w[j] * gate, x[j], dots);
        }
        squares = warp_sum(squares);
        dots = warp_sum(dots);
        const float scale = 1.0f / sqrtf(squares / a.over + a.eps);
        const float back = scale * scale * scale * (dots / a.over);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t at = row * a.n + lane + 32 * j;
            const float s = a.z.here() ? sigmoid_of(z[j]) : 1.0f;
            const float gate = a.z.here() ? z[j] * s : 1.0f;
            const float g = dy[j] * w[j];
            dw[j] = fmaf(dy[j] * (x[j] * scale), gate, dw[j]);
            if (lane + 32 * j < a.n) {
                if (a.dx.here()) {
                    const float value = scale * (g * gate) - back * x[j];
                    a.dx.put(at, a.accumulate ? a.dx.get(at) + value : value);
                }
                if (a.dz.here()) {
                    a.dz.put(z_at(a, row, a.dz_row) + lane + 32 * j, g * (x[j] * scale) * silu_slope_of(z[j], s));
                }
            }
        }
    }
    if (a.partial == NULL) {
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (lane + 32 * j < a.n) {
            sums[warp * a.n + lane + 32 * j] = dw[j];
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        float sum = sums[i];
        for (int g = 1; g < warps; g++) {
            sum += sums[g * a.n + i];
        }
        a.partial[blockIdx.x * a.n + i] = sum;
    }
}

template <typename T, int EACH, int MOST>
static void launch_warps(const norm_args<T> &a, int64_t blocks, const place &at) {
    const size_t shared = a.partial != NULL ? (size_t)(MOST / 32 * a.n) * sizeof(float) : 0;
    norm_backward_warp_kernel<T, EACH, MOST><<<(unsigned)blocks, MOST, shared, at.stream>>>(a);
}

/* One warp per row, or one block per row. */
template <typename T> static void launch_rows(const norm_args<T> &a, const place &at) {
    if (a.rows == 0 || (a.y.data != NULL && (norm_wide(a, at.stream) || norm_block(a, at.stream)))) {
        return;
    }
    if (a.n <= WARP_ROW) {
        norm_kernel<T, 32><<<blocks_for(a.rows, WARPS), THREADS, 0, at.stream>>>(a);
    } else {
        norm_kernel<T, THREADS><<<blocks_for(a.rows, 1), THREADS, 0, at.stream>>>(a);
    }
}

extern "C" carry_status carry_cuda_rms_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w,
                                            carry_tensor z, float eps) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        norm_args<T> a = {};
        a.y = row<T>(y);
        a.x = row<T>(x);
        a.w = mixed_of(w);
        a.rows = x.shape[0];
        a.n = x.shape[1];
        gate_of(a, z, carry_tensor{});
        a.over = (float)a.n;
        a.eps = eps;
        launch_rows(a, at);
    });
    return launched(ctx, at, "rms_norm cannot be launched");
}

extern "C" carry_status carry_cuda_fp8_rms_norm(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor x,
                                                carry_tensor w, float eps) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    norm_args<type_bf16> a = {};
    a.y = row<type_bf16>(y);
    a.x = row<type_bf16>(x);
    a.w = mixed_of(w);
    a.rows = x.shape[0];
    a.n = x.shape[1];
    gate_of(a, carry_tensor{}, carry_tensor{});
    a.over = (float)a.n;
    a.eps = eps;
    a.codes = codes.codes;
    a.code_scale = codes.scale;
    if (codes.kind == CARRY_E4M3 && norm_wide(a, at.stream)) {
        return launched(ctx, at, "fp8_rms_norm cannot be launched");
    }
    CARRY_TRY(carry_cuda_rms_norm(ctx, y, x, w, carry_tensor{}, eps));
    return carry_cuda_fp8_round(ctx, codes, y, false);
}

extern "C" carry_status carry_cuda_row_squares(carry_ctx *ctx, carry_tensor sums, carry_tensor x) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        norm_args<T> a = {};
        a.x = row<T>(x);
        a.sums = (float *)sums.data;
        a.rows = x.shape[0];
        a.n = x.shape[1];
        a.x_row = x.stride[0];
        launch_rows(a, at);
    });
    return launched(ctx, at, "row_squares cannot be launched");
}

extern "C" carry_status carry_cuda_rms_scale(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor sums,
                                             carry_tensor w, int64_t whole, float eps) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        norm_args<T> a = {};
        a.y = row<T>(y);
        a.x = row<T>(x);
        a.w = mixed_of(w);
        a.sums = (float *)sums.data;
        a.rows = x.shape[0];
        a.n = x.shape[1];
        a.over = (float)whole;
        a.eps = eps;
        if (a.n > 0) { /* y of an empty row is NULL, which would mean sums only */
            launch_rows(a, at);
        }
    });
    return launched(ctx, at, "rms_scale cannot be launched");
}

extern "C" carry_status carry_cuda_rms_norm_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dw, carry_tensor dz,
                                                     carry_tensor dy, carry_tensor x, carry_tensor w, carry_tensor z,
                                                     float eps, bool accumulate, void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t rows = x.shape[0], n = x.shape[1];
    const int64_t block = carry_token_block(rows);
    int64_t blocks = (rows + block - 1) / block;
    if (blocks == 0 || n == 0) {
        return CARRY_OK;
    }
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        norm_args<T> a = {};
        a.dx = row<T>(dx);
        a.dy = row<T>(dy);
        a.x = row<T>(x);
        a.w = mixed_of(w);
        a.partial = dw.data != NULL ? (float *)workspace : NULL;
        a.rows = rows;
        a.n = n;
        gate_of(a, z, dz);
        a.block = block;
        a.over = (float)n;
        a.eps = eps;
        a.accumulate = accumulate;
        if (norm_wide_backward(a, &blocks, at.stream) || norm_block_backward(a, &blocks, at.stream)) {
            return;
        }
        if (n <= 128) {
            launch_warps<T, 4, 1024>(a, blocks, at);
        } else if (n <= 256) {
            launch_warps<T, 8, 1024>(a, blocks, at);
        } else if (n <= 512) {
            launch_warps<T, 16, 512>(a, blocks, at);
        } else if (n <= WARP_ROW) {
            launch_warps<T, 32, 256>(a, blocks, at);
        } else {
            norm_backward_kernel<T><<<(unsigned)blocks, THREADS, 0, at.stream>>>(a);
        }
    });
    CARRY_TRY(launched(ctx, at, "rms_norm_backward cannot be launched"));
    return dw.data != NULL ? carry_cuda_add_blocks(ctx, dw, (const float *)workspace, blocks, n, n) : CARRY_OK;
}
