/* prepare: one block for a chunk and a head of q and k, all value heads of its group, two at a time.

   Gates are summed in double and kept as two floats, so that a deep one does not spoil the small ones after it; one
   below -512 is -512, whose power is the same zero (and minus infinity leaves no NaN).

   The inverse of I + A: blocks of 16 by forward substitution, a column a thread; then 16 -> 32 -> 64 by products in
   tf32, -X11 A10 X00. */
#ifndef CARRY_DELTA_CHUNK_PREPARE_CUH
#define CARRY_DELTA_CHUNK_PREPARE_CUH

#include "delta/cuda/chunk/chunk_device.cuh"

namespace DELTA_CHUNK {

struct prepare_args {
    CUtensorMap q, k;
    shape s;
    carry_delta_view beta, g;
    const float *A_log, *dt_bias;
    float scale, beta_factor;
    bool l2norm, gate_inside, beta_sigmoid;
    char *tiles;
};

constexpr int ROW = 68;                    /* floats of a row of a triangle */
constexpr int TRIANGLE = C * ROW + 16;     /* floats of one value head */
constexpr int PREPARE_SHARED = 1024 + 2 * CHUNK_BYTES + 2 * TRIANGLE * 4;

/* Of two value heads, and of q and k. */
struct prepare_numbers {
    float high[2][C], low[2][C]; /* log2 of the cumulative decay */
    float beta[2][C];
    float inverse_norm[2][C]; /* of k, of q */
    float bad[2][C];          /* 0; NaN: of a token whose row of A is no number */
    uint64_t full;
};

/* An element's bits, and what they mean; apart, so that several loads are under way before the first is looked at. */
static __device__ __forceinline__ uint32_t bits_at(const carry_delta_view &view, int batch, int token, int head) {
    int64_t at = batch * view.batch + token * view.token + head * view.head;
    return view.dtype == 0 ? ((const uint32_t *)view.data)[at] : ((const uint16_t *)view.data)[at];
}
static __device__ __forceinline__ float number_of(uint32_t bits, int dtype) {
    return dtype == 0   ? __uint_as_float(bits)
           : dtype == 1 ? __uint_as_float(bits << 16)
                        : __half2float(__ushort_as_half((unsigned short)bits));
}

static __device__ __forceinline__ float gate_of(const prepare_args &a, float g, float rate, float bias) {
    if (a.gate_inside) {
        float x = g + bias;
        g = rate * (x > 20.0f ? x : log1pf(expf(x)));
    }
    return g < -512.0f ? -512.0f : g;
}

static __device__ __forceinline__ float beta_of(const prepare_args &a, float x) {
    if (a.beta_sigmoid) {
        float e = expf(-fabsf(x));
        x = a.beta_factor * (x >= 0.0f ? 1.0f : e) / (1.0f + e);
    }
    return x;
}

/* A warp's, two tokens a lane. */
static __device__ __forceinline__ void load_numbers(const prepare_args &a, const chunk_place &at, int head,
                                                    prepare_numbers &n, int e, int lane) {
    uint32_t beta[2] = {0, 0}, gate[2] = {0, 0};
    float rate = 0.0f, bias = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token = 2 * lane + i;
        if (token < at.length) {
            beta[i] = bits_at(a.beta, at.batch, at.first + token, head);
            if (a.g.data != nullptr) {
                gate[i] = bits_at(a.g, at.batch, at.first + token, head);
            }
        }
    }
    if (a.gate_inside) {
        rate = -expf(a.A_log[head]);
        bias = a.dt_bias[head];
    }
    double x[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token = 2 * lane + i;
        bool there = token < at.length;
        n.beta[e][token] = there ? beta_of(a, number_of(beta[i], a.beta.dtype)) : 0.0f;
        x[i] = there && a.g.data != nullptr
                   ? (double)gate_of(a, number_of(gate[i], a.g.dtype), rate, bias) * 1.4426950408889634
                   : 0.0;
    }
    double sum = x[0] + x[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        double below = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) {
            sum += below;
        }
    }
    double before = __shfl_up_sync(0xffffffffu, sum, 1);
    x[0] += lane > 0 ? before : 0.0;
    x[1] = sum;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float high = (float)x[i];
        n.bad[e][2 * lane + i] = 0.0f;
        n.high[e][2 * lane + i] = high;
        n.low[e][2 * lane + i] = (float)(x[i] - (double)high);
    }
}

static __device__ __forceinline__ float inverse_norm(uint32_t tile, int row) {
    float sum = 1e-6f;
#pragma unroll
    for (int part = 0; part < 16; part++) {
        uint32_t w[4];
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(swizzled(tile + part / 8 * BAND, row, part % 8)));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum += low_half(w[i]) * low_half(w[i]) + high_half(w[i]) * high_half(w[i]);
        }
    }
    return rsqrtf(sum);
}

/* A NaN or infinity in a token must not reach the ones before it, as it would where the inverse is made by products:
   its row of A becomes zero, and its beta NaN, which is what makes it and what follows NaN. */
