/* Muon's operators on NVIDIA GPUs, each in one pass over memory. */
#include <math.h>

#include "ops/cuda/nn.cuh"

#include "ops/cuda/moments.cuh"

extern "C" {
#include "ops/muon.h"
}

#define SMALL 1e-7

template <typename M>
__global__ void __launch_bounds__(THREADS) muon_momentum_kernel(float *u, M *m, const float *g, const float *clip,
                                                                const float *step, float momentum, int64_t count) {
    const float factor = clip != NULL ? *clip : 1.0f;
    const uint32_t number = step != NULL ? (uint32_t)*step : 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        if (isnan(factor)) {
            u[i] = 0.0f;
            continue;
        }
        const float slope = factor * g[i];
        const float mean = momentum * moment_at(m, i) + slope;
        put_moment(m, i, mean, carry_dither_bits(i, __float_as_uint(mean), __float_as_uint(slope), number));
        u[i] = slope + momentum * mean;
    }
}

extern "C" carry_status carry_cuda_muon_momentum(carry_ctx *ctx, carry_tensor u, carry_tensor m, carry_tensor g,
                                                 carry_tensor clip, carry_tensor step, double momentum) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, g.device));
    const int64_t count = carry_tensor_count(&g);
    with_moments(m.dtype, [&](auto type) {
        using M = decltype(type);
        muon_momentum_kernel<M><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
            (float *)u.data, (M *)m.data, (const float *)g.data, (const float *)clip.data, (const float *)step.data,
            (float)momentum, count);
    });
    return launched(ctx, at, "muon_momentum cannot be launched");
}

/* Index in an array of [columns, rows] of element i of [rows, columns]. */
static __device__ __forceinline__ int64_t turned(int64_t i, int64_t rows, int64_t columns) {
    return i % columns * rows + i / columns;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) muon_normalise_kernel(row_of<T> x, const float *u, const double *squares,
                                                                 int64_t rows, int64_t columns, bool transposed) {
    const float factor = (float)(1.0 / (sqrt(*squares) + SMALL));
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * columns;
         i += (int64_t)gridDim.x * THREADS) {
        x.put(transposed ? turned(i, rows, columns) : i, factor * u[i]);
    }
}

extern "C" carry_status carry_cuda_muon_normalise(carry_ctx *ctx, carry_tensor x, carry_tensor u, carry_tensor squares,
                                                  bool transposed) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, u.device));
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        muon_normalise_kernel<T><<<blocks_for(u.shape[0] * u.shape[1], THREADS), THREADS, 0, at.stream>>>(
            row<T>(x), (const float *)u.data, (const double *)squares.data, u.shape[0], u.shape[1], transposed);
    });
    return launched(ctx, at, "muon_normalise cannot be launched");
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    blend_kernel(row_of<T> y, row_of<T> x, row_of<T> z, float a, float b, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        y.put(i, a * x.get(i) + b * z.get(i));
    }
}

extern "C" carry_status carry_cuda_blend(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor z, double a,
                                         double b) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t count = carry_tensor_count(&x);
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        blend_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(row<T>(y), row<T>(x), row<T>(z),
                                                                               (float)a, (float)b, count);
    });
    return launched(ctx, at, "blend cannot be launched");
}

template <typename T, typename L>
__global__ void __launch_bounds__(THREADS)
    muon_update_kernel(float *w, row_of<L> low, row_of<T> o, const float *rates, const float *clip, float scale,
                       int64_t rows, int64_t columns, bool transposed) {
    if (clip != NULL && isnan(*clip)) {
        return;
    }
    const float rate = rates[0] * scale, decay = rates[1];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * columns;
         i += (int64_t)gridDim.x * THREADS) {
        const float step = o.get(transposed ? turned(i, rows, columns) : i);
        const float weight = w[i] - rate * step - decay * w[i];
        w[i] = weight;
        if (low.here()) {
            low.put(i, weight);
        }
    }
}

extern "C" carry_status carry_cuda_muon_update(carry_ctx *ctx, carry_tensor w, carry_tensor low, carry_tensor o,
                                               carry_tensor rates, carry_tensor clip, double scale, bool transposed) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, w.device));
    with_type(o.dtype, [&](auto type) {
        using T = decltype(type);
        with_type(low.data != NULL ? low.dtype : CARRY_F32, [&](auto other) {
            using L = decltype(other);
            muon_update_kernel<T, L><<<blocks_for(w.shape[0] * w.shape[1], THREADS), THREADS, 0, at.stream>>>(
                (float *)w.data, row<L>(low), row<T>(o), (const float *)rates.data, (const float *)clip.data,
                (float)scale, w.shape[0], w.shape[1], transposed);
        });
    });
    return launched(ctx, at, "muon_update cannot be launched");
}
