/* Attention on CUDA devices, forward and backward, for all calls that the kernels on tensor cores do not support
   (attention.cu and backward.cu have the conditions). A warp has a query (or, in the backward pass, a key) of
   one head and walks the keys that the query sees (or the queries that see the key); a lane has every 32nd element of
   D. If there are few queries, as in a step of generation, the warps of a block share the keys of one query. Sums are
   f32 in a fixed order, so the same inputs give the same bits.

   Backward, from lse, with mean[t] = dO[t].O[t]: P = exp(scale q.k + bias - lse), dS = P (dO.v - mean),
   dq = scale sum dS k (one warp for each query), dk += scale sum dS q and dv += sum P dO (one warp for each key). */
#include <math.h>

#include "attention/plain.cuh"

extern "C" {
#include "attention/attention.h"
}

#include "ops/cuda/nn.cuh"

namespace {

constexpr int WARPS = THREADS / 32;
constexpr int SHARERS = 16;         /* warps of a block that share a query */
constexpr int64_t FEW_UNITS = 512;  /* up to this product of queries and heads, warps share a query */
constexpr int USUAL = 8, WIDE = 20; /* most elements of a row in a lane: for D up to 256 and up to 640 */

template <typename T> struct rows {
    typename T::stored *data;
    int64_t row, head; /* strides */
    template <int EACH> __device__ __forceinline__ void load(float (&to)[EACH], int64_t at, int64_t h, int dim) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int d = (int)(threadIdx.x % 32) + 32 * i;
            to[i] = d < dim ? T::widen(data[at * row + h * head + d]) : 0.0f;
        }
    }
    template <int EACH>
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
    float *lse, *mean; /* [heads, queries]; lse is NULL if not wanted */
    int64_t queries, heads, keys;
    int64_t group;  /* query heads for each head of k and v */
    int64_t past;   /* for a causal call: query t sees rows up to past + t; otherwise all */
    int64_t window; /* a query sees only the last `window` of these rows */
    bool causal;
    int dim, runs;
    float scale;
    carry_key_run run[CARRY_MAX_KEY_RUNS];
};

/* The rows of run r that query t sees. */
template <typename T>
__device__ __forceinline__ void seen_rows(const job<T> &j, int r, int64_t t, int64_t &first, int64_t &end) {
    first = j.run[r].first;
    end = first + j.run[r].count;
    if (j.causal) {
        const int64_t last = j.past + t + 1;
        const int64_t least = j.window > 0 ? last - j.window : 0;
        first = first < least ? least : first;
        end = end > last ? last : end;
    }
}

template <int EACH> __device__ __forceinline__ float dot(const float (&a)[EACH], const float (&b)[EACH]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sum = fmaf(a[i], b[i], sum);
    }
    return warp_sum(sum);
}

template <int EACH> __device__ __forceinline__ void add(float (&to)[EACH], float factor, const float (&from)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        to[i] = fmaf(factor, from[i], to[i]);
    }
}