static __device__ __forceinline__ void mark_bad(prepare_numbers &n, int e, float *triangle, int row, int lane) {
    __syncwarp();
#pragma unroll 1
    for (int i = row; i < row + 16; i += 8) {
        float *part = triangle + i * ROW + lane % 4 * 16;
        float sum = n.beta[e][i] * n.inverse_norm[0][i] + n.high[e][i];
        for (int j = 0; j < 16; j++) {
            sum += part[j];
        }
        sum *= 0.0f;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (sum != 0.0f) {
            for (int j = 0; j < 16; j++) {
                part[j] = 0.0f;
            }
            n.bad[e][i] = __int_as_float(0x7fffffff);
        }
    }
}

/* A (below the diagonal, else 0) into the triangle, of one value head, and P into `scores`, this thread's. */
static __device__ __forceinline__ void weigh(const prepare_args &a, prepare_numbers &n, int e,
                                             const float (&kk)[32], const float (&qk)[32], float *triangle,
                                             float4 *scores, int warp, int lane) {
    int row = 16 * warp + lane / 4;
    float high[2], low[2], by_k[2], by_q[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row + 8 * r;
        high[r] = n.high[e][i];
        low[r] = n.low[e][i];
        by_k[r] = n.beta[e][i] * n.inverse_norm[0][i];
        by_q[r] = a.scale * n.inverse_norm[1][i];
    }
    float sum = by_k[0] + by_k[1] + high[0] + high[1]; /* a number, if A is */
#pragma unroll
    for (int block = 0; block < 8; block++) {
        int column = 8 * block + lane % 4 * 2;
        float P[4];
        float2 h = *(const float2 *)&n.high[e][column], l = *(const float2 *)&n.low[e][column];
        float2 w = *(const float2 *)&n.inverse_norm[0][column];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = row + 8 * r;
            float2 A = {0.0f, 0.0f};
            P[2 * r] = P[2 * r + 1] = 0.0f;
            if (8 * block <= 16 * warp + 15) {
                float d0 = w.x * power_of_two((high[r] - h.x) + (low[r] - l.x));
                float d1 = w.y * power_of_two((high[r] - h.y) + (low[r] - l.y));
                A.x = column < i ? by_k[r] * d0 * kk[4 * block + 2 * r] : 0.0f;
                A.y = column + 1 < i ? by_k[r] * d1 * kk[4 * block + 2 * r + 1] : 0.0f;
                P[2 * r] = column <= i ? by_q[r] * d0 * qk[4 * block + 2 * r] : 0.0f;
                P[2 * r + 1] = column + 1 <= i ? by_q[r] * d1 * qk[4 * block + 2 * r + 1] : 0.0f;
            }
            *(float2 *)(triangle + i * ROW + column) = A;
            sum += A.x + A.y;
        }
        scores[block * 128] = {P[0], P[1], P[2], P[3]};
    }
    if (__any_sync(0xffffffffu, sum * 0.0f != 0.0f)) {
        mark_bad(n, e, triangle, row, lane);
    }
}

/* Column `column` of the inverse of I + a, in place of a once the warp's threads have all read it. */
static __device__ __forceinline__ void invert_block(float *a, int column) {
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            float4 w = *(const float4 *)(a + i * ROW + j);
            sum -= w.x * x[j];
            if (j + 1 < i) {
                sum -= w.y * x[j + 1];
            }
            if (j + 2 < i) {
                sum -= w.z * x[j + 2];
            }
            if (j + 3 < i) {
                sum -= w.w * x[j + 3];
            }
        }
        x[i] = sum;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        a[i * ROW + column] = x[i];
    }
}

static __device__ __forceinline__ uint32_t tf32(float x) {
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ void product_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* z = left middle right: 16 rows of left, the others square, all of 8 N columns. The first product's sums are the
   second's operand as they lie: its columns 2t and 2t + 1 stand where t and t + 4 are expected, and so do the rows of
   right. */
template <int N>
static __device__ __forceinline__ void triple(float (&z)[N][4], const float *left, const float *middle,
                                              const float *right, int lane) {
    float y[N][4] = {};
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t a[4] = {tf32(left[g * ROW + 8 * k + t]), tf32(left[(g + 8) * ROW + 8 * k + t]),
                         tf32(left[g * ROW + 8 * k + t + 4]), tf32(left[(g + 8) * ROW + 8 * k + t + 4])};
#pragma unroll
        for (int n = 0; n < N; n++) {
            product_tf32(y[n], a, tf32(middle[(8 * k + t) * ROW + 8 * n + g]),
                         tf32(middle[(8 * k + t + 4) * ROW + 8 * n + g]));
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t a[4] = {tf32(y[k][0]), tf32(y[k][2]), tf32(y[k][1]), tf32(y[k][3])};
#pragma unroll
        for (int n = 0; n < N; n++) {
            product_tf32(z[n], a, tf32(right[(8 * k + 2 * t) * ROW + 8 * n + g]),
                         tf32(right[(8 * k + 2 * t + 1) * ROW + 8 * n + g]));
        }
    }
}

template <int N> static __device__ __forceinline__ void store_negative(float *to, const float (&z)[N][4], int lane) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        float *at = to + lane / 4 * ROW + 8 * n + lane % 4 * 2;
        *(float2 *)at = {-z[n][0], -z[n][1]};
        *(float2 *)(at + 8 * ROW) = {-z[n][2], -z[n][3]};
    }
}

