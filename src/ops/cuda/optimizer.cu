/* AdamW and the clipping factor on NVIDIA GPUs. */
#include <math.h>

#include "ops/cuda/moments.cuh"
#include "ops/cuda/wide.cuh"

extern "C" {
#include "ops/optimizer.h"
}

constexpr int EACH = 4; /* elements per thread at a time: 16 bytes of f32 */

/* Updates one element and returns the weight. */
static __device__ __forceinline__ float update(float &m, float &v, float w, float g, const carry_adam_factors &f) {
    const float gradient = f.factor * g;
    m = f.b1 * m + f.c1 * gradient;
    v = f.b2 * v + f.c2 * (gradient * gradient);
    return w - (f.rate * m / (sqrtf(v) * f.unbias_v + f.eps) + f.decay * w);
}

/* Ranges [first, end) of elements that do not decay, ascending. A thread calls `has` for ascending elements, so it
   reads every range once. */
struct spared_elements {
    const int64_t *pair;
    int64_t left; /* of them */
    int64_t first, end;
    __device__ __forceinline__ void start() {
        first = left > 0 ? pair[0] : INT64_MAX;
        end = left > 0 ? pair[1] : INT64_MAX;
    }
    __device__ __forceinline__ bool has(int64_t element) {
        while (element >= end) {
            left--;
            pair += 2;
            start();
        }
        return element >= first;
    }
};

/* If the clipping factor is NaN, nothing is changed; all threads see the same factor. fours: the number of groups of
   EACH elements that may be accessed at once, from the first element on. */
template <typename T, typename M>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(float *w, M *m, M *v, const float *g, row_of<T> low, carry_adam_factors f,
                 const carry_adam_factors *given, double factor, const float *clip, spared_elements spared,
                 int64_t count, int64_t fours) {
    if (clip != NULL && isnan(*clip)) {
        return;
    }
    if (given != NULL) {
        f = *given;
        factor = (double)f.factor;
    }
    f.factor = (float)(clip != NULL ? factor * (double)*clip : factor);
    const int64_t step = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const float decay = f.decay;
    spared.start();
    for (int64_t i = first; i < fours; i += step) {
        f.decay = spared.has(i * EACH) ? 0.0f : decay;
        float4 weight = ((const float4 *)w)[i];
        const float4 slope = ((const float4 *)g)[i], means = four_moments_at(m, i), squares = four_moments_at(v, i);
        float mean[EACH] = {means.x, means.y, means.z, means.w};
        float square[EACH] = {squares.x, squares.y, squares.z, squares.w};
        uint32_t random[EACH], upper[EACH];
        weight.x = update(mean[0], square[0], weight.x, slope.x, f);
        weight.y = update(mean[1], square[1], weight.y, slope.y, f);
        weight.z = update(mean[2], square[2], weight.z, slope.z, f);
        weight.w = update(mean[3], square[3], weight.w, slope.w, f);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            random[k] =
                carry_dither_bits(i * EACH + k, __float_as_uint(mean[k]), __float_as_uint(square[k]), (uint32_t)f.step);
            upper[k] = random[k] >> 16;
        }
        ((float4 *)w)[i] = weight;
        put_four_moments(m, i, mean, random);
        put_four_moments(v, i, square, upper);
        if (low.here()) {
            const float four[EACH] = {weight.x, weight.y, weight.z, weight.w};
            ((several<T, EACH> *)low.data)[i] = narrow_all<T, EACH>(four);
        }
    }
    for (int64_t i = fours * EACH + first; i < count; i += step) {
        f.decay = spared.has(i) ? 0.0f : decay;
        float mean = moment_at(m, i), square = moment_at(v, i);
        const float weight = update(mean, square, w[i], g[i], f);
        const uint32_t random = carry_dither_bits(i, __float_as_uint(mean), __float_as_uint(square), (uint32_t)f.step);
        w[i] = weight;
        put_moment(m, i, mean, random);
        put_moment(v, i, square, random >> 16);
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
    const bool has_spared = options->spared.data != NULL;
    const spared_elements spared = {(const int64_t *)options->spared.data,
                                    has_spared ? options->spared.shape[0] / 2 : 0, 0, 0};
    if (count == 0) {
        return CARRY_OK;
    }
    with_type(low.data != NULL ? low.dtype : CARRY_F32, [&](auto type) {
        using T = decltype(type);
        const bool wide = is_aligned(w.data) && is_aligned(m.data) && is_aligned(v.data) && is_aligned(g.data) &&
                          is_aligned(low.data);
        with_moments(m.dtype, [&](auto moment) {
            using M = decltype(moment);
            adamw_kernel<T, M><<<blocks_for(count, wide ? THREADS * EACH : THREADS), THREADS, 0, at.stream>>>(
                (float *)w.data, (M *)m.data, (M *)v.data, (const float *)g.data, row<T>(low), factors, given,
                options->factor, (const float *)options->clip.data, spared, count, wide ? count / EACH : 0);
        });
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
