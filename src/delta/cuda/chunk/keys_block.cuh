/* Part of prepare for gates by key channel (keys_prepare.cuh): multiplies a chunk's tokens by their decays to form
   operands, and computes the products of tokens. A warp handles a block of 16 tokens, a lane four channels. */
#ifndef CARRY_DELTA_CHUNK_KEYS_BLOCK_CUH
#define CARRY_DELTA_CHUNK_KEYS_BLOCK_CUH

#include "delta/cuda/chunk/prepare.cuh"

namespace DELTA_CHUNK {

struct keys_args {
    prepare_args p;
    carry_delta_array q, k;
};

constexpr float LOG2_E = 1.44269504f;
constexpr float ZERO_FROM = -128.0f; /* e^this is 0 in f32; lower gates are raised to this */
#ifdef CARRY_INSTANCE_F16
constexpr float CLOSE = -4.0f * LOG2_E; /* products of 2^CLOSE and 2^-CLOSE with elements of k stay in range */
#else
constexpr float CLOSE = -64.0f * LOG2_E;
#endif

/* Tiles of operands: rows of 128 channels, 256 bytes. T, W, the numbers and the triangle later use the same memory. */
constexpr int KEYS_ROW = 256, KEYS_BLOCK = 16 * KEYS_ROW;
constexpr int OF_K = 0, OF_Q = OF_K + C * KEYS_ROW; /* k and q as loaded, then times e^(G-G0) */
constexpr int INSIDE = OF_Q + C * KEYS_ROW;         /* k e^(G0-G) of each block, or the sums of sum_pairs */
/* Copies of k for blocks 1, 2 and 3: the 16, 32 and 48 rows before each. */
constexpr int EARLIER = INSIDE + C * KEYS_ROW;
constexpr int WHOLE = EARLIER + 6 * KEYS_BLOCK;       /* sums of a block's gates, for each block and channel */
constexpr int KEYS_NUMBERS = WHOLE + 4 * D * 4;       /* beta, 1 / |k|, 1 / |q|, bad */
constexpr int KEYS_SHARED = KEYS_NUMBERS + 4 * C * 4; /* small enough for three blocks on a multiprocessor */
constexpr int KEYS_REST = 16384, KEYS_TRIANGLE = KEYS_REST + 6144; /* T is at 0 */
static_assert(KEYS_SHARED <= 76800 && KEYS_TRIANGLE + TRIANGLE * 4 <= WHOLE, "the shared memory of a block");

struct keys_block {
    const keys_args &a;
    chunk_place at;
    int head; /* value head */
    uint32_t start;
    char *data, *page;
    int warp, lane, block; /* block: index of the block of 16 tokens */
    float G[16][4];        /* log2 of the decay since the block's start */

    __device__ __forceinline__ float *numbers(int which) const {
        return (float *)(data + KEYS_NUMBERS) + which * C;
    }
    /* The offset of 16-byte part `part` of a row. */
    static __device__ __forceinline__ int place(int tile, int row, int part) {
        return tile + row * KEYS_ROW + ((part ^ (row & 7)) << 4);
    }
    /* This lane's four channels of a row. */
    __device__ __forceinline__ uint2 *four(int tile, int row) const {
        return (uint2 *)(data + place(tile, row, lane / 2) + lane % 2 * 8);
    }
    __device__ __forceinline__ void ask(const carry_delta_array &from, int tile, int of_head) const {
        const uint16_t *rows = (const uint16_t *)from.data + at.batch * from.batch + of_head * from.head;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = 16 * block + 2 * i + lane / 16, part = lane % 16;
            uint32_t to = start + (uint32_t)place(tile, row, part);
            const uint16_t *there = rows + (int64_t)(at.first + min(row, at.length - 1)) * from.token + part * 8;
            int bytes = row < at.length ? 16 : 0; /* rows past the end are filled with zeros */
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(there), "r"(bytes) : "memory");
        }
    }
    __device__ __forceinline__ void load_gates() {
        const carry_delta_array &g = a.p.g;
        int64_t first = at.batch * g.batch + (int64_t)(at.first + 16 * block) * g.token + head * g.head + 4 * lane;
        int count = at.length - 16 * block;
        if (g.dtype == CARRY_F32) {
            const float *from = (const float *)g.data + first;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float4 x = i < count ? *(const float4 *)(from + i * g.token) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                G[i][0] = x.x;
                G[i][1] = x.y;
                G[i][2] = x.z;
                G[i][3] = x.w;
            }
        } else {
            const uint16_t *from = (const uint16_t *)g.data + first;
            uint2 x[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                x[i] = i < count ? *(const uint2 *)(from + i * g.token) : make_uint2(0, 0);
            }
#pragma unroll
            for (int i = 0; i < 16; i++) {
                G[i][0] = number_of(x[i].x & 0xffffu, g.dtype);
                G[i][1] = number_of(x[i].x >> 16, g.dtype);
                G[i][2] = number_of(x[i].y & 0xffffu, g.dtype);
                G[i][3] = number_of(x[i].y >> 16, g.dtype);
            }
        }
    }
    __device__ __forceinline__ void sum_gates() {
#pragma unroll
        for (int i = 0; i < 16; i++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float g = LOG2_E * (G[i][c] < ZERO_FROM ? ZERO_FROM : G[i][c]);
                G[i][c] = i > 0 ? G[i - 1][c] + g : g;
            }
        }
        *(float4 *)(data + WHOLE + (block * D + 4 * lane) * 4) = {G[15][0], G[15][1], G[15][2], G[15][3]};
    }
    /* The inverse norms of 16 rows of k and 16 of q: 32 sums over the lanes, of which lane i ends with sum i. */
    __device__ __forceinline__ void norms() {
        float sum[32];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            uint2 w = *four(i < 16 ? OF_K : OF_Q, 16 * block + i % 16);
            sum[i] = low_half(w.x) * low_half(w.x) + high_half(w.x) * high_half(w.x) + low_half(w.y) * low_half(w.y) +
                     high_half(w.y) * high_half(w.y);
        }
