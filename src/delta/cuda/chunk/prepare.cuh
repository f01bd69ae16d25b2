/* prepare: each warpgroup processes items, one after the other. An item is a chunk of one head of q and k, with all
   value heads of the head's group.

   Gates are summed in double and stored as two floats, so that a very negative gate does not cost the small gates after
   it their precision. Gates below -100 are raised to -100: e^-100 is 0 here too, and minus infinity would produce NaN.
   Decays in A and P use only the first of the two floats: 10 gates of -100 leave an error of 1e-4 in the decay between
   later tokens. */
#ifndef CARRY_DELTA_CHUNK_PREPARE_CUH
#define CARRY_DELTA_CHUNK_PREPARE_CUH

#include "delta/cuda/chunk/inverse.cuh"
#include "delta/cuda/chunk/solve.cuh"

namespace DELTA_CHUNK {

struct prepare_args {
    CUtensorMap q, k;
    shape s;
    carry_delta_array beta, g;
    const float *A_log, *dt_bias;
    float scale, beta_factor;
    bool l2norm, gate_inside, beta_sigmoid;
    char *tiles;
    unsigned items;
    uint32_t *ready; /* NULL, or for every tile a word that becomes 1 when the tile is stored, for a scan that runs at
                        the same time */
};

/* Shared memory of a warpgroup of prepare: T, W and the numbers of a value head, the rounding error of T, then a tile
   of k and a tile of q for every 128 keys. */
constexpr int REST_AT = CHUNK_BYTES, ROWS_AT = (REST_AT + KEPT + 1023) / 1024 * 1024;
/* A block of prepare for keys of HALVES times 128: as many warpgroups as shared memory has room for. */
template <int HALVES> struct prepare_block {
    static constexpr int GROUPS = 4 / HALVES, BYTES = ROWS_AT + HALVES * 2 * TILE, SHARED = 1024 + GROUPS * BYTES;
};

/* Numbers of two value heads, and norms of q and k. */
struct prepare_numbers {
    float high[2][C], low[2][C]; /* log2 of the cumulative decay */
    float beta[2][C];
    float inverse_norm[2][C]; /* for k and for q */
    float log_norm[C];        /* log2 of the one for k */
    float bad[2][C];          /* 0, or NaN for a token whose row of A has NaN or infinity */
    uint64_t full;
};

/* bits_at loads the bits of an element, and another function converts them, so that several loads are in flight before
   the first result is used. */
static __device__ __forceinline__ uint32_t bits_at(const carry_delta_array &view, int batch, int token, int head) {
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
    return g < -100.0f ? -100.0f : g;
}

static __device__ __forceinline__ float beta_of(const prepare_args &a, float x) {
    if (a.beta_sigmoid) {
        float e = expf(-fabsf(x));
        x = a.beta_factor * (x >= 0.0f ? 1.0f : e) / (1.0f + e);
    }
    return x;
}

/* beta and gates of a value head as they are stored, two tokens for each lane. */
struct number_bits {
    uint32_t beta[2], gate[2];
};
static __device__ __forceinline__ number_bits load_bits(const prepare_args &a, const chunk_place &at, int head,
                                                        int lane) {
    number_bits bits = {{0, 0}, {0, 0}};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token = 2 * lane + i;
        if (token < at.length) {
            bits.beta[i] = bits_at(a.beta, at.batch, at.first + token, head);
            if (a.g.data != nullptr) {
                bits.gate[i] = bits_at(a.g, at.batch, at.first + token, head);
            }
        }
    }
    return bits;
}