/* Both heads' triangles A become the inverses of I + A; what is above the diagonal of 32 x 32 blocks is not touched. */
static __device__ __forceinline__ void invert(float *triangles, int warp, int lane) {
    invert_block(triangles + lane / 16 * TRIANGLE + 16 * warp * ROW + 16 * warp, lane % 16);
    __syncthreads();
    float *mine = triangles + warp / 2 * TRIANGLE;
    {
        float *x = mine + 32 * (warp % 2) * (ROW + 1), *below = x + 16 * ROW;
        float z[2][4] = {};
        triple<2>(z, below + 16, below, x, lane);
        __syncwarp();
        store_negative<2>(below, z, lane);
    }
    __syncthreads();
    float *below = mine + 32 * ROW, *strip = below + 16 * (warp % 2) * ROW;
    float z[4][4] = {};
    triple<4>(z, strip + 32, below, mine, lane);
    __syncthreads();
    store_negative<4>(strip, z, lane);
}

/* W = P (I + A)^-1 of a warp's 16 rows, in f32 by tf32: scores as weigh left them, which are a left operand as the sums
   in triple are. */
static __device__ __forceinline__ void apply_inverse(float (&W)[8][4], const float4 *scores, const float *triangle,
                                                     int warp, int lane) {
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (k < 2 * warp + 2) { /* P is zero behind */
            float4 P = scores[k * 128];
            uint32_t a[4] = {tf32(P.x), tf32(P.z), tf32(P.y), tf32(P.w)};
            const float *row = triangle + (8 * k + 2 * t) * ROW + g;
#pragma unroll
            for (int n = 0; n <= k; n++) {
                product_tf32(W[n], a, tf32(row[8 * n]), tf32(row[8 * n + ROW]));
            }
        }
    }
}

/* Into its tile, zeros above the diagonal. */
static __device__ __forceinline__ void store_weights(uint32_t tile, const float (&W)[8][4], int warp, int lane) {
    int row = 16 * warp + lane / 4;
    uint32_t packed[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int column = i / 2 * 8 + lane % 4 * 2, at = row + i % 2 * 8;
        packed[i] = pack(column <= at ? W[i / 2][i % 2 * 2] : 0.0f, column < at ? W[i / 2][i % 2 * 2 + 1] : 0.0f);
    }
#pragma unroll
    for (int block = 0; block < 8; block += 2) {
        int to = 16 * warp + (lane & 8) + lane % 8;
        store_matrices(swizzled(tile, to, block + lane / 16), packed[2 * block], packed[2 * block + 1],
                       packed[2 * block + 2], packed[2 * block + 3]);
    }
}

/* T as bf16, and the numbers. */
static __device__ __forceinline__ void finish(const prepare_args &a, const prepare_numbers &n, int e,
                                              const float *triangle, uint32_t tile, char *tile_data, int thread) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        int i = (thread + 128 * s) / 8, j = thread % 8 * 8;
        float x[8];
        *(float4 *)x = *(const float4 *)(triangle + i * ROW + j);
        *(float4 *)(x + 4) = *(const float4 *)(triangle + i * ROW + j + 4);
        uint32_t w[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            w[c] = pack(j + 2 * c <= i ? x[2 * c] : 0.0f, j + 2 * c + 1 <= i ? x[2 * c + 1] : 0.0f);
        }
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(swizzled(tile, i, thread % 8)), "r"(w[0]),
                     "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
    }
    if (thread < C) {
        float *numbers = (float *)(tile_data + NUMBERS_AT);
        float fade = power_of_two(n.high[e][thread] + n.low[e][thread]);
        numbers[FADE_K + thread] = n.beta[e][thread] * fade * n.inverse_norm[0][thread];
        numbers[FADE_Q + thread] = a.scale * fade * n.inverse_norm[1][thread];
        numbers[LEFT_K + thread] = n.inverse_norm[0][thread] * power_of_two((n.high[e][C - 1] - n.high[e][thread]) +
                                                                            (n.low[e][C - 1] - n.low[e][thread]));
        numbers[BETA + thread] = n.beta[e][thread] + n.bad[e][thread];
        numbers[HIGH + thread] = n.high[e][thread];
        numbers[LOW + thread] = n.low[e][thread];
        numbers[NORM_K + thread] = n.inverse_norm[0][thread];
        numbers[NORM_Q + thread] = n.inverse_norm[1][thread];
    }
}

} // namespace DELTA_CHUNK

#endif
