/* The framework of the kernel of decode_ops.h: the ring of weights, and the words (a value and a tag, 8 bytes) in which
   operations pass results. Warps 0 to 7 compute, warp 8 copies weights. Warps 9 to 11 only complete the warp group of
   warp 8, which gives registers to the first eight warps. */
#ifndef CARRY_ENGINE_DECODE_KERNEL_CUH
#define CARRY_ENGINE_DECODE_KERNEL_CUH

#include <cuda_bf16.h>

#include "device/hopper.cuh"
#include "engine/decode_ops.h"
#include "engine/runner.h"

namespace decode {

constexpr int WARPS = 8, THREADS = 32 * WARPS, ALL = THREADS + 128;
constexpr int ROWS = CARRY_DECODE_ROWS, COLUMNS = CARRY_DECODE_COLUMNS;
/* Rows in a slot are padded by 64 bytes, so that eight lanes that read two rows have no bank conflicts. */
constexpr int ROW_BYTES = COLUMNS * 2 + 64, SLOT_BYTES = ROWS * ROW_BYTES;
constexpr int X_PAD = 32;
constexpr int MAX_SLOTS = 12;
/* Maximum number of a block's slots in flight: two keep memory busy, five are no faster. When a slot has arrived, all
   slots before it have arrived too, except perhaps the one just before it. */
constexpr int IN_FLIGHT = 2;
constexpr int SUMS = 2 * 2 * WARPS * 128; /* two buffers of two matrices */
constexpr int KEY = 128, SLICE = CARRY_DECODE_SLICE;
constexpr int CHUNK = 128;                    /* columns of x that a warp reads at a time */
constexpr int AT_ONCE = 4, PAIRS_AT_ONCE = 8; /* chunks that a warp loads at once; the second, larger number is for
                                                 inputs that are only copied */
constexpr int TEAM = 4;                       /* warps that share a slice of a state */

struct shared_head {
    carry_decode_op op[2];    /* the current operation and the next */
    carry_decode_op ahead[2]; /* the same for the warp that copies */
    uint64_t full[MAX_SLOTS], empty[MAX_SLOTS];
    float sums[SUMS];
    float part[CARRY_DECODE_SEQUENCES * 64]; /* sums of squares of chunks of x */
    float keys[WARPS / TEAM][2 * KEY];       /* q and k of the head that a team works on */
    float values[WARPS / TEAM][SLICE], squares[WARPS][2];
    float qs[CARRY_DECODE_GROUP * 256]; /* queries of attention */
};

struct view {
    shared_head *head;
    unsigned char *ring;
    __nv_bfloat16 *x;
    int slots, x_stride;
};

/* Slot and parity of the n-th slot that a block has filled, counted from the start. */
struct ring_place {
    int slot, parity;
};

static __device__ __forceinline__ ring_place place_of(unsigned n, int slots) {
    const unsigned round = n / (unsigned)slots;
    return {(int)(n - round * (unsigned)slots), (int)(round & 1)};
}

static __device__ __forceinline__ void advance(ring_place &at, int slots) {
    if (++at.slot == slots) {
        at.slot = 0;
        at.parity ^= 1;
    }
}

static __device__ __forceinline__ void consumers_sync() {
    hopper::group_sync(1, THREADS);
}

static __device__ __forceinline__ int first_tile(const carry_decode_op &op) {
    const int G = gridDim.x;
    const int at = (int)blockIdx.x - op.first;
    return at < 0 ? at + G : at;
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    return x;
}

static __device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x)); /* also exact where e^-x is infinite or zero */
}

/* Words of 8 bytes are read and written by single memory accesses. */
static __device__ __forceinline__ carry_decode_word look(const carry_decode_word *at) {
    unsigned long long bits;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(bits) : "l"(at) : "memory");
    return {(uint32_t)bits, (uint32_t)(bits >> 32)};
}

struct two_words {
    carry_decode_word a, b;
};

static __device__ __forceinline__ two_words look2(const carry_decode_word *at) {
    unsigned long long a, b;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
    return {{(uint32_t)a, (uint32_t)(a >> 32)}, {(uint32_t)b, (uint32_t)(b >> 32)}};
}

static __device__ __forceinline__ void tell(carry_decode_word *at, uint32_t value, uint32_t tag) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(at), "l"((unsigned long long)tag << 32 | value)
                 : "memory");
}

static __device__ __forceinline__ void tell2(carry_decode_word *at, float a, float b, uint32_t tag) {
    const unsigned long long high = (unsigned long long)tag << 32;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(high | __float_as_uint(a)),
                 "l"(high | __float_as_uint(b))
                 : "memory");
}

static __device__ __forceinline__ uint32_t pair_of(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *(const uint32_t *)&pair;
}