/* Computes the numbers of a value head from its bits. One warp. */
static __device__ __forceinline__ void sum_numbers(const prepare_args &a, const chunk_place &at, int head,
                                                   const number_bits &bits, prepare_numbers &n, int e, int lane) {
    float rate = 0.0f, bias = 0.0f;
    if (a.gate_inside) {
        rate = -expf(a.A_log[head]);
        bias = a.dt_bias[head];
    }
    double x[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token = 2 * lane + i;
        bool there = token < at.length;
        n.beta[e][token] = there ? beta_of(a, number_of(bits.beta[i], a.beta.dtype)) : 0.0f;
        x[i] = there && a.g.data != nullptr
                   ? (double)gate_of(a, number_of(bits.gate[i], a.g.dtype), rate, bias) * 1.4426950408889634
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

/* A NaN or infinity in one token must not reach earlier tokens, as it would where the inverse is computed by products.
   The token's row of A becomes zero and its beta NaN, which makes this token and the following ones NaN. bad[r]: NaN if
   any of this thread's elements of its row r is NaN or infinite, else zero. */
static __device__ __forceinline__ void mark_bad(prepare_numbers &n, int e, band_rows &m, const float (&bad)[2],
                                                int row) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = bad[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (sum != 0.0f) {
#pragma unroll
            for (int i = 0; i < 6; i++) {
                m.A[0][2 * i + r] = m.A[1][2 * i + r] = 0;
            }
#pragma unroll
            for (int i = r; i < 1 + 2 * r; i++) {
                m.A_own[i][0] = m.A_own[i][1] = 0.0f;
            }
            n.bad[e][row + 8 * r] = __int_as_float(0x7fffffff);
        }
    }
}

static __device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
    uint32_t c;
    asm("add.rn." HOPPER_ELEMENT "x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

/* The decays from a pair of tokens to a thread's two rows. */
struct pair_decays {
    float to[2][2];
    __device__ __forceinline__ pair_decays(const prepare_args &a, const prepare_numbers &n, int e, int token,
                                           const float (&high)[2]) {
        float2 h = *(const float2 *)&n.high[e][token];
        if (a.l2norm) {
            float2 l = *(const float2 *)&n.log_norm[token];
            h = {h.x - l.x, h.y - l.y};
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            to[r][0] = power_of_two(high[r] - h.x);
            to[r][1] = power_of_two(high[r] - h.y);
        }
    }
};

/* For one value head: a warp's rows of A, and of P without the factor of its row. */
static __device__ __forceinline__ void weigh(const prepare_args &a, prepare_numbers &n, int e, const float (&kk)[32],
                                             const float (&qk)[32], band_rows &m, int band, int lane) {
    int g = lane / 4, t = lane % 4, row = 16 * band + g;
    float high[2], by[2], own[2];
    uint32_t sum[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        high[r] = n.high[e][row + 8 * r];
        by[r] = n.beta[e][row + 8 * r] * n.inverse_norm[0][row + 8 * r];
        own[r] = by[r] + high[r];
    }
    float kk_own[8], qk_own[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        kk_own[i] = band < 2 ? (band == 0 ? kk[i] : kk[8 + i]) : (band == 2 ? kk[16 + i] : kk[24 + i]);
        qk_own[i] = band < 2 ? (band == 0 ? qk[i] : qk[8 + i]) : (band == 2 ? qk[16 + i] : qk[24 + i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        pair_decays d(a, n, e, 16 * band + 8 * i + 2 * t, high);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bool cut = i == r, above = i > r;
            if (!above) {
                float A0 = by[r] * d.to[r][0] * kk_own[4 * i + 2 * r];
                float A1 = by[r] * d.to[r][1] * kk_own[4 * i + 2 * r + 1];
                A0 = !cut || 2 * t < g ? A0 : 0.0f;
                A1 = !cut || 2 * t + 1 < g ? A1 : 0.0f;
                m.A_own[i + r][0] = A0;
                m.A_own[i + r][1] = A1;
                own[r] += A0 + A1;
            }
            float P0 = d.to[r][0] * qk_own[4 * i + 2 * r], P1 = d.to[r][1] * qk_own[4 * i + 2 * r + 1];
            split(m.P_own, 2 * i + r, above || (cut && 2 * t > g) ? 0.0f : P0,
                  above || (cut && 2 * t + 1 > g) ? 0.0f : P1);
        }
    }
#pragma unroll
    for (int j = 0; j < 3; j++) {
        if (j < band) {
#pragma unroll
            for (int i = 2 * j; i < 2 * j + 2; i++) {
                pair_decays d(a, n, e, 8 * i + 2 * t, high);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    split(m.A, 2 * i + r, by[r] * d.to[r][0] * kk[4 * i + 2 * r],
                          by[r] * d.to[r][1] * kk[4 * i + 2 * r + 1]);
                    sum[r] = add_pairs(sum[r], m.A[0][2 * i + r]);
                    split(m.P, 2 * i + r, d.to[r][0] * qk[4 * i + 2 * r], d.to[r][1] * qk[4 * i + 2 * r + 1]);
                }
            }
        }
    }
    float bad[2] = {(own[0] + (low_half(sum[0]) + high_half(sum[0]))) * 0.0f,
                    (own[1] + (low_half(sum[1]) + high_half(sum[1]))) * 0.0f};
    if (__any_sync(0xffffffffu, bad[0] + bad[1] != 0.0f)) {
        mark_bad(n, e, m, bad, row);
        __syncwarp();
    }
}

/* The address where a warp keeps its 16 rows of P in shared memory until the inverse is ready: for every 16 columns up
   to the diagonal, a left operand and the left operand of its rounding error. */
static __device__ __forceinline__ uint4 *scores_of(char *place, int warp, int lane) {
    return (uint4 *)place + warp * (warp + 1) * 32 + lane;
}

static __device__ __forceinline__ void load_scores(uint32_t (&P)[32], const uint4 *scores, int warp) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint4 x = i / 2 <= warp ? scores[i * 32] : make_uint4(0, 0, 0, 0);
        P[4 * i] = x.x;
        P[4 * i + 1] = x.y;
        P[4 * i + 2] = x.z;
        P[4 * i + 3] = x.w;
    }
}

