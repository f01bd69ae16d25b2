/* Products of a few sequences with a quantised matrix in tiles (ops/quantised/tiles.h), at the speed of memory.

   A block has 16 rows of the matrix for each of its RT tiles, and all sequences; its warps divide the columns, and
   so do the blocks of a cluster, in chunks of 64. A warp loads DEPTH chunks before it waits for the kernel that
   computes x, since weights depend on no other kernel. x is then rounded to f16 in shared memory and multiplied on
   tensor cores with the codes, which f16 represents exactly. A scale of 64 columns or more multiplies sums; a scale
   of fewer columns multiplies codes.

   x is divided by 16 before it is rounded: values up to a million are within the range of f16, and the error of
   small ones is below 5e-7. */
#ifndef CARRY_OPS_CUDA_QUANTISED_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_HOPPER_CUH

#include <cooperative_groups.h>

#include "ops/cuda/quantised_tile_hopper.cuh"

namespace quantised {

namespace cg = cooperative_groups;

constexpr int WARPS = 8, THREADS = 32 * WARPS;

/* Offsets in shared memory, in bytes. */
struct memory_of {
    int pitch;    /* bytes from one sequence of x to the next */
    int sums_at;  /* f32 [chunks][8 NT] */
    int parts_at; /* f32 [WARPS][8 NT][RT * 16 + 4] */
    int squares_at;
    int bytes;
};

template <class F, int NT, int RT>
static __host__ __device__ __forceinline__ memory_of memory_for(int chunks, int sequences, int cluster) {
    const int mine = (chunks + WARPS * cluster - 1) / (WARPS * cluster) * WARPS; /* chunks of a block, at most */
    memory_of m;
    m.pitch = mine * CHUNK * 2 + 64; /* an odd multiple of half of the banks */
    m.sums_at = m.pitch * sequences;
    m.parts_at = m.sums_at + (F::OF_SUMS && F::MINIMUM ? mine * 8 * NT * 4 : 0);
    m.squares_at = m.parts_at + WARPS * 8 * NT * (RT * ROWS + 4) * 4;
    m.bytes = m.squares_at + (WARPS + 1) * 8 * NT * 4;
    return m;
}

/* Writes x in f16, the sums of its chunks, and its squares. Each warp has a part of a sequence, or whole ones. */
template <class F, int NT>
static __device__ __forceinline__ void stage(const carry_tile_product &p, unsigned char *memory, const memory_of &m,
                                             int sequences, int mine, int rank, int cluster) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int teams = sequences >= 8 ? 8 : sequences > 4 ? 8 : sequences > 2 ? 4 : sequences;
    const int team = warp % teams, member = warp / teams, members = WARPS / teams;
    float *sums = (float *)(memory + m.sums_at), *squares = (float *)(memory + m.squares_at);
    for (int s = team; s < sequences; s += teams) {
        float square = 0.0f;
        for (int at = member * 32 + lane; at < mine * 8; at += members * 32) { /* mine * 8 is a multiple of 64 */
            const int local = at / 8, chunk = (local / WARPS * cluster + rank) * WARPS + local % WARPS;
            float x[8];
            __half2 to[4];
            float sum = 0.0f;
            take_x(x, p, s, chunk * CHUNK + at % 8 * 8, square);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float a = fminf(fmaxf(x[2 * i] * X_SCALE, -X_MOST), X_MOST);
                const float b = fminf(fmaxf(x[2 * i + 1] * X_SCALE, -X_MOST), X_MOST);
                to[i] = __floats2half2_rn(a, b);
                sum += __low2float(to[i]) + __high2float(to[i]);
            }
            *(uint4 *)(memory + s * m.pitch + at * 16) = *(const uint4 *)to;
            if constexpr (F::OF_SUMS && F::MINIMUM) {
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                sum += __shfl_xor_sync(~0u, sum, 4);
                if (lane % 8 == 0) {
                    sums[local * 8 * NT + s] = sum;
                }
            }
        }
        if (p.norm != nullptr) {
            for (int apart = 16; apart > 0; apart >>= 1) {
                square += __shfl_xor_sync(~0u, square, apart);
            }
            if (lane == 0) {
                squares[s * WARPS + member] = square;
                for (int w = member + members; w < WARPS; w += members) {
                    squares[s * WARPS + w] = 0.0f;
                }
            }
        }
    }
}

static __device__ __forceinline__ float factor_of(const carry_tile_product &p, const place_of &at, int row) {
    return __ldg((const float *)(at.tile + p.factors_at) + row);
}

