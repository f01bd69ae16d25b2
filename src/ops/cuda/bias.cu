/* Additions to every row on NVIDIA GPUs: a bias, or another tensor's rows through a gate; and their gradients.

   A gradient is a sum over tokens. A block has 32 columns and 32 lanes of tokens: each lane adds every 32nd token of
   its column in order, and then the lanes are added in order. So the sum is the same in every run and needs no
   workspace. */
#include "ops/cuda/nn.cuh"

constexpr int COLUMNS = 32, LANES = 32;

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gated_add_kernel(row_of<T> x, row_of<T> y, mixed g, int64_t count, int64_t n) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        float gate = g[i % n];
        x.put(i, y.here() ? x.get(i) + gate * y.get(i) : x.get(i) + gate);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    multiply_kernel(row_of<T> dy, row_of<T> dx, mixed g, int64_t count, int64_t n) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        dy.put(i, dx.get(i) * g[i % n]);
    }
}

/* dg += sum over tokens of dx y, or of dx if y is absent. */
template <typename T>
__global__ void __launch_bounds__(COLUMNS *LANES)
    column_sums_kernel(float *dg, row_of<T> dx, row_of<T> y, int64_t tokens, int64_t n) {
    __shared__ float sums[LANES][COLUMNS + 1];
    int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    float sum = 0.0f;
    for (int64_t t = threadIdx.y; column < n && t < tokens; t += LANES) {
        float d = dx.get(t * n + column);
        sum += y.here() ? d * y.get(t * n + column) : d;
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
        float total = 0.0f;
        for (int i = 0; i < LANES; i++) {
            total += sums[i][threadIdx.x];
        }
        dg[column] += total;
    }
}

static carry_status add_rows(carry_ctx *ctx, carry_tensor x, carry_tensor y, carry_tensor g, const char *what) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    int64_t count = carry_tensor_count(&x);
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        gated_add_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(row<T>(x), row<T>(y), mixed_of(g),
                                                                                   count, x.shape[1]);
    });
    return launched(ctx, at, what);
}

static carry_status add_up(carry_ctx *ctx, const place &at, carry_tensor dg, carry_tensor dx, carry_tensor y) {
    int64_t n = dx.shape[1];
    if (n == 0) {
        return CARRY_OK;
    }
    with_type(dx.dtype, [&](auto type) {
        using T = decltype(type);
        column_sums_kernel<T><<<(unsigned)((n + COLUMNS - 1) / COLUMNS), dim3(COLUMNS, LANES), 0, at.stream>>>(
            (float *)dg.data, row<T>(dx), row<T>(y), dx.shape[0], n);
    });
    return launched(ctx, at, "sums over tokens cannot be launched");
}

extern "C" carry_status carry_cuda_add_bias(carry_ctx *ctx, carry_tensor y, carry_tensor b) {
    return add_rows(ctx, y, carry_tensor{}, b, "add_bias cannot be launched");
}

extern "C" carry_status carry_cuda_gated_add(carry_ctx *ctx, carry_tensor x, carry_tensor y, carry_tensor g) {
    return add_rows(ctx, x, y, g, "gated_add cannot be launched");
}

extern "C" carry_status carry_cuda_add_bias_backward(carry_ctx *ctx, carry_tensor db, carry_tensor dy) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, dy.device));
    return add_up(ctx, at, db, dy, carry_tensor{});
}

extern "C" carry_status carry_cuda_gated_add_backward(carry_ctx *ctx, carry_tensor dy, carry_tensor dg, carry_tensor dx,
                                                      carry_tensor y, carry_tensor g) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, dx.device));
    if (dg.data != NULL) { /* before dy is written, since dy may be y */
        CARRY_TRY(add_up(ctx, at, dg, dx, y));
    }
    if (dy.data == NULL) {
        return CARRY_OK;
    }
    int64_t count = carry_tensor_count(&dx);
    with_type(dx.dtype, [&](auto type) {
        using T = decltype(type);
        multiply_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(row<T>(dy), row<T>(dx), mixed_of(g),
                                                                                  count, dx.shape[1]);
    });
    return launched(ctx, at, "gated_add_backward cannot be launched");
}
