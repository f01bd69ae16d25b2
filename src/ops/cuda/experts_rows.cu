/* Rows of a mixture of experts on NVIDIA GPUs: one for every pair of a token and an expert, and their weighted sums. */
#include "ops/cuda/wide.cuh"

namespace {

template <typename T> struct pair_args {
    typename T::stored *y;
    const typename T::stored *x, *base;
    const int64_t *at;
    const float *weights;
    int64_t rows, n; /* of y */
    int k;
};

/* V elements of a row at a time. */
template <typename T, int V> __global__ void __launch_bounds__(THREADS) gather_kernel(pair_args<T> a) {
    const int64_t vectors = a.n / V, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * vectors; i += step) {
        const int64_t row = i / vectors, column = i % vectors * V, p = a.at[row];
        several<T, V> x = *(const several<T, V> *)(a.x + p / a.k * a.n + column);
        if (a.weights != NULL) {
            const float w = a.weights[p];
            float value[V];
            widen_all<T, V>(value, x);
#pragma unroll
            for (int j = 0; j < V; j++) {
                value[j] *= w;
            }
            x = narrow_all<T, V>(value);
        }
        *(several<T, V> *)(a.y + row * a.n + column) = x;
    }
}

template <typename T, int V> __global__ void __launch_bounds__(THREADS) combine_kernel(pair_args<T> a) {
    const int64_t vectors = a.n / V, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * vectors; i += step) {
        const int64_t row = i / vectors, column = i % vectors * V;
        float sum[V] = {}, value[V];
        for (int64_t p = row * a.k; p < (row + 1) * a.k; p++) {
            const float w = a.weights != NULL ? a.weights[p] : 1.0f;
            widen_all<T, V>(value, *(const several<T, V> *)(a.x + a.at[p] * a.n + column));
#pragma unroll
            for (int j = 0; j < V; j++) {
                sum[j] = fmaf(w, value[j], sum[j]);
            }
        }
        if (a.base != NULL) {
            widen_all<T, V>(value, *(const several<T, V> *)(a.base + row * a.n + column));
#pragma unroll
            for (int j = 0; j < V; j++) {
                sum[j] += value[j];
            }
        }
        *(several<T, V> *)(a.y + row * a.n + column) = narrow_all<T, V>(sum);
    }
}

/* A warp has one pair and computes the dot product of two rows. */
template <typename T>
__global__ void __launch_bounds__(THREADS) combine_backward_kernel(float *dweights, row_of<T> dy, row_of<T> x,
                                                                   const int64_t *at, int64_t pairs, int64_t n, int k) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t p = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; p < pairs; p += step) {
        float sum = 0.0f;
        for (int64_t i = lane; i < n; i += 32) {
            sum = fmaf(dy.get(p / k * n + i), x.get(at[p] * n + i), sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            dweights[p] = sum;
        }
    }
}

template <bool GATHER>
carry_status run_pairs(carry_ctx *ctx, const carry_tensor &y, const carry_tensor &base, const carry_tensor &x,
                       const carry_tensor &numbers, const carry_tensor &weights) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        using E = typename T::stored;
        pair_args<T> a = {};
        a.y = (E *)y.data;
        a.x = (const E *)x.data;
        a.base = (const E *)base.data;
        a.at = (const int64_t *)numbers.data;
        a.weights = (const float *)weights.data;
        a.rows = y.shape[0];
        a.n = y.shape[1];
        a.k = (int)(GATHER ? y.shape[0] / x.shape[0] : x.shape[0] / y.shape[0]);
        const bool wide = a.n % ONCE == 0 && is_aligned(a.y) && is_aligned(a.x) && is_aligned(a.base);
        const unsigned blocks = blocks_for(a.rows * (wide ? a.n / ONCE : a.n), THREADS);
        if (GATHER && wide) {
            gather_kernel<T, ONCE><<<blocks, THREADS, 0, at.stream>>>(a);
        } else if (GATHER) {
            gather_kernel<T, 1><<<blocks, THREADS, 0, at.stream>>>(a);
        } else if (wide) {
            combine_kernel<T, ONCE><<<blocks, THREADS, 0, at.stream>>>(a);
        } else {
            combine_kernel<T, 1><<<blocks, THREADS, 0, at.stream>>>(a);
        }
    });
    return launched(ctx, at, "rows of experts cannot be launched");
}