template <int EACH> __device__ __forceinline__ void scale_by(float (&to)[EACH], float factor) {
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

/* The largest score so far, m (most), the sum of exp(score - m), and o, the sum of these exponentials times v. Both
   sums are scaled down when a larger score comes. */
template <int EACH> struct walk { float o[EACH], most, sum; };

template <int EACH> __device__ __forceinline__ void see(walk<EACH> &w, float score, const float (&v)[EACH]) {
    if (score > w.most) {
        const float factor = expf(w.most - score);
        scale_by(w.o, factor);
        w.sum *= factor;
        w.most = score;
    }
    const float p = w.most > -INFINITY || isnan(score) ? expf(score - w.most) : 0.0f;
    w.sum += p;
    add(w.o, p, v);
}

/* Walks every `step`th key of query t, starting at key `from`. */
template <int EACH, typename T>
__device__ __forceinline__ walk<EACH> walk_keys(const job<T> &j, int64_t t, int64_t h, int from, int step) {
    walk<EACH> w = {{}, -INFINITY, 0.0f};
    float q[EACH], k[EACH], v[EACH];
    j.q.load(q, t, h, j.dim);
    scale_by(q, j.scale);
    for (int r = 0; r < j.runs; r++) {
        int64_t first, end;
        seen_rows(j, r, t, first, end);
        for (int64_t s = first + from; s < end; s += step) {
            j.k.load(k, s, h / j.group, j.dim);
            j.v.load(v, s, h / j.group, j.dim);
            see(w, dot(q, k) + j.run[r].bias, v);
        }
    }
    return w;
}

template <typename T, int EACH>
__device__ __forceinline__ void finish(const job<T> &j, walk<EACH> &w, int64_t t, int64_t h) {
    scale_by(w.o, w.sum == 0.0f ? 0.0f : 1.0f / w.sum);
    j.o.store(w.o, t, h, j.dim);
    if (j.lse != NULL && threadIdx.x % 32 == 0) {
        j.lse[h * j.queries + t] = w.sum == 0.0f ? -INFINITY : w.most + logf(w.sum);
    }
}

template <typename T, int EACH> __global__ void __launch_bounds__(THREADS) forward_kernel(job<T> j) {
    for (int64_t at = first_warp(); at < j.queries * j.heads; at += warps()) {
        walk<EACH> w = walk_keys<EACH>(j, at / j.heads, at % j.heads, 0, 1);
        finish(j, w, at / j.heads, at % j.heads);
    }
}

/* A block has one query. Its warps walk the keys in turn, then the first warp adds up their results in order. */
template <typename T, int EACH> __global__ void __launch_bounds__(32 * SHARERS) few_kernel(job<T> j) {
    __shared__ float most[SHARERS], sum[SHARERS], rows[SHARERS][32 * EACH];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t t = blockIdx.x / j.heads, h = blockIdx.x % j.heads;
    walk<EACH> w = walk_keys<EACH>(j, t, h, warp, SHARERS);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        rows[warp][lane + 32 * i] = w.o[i];
    }
    if (lane == 0) {
        most[warp] = w.most;
        sum[warp] = w.sum;
    }
    __syncthreads();
    if (warp > 0) {
        return;
    }
    for (int other = 1; other < SHARERS; other++) {
        const float larger = fmaxf(w.most, most[other]);
        const float here = w.most > -INFINITY ? expf(w.most - larger) : 0.0f;
        const float there = most[other] > -INFINITY ? expf(most[other] - larger) : 0.0f;
        w.most = larger;
        w.sum = w.sum * here + sum[other] * there;
        scale_by(w.o, here);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            w.o[i] = fmaf(there, rows[other][lane + 32 * i], w.o[i]);
        }
    }
    finish(j, w, t, h);
}

/* The probability of a score, as in the forward pass. A query that saw no key has a lse of -infinity. */
__device__ __forceinline__ float probability(float score, float lse) {
    return lse > -INFINITY || isnan(lse) ? expf(score - lse) : 0.0f;
}

