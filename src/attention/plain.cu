/* Attention on CUDA devices for everything that the fast kernels do not take (f32, f16, other D, any strides), and its
   backward pass. Plain: a warp has a query, or a key in backward, of one head, and walks all of the others; a lane has
   every 32nd element of D. Sums are f32, in one order, so the same inputs give the same bits.

   Backward, from lse, with mean[t] = dO[t].O[t]: P = exp(scale q.k + bias - lse), dS = P (dO.v - mean),
   dq = scale sum dS k (a warp a query), dk += scale sum dS q and dv += sum P dO (a warp a key). */
#include <math.h>

#include "attention/plain.cuh"

extern "C" {
#include "attention/attention.h"
}

#include "ops/nn.cuh"

namespace {

constexpr int WARPS = THREADS / 32;
constexpr int EACH = CARRY_ATTENTION_DIM / 32; /* elements of a row that a lane has, at most */

template <typename T> struct rows {
    typename T::stored *data;
    int64_t row, head; /* strides */
    __device__ __forceinline__ void load(float (&to)[EACH], int64_t at, int64_t h, int dim) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int d = (int)(threadIdx.x % 32) + 32 * i;
            to[i] = d < dim ? T::widen(data[at * row + h * head + d]) : 0.0f;
        }
    }
    __device__ __forceinline__ void store(const float (&from)[EACH], int64_t at, int64_t h, int dim) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int d = (int)(threadIdx.x % 32) + 32 * i;
            if (d < dim) {
                data[at * row + h * head + d] = T::narrow(from[i]);
            }
        }
    }
};

template <typename T> struct job {
    rows<T> q, k, v, o, d_o, dq, dk, dv;
    float *lse, *mean; /* [heads, queries]; lse NULL: not wanted */
    int64_t queries, heads, keys;
    int dim, runs;
    float scale;
    carry_key_run run[CARRY_KEY_RUNS];
};

__device__ __forceinline__ float dot(const float (&a)[EACH], const float (&b)[EACH]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sum = fmaf(a[i], b[i], sum);
    }
    return warp_sum(sum);
}

__device__ __forceinline__ void add(float (&to)[EACH], float factor, const float (&from)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        to[i] = fmaf(factor, from[i], to[i]);
    }
}

__device__ __forceinline__ void scale_by(float (&to)[EACH], float factor) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        to[i] *= factor;
    }
}

