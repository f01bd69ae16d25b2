/* Products of up to 32 sequences with quantised matrices in tiles (ops/quantised/tiles.h), by one block for each
   multiprocessor.

   The units of a block's tiles are divided evenly among its warps, in order. Each warp copies its own units into its
   part of shared memory, `slots` of them ahead, and starts before the kernel that computes x has ended. Two blocks fit
   on a multiprocessor, so the units of the next product arrive while this one ends. The warps' partial sums of a tile
   meet in shared memory at the end of a round of tiles. If a matrix has few tiles, the blocks of a cluster share its
   columns. */
#ifndef CARRY_OPS_CUDA_QUANTISED_STREAM_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_STREAM_HOPPER_CUH

#include <cooperative_groups.h>

#include "ops/cuda/quantised_stream_plan_hopper.cuh"

namespace quantised {

namespace cg = cooperative_groups;

static __device__ __forceinline__ unsigned shared_of(const void *at) {
    return (unsigned)__cvta_generic_to_shared(at);
}

static __device__ __forceinline__ void await_copy(uint64_t *barrier, unsigned parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_of(barrier)),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void copy_in(void *to, const void *from, unsigned bytes, uint64_t *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_of(barrier)), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_of(to)),
        "l"(from), "r"(bytes), "r"(shared_of(barrier))
        : "memory");
}

/* Tile `tile` of the block's items, which start at item `begin`. */
static __device__ __forceinline__ place_of stream_tile(const carry_tile_product &p, int begin, int each, int tile) {
    const int item = begin + (each == 2 ? tile / 2 : tile);
    int map = each == 2 ? tile % 2 : 0;
    for (int i = 1; each == 1 && i < p.count; i++) {
        map = item >= p.maps[i].first_tile ? i : map;
    }
    const int own = each == 2 ? item : item - p.maps[map].first_tile;
    return place_of{p.maps[map].tiles + (size_t)own * p.tile_bytes, own * ROWS, p.maps[map].rows, p.maps[map].y_at};
}

/* The tiles of a block, and its part of their columns. */
struct stream_share {
    int begin, tiles, rounds; /* first item; tiles of all rounds */
    int first, mine;          /* units of each tile */
};

/* The units of a warp, in order. */
template <int W> struct stream_walk {
    int round, tile, unit, left; /* left: units of this round */

    __device__ __forceinline__ void start(const stream_share &b, const stream_plan &m, int warp) {
        const int all = min(m.round, b.tiles - round * m.round) * b.mine;
        const int at = warp * all / W;
        left = (warp + 1) * all / W - at;
        tile = at / b.mine;
        unit = at - tile * b.mine;
    }

    /* Goes to the first round from this one on that has units; returns false at the end. */
    __device__ __forceinline__ bool find(const stream_share &b, const stream_plan &m, int warp) {
        while (left == 0 && ++round < b.rounds) {
            start(b, m, warp);
        }
        return left > 0;
    }
};

/* Teams of warps that have a sequence at a time. */
static __device__ __forceinline__ int teams_of(int sequences) {
    return sequences > 4 ? 8 : sequences > 2 ? 4 : sequences;
}

/* Writes x in f16, the sums of its chunks, and its squares. */
template <class F, int NT, int W>
static __device__ __forceinline__ void stream_stage(const carry_tile_product &p, const stream_plan &m,
                                                    const stream_share &b, unsigned char *memory, int sequences) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int teams = teams_of(sequences), team = warp % teams, member = warp / teams, members = W / teams;
    float *sums = (float *)(memory + m.sums_at), *squares = (float *)(memory + m.squares_at);
    for (int s = team; s < sequences && member < members; s += teams) {
        float square = 0.0f;
#pragma unroll 2
        for (int at = member * 32 + lane; at < (b.mine * 16 + 31) / 32 * 32; at += members * 32) {
            float x[8] = {}, sum = 0.0f;
            __half2 to[4];
            if (at < b.mine * 16) {
                take_x(x, p, s, b.first * CARRY_QUANT_UNIT_COLUMNS + at * 8, square);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float low = fminf(fmaxf(x[2 * i] * X_SCALE, -X_MOST), X_MOST);
                const float high = fminf(fmaxf(x[2 * i + 1] * X_SCALE, -X_MOST), X_MOST);
                to[i] = __floats2half2_rn(low, high);
                sum += __low2float(to[i]) + __high2float(to[i]);
            }
            if constexpr (F::OF_SUMS && F::MINIMUM) {
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                sum += __shfl_xor_sync(~0u, sum, 4);
                if (at < b.mine * 16 && lane % 8 == 0) {
                    sums[at / 8 * 8 * NT + s] = sum;
                }
            }
            if (at < b.mine * 16) {
                *(uint4 *)(memory + s * m.pitch + at * 16) = *(const uint4 *)to;
            }
        }
        if (p.norm != nullptr) {
            for (int apart = 16; apart > 0; apart >>= 1) {
                square += __shfl_xor_sync(~0u, square, apart);
            }
            if (lane == 0) {
                squares[s * W + member] = square;
            }
        }
    }
}

