/* Products of a few sequences with a matrix.

   A block has ROWS rows of the matrix (for SwiGLU half of them from the gate matrix and half from the up matrix) and
   all sequences. Its warps divide the columns among them, and so do the blocks of a cluster. A thread loads 16 bytes of
   a row: eight neighbouring elements, which are its part of the operands of two mma of 16 columns each. The order of
   the columns is thus permuted, in the same way for both factors. The partial sums of warps and blocks are added in a
   fixed order. */
#ifndef CARRY_ENGINE_CHAIN_PRODUCT_CUH
#define CARRY_ENGINE_CHAIN_PRODUCT_CUH

#include <cooperative_groups.h>

#include "device/clusters.cuh"
#include "engine/cuda/chain_kernel.cuh"

namespace chain {

namespace cg = cooperative_groups;

constexpr int ROWS = 32, STRIPS = ROWS / 8, AHEAD = 4, CLUSTER = 4;
constexpr int PART =
    ROWS + 8; /* floats from one sequence to the next; avoids bank conflicts between pairs of columns */

static __device__ __forceinline__ void multiply(float (&c)[4], const uint4 &low, const uint4 &high, const uint4 &w) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(low.x), "r"(high.x), "r"(low.y), "r"(high.y), "r"(w.x), "r"(w.y));
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(low.z), "r"(high.z), "r"(low.w), "r"(high.w), "r"(w.z), "r"(w.w));
}

/* x times the norm's weights; adds to the sum of its squares. */
static __device__ __forceinline__ uint4 scaled(const uint4 &x, const float (&w)[8], float &squares) {
    const unsigned in[4] = {x.x, x.y, x.z, x.w};
    unsigned out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = low_of(in[i]), b = high_of(in[i]);
        squares += a * a;
        squares += b * b;
        out[i] = pair_of(a * w[2 * i], b * w[2 * i + 1]);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* The row of the matrix that a thread loads, for a strip of eight rows. */
static __device__ __forceinline__ const __nv_bfloat16 *row_of(const carry_chain_product &p, int tile, int strip,
                                                              int row) {
    const bool pairs = p.output == CARRY_CHAIN_SWIGLU;
    const bool is_up = pairs && strip >= STRIPS / 2;
    const int at = pairs ? tile * (ROWS / 2) + strip % (STRIPS / 2) * 8 + row : tile * ROWS + strip * 8 + row;
    return (const __nv_bfloat16 *)(is_up ? p.up : p.W) + (size_t)min(at, p.rows - 1) * p.columns;
}

template <int TILES> struct product_memory {
    float part[WARPS][TILES * TILE][PART];
    float squares[WARPS][TILES * TILE];
};

/* Stores a complete sum. up: the second factor of SwiGLU. */
static __device__ __forceinline__ void put(const carry_chain_product &p, int sequence, int row, float sum, float up) {
    if (p.output == CARRY_CHAIN_ADD) {
        float *h = p.h + (size_t)sequence * p.rows + row;
        sum += __ldcg(h);
        *h = sum;
    } else if (p.output == CARRY_CHAIN_SWIGLU) {
        sum = silu(sum) * up;
    }
    ((__nv_bfloat16 *)p.y)[(size_t)sequence * p.y_stride + row] = __float2bfloat16_rn(sum);
}

template <int TILES>
static __device__ __forceinline__ float sum_of(const product_memory<TILES> &m, int sequence, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        sum += m.part[w][sequence][row];
    }
    return sum;
}

template <int TILES>
static __device__ __forceinline__ float rate_of(const carry_chain_product &p, const product_memory<TILES> &m,
                                                int sequence) {
    float sum = 0.0f;
    if (p.norm == nullptr) {
        return 1.0f;
    }
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        sum += m.squares[w][sequence];
    }
    return rsqrtf(sum / (float)p.columns + p.eps);
}

/* All threads add and store the sums of the block. */
template <int TILES>
static __device__ __forceinline__ void finish(const carry_chain_product &p, const product_memory<TILES> &m, int tile,
                                              int sequences) {
    const bool pairs = p.output == CARRY_CHAIN_SWIGLU;
    const int each = pairs ? ROWS / 2 : ROWS, row = threadIdx.x % each;
    for (int b = threadIdx.x / each; b < sequences; b += THREADS / each) {
        const float rate = rate_of(p, m, b);
        const float sum = rate * sum_of(m, b, row), up = pairs ? rate * sum_of(m, b, row + each) : 0.0f;
        if (tile * each + row < p.rows) {
            put(p, b, tile * each + row, sum, up);
        }
    }
}