/* Adds a b to the first 32 columns of d. */
static __device__ __forceinline__ void add_left_half(float (&d)[32], const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32" HOPPER_K16
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, "
                 "1, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* W = P T. P is in the layout of load_scores, T in its compact layout (the first 32 rows have 32 columns); `rest` is
   the rounding error of T. */
static __device__ __forceinline__ void apply_inverse(float (&W)[32], const uint32_t (&P)[32], uint32_t T,
                                                     uint32_t rest) {
    hopper::products_begin();
#pragma unroll
    /* For every 16 rows of T three products: both parts of P with T, and the first with `rest`. */
    for (int i = 11; i >= 0; i--) {
        const uint32_t *left = P + 4 * (i / 3 * 2 + i % 3 % 2);
        uint64_t rows = describe_half((i % 3 == 2 ? rest : T) + i / 3 * 1024, QUARTER);
        if (i < 6) {
            add_left_half(W, left, rows);
        } else {
            hopper::product_right(W, left, rows, i < 11);
        }
    }
    hopper::products_commit();
    hopper::products_wait<0>();
    hopper::keep_below(W);
}

static __device__ __forceinline__ void store_four(uint32_t to, const uint32_t (&w)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

/* Stores W in its tile, with zeros above the diagonal. */
static __device__ __forceinline__ void store_weights(uint32_t tile, const float (&W)[32], int warp, int lane) {
    int row = 16 * warp + lane / 4;
    uint32_t packed[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int column = i / 2 * 8 + lane % 4 * 2, at = row + i % 2 * 8;
        packed[i] = pack(column <= at ? W[2 * i] : 0.0f, column < at ? W[2 * i + 1] : 0.0f);
    }
#pragma unroll
    for (int block = 0; block < 8; block += 2) {
        int to = 16 * warp + (lane & 8) + lane % 8;
        if (block < 4 || warp > 1) {
            store_matrices(kept_part(tile, to, block + lane / 16), packed[2 * block], packed[2 * block + 1],
                           packed[2 * block + 2], packed[2 * block + 3]);
        }
    }
}

/* Sums of squares of 16 rows of q, by tensor cores: the rows are multiplied with the transpose of rows 0 to 7 (sums[0])
   and of rows 8 to 15 (sums[1]). The sums of squares are on the diagonals of two of the resulting blocks of 8 x 8.
   take_diagonal: those of k, which are on the diagonal of k k^T. */
struct row_squares {
    float sums[2][4];
    __device__ __forceinline__ void add(const uint32_t (&rows)[4]) {
        product_of_warp(sums[0], rows, rows[0], rows[2]);
        product_of_warp(sums[1], rows, rows[1], rows[3]);
    }
    __device__ __forceinline__ void take_diagonal(const float (&kk)[32], int band) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sums[i / 4][i % 4] = band < 2 ? (band == 0 ? kk[i] : kk[8 + i]) : (band == 2 ? kk[16 + i] : kk[24 + i]);
        }
    }
    /* Stores 1 / |row|. Lane 4 g + g / 2 has the sums of rows g and g + 8. */
    __device__ __forceinline__ void store(float *norms, float *logs, int lane) const {
        int g = lane / 4;
        if (lane % 4 == g / 2) {
            float above = rsqrtf(1e-6f + (g % 2 == 0 ? sums[0][0] : sums[0][1]));
            float below = rsqrtf(1e-6f + (g % 2 == 0 ? sums[1][2] : sums[1][3]));
            norms[g] = above;
            norms[g + 8] = below;
            if (logs != nullptr) {
                logs[g] = log2f(above);
                logs[g + 8] = log2f(below);
            }
        }
    }
};

