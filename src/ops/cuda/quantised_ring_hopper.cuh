/* Products of up to 32 sequences with quantised matrices in tiles (ops/quantised/tiles.h), by one block for each
   multiprocessor.

   The units of a block's tiles are divided evenly among its warps, in order. Each warp copies its own units into its
   part of shared memory, `slots` of them ahead, and starts before the kernel that computes x has ended. For up to 8
   sequences, blocks of two products fit on a multiprocessor, so the units of the next product arrive while this product
   ends. Two blocks of the same product must not fit, else some multiprocessors get two of them and others none: ring
   takes more than half of the shared memory, ring_beside more than half of the registers, and products that follow each
   other alternate between the two (is_second). The warps' partial sums of a tile meet in shared memory at the end of a
   round of tiles. If the tiles divide unevenly among the multiprocessors, or x of all sequences does not fit, the
   blocks of a cluster share the columns of a tile.

   The loop over units is bound by its instructions. Four-bit codes whose scale multiplies sums therefore take half an
   instruction each: a code in the low bits of an f16 is the subnormal number code * 2^-24, or code * 2^-20 if it is
   shifted by four bits, which tensor cores multiply exactly. The two kinds have separate sums. */
#ifndef CARRY_OPS_CUDA_QUANTISED_RING_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_RING_HOPPER_CUH

#include "ops/cuda/quantised_ring_parts_hopper.cuh"

namespace quantised {

static __device__ __forceinline__ unsigned shared_of(const void *at) {
    return (unsigned)__cvta_generic_to_shared(at);
}

static __device__ __forceinline__ void copy_16(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all but the last PENDING groups have arrived. */
template <int PENDING> static __device__ __forceinline__ void await_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Waits for the oldest of `slots` groups. */
static __device__ __forceinline__ void await_oldest(int slots) {
    if (slots >= 8) {
        await_groups<7>();
    } else if (slots >= 6) {
        await_groups<5>();
    } else if (slots >= 4) {
        await_groups<3>();
    } else if (slots == 3) {
        await_groups<2>();
    } else {
        await_groups<1>();
    }
}

static __device__ __forceinline__ uint4 shared_16(unsigned at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

/* A lane's part of a unit. */
template <class F> struct unit_piece {
    static constexpr int CODES = unit_of<F>::CODES / 512;
    static constexpr int SCALES = F::GROUP == 128 ? 1 : 2; /* sets of scales */
    uint4 codes[CODES];
    unsigned scales[SCALES][F::SCALE_WORDS];
};

template <class F> static __device__ __forceinline__ void read_unit(unit_piece<F> &w, unsigned unit, int lane) {
#pragma unroll
    for (int i = 0; i < unit_piece<F>::CODES; i++) {
        w.codes[i] = shared_16(unit + i * 512 + lane * 16);
    }
#pragma unroll
    for (int i = 0; i < unit_piece<F>::SCALES; i++) {
        const unsigned from = unit + unit_of<F>::CODES + scale_words_at<F>(i, lane) * 4;
        if constexpr (F::SCALE_WORDS == 4) {
            *(uint4 *)w.scales[i] = shared_16(from);
        } else if constexpr (F::SCALE_WORDS == 2) {
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w.scales[i][0]), "=r"(w.scales[i][1]) : "r"(from));
        } else {
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w.scales[i][0]) : "r"(from));
        }
    }
}

/* Adds the products of 32 columns, number `at` of a unit. For 4-bit codes whose scale multiplies sums (OF_SUMS), the
   sum of code times x is part[0] 2^24 + part[1] 2^20. */
template <class F, int NT>
static __device__ __forceinline__ void add_columns(float (&part)[NT][2][4], const unit_piece<F> &w, int at,
                                                   const uint4 (&x)[NT]) {
    if constexpr (TWO_KINDS<F>) {
        const uint4 &codes = w.codes[at / 2];
        const unsigned first = at % 2 == 0 ? codes.x : codes.z, second = at % 2 == 0 ? codes.y : codes.w;
        const unsigned first_high = first >> 8, second_high = second >> 8;
        const __half2 low[4] = {half2_of(first & 0x000f000fu), half2_of(second & 0x000f000fu),
                                half2_of(first_high & 0x000f000fu), half2_of(second_high & 0x000f000fu)};
        const __half2 high[4] = {half2_of(first & 0x00f000f0u), half2_of(second & 0x00f000f0u),
                                 half2_of(first_high & 0x00f000f0u), half2_of(second_high & 0x00f000f0u)};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            multiply(part[n][0], low, x[n].x, x[n].y);
            multiply(part[n][1], high, x[n].z, x[n].w);
        }
    } else {
        __half2 a[2][4];
        decode<F>(a, w.codes[F::BITS == 8 ? at : at / 2], at % 2);
        if constexpr (!F::OF_SUMS) {
            scale<F>(a, w.scales[at / 2], at % 2);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            multiply(part[n][0], a[0], x[n].x, x[n].y);
            multiply(part[n][1], a[1], x[n].z, x[n].w);
        }
    }
}