/* Reads a chunk of a unit from shared memory. */
template <class F>
static __device__ __forceinline__ void read_chunk(piece<F> &w, const unsigned char *unit, int half, int group_shift,
                                                  int lane) {
    constexpr int BYTES = ROWS * CHUNK * F::BITS / 8;
#pragma unroll
    for (int u = 0; u < F::UNITS; u++) {
        w.codes[u] = *(const uint4 *)(unit + half * BYTES + u * 512 + lane * 16);
    }
    const unsigned *from = (const unsigned *)(unit + 2 * BYTES) + scale_words_at<F>(half, group_shift, lane);
    if constexpr (F::SCALE_WORDS == 4) {
        *(uint4 *)w.scales = *(const uint4 *)from;
    } else if constexpr (F::SCALE_WORDS == 2) {
        *(uint2 *)w.scales = *(const uint2 *)from;
    } else {
        w.scales[0] = *from;
    }
}

template <int NT>
static __device__ __forceinline__ void read_x(uint4 (&x)[NT][2], const unsigned char *from, int pitch, int g,
                                              int sequences) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        x[n][0] = x[n][1] = make_uint4(0, 0, 0, 0);
        if (n * 8 + g < sequences) {
            x[n][0] = *(const uint4 *)(from + n * 8 * pitch);
            x[n][1] = *(const uint4 *)(from + n * 8 * pitch + 64);
        }
    }
}

/* Writes a warp's sums of a tile, [sequences][16 rows], and clears them. */
template <int NT>
static __device__ __forceinline__ void put_parts(float *to, float (&c)[NT][4], int sequences, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) {
        const int e = i % 4, s = i / 4 * 8 + 2 * t + e % 2;
        if (s < sequences) {
            to[s * ROWS + g + e / 2 * 8] = c[i / 4][e];
        }
        c[i / 4][e] = 0.0f;
    }
}

/* The sums of a tile over warps, in order. spans: the first and last tile of each warp. */
template <int W>
static __device__ __forceinline__ float sum_parts(const float *parts, const stream_plan &m, const int2 *spans, int tile,
                                                  int at, int sequences) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < W; w++) {
        const int2 span = spans[w];
        if (tile >= span.x && tile <= span.y) {
            sum += parts[(w * m.touched + tile - span.x) * sequences * ROWS + at];
        }
    }
    return sum;
}

/* One output of a thread in a round. */
struct stream_output {
    int column; /* of y; -1: none */
    float factor, up_factor, base;
};

static __device__ __forceinline__ stream_output output_of(const carry_tile_product &p, const stream_plan &m,
                                                          const stream_share &b, int round, int sequences) {
    stream_output o = {-1, 0.0f, 0.0f, 0.0f};
    const int row = (int)threadIdx.x % ROWS, own = (int)threadIdx.x / (ROWS * sequences) * m.each;
    const int tile = round * m.round + own;
    if (own < m.round && tile < b.tiles) {
        const place_of at = stream_tile(p, b.begin, m.each, tile);
        o.column = at.row + row < at.rows ? at.y_at + at.row + row : -1;
        o.factor = __ldg((const float *)(at.tile + p.factors_at) + row);
        if (m.each == 2) {
            o.up_factor = __ldg((const float *)(stream_tile(p, b.begin, 2, tile + 1).tile + p.factors_at) + row);
        }
    }
    return o;
}