template <typename T, int EACH> __global__ void __launch_bounds__(THREADS) queries_kernel(job<T> j) {
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
            int64_t first, end;
            seen_rows(j, r, t, first, end);
            for (int64_t s = first; s < end; s++) {
                j.k.load(k, s, h / j.group, j.dim);
                j.v.load(v, s, h / j.group, j.dim);
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

/* Adds the gradients of a key of run r from the queries of one head. */
template <typename T, int EACH>
__device__ __forceinline__ void walk_queries(const job<T> &j, int r, int64_t s, int64_t h, const float (&k)[EACH],
                                             const float (&v)[EACH], float (&sum_k)[EACH], float (&sum_v)[EACH]) {
    float q[EACH], d_o[EACH];
    const int64_t first = j.causal && s > j.past ? s - j.past : 0;
    const int64_t reach = j.window > 0 ? s - j.past + j.window : j.queries;
    const int64_t end = j.causal && reach < j.queries ? reach : j.queries;
    for (int64_t t = first; t < end; t++) {
        j.q.load(q, t, h, j.dim);
        j.d_o.load(d_o, t, h, j.dim);
        scale_by(q, j.scale);
        const float p = probability(dot(q, k) + j.run[r].bias, j.lse[h * j.queries + t]);
        add(sum_v, p, d_o);
        add(sum_k, p * (dot(d_o, v) - j.mean[h * j.queries + t]), q);
    }
}

/* Computes dk and dv for the rows of one run. */
template <typename T, int EACH> __global__ void __launch_bounds__(THREADS) keys_kernel(job<T> j, int r) {
    const int64_t key_heads = j.heads / j.group;
    for (int64_t at = first_warp(); at < j.run[r].count * key_heads; at += warps()) {
        const int64_t s = j.run[r].first + at / key_heads, h = at % key_heads;
        float k[EACH], v[EACH], dk[EACH], dv[EACH], sum_k[EACH] = {}, sum_v[EACH] = {};
        j.k.load(k, s, h, j.dim);
        j.v.load(v, s, h, j.dim);
        for (int64_t i = 0; i < j.group; i++) {
            walk_queries(j, r, s, h * j.group + i, k, v, sum_k, sum_v);
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
    j.group = args->k.shape[1] > 0 ? j.heads / args->k.shape[1] : 1;
    j.causal = args->causal;
    j.past = j.keys - j.queries;
    j.window = args->window;
    j.dim = (int)args->q.shape[2];
    j.scale = carry_attention_scale(args);
    j.runs = carry_attention_runs(args, j.run);
    return j;
}

template <int EACH> void launch_forward(const carry_attention_args *args, int64_t units, cudaStream_t stream) {
    with_type(args->q.dtype, [&](auto type) {
        using T = decltype(type);
        if (units <= FEW_UNITS) {
            few_kernel<T, EACH><<<(unsigned)units, 32 * SHARERS, 0, stream>>>(job_of<T>(args));
        } else {
            forward_kernel<T, EACH><<<blocks_for(units, WARPS), THREADS, 0, stream>>>(job_of<T>(args));
        }
    });
}

template <int EACH>
void launch_backward(const carry_attention_backward_args *args, int64_t units, float *mean, cudaStream_t stream) {
    with_type(args->forward.q.dtype, [&](auto type) {
        using T = decltype(type);
        job<T> j = job_of<T>(&args->forward);
        j.d_o = rows_of<T>(args->d_o);
        j.dq = rows_of<T>(args->dq);
        j.dk = rows_of<T>(args->dk);
        j.dv = rows_of<T>(args->dv);
        j.mean = mean;
        queries_kernel<T, EACH><<<blocks_for(units, WARPS), THREADS, 0, stream>>>(j);
        for (int r = 0; r < j.runs; r++) {
            if (j.run[r].count > 0) {
                const int64_t keys = j.run[r].count * (j.heads / j.group);
                keys_kernel<T, EACH><<<blocks_for(keys, WARPS), THREADS, 0, stream>>>(j, r);
            }
        }
    });
}

bool is_wide(const carry_tensor &q) {
    return q.shape[2] > 32 * USUAL;
}

} // namespace

carry_status attention_plain_forward(carry_ctx *ctx, const carry_attention_args *args) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->q.device));
    const int64_t units = args->q.shape[0] * args->q.shape[1];
    if (units < 1) {
        return CARRY_OK;
    }
    (is_wide(args->q) ? launch_forward<WIDE> : launch_forward<USUAL>)(args, units, at.stream);
    return launched(ctx, at, "attention cannot be launched");
}

size_t attention_plain_backward_workspace(const carry_attention_backward_args *args) {
    const carry_tensor *q = &args->forward.q;
    size_t bytes = 0;
    (void)carry_size_product(&bytes, q->shape, 2, sizeof(float)); /* space for mean */
    return bytes;
}

carry_status attention_plain_backward(carry_ctx *ctx, const carry_attention_backward_args *args, void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->forward.q.device));
    const carry_tensor &q = args->forward.q;
    const int64_t units = q.shape[0] * q.shape[1];
    if (units < 1) {
        return CARRY_OK;
    }
    (is_wide(q) ? launch_backward<WIDE> : launch_backward<USUAL>)(args, units, (float *)workspace, at.stream);
    return launched(ctx, at, "the backward pass of attention cannot be launched");
}
