/* Chunks of state space layers on tensor cores by mma.sync: tiles in shared memory and products, for ssm_tiles.cu and
   ssm_tiles_backward.cu. Rows of a tile in memory are 8 elements longer than the tile is wide, so that loads have no
   bank conflicts. */
#ifndef CARRY_OPS_SSM_TILES_CUH
#define CARRY_OPS_SSM_TILES_CUH

#include <cuda_bf16.h>

#include "ops/cuda/ssm.cuh"

namespace ssm_mma {

constexpr int L = SSM_L, P = 64, LP = P + 8, LL = L + 8;

__device__ __forceinline__ int lane_of() {
    return (int)threadIdx.x % 32;
}
/* The row and column of element e (0 or 1) of half r of a lane in a [16, 8] result. */
__device__ __forceinline__ int row_in(int r) {
    return lane_of() / 4 + 8 * r;
}
__device__ __forceinline__ int column_in() {
    return lane_of() % 4 * 2;
}

__device__ __forceinline__ unsigned pack(type_bf16, float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ unsigned pack(type_f16, float low, float high) {
    return (unsigned)__half_as_ushort(__float2half_rn(low)) | (unsigned)__half_as_ushort(__float2half_rn(high)) << 16;
}
__device__ __forceinline__ float2 unpack(type_bf16, unsigned pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ __forceinline__ float2 unpack(type_f16, unsigned pair) {
    return {__half2float(__ushort_as_half((unsigned short)(pair & 0xffffu))),
            __half2float(__ushort_as_half((unsigned short)(pair >> 16)))};
}
template <typename T> __device__ __forceinline__ unsigned scale(T type, unsigned pair, float low, float high) {
    const float2 x = unpack(type, pair);
    return pack(type, x.x * low, x.y * high);
}

__device__ __forceinline__ unsigned shared_at(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}
__device__ __forceinline__ void load_blocks(unsigned (&x)[4], const uint16_t *from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_at(from)));
}
__device__ __forceinline__ void load_blocks_t(unsigned (&x)[4], const uint16_t *from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_at(from)));
}

/* Loads the left operand [16, 16] at (m, k) of a tile that is stored as [m][k], or for _t as [k][m]. */
template <int LD> __device__ __forceinline__ void load_left(unsigned (&a)[4], const uint16_t *tile, int m, int k) {
    load_blocks(a, tile + (m + lane_of() % 16) * LD + k + lane_of() / 16 * 8);
}
template <int LD> __device__ __forceinline__ void load_left_t(unsigned (&a)[4], const uint16_t *tile, int m, int k) {
    load_blocks_t(a, tile + (k + lane_of() / 16 * 8 + lane_of() % 8) * LD + m + lane_of() / 8 % 2 * 8);
}
/* Loads the right operands [16, 8] of two adjacent results, at (k, n) of a tile that is stored as [n][k], or for _t as
   [k][n]. */
template <int LD> __device__ __forceinline__ void load_right(unsigned (&b)[4], const uint16_t *tile, int k, int n) {
    load_blocks(b, tile + (n + lane_of() / 16 * 8 + lane_of() % 8) * LD + k + lane_of() / 8 % 2 * 8);
}
template <int LD> __device__ __forceinline__ void load_right_t(unsigned (&b)[4], const uint16_t *tile, int k, int n) {
    load_blocks_t(b, tile + (k + lane_of() / 8 % 2 * 8 + lane_of() % 8) * LD + n + lane_of() / 16 * 8);
}

__device__ __forceinline__ void multiply(type_bf16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(type_f16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <typename T>
__device__ __forceinline__ void multiply_two(T type, float (&d0)[4], float (&d1)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[4]) {
    multiply(type, d0, a, b[0], b[1]);
    multiply(type, d1, a, b[2], b[3]);
}
/* Converts two adjacent results to a left operand. */
template <typename T>
__device__ __forceinline__ void as_left(T type, unsigned (&a)[4], const float (&d0)[4], const float (&d1)[4]) {
    a[0] = pack(type, d0[0], d0[1]);
    a[1] = pack(type, d0[2], d0[3]);
    a[2] = pack(type, d1[0], d1[1]);
    a[3] = pack(type, d1[2], d1[3]);
}

/* Rows of a tensor of 16-bit elements. */
struct rows16 {
    const uint16_t *data; /* start of the first row */
    int64_t stride;
    int count; /* rows after these are zeros */
};

/* Starts copying [64, WIDTH] with THREADS_ threads; the copies are complete after tile_wait. */
template <int WIDTH, int THREADS_>
__device__ __forceinline__ void tile_load(uint16_t *to, const rows16 &from, int thread, bool aligned) {
    constexpr int LD = WIDTH + 8, PIECES = WIDTH / 8;
#pragma unroll 1
    for (int i = thread; i < L * PIECES; i += THREADS_) {
        const int row = i / PIECES, column = i % PIECES * 8;
        const bool there = row < from.count;
        const uint16_t *at = from.data + (there ? row : 0) * from.stride + column;
        uint16_t *here = to + row * LD + column;
        if (aligned) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(here)), "l"(at),
                         "r"(there ? 16 : 0));
        } else {
            for (int e = 0; e < 8; e++) {
                here[e] = there ? at[e] : (uint16_t)0;
            }
        }
    }
}
__device__ __forceinline__ void tile_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void tile_wait() {
    if constexpr (LEFT == 0) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    } else {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    }
}

