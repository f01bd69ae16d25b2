/* Weights of a few keys on NVIDIA GPUs. For bf16 with heads of 128, a block has 16 queries with all their heads: a
   warp takes every sixteenth head, computes its scores on tensor cores and keeps them in registers. When all warps
   are done, the squares of the whole rows are known, and with them the norm by which the scores are scaled. So q is
   read once and never written.

   The order of a head's elements in a product does not matter as long as it is the same on both sides: each lane
   takes 16 bytes at a time, of q and of k. */
#include <limits.h>
#include <math.h>

extern "C" {
#include "ops/fused.h"
}

#include "ops/cuda/nn.cuh"

namespace {

constexpr int WARPS = 16, ROWS = 16, HEAD = 128;
constexpr int MOST_HEADS = 3; /* of a warp */
constexpr int MOST_TILES = 6; /* tiles of eight keys */
constexpr float LOG2_E = 1.4426950408889634f;

struct weights_job {
    uint16_t *p;
    const uint16_t *q, *k;
    const float *w;
    int rows, heads, keys;
    float scale, last, eps; /* scale and last times log2 e */
};

__device__ __forceinline__ float low_of(uint32_t both) {
    return __uint_as_float(both << 16);
}

__device__ __forceinline__ float high_of(uint32_t both) {
    return __uint_as_float(both & 0xffff0000u);
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float squares_of(uint4 v, float sum) {
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum = fmaf(low_of(words[i]), low_of(words[i]), sum);
        sum = fmaf(high_of(words[i]), high_of(words[i]), sum);
    }
    return sum;
}

__device__ __forceinline__ uint4 scaled(uint4 v, const float *w) {
    const float4 a = __ldg((const float4 *)w), b = __ldg((const float4 *)w + 1);
    return make_uint4(pack(low_of(v.x) * a.x, high_of(v.x) * a.y), pack(low_of(v.y) * a.z, high_of(v.y) * a.w),
                      pack(low_of(v.z) * b.x, high_of(v.z) * b.y), pack(low_of(v.w) * b.z, high_of(v.w) * b.w));
}

/* Scores of one head before the norm; squares are those of this lane's elements of rows g and g + 8. */
template <int TILES>
__device__ __forceinline__ void score_head(const weights_job &a, int head, int64_t row0, float (&s)[TILES][4],
                                           float (&squares)[2]) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, column = head * HEAD + lane % 4 * 8;
    const int64_t n = (int64_t)a.heads * HEAD;
    const uint4 none = make_uint4(0, 0, 0, 0);
    uint4 upper[4], lower[4];
#pragma unroll
    for (int v = 0; v < 4; v++) {
        upper[v] = row0 + g < a.rows ? *(const uint4 *)(a.q + (row0 + g) * n + column + 32 * v) : none;
        lower[v] = row0 + g + 8 < a.rows ? *(const uint4 *)(a.q + (row0 + g + 8) * n + column + 32 * v) : none;
    }
#pragma unroll
    for (int v = 0; v < 4; v++) {
        squares[0] = squares_of(upper[v], squares[0]);
        squares[1] = squares_of(lower[v], squares[1]);
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int key = 8 * t + g;
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
#pragma unroll
        for (int v = 0; v < 4; v++) {
            uint4 k = key < a.keys ? __ldg((const uint4 *)(a.k + key * n + column + 32 * v)) : none;
            k = a.w != NULL ? scaled(k, a.w + column + 32 * v) : k;
            multiply_add(s[t], upper[v].x, lower[v].x, upper[v].y, lower[v].y, k.x, k.y);
            multiply_add(s[t], upper[v].z, lower[v].z, upper[v].w, lower[v].w, k.z, k.w);
        }
    }
}

__device__ __forceinline__ float over_four(float value, bool largest) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = largest ? fmaxf(value, other) : value + other;
    }
    return value;
}

/* Of row g (half 0) or g + 8 (half 1). */
template <int TILES>
__device__ __forceinline__ void finish(const weights_job &a, int head, int64_t row, float (&s)[TILES][4], int half,
                                       float scale) {
    const int column = (int)threadIdx.x % 4 * 2;
    float largest = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int key = 8 * t + column + i;
            float *value = &s[t][2 * half + i];
            *value = key < a.keys ? fmaf(*value, scale, key == a.keys - 1 ? a.last : 0.0f) : -INFINITY;
            largest = fmaxf(largest, *value);
        }
    }
    largest = over_four(largest, true);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *value = &s[t][2 * half + i];
            *value = exp2_of(*value - largest);
            sum += *value;
        }
    }
    const float over = 1.0f / over_four(sum, false);
    if (row < a.rows) {
        uint16_t *to = a.p + (row * a.heads + head) * (8 * TILES) + column;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            *(uint32_t *)(to + 8 * t) = pack(s[t][2 * half] * over, s[t][2 * half + 1] * over);
        }
    }
}

/* Two blocks per multiprocessor if registers allow it: 2160 queries are 135 blocks, three more than an H200 has
   multiprocessors. */
