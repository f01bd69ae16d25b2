/* Kernels that fuse passes over rows between the products of a transformer: a gated sum with the layer norm that
   follows it, and the RMS norm of queries and keys with rotary positions. They are bound by memory: a block has a row,
   and a thread 16 elements of it in registers. They are for bf16 and rows of whole vectors. In other cases the gated
   sum and its norm run as separate operators, and a plain kernel does queries and keys. Products with bias and GELU go
   through cuBLASLt. */
#include <limits.h>
#include <math.h>

extern "C" {
#include "ops/fused.h"
}

#include "ops/cuda/nn.cuh"

namespace {

/* Rows of n bf16 elements; n is a multiple of 8, up to 16384, and rows start at multiples of 16 bytes. gate, w and b
   are f32. NULL: absent. */
struct norm_job {
    int64_t rows, n;
    void *x, *h;
    const void *y;
    const float *gate, *w, *b;
    float plus, eps;
};

struct qk_part {
    void *to;
    const void *from;
    int64_t to_row, from_row;
    const float *w, *sums, *table;
};

struct qk_job {
    int64_t rows, n, head, whole;
    qk_part part[CARRY_MAX_QK_PARTS];
    float eps;
};

constexpr int ONCE = 8, VECTORS = 2; /* elements in 16 bytes, and number of such vectors per thread */
constexpr int EACH = ONCE * VECTORS;
constexpr int64_t MOST = 1024 * EACH, HALF = 512 * EACH; /* elements of a row */

/* Uses the GPU's own conversion: the bits of a NaN do not matter here. */
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ float low_of(uint32_t both) {
    return __uint_as_float(both << 16);
}

__device__ __forceinline__ float high_of(uint32_t both) {
    return __uint_as_float(both & 0xffff0000u);
}

/* A thread's elements of a row in their stored type: this takes half the registers of floats, so that more rows are
   in flight. */
struct row_part {
    uint32_t word[EACH / 2];
};

__device__ __forceinline__ row_part load(const uint16_t *row, int n) {
    row_part v;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = ONCE * (int)(threadIdx.x + i * blockDim.x);
        const uint4 bits = at < n ? *(const uint4 *)(row + at) : make_uint4(0, 0, 0, 0);
        v.word[4 * i] = bits.x;
        v.word[4 * i + 1] = bits.y;
        v.word[4 * i + 2] = bits.z;
        v.word[4 * i + 3] = bits.w;
    }
    return v;
}

__device__ __forceinline__ void store(uint16_t *row, const row_part &v, int n) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = ONCE * (int)(threadIdx.x + i * blockDim.x);
        if (at < n) {
            *(uint4 *)(row + at) = make_uint4(v.word[4 * i], v.word[4 * i + 1], v.word[4 * i + 2], v.word[4 * i + 3]);
        }
    }
}

/* Four elements, from i on, of this thread's part of a vector that all rows share; `otherwise` if the vector is
   NULL. */
__device__ __forceinline__ float4 shared_by_all(const float *from, int i, int n, float otherwise) {
    int at = ONCE * (int)(threadIdx.x + i / ONCE * blockDim.x) + i % ONCE;
    return from != NULL && at < n ? __ldg((const float4 *)(from + at))
                                  : make_float4(otherwise, otherwise, otherwise, otherwise);
}

/* Sums over a warp, in a fixed order. */
__device__ __forceinline__ float add_warp(float value) {
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
}

/* The number of elements of a row that this warp has. */
__device__ __forceinline__ int warp_count(int n) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int left = n - ONCE * (int)(threadIdx.x / 32 * 32 + i * blockDim.x);
        count += left < 0 ? 0 : left < 32 * ONCE ? left : 32 * ONCE;
    }
    return count;
}

struct spread {
    float mean, squares; /* squares: sum of the squared differences from the mean */
};

/* Mean and squares of the block's row. Each warp uses its own mean, and the results of the warps are then combined:
   this needs one barrier, and never subtracts large numbers that differ little. */
__device__ __forceinline__ spread measure(const row_part &x, int n) {
    __shared__ float4 parts[32];
    const int lane = (int)threadIdx.x % 32;
    const float count = (float)warp_count(n);
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH / 2; i++) {
        sum += low_of(x.word[i]) + high_of(x.word[i]);
    }
    sum = add_warp(sum);
    const float mine = count > 0.0f ? sum / count : 0.0f;