static __device__ __forceinline__ float base_of(const carry_tile_product &p, const stream_output &o, int sequences) {
    const int64_t at = (int)threadIdx.x / ROWS % sequences * p.y_stride + o.column;
    return o.column < 0 || p.output != CARRY_TILE_ADD ? 0.0f
           : p.h != nullptr                           ? __ldcg(p.h + at)
           : p.y_is_wide                              ? ((const float *)p.base)[at]
                                                      : __bfloat162float(((const __nv_bfloat16 *)p.base)[at]);
}

/* Adds the sums of a round over warps and blocks, and stores them. */
template <int W>
static __device__ __forceinline__ void stream_finish(const carry_tile_product &p, const stream_plan &m,
                                                     unsigned char *memory, const float *parts, const int2 *spans,
                                                     const stream_output &o, int sequences, int turn, int rank) {
    const int s = (int)threadIdx.x / ROWS % sequences, at = s * ROWS + (int)threadIdx.x % ROWS;
    const int tile = (int)threadIdx.x / (ROWS * sequences) * m.each;
    float sum = 0.0f, up = 0.0f;
    if (o.column >= 0) {
        sum = sum_parts<W>(parts, m, spans, tile, at, sequences);
        up = m.each == 2 ? sum_parts<W>(parts, m, spans, tile + 1, at, sequences) : 0.0f;
    }
    const float *squares = (const float *)(memory + m.squares_at);
    float square = 0.0f;
    for (int w = 0; p.norm != nullptr && w < W / teams_of(sequences); w++) {
        square += squares[s * W + w];
    }
    if (m.cluster > 1) {
        /* [rank][sum, square, up][thread] */
        float *other = (float *)(memory + m.other_at) + (size_t)turn * m.cluster * 3 * 32 * W;
        cg::cluster_group cluster = cg::this_cluster();
        if (rank > 0) {
            float *to = cluster.map_shared_rank(other, 0) + rank * 3 * 32 * W + threadIdx.x;
            to[0] = sum;
            if (p.norm != nullptr) {
                to[32 * W] = square;
            }
            if (m.each == 2) {
                to[64 * W] = up;
            }
        }
        cluster.sync();
        if (rank > 0) {
            return;
        }
        for (int r = 1; r < m.cluster; r++) {
            const float *from = other + r * 3 * 32 * W + threadIdx.x;
            sum += from[0];
            square += p.norm != nullptr ? from[32 * W] : 0.0f;
            up += m.each == 2 ? from[64 * W] : 0.0f;
        }
    }
    if (o.column >= 0) {
        const float rate = (p.norm != nullptr ? rsqrtf(square / (float)p.columns + p.eps) : 1.0f) * (1.0f / X_SCALE);
        sum *= rate * o.factor;
        if (m.each == 2) {
            sum = sum / (1.0f + __expf(-sum)) * (up * rate * o.up_factor);
        }
        put_sum(p, s, o.column, sum + o.base);
    }
}