/* A warp has a row. If ds is NULL: y = base + sigmoid(s) x. Otherwise y is dx, x is dy, x2 is the forward x, and base
   is absent. */
template <typename T>
__global__ void __launch_bounds__(THREADS) gate_kernel(row_of<T> y, row_of<T> base, row_of<T> x, row_of<T> x2,
                                                       row_of<T> s, row_of<T> ds, int64_t rows, int64_t n) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < rows; row += step) {
        const float g = sigmoid_of(s.get(row));
        float sum = 0.0f;
        for (int64_t i = row * n + lane; i < (row + 1) * n; i += 32) {
            const float value = x.get(i);
            sum = ds.here() ? fmaf(value, x2.get(i), sum) : 0.0f;
            y.put(i, fmaf(g, value, base.here() ? base.get(i) : 0.0f));
        }
        sum = warp_sum(sum);
        if (lane == 0 && ds.here()) {
            ds.put(row, g * (1.0f - g) * sum);
        }
    }
}

/* y = base + sigmoid(s) x, V elements of a row at a time. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    gate_wide_kernel(typename T::stored *y, const typename T::stored *base, const typename T::stored *x, row_of<T> s,
                     int64_t rows, int64_t n) {
    const int64_t vectors = n / V, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * vectors; i += step) {
        const float g = sigmoid_of(s.get(i / vectors));
        float value[V], sum[V] = {};
        widen_all<T, V>(value, *(const several<T, V> *)(x + i * V));
        if (base != NULL) {
            widen_all<T, V>(sum, *(const several<T, V> *)(base + i * V));
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            sum[j] = fmaf(g, value[j], sum[j]);
        }
        *(several<T, V> *)(y + i * V) = narrow_all<T, V>(sum);
    }
}

carry_status run_gate(carry_ctx *ctx, const carry_tensor &y, const carry_tensor &base, const carry_tensor &x,
                      const carry_tensor &x2, const carry_tensor &s, const carry_tensor &ds) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        using E = typename T::stored;
        const int64_t n = x.shape[1];
        if (ds.data == NULL && n % ONCE == 0 && is_aligned(y.data) && is_aligned(base.data) && is_aligned(x.data)) {
            gate_wide_kernel<T, ONCE><<<blocks_for(x.shape[0] * (n / ONCE), THREADS), THREADS, 0, at.stream>>>(
                (E *)y.data, (const E *)base.data, (const E *)x.data, row<T>(s), x.shape[0], n);
            return;
        }
        gate_kernel<T><<<blocks_for(x.shape[0], THREADS / 32), THREADS, 0, at.stream>>>(
            row<T>(y), row<T>(base), row<T>(x), row<T>(x2), row<T>(s), row<T>(ds), x.shape[0], x.shape[1]);
    });
    return launched(ctx, at, "a gate of rows cannot be launched");
}

} // namespace

extern "C" carry_status carry_cuda_gather_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor pair,
                                                carry_tensor weights) {
    return run_pairs<true>(ctx, y, carry_tensor{}, x, pair, weights);
}

extern "C" carry_status carry_cuda_combine_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x,
                                                 carry_tensor place_of, carry_tensor weights) {
    return run_pairs<false>(ctx, y, base, x, place_of, weights);
}

extern "C" carry_status carry_cuda_combine_pairs_backward(carry_ctx *ctx, carry_tensor dweights, carry_tensor dy,
                                                          carry_tensor x, carry_tensor place_of) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        combine_backward_kernel<T><<<blocks_for(x.shape[0], THREADS / 32), THREADS, 0, at.stream>>>(
            (float *)dweights.data, row<T>(dy), row<T>(x), (const int64_t *)place_of.data, x.shape[0], x.shape[1],
            (int)(x.shape[0] / dy.shape[0]));
    });
    return launched(ctx, at, "combine_pairs_backward cannot be launched");
}

extern "C" carry_status carry_cuda_row_gate(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x,
                                            carry_tensor s) {
    return run_gate(ctx, y, base, x, carry_tensor{}, s, carry_tensor{});
}

extern "C" carry_status carry_cuda_row_gate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor ds, carry_tensor dy,
                                                     carry_tensor x, carry_tensor s) {
    return run_gate(ctx, dx, carry_tensor{}, dy, x, s, ds);
}