/* An element of a pair: bf16 is the upper half of a float. */
static __device__ __forceinline__ float low_of(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float high_of(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ float of_column(uint32_t pair, int column) {
    return column % 2 == 0 ? low_of(pair) : high_of(pair);
}

static __device__ __forceinline__ float4 four_of(const two_words &w) {
    return make_float4(low_of(w.a.value), high_of(w.a.value), low_of(w.b.value), high_of(w.b.value));
}

/* Writes four neighbouring elements. */
static __device__ __forceinline__ void tell_four(carry_decode_word *at, float a, float b, float c, float d,
                                                 uint32_t tag) {
    tell2(at, __uint_as_float(pair_of(a, b)), __uint_as_float(pair_of(c, d)), tag);
}

static __device__ __forceinline__ void put4(__nv_bfloat16 *to, float a, float b, float c, float d) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(a, b), high = __floats2bfloat162_rn(c, d);
    *(uint2 *)to = make_uint2(*(const uint32_t *)&low, *(const uint32_t *)&high);
}

/* The segment and the row within it of a tile. */
static __device__ __forceinline__ const carry_decode_segment &segment_of(const carry_decode_product &p, int tile,
                                                                         int sub, int *row) {
    *row = tile * ROWS;
    if (p.output == CARRY_DECODE_SWIGLU) {
        return p.segment[sub];
    }
    int i = 0;
    while (*row >= p.segment[i].rows) {
        *row -= p.segment[i].rows;
        i++;
    }
    return p.segment[i];
}

static __device__ __forceinline__ void fetch(carry_decode_op *to, const carry_decode_op *from, int lane) {
    for (int j = lane; j < (int)(sizeof *to / 8); j += 32) {
        ((uint64_t *)to)[j] = __ldg((const uint64_t *)from + j);
    }
}

/* Warp 8: copies all weights of this block, in the order in which the other warps use them. */
static __device__ void produce(const carry_decode_call &call, const view &v) {
    const int lane = threadIdx.x % 32;
    ring_place at = {0, 0}, landed = {0, 0};
    int ahead = 0;
    fetch(&v.head->ahead[0], call.ops, lane);
    for (int i = 0; i < call.count; i++) {
        const carry_decode_op &op = v.head->ahead[i % 2];
        __syncwarp();
        if (i + 1 < call.count) {
            fetch(&v.head->ahead[(i + 1) % 2], call.ops + i + 1, lane);
        }
        if (op.kind != CARRY_DECODE_PRODUCT) {
            continue;
        }
        const carry_decode_product &p = op.as.product;
        const int subs = p.output == CARRY_DECODE_SWIGLU ? 2 : 1;
        for (int tile = first_tile(op); tile < op.tiles; tile += gridDim.x) {
            for (int sub = 0; sub < subs; sub++) {
                int row;
                const __nv_bfloat16 *W = (const __nv_bfloat16 *)segment_of(p, tile, sub, &row).W;
                W += (size_t)(row + lane % ROWS) * p.columns;
                for (int k = 0; k < p.columns; k += COLUMNS) {
                    const int some = p.columns - k < COLUMNS ? p.columns - k : COLUMNS;
                    const uint32_t full = hopper::shared_address(&v.head->full[at.slot]);
                    hopper::barrier_wait(hopper::shared_address(&v.head->empty[at.slot]), at.parity ^ 1);
                    if (ahead++ >= IN_FLIGHT) {
                        hopper::barrier_wait(hopper::shared_address(&v.head->full[landed.slot]), landed.parity);
                        advance(landed, v.slots);
                    }
                    if (lane == 0) {
                        hopper::barrier_expect(full, ROWS * some * 2);
                    }
                    __syncwarp();
                    if (lane < ROWS) {
                        hopper::copy_bytes(
                            hopper::shared_address(v.ring + (size_t)at.slot * SLOT_BYTES + lane * ROW_BYTES), W + k,
                            some * 2, full);
                    }
                    advance(at, v.slots);
                }
            }
        }
    }
}

/* Looks up embeddings. */
static __device__ void run_embed(const carry_decode_call &call, const carry_decode_op &op, int i) {
    const carry_decode_embed &e = op.as.embed;
    const carry_decode_turn &turn = *call.turn;
    for (int at = 2 * (first_tile(op) * THREADS + (int)threadIdx.x); at < call.sequences * e.width;
         at += 2 * gridDim.x * THREADS) {
        const int b = at / e.width;
        const int64_t id = turn.id[b] >= 0 ? turn.id[b] : call.last[turn.slot[b]];
        const uint32_t pair = *(const uint32_t *)((const __nv_bfloat16 *)e.table + id * e.width + at % e.width);
        tell2(e.h + at, low_of(pair), high_of(pair), call.tag + i);
        tell(e.low + at / 2, pair, call.tag + i);
    }
}

} // namespace decode

#endif