template <class F, int NT, int W>
static __global__ __launch_bounds__(32 * W, NT == 1 ? 2 : 1) void stream(const __grid_constant__ carry_tile_product p,
                                                                         const __grid_constant__ stream_plan m,
                                                                         int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char stream_memory[];
    __shared__ uint64_t full[W][STREAM_SLOTS];
    __shared__ int2 spans[2][W];
    unsigned char *memory = stream_memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rank = (int)blockIdx.x % m.cluster, block = (int)blockIdx.x / m.cluster;
    const int blocks = (int)gridDim.x / m.cluster;
    stream_share b;
    b.begin = (int)((int64_t)m.items * block / blocks);
    b.tiles = ((int)((int64_t)m.items * (block + 1) / blocks) - b.begin) * m.each;
    b.rounds = (b.tiles + m.round - 1) / m.round;
    b.first = rank * m.units;
    b.mine = min(m.units, p.units - b.first);
    if (lane == 0) {
        for (int i = 0; i < m.slots; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_of(&full[warp][i])) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    unsigned char *ring = memory + m.ring_at + (size_t)warp * m.slots * p.unit_bytes;
    stream_walk<W> ahead = {};
    ahead.start(b, m, warp);
    bool more = ahead.find(b, m, warp);
    const unsigned char *from = nullptr;
    const auto send = [&](int slot) {
        if (more) {
            if (from == nullptr) {
                const int tile = ahead.round * m.round + ahead.tile;
                from = stream_tile(p, b.begin, m.each, tile).tile + (size_t)(b.first + ahead.unit) * p.unit_bytes;
            }
            if (lane == 0) {
                copy_in(ring + slot * p.unit_bytes, from, p.unit_bytes, &full[warp][slot]);
            }
            from += p.unit_bytes;
            ahead.left--;
            if (++ahead.unit == b.mine) {
                ahead.unit = 0;
                ahead.tile++;
                from = nullptr;
            }
            if (ahead.left == 0) {
                from = nullptr;
                more = ahead.find(b, m, warp);
            }
        }
    };
    for (int i = 0; i < m.slots; i++) {
        send(i);
    }
    let_next_begin();
    stream_output o = output_of(p, m, b, 0, sequences);
    if (p.norm != nullptr && (int)threadIdx.x * 32 < p.columns) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.norm + threadIdx.x * 32));
    }
    if (m.cluster > 1) {
        cg::this_cluster().sync(); /* the first block may receive sums */
    }
    await_previous();
    o.base = base_of(p, o, sequences);
    stream_stage<F, NT, W>(p, m, b, memory, sequences);
    __syncthreads();
    const float *sums = (const float *)(memory + m.sums_at);
    int slot = 0, phase = 0;
    for (int round = 0; round < b.rounds; round++) {
        const int turn = round % 2, buffer = m.turns == 2 ? turn : 0;
        stream_walk<W> now = {};
        now.round = round;
        now.start(b, m, warp);
        float *parts = (float *)(memory + m.parts_at + buffer * m.part_bytes);
        float *to = parts + warp * m.touched * sequences * ROWS;
        if (lane == 0) {
            spans[turn][warp] = make_int2(
                now.tile, now.left > 0 ? (now.tile * b.mine + now.unit + now.left - 1) / b.mine : now.tile - 1);
        }
        if (round > 0) {
            o = output_of(p, m, b, round, sequences);
            o.base = base_of(p, o, sequences);
        }
        float c[NT == 1 ? 2 : 1][NT][4] = {}; /* two sums of one tile do not wait for each other */
        for (; now.left > 0; now.left--) {
            piece<F> w[2];
            const unsigned char *x_at = memory + g * m.pitch + now.unit * 256 + t * 16;
            const float *sum = sums + now.unit * 16 * NT;
            uint4 x[NT == 1 ? 2 : 1][NT][2]; /* x of few sequences is read while the unit is awaited */
            if constexpr (NT == 1) {
                read_x<1>(x[0], x_at, m.pitch, g, sequences);
                read_x<1>(x[1], x_at + 128, m.pitch, g, sequences);
            }
            await_copy(&full[warp][slot], phase);
            read_chunk<F>(w[0], ring + slot * p.unit_bytes, 0, p.group_shift, lane);
            read_chunk<F>(w[1], ring + slot * p.unit_bytes, 1, p.group_shift, lane);
            __syncwarp();
            send(slot);
            if (++slot == m.slots) {
                slot = 0;
                phase ^= 1;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if constexpr (NT > 1) {
                    read_x<NT>(x[0], x_at + half * 128, m.pitch, g, sequences);
                }
                add_chunk<F, NT>(c[NT == 1 ? half : 0], w[half], x[NT == 1 ? half : 0], sum + half * 8 * NT, t);
            }
            if (++now.unit == b.mine || now.left == 1) {
                if constexpr (NT == 1) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        c[0][0][e] += c[1][0][e];
                        c[1][0][e] = 0.0f;
                    }
                }
                put_parts<NT>(to, c[0], sequences, lane);
                to += sequences * ROWS;
                now.unit = 0;
            }
        }
        __syncthreads();
        stream_finish<W>(p, m, memory, parts, spans[turn], o, sequences, turn, rank);
        if (m.turns == 1) {
            __syncthreads();
        }
    }
#endif
}

} // namespace quantised

#endif