/* Computes a warp's 16 rows of k k^T and q k^T over 128 keys of a chunk, and adds up squares of q if l2norm. add = 0
   overwrites the products, add = 1 adds to them. */
static __device__ __forceinline__ void multiply(float (&kk)[32], float (&qk)[32], row_squares &squares, bool l2norm,
                                                uint32_t k, int band, int lane, int add) {
    using namespace hopper;
    uint32_t from = swizzled(k, 16 * band + (lane & 8) + lane % 8, lane / 16);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t left[2][4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_matrices(left[0][i], (from ^ 32 * i) + half * BAND);
            load_matrices(left[1][i], (from ^ 32 * i) + half * BAND + TILE);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint64_t right = describe(k + half * BAND + i * 32, 0);
            product_along(kk, left[0][i], right, add || half > 0 || i > 0);
            product_along(qk, left[1][i], right, add || half > 0 || i > 0);
        }
        products_commit();
        if (l2norm) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                squares.add(left[1][i]);
            }
        }
        products_wait<0>();
    }
    keep_below(kk);
    keep_below(qk);
}

/* Computes both products and, if l2norm, the norms of the warp's rows of k and q (HALVES times 128 keys, in shared
   memory from k on). */
template <int HALVES>
static __device__ __forceinline__ void multiply_all(float (&kk)[32], float (&qk)[32], prepare_numbers &n, bool l2norm,
                                                    uint32_t k, int band, int lane) {
    row_squares squares = {};
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        multiply(kk, qk, squares, l2norm, k + half * 2 * TILE, band, lane, half);
    }
    if (l2norm) {
        squares.store(n.inverse_norm[1] + 16 * band, nullptr, lane);
        squares.take_diagonal(kk, band);
        squares.store(n.inverse_norm[0] + 16 * band, n.log_norm + 16 * band, lane);
    }
}

/* Norms of 1, for rows that are not normalised. */
static __device__ __forceinline__ void clear_norms(prepare_numbers &n, int thread) {
    n.inverse_norm[thread / C][thread % C] = 1.0f;
    n.log_norm[thread % C] = 0.0f;
}

/* Stores the numbers of a band's 16 tokens, after the band has been weighed. One warp. */
static __device__ __forceinline__ void store_numbers(const prepare_args &a, const prepare_numbers &n, int e,
                                                     float *numbers, int band, int lane) {
    int i = 16 * band + lane % 16;
    float high = n.high[e][i], low = n.low[e][i], beta = n.beta[e][i];
    float norm_k = n.inverse_norm[0][i], norm_q = n.inverse_norm[1][i];
    if (lane < 16) {
        float fade = power_of_two(high + low);
        numbers[FADE_K + i] = beta * fade * norm_k;
        numbers[FADE_Q + i] = a.scale * fade * norm_q;
        numbers[LEFT_K + i] = norm_k * power_of_two((n.high[e][C - 1] - high) + (n.low[e][C - 1] - low));
        numbers[BETA + i] = beta + n.bad[e][i];
    } else {
        numbers[HIGH + i] = high;
        numbers[LOW + i] = low;
        numbers[NORM_K + i] = norm_k;
        numbers[NORM_Q + i] = norm_q;
    }
}

} // namespace DELTA_CHUNK

#endif