template <int TILES>
__global__ void __launch_bounds__(32 * WARPS, TILES <= 3 ? 2 : 1) key_weights_kernel(weights_job a) {
    __shared__ float parts[WARPS][ROWS];
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4;
    const int64_t row0 = (int64_t)blockIdx.x * ROWS;
    float s[MOST_HEADS][TILES][4], squares[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < MOST_HEADS; i++) {
        if (warp + i * WARPS < a.heads) {
            score_head<TILES>(a, warp + i * WARPS, row0, s[i], squares);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        squares[half] = over_four(squares[half], false);
        if (threadIdx.x % 4 == 0) {
            parts[warp][g + 8 * half] = squares[half];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        sum[0] += parts[i][g];
        sum[1] += parts[i][g + 8];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float over = a.w != NULL ? rsqrtf(sum[half] / (float)(a.heads * HEAD) + a.eps) : 1.0f;
#pragma unroll
        for (int i = 0; i < MOST_HEADS; i++) {
            if (warp + i * WARPS < a.heads) {
                finish<TILES>(a, warp + i * WARPS, row0 + g + 8 * half, s[i], half, over * a.scale);
            }
        }
    }
}

template <typename T> struct plain_job {
    row_of<T> p, q, k;
    const float *w;
    int64_t n, heads, width, keys, stride;
    float scale, last, eps;
};

template <typename T> __device__ float plain_score(const plain_job<T> &a, int64_t row, int64_t head, int64_t key) {
    float sum = 0.0f;
    for (int64_t i = head * a.width; i < (head + 1) * a.width; i++) {
        sum = fmaf(a.q.get(row * a.n + i) * (a.w != NULL ? a.w[i] : 1.0f), a.k.get(key * a.n + i), sum);
    }
    return sum;
}

/* Any type and size: a block has a query, and a thread some of its heads. Correct but slow. */
template <typename T> __global__ void __launch_bounds__(THREADS) plain_weights_kernel(plain_job<T> a) {
    __shared__ float parts[THREADS / 32];
    const int64_t row = blockIdx.x;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
        squares = fmaf(a.q.get(row * a.n + i), a.q.get(row * a.n + i), squares);
    }
    squares = group_sum<THREADS>(squares, parts);
    const float scale = a.scale * (a.w != NULL ? 1.0f / sqrtf(squares / (float)a.n + a.eps) : 1.0f);
    for (int64_t head = threadIdx.x; head < a.heads; head += THREADS) {
        float largest = -INFINITY, sum = 0.0f;
        for (int64_t j = 0; j < a.keys; j++) {
            largest = fmaxf(largest, fmaf(plain_score(a, row, head, j), scale, j == a.keys - 1 ? a.last : 0.0f));
        }
        for (int64_t j = 0; j < a.keys; j++) {
            sum += expf(fmaf(plain_score(a, row, head, j), scale, j == a.keys - 1 ? a.last : 0.0f) - largest);
        }
        for (int64_t j = 0; j < a.stride; j++) {
            const float value =
                j < a.keys ? fmaf(plain_score(a, row, head, j), scale, j == a.keys - 1 ? a.last : 0.0f) : -INFINITY;
            a.p.put((row * a.heads + head) * a.stride + j, expf(value - largest) / sum);
        }
    }
}

bool is_fast(const carry_key_weights_args *args) {
    const int64_t stride = args->p.shape[1] / args->heads;
    return args->q.dtype == CARRY_BF16 && args->q.shape[1] == args->heads * HEAD && args->heads <= WARPS * MOST_HEADS &&
           stride % 8 == 0 && stride <= 8 * MOST_TILES && (uintptr_t)args->q.data % 16 == 0 &&
           (uintptr_t)args->k.data % 16 == 0 && (uintptr_t)args->p.data % 16 == 0 && (uintptr_t)args->w.data % 16 == 0;
}

template <int TILES> void launch(const weights_job &job, cudaStream_t stream) {
    key_weights_kernel<TILES><<<(unsigned)((job.rows + ROWS - 1) / ROWS), 32 * WARPS, 0, stream>>>(job);
}

void launch_fast(const carry_key_weights_args *args, cudaStream_t stream) {
    static void (*const launches[])(const weights_job &, cudaStream_t) = {launch<1>, launch<2>, launch<3>,
                                                                          launch<4>, launch<5>, launch<6>};
    const weights_job job = {(uint16_t *)args->p.data,
                             (const uint16_t *)args->q.data,
                             (const uint16_t *)args->k.data,
                             (const float *)args->w.data,
                             (int)args->q.shape[0],
                             (int)args->heads,
                             (int)args->keys,
                             LOG2_E / sqrtf((float)HEAD),
                             LOG2_E * args->last,
                             args->eps};
    launches[args->p.shape[1] / args->heads / 8 - 1](job, stream);
}

} // namespace

extern "C" carry_status carry_cuda_key_weights(carry_ctx *ctx, const carry_key_weights_args *args) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->q.device));
    if (args->q.shape[0] < 1) {
        return CARRY_OK;
    }
    if (args->q.shape[0] > INT_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "%lld rows of queries on a GPU: at most %d", (long long)args->q.shape[0],
                          INT_MAX);
    }
    if (is_fast(args)) {
        launch_fast(args, at.stream);
    } else {
        with_type(args->q.dtype, [&](auto type) {
            using T = decltype(type);
            const int64_t n = args->q.shape[1];
            const plain_job<T> job = {row<T>(args->p),
                                      row<T>(args->q),
                                      row<T>(args->k),
                                      (const float *)args->w.data,
                                      n,
                                      args->heads,
                                      n / args->heads,
                                      args->keys,
                                      args->p.shape[1] / args->heads,
                                      1.0f / sqrtf((float)(n / args->heads)),
                                      args->last,
                                      args->eps};
            plain_weights_kernel<T><<<(unsigned)args->q.shape[0], THREADS, 0, at.stream>>>(job);
        });
    }
    return launched(ctx, at, "key_weights cannot be launched");
}