/* Adds scaled sums of a group to c, and clears them. sums: of x over the group, by sequence. */
template <class F, int NT>
static __device__ __forceinline__ void add_scaled(float (&c)[NT][4], float (&part)[NT][2][4],
                                                  const unsigned (&scales)[F::SCALE_WORDS], const float *sums, int t) {
    float by[2], less[2] = {};
    if constexpr (F::WIDE) {
        by[0] = __uint_as_float(scales[0]);
        by[1] = __uint_as_float(scales[1]);
    } else {
        *(float2 *)by = __half22float2(half2_of(scales[0]));
        *(float2 *)less = __half22float2(half2_of(scales[1]));
    }
    if constexpr (F::BITS == 4) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            less[i] = fmaf(8.0f, by[i], less[i]); /* codes are stored plus 8 */
            by[i] *= 16777216.0f;
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float2 sum = F::MINIMUM ? *(const float2 *)(sums + n * 8 + 2 * t) : float2{};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (F::MINIMUM) {
                c[n][i] = fmaf(-less[i / 2], i % 2 == 0 ? sum.x : sum.y, c[n][i]);
            }
            const float all = fmaf(part[n][1][i], F::BITS == 4 ? 0.0625f : 1.0f, part[n][0][i]);
            c[n][i] = fmaf(by[i / 2], all, c[n][i]);
            part[n][0][i] = part[n][1][i] = 0.0f;
        }
    }
}

/* c += W x for a unit. x: offsets in shared memory of this lane's columns for sequences g, g + 8, ... */
template <class F, int NT>
static __device__ __forceinline__ void add_unit(float (&c)[NT][4], float (&part)[NT][2][4], const unit_piece<F> &w,
                                                const unsigned (&x_at)[NT], unsigned unit_at, const float *sums,
                                                int t) {
#pragma unroll
    for (int at = 0; at < 4; at++) {
        uint4 x[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            x[n] = shared_16(x_at[n] + unit_at + at * 64);
        }
        add_columns<F, NT>(part, w, at, x);
        if constexpr (F::OF_SUMS) {
            if (F::GROUP == 64 ? at % 2 == 1 : at == 3) {
                add_scaled<F, NT>(c, part, w.scales[F::GROUP == 64 ? at / 2 : 0],
                                  sums + (F::GROUP == 64 ? at / 2 * 8 * NT : 0), t);
            }
        }
    }
}