#pragma unroll
    for (int i = 0; i < EACH / 2; i++) {
        if (ONCE * (int)(threadIdx.x + i / 4 * blockDim.x) < n) {
            const float low = low_of(x.word[i]) - mine, high = high_of(x.word[i]) - mine;
            squares = fmaf(low, low, fmaf(high, high, squares));
        }
    }
    squares = add_warp(squares);
    if (lane == 0) {
        parts[threadIdx.x / 32] = make_float4(sum, mine, squares, count);
    }
    __syncthreads();
    const float4 part = lane < (int)(blockDim.x / 32) ? parts[lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float mean = add_warp(part.x) / (float)n;
    const float off = part.y - mean;
    return {mean, add_warp(fmaf(part.w * off, off, part.z))};
}

/* The sum over the block, in a fixed order. */
__device__ __forceinline__ float add_up(float value) {
    __shared__ float parts[32];
    const int lane = (int)threadIdx.x % 32;
    value = add_warp(value);
    if (lane == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return add_warp(lane < (int)(blockDim.x / 32) ? parts[lane] : 0.0f);
}

/* THREADS: the largest block size; BLOCKS: blocks of that size per multiprocessor, for which registers are reserved. */
template <int THREADS, int BLOCKS> __global__ void __launch_bounds__(THREADS, BLOCKS) norm_kernel(norm_job a) {
    const int n = (int)a.n;
    const int64_t t = blockIdx.x;
    row_part x = load((const uint16_t *)a.x + t * a.n, n);
    if (a.y != NULL) {
        const row_part y = load((const uint16_t *)a.y + t * a.n, n);
#pragma unroll
        for (int i = 0; i < EACH / 2; i += 2) {
            const float4 gate = shared_by_all(a.gate, 2 * i, n, 1.0f);
            x.word[i] = pack(fmaf(gate.x, low_of(y.word[i]), low_of(x.word[i])),
                             fmaf(gate.y, high_of(y.word[i]), high_of(x.word[i])));
            x.word[i + 1] = pack(fmaf(gate.z, low_of(y.word[i + 1]), low_of(x.word[i + 1])),
                                 fmaf(gate.w, high_of(y.word[i + 1]), high_of(x.word[i + 1])));
        }
        store((uint16_t *)a.x + t * a.n, x, n);
    }
    if (a.h == NULL) {
        return;
    }
    const spread s = measure(x, n);
    const float over = rsqrtf(s.squares / (float)n + a.eps);
#pragma unroll
    for (int i = 0; i < EACH / 2; i += 2) {
        const float4 w = shared_by_all(a.w, 2 * i, n, 1.0f - a.plus), b = shared_by_all(a.b, 2 * i, n, 0.0f);
        x.word[i] = pack(fmaf((low_of(x.word[i]) - s.mean) * over, w.x + a.plus, b.x),
                         fmaf((high_of(x.word[i]) - s.mean) * over, w.y + a.plus, b.y));
        x.word[i + 1] = pack(fmaf((low_of(x.word[i + 1]) - s.mean) * over, w.z + a.plus, b.z),
                             fmaf((high_of(x.word[i + 1]) - s.mean) * over, w.w + a.plus, b.w));
    }
    store((uint16_t *)a.h + t * a.n, x, n);
}

/* Rotates two pairs by two angles, given as cosine and sine. Pairs are contiguous, so a thread has both elements of
   each. */
__device__ __forceinline__ float4 turned(float4 v, float4 by) {
    return make_float4(v.x * by.x - v.y * by.y, v.x * by.y + v.y * by.x, v.z * by.z - v.w * by.w,
                       v.z * by.w + v.w * by.z);
}

template <int THREADS, int BLOCKS> __global__ void __launch_bounds__(THREADS, BLOCKS) qk_norm_rotary_kernel(qk_job a) {
    const int n = (int)a.n;
    const int64_t t = blockIdx.x;
    const qk_part &part = a.part[blockIdx.y];
    row_part x = load((const uint16_t *)part.from + t * part.from_row, n);
    float over = 1.0f;
    if (part.w != NULL) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH / 2; i++) {
            squares = fmaf(low_of(x.word[i]), low_of(x.word[i]), squares);
            squares = fmaf(high_of(x.word[i]), high_of(x.word[i]), squares);
        }
        over = rsqrtf(add_up(squares) / (float)n + a.eps);
    }
    if (part.w != NULL || part.table != NULL) {
#pragma unroll
        for (int i = 0; i < EACH / 2; i += 2) {
            const int at = ONCE * (int)(threadIdx.x + i / 4 * blockDim.x) + i % 4 * 2;
            const float4 w = shared_by_all(part.w, 2 * i, n, 1.0f);
            float4 v = make_float4(low_of(x.word[i]) * (over * w.x), high_of(x.word[i]) * (over * w.y),
                                   low_of(x.word[i + 1]) * (over * w.z), high_of(x.word[i + 1]) * (over * w.w));
            if (part.table != NULL) {
                v = turned(v, *(const float4 *)(part.table + t * a.head + (at < n ? at % (int)a.head : 0)));
            }
            x.word[i] = pack(v.x, v.y);
            x.word[i + 1] = pack(v.z, v.w);
        }
    }
    store((uint16_t *)part.to + t * part.to_row, x, n);
}