/* The rows of a chunk, from `column` on, of xbc or of a tensor [B, T, n P]. */
__device__ __forceinline__ rows16 chunk_rows(const ssm_job &job, const void *data, int64_t channels, int64_t row,
                                             int64_t first, int64_t column) {
    const int64_t left = job.T - first;
    return {(const uint16_t *)data + (row * job.T + first) * channels + column, channels, (int)(left < L ? left : L)};
}

/* Shared memory of a walk over states alone: two chunks. */
template <int N> struct states_memory {
    alignas(16) uint16_t b[2][L * (N + 8)];
    alignas(16) uint16_t x[2][L * LP];
    float factor[2][L];
    float fade[2];
};

/* S = fade S + (factor x)^T b for the 16 rows of a warp, from p0 on. */
template <typename T, int N>
__device__ __forceinline__ void advance(T type, float (&S)[N / 8][4], const uint16_t *x, int p0, const uint16_t *b,
                                        const float *factor, float fade) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            S[i][e] *= fade;
        }
    }
#pragma unroll 1
    for (int k = 0; k < L; k += 16) {
        const float *f = factor + k + column_in();
        unsigned left[4], right[4];
        load_left_t<LP>(left, x, p0, k);
        left[0] = scale(type, left[0], f[0], f[1]);
        left[1] = scale(type, left[1], f[0], f[1]);
        left[2] = scale(type, left[2], f[8], f[9]);
        left[3] = scale(type, left[3], f[8], f[9]);
#pragma unroll
        for (int i = 0; i < N / 16; i++) {
            load_right_t<N + 8>(right, b, k, 16 * i);
            multiply_two(type, S[2 * i], S[2 * i + 1], left, right);
        }
    }
}

/* Factors of a token. fade_of: 2^G, or zero if it does not see the state before the chunk; left_of: 2^(G[last] - G). */
__device__ __forceinline__ float fade_of(const ssm_job &job, int64_t item, int64_t first, int i) {
    return ssm_first_seen(job, first + i, first) < 0 ? ssm_decay(((const float2 *)job.at.sum)[item * L + i]) : 0.0f;
}
__device__ __forceinline__ float left_of(const ssm_job &job, int64_t item, int64_t first, int i) {
    const float2 *sum = (const float2 *)job.at.sum + item * L;
    return i >= ssm_first_seen(job, first + L - 1, first) ? ssm_decay(sum[L - 1], sum[i]) : 0.0f;
}

static inline bool is_aligned(const ssm_job &job) {
    return ((uintptr_t)job.xbc | (uintptr_t)job.y | (uintptr_t)job.dy | (uintptr_t)job.dxbc) % 16 == 0;
}

/* walk_states walks over chunks [begin, end) of a head, forward or in reverse, and computes only states. `source`
   selects what is added to them. */
struct states_source {
    const void *x; /* [B, T, x_channels] from column head * P on: x or dy */
    int64_t x_channels;
    int64_t b_column; /* column of xbc where group 0 of B or C starts */
    bool reverse;     /* factors are then 2^G; otherwise a 2^(G[last] - G) */
};

template <typename T, int N, typename EACH>
__device__ __forceinline__ float walk_states(T type, const ssm_job &job, const states_source &source, int64_t row,
                                             int64_t head, int64_t begin, int64_t end, states_memory<N> &m,
                                             float (&S)[N / 8][4], bool aligned, EACH each) {
    const int64_t walk = row * job.n + head, group = head * job.G / job.n, count = end - begin;
    const int thread = (int)threadIdx.x, p0 = thread / 32 * 16;
    float whole = 1.0f;
    auto chunk_at = [&](int64_t i) { return source.reverse ? end - 1 - i : begin + i; };
    auto load = [&](int64_t i) {
        if (i < count) {
            const int64_t chunk = chunk_at(i), first = chunk * L, item = walk * job.at.chunks + chunk;
            const int s = (int)(i % 2);
            tile_load<N, 128>(m.b[s], chunk_rows(job, job.xbc, job.channels, row, first, source.b_column + group * N),
                              thread, aligned);
            tile_load<P, 128>(m.x[s], chunk_rows(job, source.x, source.x_channels, row, first, head * P), thread,
                              aligned);
            if (thread < L) {
                m.factor[s][thread] = source.reverse
                                          ? fade_of(job, item, first, thread)
                                          : left_of(job, item, first, thread) * job.at.step[item * L + thread];
            } else if (thread == L) {
                m.fade[s] = fade_of(job, item, first, L - 1);
            }
        }
        tile_commit();
    };
    load(0);
    for (int64_t i = 0; i < count; i++) {
        load(i + 1);
        tile_wait<1>();
        __syncthreads();
        const int s = (int)(i % 2);
        each(chunk_at(i), S);
        advance<T, N>(type, S, m.x[s], p0, m.b[s], m.factor[s], m.fade[s]);
        whole *= m.fade[s];
        __syncthreads();
    }
    return whole;
}

} // namespace ssm_mma

#endif