#pragma unroll
        for (int far = 16; far > 0; far /= 2) {
            bool upper = (lane & far) != 0;
#pragma unroll
            for (int i = 0; i < far; i++) {
                float other = __shfl_xor_sync(0xffffffffu, upper ? sum[i] : sum[i + far], far);
                sum[i] = (upper ? sum[i + far] : sum[i]) + other;
            }
        }
        numbers(1 + lane / 16)[16 * block + lane % 16] = rsqrtf(sum[0] + 1e-6f);
        __syncwarp();
    }
    /* Computes the sums kk and qk for every pair of tokens of the block in f32 and stores them in INSIDE: 16 x 16 for
       k, then for q. It handles half of the channels at a time, since INSIDE first holds G. Lanes begin at different
       channels to avoid bank conflicts. */
    __device__ __forceinline__ void sum_pairs() {
        float *G_of = (float *)(data + INSIDE + block * KEYS_BLOCK);
        float kk[5] = {}, qk[5] = {};
        for (int half = 0; half < 2; half++) {
            __syncwarp();
            if (lane / 16 == half) {
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    *(float4 *)(G_of + 64 * i + 4 * (lane % 16)) = {G[i][0], G[i][1], G[i][2], G[i][3]};
                }
            }
            __syncwarp();
#pragma unroll
            for (int x = 0; x < 5; x++) {
                int pair = 32 * x + lane;
                int i = (int)((sqrtf((float)(8 * pair + 1)) - 1.0f) * 0.5f), j = pair - i * (i + 1) / 2;
                if (i > 15) {
                    continue;
                }
                for (int n = 0; n < 32; n++) {
                    int c = (n + lane) % 32 * 2, part = (64 * half + c) / 8, within = c % 8 * 2;
                    uint32_t ki = *(const uint32_t *)(data + place(OF_K, 16 * block + i, part) + within);
                    uint32_t kj = *(const uint32_t *)(data + place(OF_K, 16 * block + j, part) + within);
                    uint32_t qi = *(const uint32_t *)(data + place(OF_Q, 16 * block + i, part) + within);
                    float2 later = *(const float2 *)(G_of + 64 * i + c), before = *(const float2 *)(G_of + 64 * j + c);
                    float low = low_half(kj) * power_of_two(later.x - before.x);
                    float high = high_half(kj) * power_of_two(later.y - before.y);
                    kk[x] = fmaf(low_half(ki), low, fmaf(high_half(ki), high, kk[x]));
                    qk[x] = fmaf(low_half(qi), low, fmaf(high_half(qi), high, qk[x]));
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int x = 0; x < 5; x++) {
            int pair = 32 * x + lane;
            int i = (int)((sqrtf((float)(8 * pair + 1)) - 1.0f) * 0.5f), j = pair - i * (i + 1) / 2;
            if (i < 16) {
                float norm = a.p.l2norm ? numbers(1)[16 * block + j] : 1.0f;
                G_of[16 * i + j] = kk[x] * norm * (a.p.l2norm ? numbers(1)[16 * block + i] : 1.0f);
                G_of[256 + 16 * i + j] = qk[x] * norm * (a.p.l2norm ? numbers(2)[16 * block + i] : 1.0f);
            }
        }
    }
    /* The sums of the gates of whole blocks [from, to), for this lane's channels. */
    __device__ __forceinline__ float4 whole(int from, int to) const {
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int b = from; b < to; b++) {
            float4 x = *(const float4 *)(data + WHOLE + (b * D + 4 * lane) * 4);
            sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
        }
        return {power_of_two(sum.x), power_of_two(sum.y), power_of_two(sum.z), power_of_two(sum.w)};
    }
    static __device__ __forceinline__ uint2 pack_four(const float (&x)[4], const float4 &by) {
        return {pack(x[0] * by.x, x[1] * by.y), pack(x[2] * by.z, x[3] * by.w)};
    }
    /* Multiplies the block's tokens by all decays that products need. */
    __device__ __forceinline__ void fade(bool close) {
        float4 before = whole(0, block), after = whole(block + 1, 4);
        float4 second = whole(block + 1, block + 2 < 4 ? block + 2 : 4), third = whole(block + 1, 3);
        float4 rise = {power_of_two(-G[15][0]), power_of_two(-G[15][1]), power_of_two(-G[15][2]),
                       power_of_two(-G[15][3])};
        float4 before_q = {before.x * a.p.scale, before.y * a.p.scale, before.z * a.p.scale, before.w * a.p.scale};
        char *to = page + KEYS_AT + lane / 16 * BAND + lane % 2 * 8;
        if (block == 0) {
            float4 end = whole(0, 4);
            *(float4 *)(page + NUMBERS_AT + (END + 4 * lane) * 4) = end;
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int row = 16 * block + i, within = row * 128 + ((lane % 16 / 2 ^ (row & 7)) << 4);
            uint2 wk = *four(OF_K, row), wq = *four(OF_Q, row);
            float k[4] = {low_half(wk.x), high_half(wk.x), low_half(wk.y), high_half(wk.y)};
            float q[4] = {low_half(wq.x), high_half(wq.x), low_half(wq.y), high_half(wq.y)};
            float near[4], far_k[4];
            if (a.p.l2norm) {
                float norm_k = numbers(1)[row], norm_q = numbers(2)[row];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    k[c] *= norm_k;
                    q[c] *= norm_q;
                }
            }
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float since = power_of_two(G[i][c]), until = power_of_two(G[15][c] - G[i][c]);
                near[c] = k[c] * since;
                q[c] *= since;
                far_k[c] = k[c] * until;
            }
            *four(OF_K, row) = {pack(near[0], near[1]), pack(near[2], near[3])};
            *four(OF_Q, row) = {pack(q[0], q[1]), pack(q[2], q[3])};
            *(uint2 *)(to + within) = pack_four(near, before);
            *(uint2 *)(to + TILE + within) = pack_four(q, before_q);
            *(uint2 *)(to + 2 * TILE + within) = pack_four(far_k, after);
            if (close) {
                *four(INSIDE, row) = pack_four(far_k, rise);
            }
            if (block < 3) { /* k as decayed for each later block; the rows for block b start at 16 b (b - 1) / 2 */
                int b = block + 1;
                *four(EARLIER, 8 * b * (b - 1) + row) = {pack(far_k[0], far_k[1]), pack(far_k[2], far_k[3])};
            }
            if (block < 2) {
                int b = block + 2;
                *four(EARLIER, 8 * b * (b - 1) + row) = pack_four(far_k, second);
            }
            if (block < 1) {
                *four(EARLIER, 48 + row) = pack_four(far_k, third);
            }
        }
    }
    /* kk and qk: products of the block's tokens with all tokens up to the block's end, in the layout of a wgmma result
       of 64 rows. Unless `close`, pairs inside the block are left to sum_pairs. */
    __device__ __forceinline__ void multiply(float (&kk)[32], float (&qk)[32], bool close) const {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            kk[i] = qk[i] = 0.0f;
        }
        int blocks = close ? block + 1 : block, rows = 8 * block * (block - 1);
        uint32_t of_k = start + (uint32_t)OF_K, of_q = start + (uint32_t)OF_Q;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            uint32_t ak[4], aq[4];
            load_matrices(ak, of_k + (uint32_t)place(0, 16 * block + lane % 16, 2 * e + lane / 16));
            load_matrices(aq, of_q + (uint32_t)place(0, 16 * block + lane % 16, 2 * e + lane / 16));
#pragma unroll
            for (int p = 0; p < 4; p++) {
                if (p < blocks) {
                    uint32_t b[4];
                    int row = (p < block ? rows : 0) + 16 * p + lane / 16 * 8 + lane % 8;
                    load_matrices(b, start + (uint32_t)place(p < block ? EARLIER : INSIDE, row, 2 * e + lane / 8 % 2));
                    product_of_warp(kk + 8 * p, ak, b[0], b[1]);
                    product_of_warp(kk + 8 * p + 4, ak, b[2], b[3]);
                    product_of_warp(qk + 8 * p, aq, b[0], b[1]);
                    product_of_warp(qk + 8 * p + 4, aq, b[2], b[3]);
                }
            }
        }
        if (!close) {
            const float *pairs = (const float *)(data + INSIDE + block * KEYS_BLOCK);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                if (i / 8 == block) {
                    int at_pair = 16 * (lane / 4 + i % 4 / 2 * 8) + i % 8 / 4 * 8 + lane % 4 * 2 + i % 2;
                    kk[i] = pairs[at_pair];
                    qk[i] = pairs[256 + at_pair];
                }
            }
        }
    }
};

} // namespace DELTA_CHUNK

#endif