/* ONE: there is one sequence, and stages_one is true. */
template <class F, int NT, int W, bool ONE = false>
static __device__ __forceinline__ void run_ring(const carry_tile_product &p, const ring_plan &m, int sequences) {
    constexpr int BYTES = unit_of<F>::BYTES;
    extern __shared__ __align__(128) unsigned char ring_memory[];
    __shared__ int2 reach[2][4 * W]; /* of each tile of a round: the first and last warp that has units of it */
    unsigned char *memory = ring_memory;
    /* The compiler reads the thread's number again for each unit, but does not repeat a shuffle. */
    const unsigned thread = ONE ? __shfl_sync(~0u, threadIdx.x, (int)threadIdx.x % 32) & 1023 : threadIdx.x;
    const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int rank = (int)blockIdx.x % m.cluster, block = (int)blockIdx.x / m.cluster;
    ring_share b;
    b.begin = block * m.items_each + min(block, m.items_more);
    b.tiles = (m.items_each + (block < m.items_more)) * m.each;
    b.rounds = (b.tiles + m.round - 1) / m.round;
    b.first = rank * m.units;
    b.mine = min(m.units, p.units - b.first);
    const unsigned slots_at = shared_of(memory) + m.ring_at + warp * m.slots * BYTES;
    unsigned slot = slots_at;
    ring_walk<W> ahead = {};
    ahead.start(b, m, warp);
    ring_walk<W> now = ahead;
    bool more = ahead.find(b, m, warp);
    const unsigned char *from = nullptr;
    int run = 0; /* units of the present tile that are asked for next, one after the other */
    const auto seek = [&] {
        from = ring_tile(p, b.begin, m.each, ahead.round * m.round + ahead.tile).tile +
               (size_t)(b.first + ahead.unit) * BYTES + lane * 16;
        run = min(ahead.left, b.mine - ahead.unit);
    };
    if (more) {
        seek();
    }
    /* Asks for the next unit. */
    const auto send = [&] {
        if (more) {
#pragma unroll
            for (int i = 0; i < unit_of<F>::CODES / 512; i++) {
                copy_16(slot + i * 512 + lane * 16, from + i * 512);
            }
            if (lane < unit_of<F>::SCALES / 16) {
                copy_16(slot + unit_of<F>::CODES + lane * 16, from + unit_of<F>::CODES);
            }
            from += BYTES;
            if (--run == 0) {
                more = ahead.pass(b, m, warp);
                if (more) {
                    seek();
                }
            }
        }
        end_group();
        slot = slot == slots_at + (m.slots - 1) * BYTES ? slots_at : slot + BYTES;
    };
#pragma unroll 1
    for (int i = 0; i < m.slots; i++) {
        send();
    }
    let_next_begin();
    ring_result o = result_of(p, m, b, 0, rank * m.share + (int)threadIdx.x, sequences);
    float factors[8] = {};
    if (p.norm != nullptr) {
        const int at = (warp >> team_shift(sequences)) * 32 + lane;
        take_factors<ONE>(factors, p, b.first * CARRY_QUANT_UNIT_COLUMNS + at * 8);
    }
    if (m.cluster > 1) {
        cg::this_cluster().sync(); /* the first block may receive sums */
    }
    await_previous();
    o.base = base_of(p, o);
    if constexpr (ONE) {
        ring_stage_one<F, W>(p, m, b, memory, thread, factors);
    } else {
        ring_stage<F, NT, W>(p, m, b, memory, sequences, factors);
    }
    __syncthreads();
    const float *sums = (const float *)(memory + m.sums_at);
    unsigned x_at[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) { /* results of sequences that do not exist are not used */
        x_at[n] = shared_of(memory) + (n * 8 + g < sequences ? n * 8 + g : 0) * m.pitch + t * 16;
    }
    for (int round = 0; round < b.rounds; round++) {
        const int turn = round % 2, buffer = m.turns == 2 ? turn : 0;
        if (round > 0) {
            now.round = round;
            now.start(b, m, warp);
            o = result_of(p, m, b, round, rank * m.share + (int)threadIdx.x, sequences);
            o.base = base_of(p, o);
        }
        float *parts = (float *)(memory + m.parts_at + buffer * m.part_bytes);
        float *to = parts + (now.tile + warp) * sequences * ROWS;
        float c[NT][4] = {}, part[NT][2][4] = {};
        if (now.left == 0) { /* between warps that have units of one tile */
            put_parts<NT>(to, c, sequences, lane);
        }
        while (now.left > 0) { /* a tile, or this warp's part of it */
            const int units = min(now.left, b.mine - now.unit);
            if (lane == 0 && now.unit == 0) {
                reach[turn][now.tile].x = warp;
            }
            unsigned x_from = (unsigned)now.unit * 256;
            const float *sums_from = sums + now.unit * unit_of<F>::GROUPS * 8 * NT;
            for (int i = 0; i < units; i++) {
                unit_piece<F> w;
                await_oldest(m.slots);
                __syncwarp();
                read_unit<F>(w, slot, lane);
                __syncwarp();
                send();
                add_unit<F, NT>(c, part, w, x_at, x_from, sums_from, t);
                x_from += 256;
                sums_from += unit_of<F>::GROUPS * 8 * NT;
            }
            if (lane == 0 && now.unit + units == b.mine) {
                reach[turn][now.tile].y = warp;
            }
            if constexpr (!F::OF_SUMS) {
#pragma unroll
                for (int i = 0; i < 4 * NT; i++) {
                    c[i / 4][i % 4] = part[i / 4][0][i % 4] + part[i / 4][1][i % 4];
                    part[i / 4][0][i % 4] = part[i / 4][1][i % 4] = 0.0f;
                }
            }
            put_parts<NT>(to, c, sequences, lane);
            to += sequences * ROWS;
            now.left -= units;
            now.unit = 0;
            now.tile++;
        }
        __syncthreads();
        ring_finish<W, ONE>(p, m, b, memory, parts, reach[turn], o, sequences, round, rank);
        if (m.turns == 1 && round + 1 < b.rounds) {
            __syncthreads();
        }
    }
}

template <class F, int NT, int W>
static __global__ __launch_bounds__(32 * W, NT == 1 ? 2 : 1) void ring(const __grid_constant__ carry_tile_product p,
                                                                       const __grid_constant__ ring_plan m,
                                                                       int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    run_ring<F, NT, W>(p, m, sequences);
#endif
}

/* 12 warps with BESIDE_REGISTERS for a thread, and 12 with up to 80: the first do not fit twice. */
constexpr int BESIDE_REGISTERS = 88;

template <class F>
static __global__ __maxnreg__(BESIDE_REGISTERS) void ring_beside(const __grid_constant__ carry_tile_product p,
                                                                 const __grid_constant__ ring_plan m, int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    run_ring<F, 1, 12>(p, m, sequences);
#endif
}

} // namespace quantised

#endif
