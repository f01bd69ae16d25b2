/* AdamW and the factor of clipping on NVIDIA GPUs. */
#include <math.h>

#include "ops/nn.cuh"

extern "C" {
#include "ops/optimizer.h"
}

/* Where the factor of clipping is NaN, nothing is changed: all threads see the same. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(float *w, float *m, float *v, const float *g, row_of<T> low, carry_adam_factors f,
                 const carry_adam_factors *given, double factor, const float *clip, int64_t count) {
    if (clip != NULL && isnan(*clip)) {
        return;
    }
    if (given != NULL) {
        f = *given;
        factor = (double)f.factor;
    }
    f.factor = (float)(clip != NULL ? factor * (double)*clip : factor);
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        float gradient = f.factor * g[i];
        float first = f.b1 * m[i] + f.c1 * gradient;
        float second = f.b2 * v[i] + f.c2 * (gradient * gradient);
        float weight = w[i];
        weight -= f.rate * first / (sqrtf(second) * f.unbias_v + f.eps) + f.decay * weight;
        m[i] = first;
        v[i] = second;
        w[i] = weight;
        if (low.here()) {
            low.put(i, weight);
        }
    }
}

extern "C" carry_status carry_cuda_adamw_step(carry_ctx *ctx, carry_tensor w, carry_tensor m, carry_tensor v,
                                              carry_tensor low, carry_tensor g, const carry_adamw *options) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, w.device));
    const int64_t count = carry_tensor_count(&w);
    const carry_adam_factors *given = (const carry_adam_factors *)options->factors.data;
    const carry_adam_factors factors = given == NULL ? carry_adam_factors_of(options, 1.0) : carry_adam_factors{};
    if (count == 0) {
        return CARRY_OK;
    }
    with_type(low.data != NULL ? low.dtype : CARRY_F32, [&](auto type) {
        using T = decltype(type);
        adamw_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
            (float *)w.data, (float *)m.data, (float *)v.data, (const float *)g.data, row<T>(low), factors, given,
            options->factor, (const float *)options->clip.data, count);
    });
    return launched(ctx, at, "adamw_step cannot be launched");
}

__global__ void clip_kernel(float *factor, const double *squares, double limit) {
    const double norm = sqrt(*squares);
    *factor = !isfinite(norm) ? NAN : limit > 0.0 && norm > limit ? (float)(limit / norm) : 1.0f;
}

extern "C" carry_status carry_cuda_clip_factor(carry_ctx *ctx, carry_tensor factor, carry_tensor squares,
                                               double limit) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, squares.device));
    clip_kernel<<<1, 1, 0, at.stream>>>((float *)factor.data, (const double *)squares.data, limit);
    return launched(ctx, at, "clip_factor cannot be launched");
}

__global__ void skip_kernel(float *factor, float *bad, float limit) {
    const float before = *bad;
    const float row = before > limit ? before : isnan(*factor) ? before + 1.0f : 0.0f;
    *bad = row;
    if (row > limit) {
        *factor = NAN;
    }
}

extern "C" carry_status carry_cuda_skip_guard(carry_ctx *ctx, carry_tensor factor, carry_tensor bad, int64_t limit) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, factor.device));
    skip_kernel<<<1, 1, 0, at.stream>>>((float *)factor.data, (float *)bad.data, (float)limit);
    return launched(ctx, at, "skip_guard cannot be launched");
}