/* Any type, n and head, also for rows that are split over ranks: a block has a row. */
template <typename T> __global__ void __launch_bounds__(THREADS) plain_qk_kernel(qk_job a) {
    __shared__ float parts[THREADS / 32];
    const qk_part &part = a.part[blockIdx.y];
    const int64_t t = blockIdx.x;
    const row_of<T> from = {(typename T::stored *)part.from + t * part.from_row};
    const row_of<T> to = {(typename T::stored *)part.to + t * part.to_row};
    float over = 1.0f;
    if (part.w != NULL) {
        float squares = 0.0f;
        for (int64_t i = threadIdx.x; part.sums == NULL && i < a.n; i += THREADS) {
            squares = fmaf(from.get(i), from.get(i), squares);
        }
        squares = part.sums != NULL ? part.sums[t] : group_sum<THREADS>(squares, parts);
        over = 1.0f / sqrtf(squares / (float)a.whole + a.eps);
    }
    for (int64_t i = 2 * threadIdx.x; i < a.n; i += 2 * THREADS) {
        const bool is_pair = i + 1 < a.n;
        float x = from.get(i) * (part.w != NULL ? over * part.w[i] : 1.0f);
        float y = is_pair ? from.get(i + 1) * (part.w != NULL ? over * part.w[i + 1] : 1.0f) : 0.0f;
        if (part.table != NULL) { /* heads are even, so pairs are whole */
            const float *turn = part.table + t * a.head + i % a.head;
            const float first = x;
            x = first * turn[0] - y * turn[1];
            y = first * turn[1] + y * turn[0];
        }
        to.put(i, x);
        if (is_pair) {
            to.put(i + 1, y);
        }
    }
}

unsigned threads_of(int64_t n) {
    return (unsigned)((n + EACH * 32 - 1) / (EACH * 32) * 32);
}

bool in_vectors(const carry_tensor &x) {
    return x.dtype == CARRY_BF16 && x.shape[1] % 8 == 0 && x.shape[1] <= MOST && x.shape[0] <= INT_MAX;
}

/* An absent tensor is accepted. */
bool fits(const carry_tensor &tensor, int64_t row) {
    return (uintptr_t)tensor.data % 16 == 0 && row % 8 == 0;
}

bool fits_f32(const carry_tensor &tensor) {
    return tensor.data == NULL || (tensor.dtype == CARRY_F32 && fits(tensor, 0));
}

bool parts_fit(const carry_qk_norm_rotary_args *args) {
    bool fit = in_vectors(args->part[0].from) && (args->table.data == NULL || args->table.shape[1] % 4 == 0);
    for (int i = 0; i < args->parts; i++) {
        const carry_qk_part &part = args->part[i];
        fit = fit && part.sums.data == NULL && fits(part.to, part.to.stride[0]) &&
              fits(part.from, part.from.stride[0]) && fits(part.w, 0) && fits(args->table, 0);
    }
    return fit;
}

} // namespace