/* The blocks of a cluster add their sums: block r adds the rows from r ROWS / CLUSTER on. */
template <int TILES>
static __device__ __forceinline__ void finish_together(const carry_chain_product &p, product_memory<TILES> &m, int tile,
                                                       int sequences) {
    cg::cluster_group cluster = cg::this_cluster();
    constexpr int EACH = ROWS / CLUSTER;
    for (int i = threadIdx.x; i < sequences * ROWS; i += THREADS) { /* in place: threads share no element */
        m.part[0][i / ROWS][i % ROWS] = sum_of(m, i / ROWS, i % ROWS);
    }
    cluster.sync();
    const int row = (int)cluster.block_rank() * EACH + threadIdx.x % EACH;
    for (int b = threadIdx.x / EACH; b < sequences; b += THREADS / EACH) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < CLUSTER; r++) {
            sum += *cluster.map_shared_rank(&m.part[0][b][row], r);
        }
        if (tile * ROWS + row < p.rows) {
            put(p, b, tile * ROWS + row, sum, 0.0f);
        }
    }
    cluster.sync(); /* until the other blocks have read this block's memory */
}

template <int TILES, bool TOGETHER>
static __device__ __forceinline__ void run_product(const carry_chain_product &p, product_memory<TILES> &m, int rank,
                                                   int tile, int sequences) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, four = lane % 4;
    constexpr int PARTS = WARPS * (TOGETHER ? CLUSTER : 1);
    const int first = rank * WARPS + warp, blocks = p.columns / 32;
    const __nv_bfloat16 *w[STRIPS];
    uint4 weight[AHEAD][STRIPS];
#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        w[s] = row_of(p, tile, s, quad) + first * 32 + 8 * four;
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        if (first + u * PARTS < blocks) {
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                weight[u][s] = load_once(w[s] + (size_t)u * PARTS * 32);
            }
        }
    }
    let_next_begin();
    await_previous();
    float c[TILES][STRIPS][4] = {}, squares[TILES][2] = {};
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)p.x + (size_t)quad * p.x_stride + 8 * four;
    for (int at = first; at < blocks; at += AHEAD * PARTS) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int block = at + u * PARTS;
            if (block < blocks) {
                uint4 in[TILES][2];
#pragma unroll
                for (int i = 0; i < 2 * TILES; i++) {
                    in[i / 2][i % 2] = load_result(x + (size_t)(8 * i) * p.x_stride + block * 32);
                }
                if (p.norm != nullptr) {
                    float factor[8];
                    *(float4 *)factor = __ldg((const float4 *)(p.norm + block * 32 + 8 * four));
                    *(float4 *)(factor + 4) = __ldg((const float4 *)(p.norm + block * 32 + 8 * four + 4));
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        factor[i] += p.plus;
                    }
#pragma unroll
                    for (int i = 0; i < 2 * TILES; i++) {
                        in[i / 2][i % 2] = scaled(in[i / 2][i % 2], factor, squares[i / 2][i % 2]);
                    }
                }
#pragma unroll
                for (int s = 0; s < STRIPS; s++) {
#pragma unroll
                    for (int i = 0; i < TILES; i++) {
                        multiply(c[i][s], in[i][0], in[i][1], weight[u][s]);
                    }
                    if (block + AHEAD * PARTS < blocks) {
                        weight[u][s] = load_once(w[s] + (size_t)(block - first + AHEAD * PARTS) * 32);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int s = 0; s < STRIPS; s++) {
            *(float2 *)&m.part[warp][i * TILE + quad][8 * s + 2 * four] = make_float2(c[i][s][0], c[i][s][1]);
            *(float2 *)&m.part[warp][i * TILE + quad + 8][8 * s + 2 * four] = make_float2(c[i][s][2], c[i][s][3]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = squares[i][half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (four == 0) {
                m.squares[warp][i * TILE + 8 * half + quad] = sum;
            }
        }
    }
    __syncthreads();
    if constexpr (TOGETHER) {
        finish_together<TILES>(p, m, tile, sequences);
    } else {
        finish<TILES>(p, m, tile, sequences);
    }
}

template <int TILES>
static __global__ __launch_bounds__(THREADS,
                                    TILES == 1 ? 2 : 1) void product(const __grid_constant__ carry_chain_product p,
                                                                     int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char memory[];
    run_product<TILES, false>(p, *(product_memory<TILES> *)memory, 0, blockIdx.x, sequences);
#endif
}

template <int TILES>
static __global__ CARRY_CLUSTER(CLUSTER)
    __launch_bounds__(THREADS, TILES == 1 ? 2 : 1) void product_together(const __grid_constant__ carry_chain_product p,
                                                                         int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char memory[];
    run_product<TILES, true>(p, *(product_memory<TILES> *)memory, (int)blockIdx.x % CLUSTER, (int)blockIdx.x / CLUSTER,
                             sequences);
#endif
}

} // namespace chain

#endif