__device__ __forceinline__ int64_t first_warp() {
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

__device__ __forceinline__ int64_t warps() {
    return (int64_t)gridDim.x * WARPS;
}

/* Largest score m, sum l of exp(score - m), o of those times v: scaled down when a larger score comes. */
template <typename T> __global__ void __launch_bounds__(THREADS) forward_kernel(job<T> j) {
    for (int64_t at = first_warp(); at < j.queries * j.heads; at += warps()) {
        const int64_t t = at / j.heads, h = at % j.heads;
        float q[EACH], k[EACH], v[EACH], o[EACH] = {};
        float most = -INFINITY, sum = 0.0f;
        j.q.load(q, t, h, j.dim);
        scale_by(q, j.scale);
        for (int r = 0; r < j.runs; r++) {
            for (int64_t s = j.run[r].first; s < j.run[r].first + j.run[r].count; s++) {
                j.k.load(k, s, h, j.dim);
                j.v.load(v, s, h, j.dim);
                const float score = dot(q, k) + j.run[r].bias;
                if (score > most) {
                    const float factor = expf(most - score);
                    scale_by(o, factor);
                    sum *= factor;
                    most = score;
                }
                const float p = most > -INFINITY || isnan(score) ? expf(score - most) : 0.0f;
                sum += p;
                add(o, p, v);
            }
        }
        scale_by(o, sum == 0.0f ? 0.0f : 1.0f / sum);
        j.o.store(o, t, h, j.dim);
        if (j.lse != NULL && threadIdx.x % 32 == 0) {
            j.lse[h * j.queries + t] = sum == 0.0f ? -INFINITY : most + logf(sum);
        }
    }
}

/* What forward made of a score, again; a query that saw nothing has a lse of -infinity. */
__device__ __forceinline__ float probability(float score, float lse) {
    return lse > -INFINITY || isnan(lse) ? expf(score - lse) : 0.0f;
}

template <typename T> __global__ void __launch_bounds__(THREADS) queries_kernel(job<T> j) {
    for (int64_t at = first_warp(); at < j.queries * j.heads; at += warps()) {
        const int64_t t = at / j.heads, h = at % j.heads;
        float q[EACH], k[EACH], v[EACH], o[EACH], d_o[EACH], dq[EACH] = {};
        const float lse = j.lse[h * j.queries + t];
        j.q.load(q, t, h, j.dim);
        j.o.load(o, t, h, j.dim);
        j.d_o.load(d_o, t, h, j.dim);
        scale_by(q, j.scale);
        const float mean = dot(d_o, o);
        for (int r = 0; r < j.runs; r++) {
            for (int64_t s = j.run[r].first; s < j.run[r].first + j.run[r].count; s++) {
                j.k.load(k, s, h, j.dim);
                j.v.load(v, s, h, j.dim);
                const float p = probability(dot(q, k) + j.run[r].bias, lse);
                add(dq, p * (dot(d_o, v) - mean), k);
            }
        }
        scale_by(dq, j.scale);
        j.dq.store(dq, t, h, j.dim);
        if (threadIdx.x % 32 == 0) {
            j.mean[h * j.queries + t] = mean;
        }
    }
}

/* Rows of one run. */
template <typename T> __global__ void __launch_bounds__(THREADS) keys_kernel(job<T> j, int r) {
    for (int64_t at = first_warp(); at < j.run[r].count * j.heads; at += warps()) {
        const int64_t s = j.run[r].first + at / j.heads, h = at % j.heads;
        float q[EACH], k[EACH], v[EACH], d_o[EACH], dk[EACH], dv[EACH], sum_k[EACH] = {}, sum_v[EACH] = {};
        j.k.load(k, s, h, j.dim);
        j.v.load(v, s, h, j.dim);
        for (int64_t t = 0; t < j.queries; t++) {
            j.q.load(q, t, h, j.dim);
            j.d_o.load(d_o, t, h, j.dim);
            scale_by(q, j.scale);
            const float p = probability(dot(q, k) + j.run[r].bias, j.lse[h * j.queries + t]);
            add(sum_v, p, d_o);
            add(sum_k, p * (dot(d_o, v) - j.mean[h * j.queries + t]), q);
        }
        j.dk.load(dk, s, h, j.dim);
        j.dv.load(dv, s, h, j.dim);
        add(dk, 1.0f, sum_k);
        add(dv, 1.0f, sum_v);
        j.dk.store(dk, s, h, j.dim);
        j.dv.store(dv, s, h, j.dim);
    }
}

template <typename T> rows<T> rows_of(const carry_tensor &t) {
    return rows<T>{(typename T::stored *)t.data, t.stride[0], t.stride[1]};
}

template <typename T> job<T> job_of(const carry_attention_args *args) {
    job<T> j = {};
    j.q = rows_of<T>(args->q);
    j.k = rows_of<T>(args->k);
    j.v = rows_of<T>(args->v);
    j.o = rows_of<T>(args->o);
    j.lse = (float *)args->lse.data;
    j.queries = args->q.shape[0];
    j.heads = args->q.shape[1];
    j.keys = args->k.shape[0];
    j.dim = (int)args->q.shape[2];
    j.scale = carry_attention_scale(args);
    j.runs = carry_attention_runs(args, j.run);
    return j;
}

} // namespace

carry_status attention_plain_forward(carry_ctx *ctx, const carry_attention_args *args) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->q.device));
    const int64_t units = args->q.shape[0] * args->q.shape[1];
    if (units < 1) {
        return CARRY_OK;
    }
    with_type(args->q.dtype, [&](auto type) {
        using T = decltype(type);
        forward_kernel<T><<<blocks_for(units, WARPS), THREADS, 0, at.stream>>>(job_of<T>(args));
    });
    return launched(ctx, at, "attention cannot be launched");
}

size_t attention_plain_backward_workspace(const carry_attention_backward_args *args) {
    const carry_tensor *q = &args->forward.q;
    size_t bytes = 0;
    (void)carry_size_product(&bytes, q->shape, 2, sizeof(float)); /* mean */
    return bytes;
}

carry_status attention_plain_backward(carry_ctx *ctx, const carry_attention_backward_args *args, void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->forward.q.device));
    const int64_t units = args->forward.q.shape[0] * args->forward.q.shape[1];
    if (units < 1) {
        return CARRY_OK;
    }
    with_type(args->forward.q.dtype, [&](auto type) {
        using T = decltype(type);
        job<T> j = job_of<T>(&args->forward);
        j.d_o = rows_of<T>(args->d_o);
        j.dq = rows_of<T>(args->dq);
        j.dk = rows_of<T>(args->dk);
        j.dv = rows_of<T>(args->dv);
        j.mean = (float *)workspace;
        queries_kernel<T><<<blocks_for(units, WARPS), THREADS, 0, at.stream>>>(j);
        for (int r = 0; r < j.runs; r++) {
            if (j.run[r].count > 0) {
                keys_kernel<T><<<blocks_for(j.run[r].count * j.heads, WARPS), THREADS, 0, at.stream>>>(j, r);
            }
        }
    });
    return launched(ctx, at, "the backward pass of attention cannot be launched");
}