/* Adds the sums of warps and of the blocks of a cluster, in order. */
template <int NT, int RT>
static __device__ __forceinline__ void finish(const carry_tile_product &p, const place_of (&at)[RT],
                                              unsigned char *memory, const memory_of &m, int sequences, int rank,
                                              int cluster) {
    constexpr int ALL = RT * ROWS, PITCH = ALL + 4;
    float *parts = (float *)(memory + m.parts_at), *squares = (float *)(memory + m.squares_at);
    const bool pairs = p.output == CARRY_TILE_SWIGLU;
    const int each = pairs ? ROWS : ALL;
    if (cluster > 1) {
        for (int i = threadIdx.x; i < sequences * ALL; i += THREADS) {
            float *to = parts + i / ALL * PITCH + i % ALL, sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                sum += to[w * 8 * NT * PITCH];
            }
            *to = sum;
        }
        cg::this_cluster().sync();
    }
    for (int i = rank * THREADS + threadIdx.x; i < sequences * each; i += THREADS * cluster) {
        const int s = i / each, row = i % each;
        float sum = 0.0f, up = 0.0f, square = 0.0f;
        for (int r = 0; r < cluster; r++) {
            const float *from = cluster > 1 ? cg::this_cluster().map_shared_rank(parts, r) : parts;
            const float *from_squares = cluster > 1 ? cg::this_cluster().map_shared_rank(squares, r) : squares;
            from += s * PITCH + row;
            for (int w = 0; w < (cluster > 1 ? 1 : WARPS); w++) {
                sum += from[w * 8 * NT * PITCH];
                up += pairs ? from[w * 8 * NT * PITCH + ROWS] : 0.0f;
            }
            for (int w = 0; p.norm != nullptr && w < WARPS; w++) {
                square += from_squares[s * WARPS + w];
            }
        }
        const float rate = (p.norm != nullptr ? rsqrtf(square / (float)p.columns + p.eps) : 1.0f) * (1.0f / X_SCALE);
        place_of tile = at[0];
        if constexpr (RT == 2) { /* a variable index would put both into local memory */
            tile = row < ROWS ? at[0] : at[1];
        }
        if (tile.row + row % ROWS < tile.rows) {
            sum *= rate * factor_of(p, tile, row % ROWS);
            if (pairs) {
                sum = sum / (1.0f + __expf(-sum)) * (up * rate * factor_of(p, at[RT - 1], row));
            }
            store(p, s, tile.y_at + tile.row + row % ROWS, sum);
        }
    }
    if (cluster > 1) {
        cg::this_cluster().sync(); /* the others have read this block's memory */
    }
}

template <class F, int NT, int RT, int DEPTH, int BLOCKS>
static __global__ __launch_bounds__(THREADS, BLOCKS) void few(const __grid_constant__ carry_tile_product p,
                                                              int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char memory[];
    const int cluster = (int)cg::this_cluster().num_blocks(), rank = (int)cg::this_cluster().block_rank();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int chunks = 2 * p.units;
    const memory_of m = memory_for<F, NT, RT>(chunks, sequences, cluster);
    const int first = rank * WARPS + warp, parts = cluster * WARPS;
    place_of at_tile[RT];
#pragma unroll
    for (int r = 0; r < RT; r++) {
        const bool pairs = p.output == CARRY_TILE_SWIGLU;
        const int tile = (int)blockIdx.x / cluster * (pairs ? 1 : RT) + (pairs ? 0 : r);
        int map = pairs ? r : 0;
        for (int i = 1; !pairs && i < p.count; i++) {
            map = tile >= p.maps[i].first_tile ? i : map;
        }
        const int own = tile - (pairs ? 0 : p.maps[map].first_tile), rows = p.maps[map].rows;
        at_tile[r] = place_of{p.maps[map].tiles + (size_t)min(own, (rows - 1) / ROWS) * p.tile_bytes, own * ROWS, rows,
                              p.maps[map].y_at};
    }
    piece<F> pieces[DEPTH][RT];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        if (first + d * parts < chunks) {
#pragma unroll
            for (int r = 0; r < RT; r++) {
                load<F>(pieces[d][r], at_tile[r].tile, p, first + d * parts, lane);
            }
        }
    }
    /* Prefetch into the cache: the sums of a tile wait for its factors. */
    if (threadIdx.x < RT) {
        float unused;
        asm volatile("ld.global.nc.f32 %0, [%1];"
                     : "=f"(unused)
                     : "l"(at_tile[threadIdx.x == 0 ? 0 : RT - 1].tile + p.factors_at));
    }
    let_next_begin();
    await_previous();
    stage<F, NT>(p, memory, m, sequences, (m.pitch - 64) / (CHUNK * 2), rank, cluster);
    __syncthreads();
    float c[RT][NT][4] = {};
    const float *sums = (const float *)(memory + m.sums_at);
    for (int at = first, local = warp; at < chunks; at += DEPTH * parts, local += DEPTH * WARPS) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int chunk = at + d * parts, here = local + d * WARPS;
            if (chunk < chunks) {
                uint4 x[NT][2];
#pragma unroll
                for (int n = 0; n < 2 * NT; n++) {
                    x[n / 2][n % 2] = make_uint4(0, 0, 0, 0);
                    if (n / 2 * 8 + g < sequences) {
                        x[n / 2][n % 2] =
                            *(const uint4 *)(memory + (n / 2 * 8 + g) * m.pitch + here * 128 + n % 2 * 64 + t * 16);
                    }
                }
#pragma unroll
                for (int r = 0; r < RT; r++) {
                    add_chunk<F, NT>(c[r], pieces[d][r], x, sums + here * 8 * NT, t);
                    if (chunk + DEPTH * parts < chunks) {
                        load<F>(pieces[d][r], at_tile[r].tile, p, chunk + DEPTH * parts, lane);
                    }
                }
            }
        }
    }
    float *to = (float *)(memory + m.parts_at) + warp * 8 * NT * (RT * ROWS + 4);
#pragma unroll
    for (int i = 0; i < RT * NT * 4; i++) {
        const int r = i / (NT * 4), n = i / 4 % NT, e = i % 4;
        to[(n * 8 + 2 * t + e % 2) * (RT * ROWS + 4) + r * ROWS + g + e / 2 * 8] = c[r][n][e];
    }
    __syncthreads();
    finish<NT, RT>(p, at_tile, memory, m, sequences, rank, cluster);
#endif
}

} // namespace quantised

#endif