extern "C" carry_status carry_cuda_affine(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                          carry_tensor b, carry_activation activation, bool accumulate) {
    const bool gelu = activation == CARRY_GELU;
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    carry_device_product p = {};
    p.m = x.shape[0];
    p.n = y.shape[1];
    p.k = x.shape[1];
    p.count = 1;
    p.a = x.data;
    p.b = W.data;
    p.c = y.data;
    p.a_row = p.b_row = p.k;
    p.c_row = p.n;
    p.type = p.c_type = x.dtype;
    p.b_transposed = true;
    p.accumulate = accumulate;
    p.bias = b.data;
    p.gelu = gelu;
    p.ordinal = at.ordinal;
    p.stream = (carry_stream *)at.stream;
    bool done = p.m == 0 || p.n == 0;
    if (!done && x.dtype != CARRY_F32 && W.dtype == x.dtype && b.dtype == x.dtype && p.k > 0 &&
        (gelu || activation == CARRY_NO_ACTIVATION)) {
        CARRY_TRY(carry_cuda_blaslt(ctx, &p, &done));
    }
    return done ? CARRY_OK : carry_affine_parts(ctx, y, x, W, b, activation, accumulate);
}

extern "C" carry_status carry_cuda_add_layer_norm(carry_ctx *ctx, carry_tensor h, carry_tensor x, carry_tensor y,
                                                  carry_tensor g, carry_tensor w, carry_tensor b, float plus,
                                                  float eps) {
    if (!in_vectors(x) || !fits(x, 0) || !fits(h, 0) || !fits(y, 0) || !fits_f32(g) || !fits_f32(w) || !fits_f32(b)) {
        return carry_add_layer_norm_parts(ctx, h, x, y, g, w, b, plus, eps);
    }
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    if (x.shape[0] < 1 || x.shape[1] < 1 || (h.data == NULL && y.data == NULL)) {
        return CARRY_OK;
    }
    const norm_job job = {x.shape[0],
                          x.shape[1],
                          x.data,
                          h.data,
                          y.data,
                          (const float *)g.data,
                          (const float *)w.data,
                          (const float *)b.data,
                          plus,
                          eps};
    if (job.n <= HALF) {
        norm_kernel<512, 3><<<(unsigned)job.rows, threads_of(job.n), 0, at.stream>>>(job);
    } else {
        norm_kernel<1024, 1><<<(unsigned)job.rows, threads_of(job.n), 0, at.stream>>>(job);
    }
    return launched(ctx, at, "a norm cannot be launched");
}

extern "C" carry_status carry_cuda_qk_norm_rotary(carry_ctx *ctx, const carry_qk_norm_rotary_args *args) {
    const carry_tensor &x = args->part[0].from;
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    qk_job job = {};
    job.rows = x.shape[0];
    job.n = x.shape[1];
    job.head = args->table.data != NULL ? 2 * args->table.shape[1] : 2;
    job.eps = args->eps;
    bool has_sums = false;
    for (int i = 0; i < args->parts; i++) {
        const carry_qk_part &part = args->part[i];
        has_sums = has_sums || part.sums.data != NULL;
        job.part[i] = {part.to.data,
                       part.from.data,
                       part.to.stride[0],
                       part.from.stride[0],
                       (const float *)part.w.data,
                       (const float *)part.sums.data,
                       part.rotates ? (const float *)args->table.data : NULL};
    }
    job.whole = has_sums ? args->whole : job.n;
    if (job.rows < 1 || job.n < 1) {
        return CARRY_OK;
    }
    if (job.rows > INT_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "%lld rows of queries on a GPU: at most %d", (long long)job.rows, INT_MAX);
    }
    const dim3 grid((unsigned)job.rows, (unsigned)args->parts);
    if (parts_fit(args)) {
        if (job.n <= HALF) {
            qk_norm_rotary_kernel<512, 3><<<grid, threads_of(job.n), 0, at.stream>>>(job);
        } else {
            qk_norm_rotary_kernel<1024, 1><<<grid, threads_of(job.n), 0, at.stream>>>(job);
        }
    } else {
        with_type(x.dtype, [&](auto type) { plain_qk_kernel<decltype(type)><<<grid, THREADS, 0, at.stream>>>(job); });
    }
    return launched(ctx, at, "positions cannot be launched");
}
