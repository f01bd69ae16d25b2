/* The kernel of decode_ops.h. Warps 0 to 7 compute, warp 8 copies weights; warps 9 to 11 give their registers to the
 * first. */
#ifndef CARRY_ENGINE_DECODE_KERNEL_CUH
#define CARRY_ENGINE_DECODE_KERNEL_CUH

#include <cuda_bf16.h>

#include "device/hopper.cuh"
#include "engine/decode_ops.h"

namespace decode {

constexpr int WARPS = 8, THREADS = 32 * WARPS, ALL = THREADS + 128;
constexpr int ROWS = CARRY_DECODE_ROWS, COLUMNS = CARRY_DECODE_COLUMNS;
/* Rows in a slot are 64 bytes further apart than they need be: eight lanes that read two rows meet no bank twice. */
constexpr int ROW_BYTES = COLUMNS * 2 + 64, SLOT_BYTES = ROWS * ROW_BYTES;
constexpr int X_PAD = 32;
constexpr int MAX_SLOTS = 12;
/* Slots of a block that may be on their way at a time: two keep memory busy, five are no faster. When a slot has
   landed, all but the last two before it have, too. */
constexpr int IN_FLIGHT = 2;
constexpr int SUMS = 2 * 2 * WARPS * 64; /* two buffers of two matrices */
constexpr int KEY = 128, SLICE = CARRY_DECODE_SLICE;
constexpr int CHUNK = 128; /* columns of x that a warp reads at a time */
constexpr int AT_ONCE = 4; /* such loads in flight of a warp */
constexpr int TEAM = 4;    /* warps that share a slice of a state */

struct shared_head {
    carry_decode_op op[2];    /* the current operation and the next */
    carry_decode_op ahead[2]; /* the same for the warp that copies */
    uint64_t full[MAX_SLOTS], empty[MAX_SLOTS];
    float sums[SUMS];
    float part[CARRY_DECODE_SEQUENCES * 64]; /* sums of squares, of chunks of x */
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

/* Slot and parity of the n-th slot that a block has filled since the start. */
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

/* Until every block has finished operation `op`. */
static __device__ __forceinline__ void wait_for(const carry_decode_call &call, int op) {
    if (op >= 0 && threadIdx.x == 0) {
        const unsigned target = call.epoch * gridDim.x;
        unsigned seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(call.done + op) : "memory");
        } while ((int)(seen - target) < 0);
    }
    consumers_sync();
}

static __device__ __forceinline__ void finish(const carry_decode_call &call, int op) {
    consumers_sync();
    if (threadIdx.x == 0) {
        asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(call.done + op) : "memory");
    }
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    return x;
}

static __device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x)); /* exact at both ends: e^-x is infinite or zero there */
}

static __device__ __forceinline__ void put4(__nv_bfloat16 *to, float a, float b, float c, float d) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(a, b), high = __floats2bfloat162_rn(c, d);
    *(uint2 *)to = make_uint2(*(const uint32_t *)&low, *(const uint32_t *)&high);
}

/* The rows of a tile: segment and row within it. */
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

/* Warp 8: all weights of this block, in the order in which the other warps use them. */
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

static __device__ __forceinline__ float squares_of(float4 x) {
    return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

/* Which chunks of which sequence a warp brings to x: every `step`-th one from the first. */
struct share {
    int sequence, first, step, chunks;
};

static __device__ __forceinline__ share share_of(const carry_decode_call &call, const carry_decode_product &p) {
    const int warp = threadIdx.x / 32;
    const int lanes = call.sequences > 4 ? 8 : call.sequences > 2 ? 4 : call.sequences;
    const int b = warp % lanes;
    return {b, warp / lanes, WARPS / lanes, b < call.sequences ? p.columns / CHUNK : 0};
}

/* x = norm of p.x in bf16, rows of v.x. The sums of squares of chunks are added in one order, whatever the number of
   sequences. Up to AT_ONCE chunks a warp stay in registers between the two passes; more are read again. */
static __device__ __forceinline__ void input_norm(const carry_decode_call &call, const carry_decode_product &p,
                                                  const view &v, int before) {
    const share mine = share_of(call, p);
    const int lane = threadIdx.x % 32, last = p.columns / CHUNK - 1;
    const float *from = p.x + (size_t)(mine.chunks > 0 ? mine.sequence : 0) * p.columns + 4 * lane;
    float *part = v.head->part + mine.sequence * 64;
    float4 x[AT_ONCE], w[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) { /* weights of the norm depend on nothing */
        const int c = mine.first + j * mine.step;
        w[j] = c <= last ? __ldg((const float4 *)(p.w + c * CHUNK + 4 * lane)) : make_float4(0, 0, 0, 0);
    }
    wait_for(call, before);
    for (int start = mine.first; start < mine.chunks; start += AT_ONCE * mine.step) {
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int c = start + j * mine.step;
            x[j] = c <= last ? __ldcg((const float4 *)(from + c * CHUNK)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const float sum = warp_sum(squares_of(x[j]));
            if (lane == 0 && start + j * mine.step <= last) {
                part[start + j * mine.step] = sum;
            }
        }
    }
    consumers_sync();
    float sum = lane <= last ? part[lane] : 0.0f;
    sum += lane + 32 <= last ? part[lane + 32] : 0.0f;
    const float r = rsqrtf(warp_sum(sum) / (float)p.columns + p.eps);
    for (int start = mine.first; start < mine.chunks; start += AT_ONCE * mine.step) {
        if (mine.chunks > AT_ONCE * mine.step) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int c = start + j * mine.step;
                x[j] = c <= last ? __ldcg((const float4 *)(from + c * CHUNK)) : make_float4(0, 0, 0, 0);
                w[j] = c <= last ? __ldg((const float4 *)(p.w + c * CHUNK + 4 * lane)) : make_float4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (start + j * mine.step <= last) {
                put4(v.x + (size_t)mine.sequence * v.x_stride + (start + j * mine.step) * CHUNK + 4 * lane,
                     x[j].x * r * (p.plus + w[j].x), x[j].y * r * (p.plus + w[j].y), x[j].z * r * (p.plus + w[j].z),
                     x[j].w * r * (p.plus + w[j].w));
            }
        }
    }
}

/* A chunk is a head of 128 columns, and has a norm of its own; or there is no norm, and heads have 1 << head_shift
   chunks. */
static __device__ __forceinline__ void input_gated(const carry_decode_call &call, const carry_decode_product &p,
                                                   const view &v, int before) {
    const bool norm = p.input == CARRY_DECODE_GATED_NORM;
    const share mine = share_of(call, p);
    const int lane = threadIdx.x % 32, last = p.columns / CHUNK - 1, sequence = mine.chunks > 0 ? mine.sequence : 0;
    const float *from = p.x + (size_t)sequence * p.columns + 4 * lane;
    const bool has_gate = p.gate != nullptr;
    const float *gate = p.gate + (has_gate ? (size_t)sequence * p.gate_stride + 4 * lane : 0);
    const float4 w = norm ? __ldg((const float4 *)p.w + lane) : make_float4(0, 0, 0, 0);
    wait_for(call, before);
    for (int start = mine.first; start < mine.chunks; start += AT_ONCE * mine.step) {
        float4 x[AT_ONCE], z[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int c = start + j * mine.step;
            const int at = (c >> p.head_shift) * p.gate_head + (c & ((1 << p.head_shift) - 1)) * CHUNK;
            x[j] = c <= last ? __ldcg((const float4 *)(from + c * CHUNK)) : make_float4(0, 0, 0, 0);
            z[j] = c <= last && has_gate ? __ldcg((const float4 *)(gate + at)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float4 y = x[j];
            if (norm) {
                const float r = rsqrtf(warp_sum(squares_of(y)) / (float)CHUNK + p.eps);
                y = make_float4(y.x * r * (p.plus + w.x) * z[j].x, y.y * r * (p.plus + w.y) * z[j].y,
                                y.z * r * (p.plus + w.z) * z[j].z, y.w * r * (p.plus + w.w) * z[j].w);
            }
            if (has_gate) {
                y = make_float4(y.x * sigmoid(z[j].x), y.y * sigmoid(z[j].y), y.z * sigmoid(z[j].z),
                                y.w * sigmoid(z[j].w));
            }
            if (start + j * mine.step <= last) {
                put4(v.x + (size_t)mine.sequence * v.x_stride + (start + j * mine.step) * CHUNK + 4 * lane, y.x, y.y,
                     y.z, y.w);
            }
        }
    }
}

static __device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
}

/* 16 bytes of shared memory, without a branch: lanes that do not load cost the banks nothing. */
static __device__ __forceinline__ void load_if(int condition, uint4 &x, uint32_t from) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "r"(from), "r"(condition)
                 : "memory");
}

/* The part of a warp, one of `team`, in the product of one tile: each lane has sequence lane / 4 of rows 2 (lane % 4)
   and the next. Rows of x take the place of an operand's rows and rows of W that of its columns. The order of k within
   32 is the same permutation for both, by which a lane reads 16 bytes of each. */
static __device__ __forceinline__ float2 tile_product(const carry_decode_call &call, const carry_decode_product &p,
                                                      const view &v, ring_place &at, int team) {
    const int member = threadIdx.x / 32 % team, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int has_x = g < call.sequences;
    float d[4][4] = {};
    uint4 y[4] = {}; /* stays zero in lanes without a sequence */
#pragma unroll 1
    for (int k = 0; k < p.columns; k += COLUMNS) {
        const int some = p.columns - k < COLUMNS ? p.columns - k : COLUMNS;
        const unsigned char *from = v.ring + (size_t)at.slot * SLOT_BYTES + g * ROW_BYTES + t * 16 + member * 64;
        const unsigned char *x = (const unsigned char *)(v.x + (size_t)g * v.x_stride + k + t * 8) + member * 64;
        const int step = 64 * team;
        int left = (some / 32 - member + team - 1) / team;
        hopper::barrier_wait(hopper::shared_address(&v.head->full[at.slot]), at.parity);
#pragma unroll 1
        for (; left >= 4; left -= 4, from += 4 * step, x += 4 * step) {
            uint4 w[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                w[j] = *(const uint4 *)(from + j * step);
                load_if(has_x, y[j], hopper::shared_address(x + j * step));
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                multiply(d[j % 2 * 2], y[j].x, y[j].y, w[j].x, w[j].y);
                multiply(d[j % 2 * 2 + 1], y[j].z, y[j].w, w[j].z, w[j].w);
            }
        }
#pragma unroll 1
        for (; left > 0; left--, from += step, x += step) {
            const uint4 w = *(const uint4 *)from;
            load_if(has_x, y[0], hopper::shared_address(x));
            multiply(d[0], y[0].x, y[0].y, w.x, w.y);
            multiply(d[1], y[0].z, y[0].w, w.z, w.w);
        }
        __syncwarp();
        if (lane == 0) {
            asm volatile(
                "mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(hopper::shared_address(&v.head->empty[at.slot])),
                "r"(WARPS / team)
                : "memory");
        }
        advance(at, v.slots);
    }
    return make_float2((d[0][0] + d[1][0]) + (d[2][0] + d[3][0]), (d[0][1] + d[1][1]) + (d[2][1] + d[3][1]));
}

/* Moves the inputs of a layer's convolutions up by one token. */
static __device__ __forceinline__ void shift_tails(const carry_decode_call &call, const carry_decode_delta &d) {
    const int keys = d.heads * KEY, values = d.value_heads * KEY, before = d.taps - 1;
    const int all = 2 * keys + values;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < call.sequences * all && before > 0; i += gridDim.x * THREADS) {
        const int b = i / all, c = i % all;
        const int which = c < keys ? 0 : c < 2 * keys ? 1 : 2;
        const int channel = c - which * keys, channels = which == 2 ? values : keys;
        const int column = (which == 0 ? d.q : which == 1 ? d.k : d.v) + channel;
        float *tail = d.tail[which] + (size_t)b * before * channels + channel;
        for (int j = 0; j + 1 < before; j++) {
            tail[(size_t)j * channels] = tail[(size_t)(j + 1) * channels];
        }
        tail[(size_t)(before - 1) * channels] = __ldcg(d.in + (size_t)b * d.in_stride + column);
    }
}

/* The sum over a team's warps, in its first one. */
static __device__ __forceinline__ float2 team_sum(float2 y, float *sums, int team) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (team == 1) {
        return y;
    }
    *(float2 *)(sums + warp * 64 + 2 * lane) = y;
    hopper::group_sync(2 + warp / team, 32 * team);
    if (warp % team == 0) {
        for (int i = 1; i < team; i++) {
            const float2 other = *(const float2 *)(sums + (warp + i) * 64 + 2 * lane);
            y.x += other.x;
            y.y += other.y;
        }
    }
    return y;
}

/* y of rows 2 (lane % 4) and the next of a tile, sequence lane / 4. */
static __device__ __forceinline__ float2 *tile_output(const carry_decode_product &p, int tile) {
    const int lane = threadIdx.x % 32;
    int row;
    const carry_decode_segment &s = segment_of(p, tile, 0, &row);
    return (float2 *)(s.y + (size_t)(lane / 4) * s.stride + row + 2 * (lane % 4));
}

static __device__ __forceinline__ void put_tile(const carry_decode_product &p, float2 *to, float2 now, float2 y,
                                                float2 other) {
    if (p.output == CARRY_DECODE_ADD) {
        y = make_float2(now.x + y.x, now.y + y.y);
    } else if (p.output == CARRY_DECODE_SWIGLU) {
        y = make_float2(other.x * sigmoid(other.x) * y.x, other.y * sigmoid(other.y) * y.y);
    }
    *to = y;
}

/* A team of 1, 2, 4 or 8 warps takes a tile; the teams of a block take its tiles in turn. */
static __device__ __forceinline__ void run_product(const carry_decode_call &call, const carry_decode_op &op, int i,
                                                   const view &v, unsigned &filled) {
    const carry_decode_product &p = op.as.product;
    const int subs = p.output == CARRY_DECODE_SWIGLU ? 2 : 1, pieces = (p.columns + COLUMNS - 1) / COLUMNS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = p.team, teams = WARPS / team;
    const int first = first_tile(op), tiles = first < op.tiles ? (op.tiles - first - 1) / (int)gridDim.x + 1 : 0;
    if (tiles > 0) {
        if (p.input == CARRY_DECODE_NORM) {
            input_norm(call, p, v, i - 1);
        } else {
            input_gated(call, p, v, i - 1);
        }
        consumers_sync();
    }
    for (int n = warp / team, turn = 0; n < tiles; n += teams, turn ^= 1) {
        ring_place at = place_of(filled + (unsigned)(n * subs * pieces), v.slots);
        float *sums = v.head->sums + turn * (SUMS / 2);
        const bool writes = warp % team == 0 && lane / 4 < call.sequences;
        float2 *to = tile_output(p, first + n * (int)gridDim.x);
        const float2 now = p.output == CARRY_DECODE_ADD && writes ? __ldcg(to) : make_float2(0, 0);
        float2 y = make_float2(0, 0), other = y;
#pragma unroll 1
        for (int sub = 0; sub < subs; sub++) { /* one copy of the code: instructions are fetched as slowly as data */
            other = y;
            y = team_sum(tile_product(call, p, v, at, team), sums + sub * WARPS * 64, team);
        }
        if (writes) {
            put_tile(p, to, now, y, other);
        }
    }
    filled += (unsigned)(tiles * subs * pieces);
    const int shift = p.shift; /* op is overwritten by a later one from here on */
    finish(call, i);
    if (shift >= 0) {
        if (tiles == 0) { /* the others have waited for the convolutions to be read */
            wait_for(call, i - 1);
        }
        shift_tails(call, call.ops[shift].as.delta);
    }
}

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(__expf(x));
}

/* The part of a convolution that earlier tokens make. */
static __device__ __forceinline__ float before_now(const float *w, const float *tail, int channels, int taps) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 3; j++) { /* a loop of `taps` would wait for one load after the other */
        sum += j + 1 < taps ? __ldg(w + j) * tail[(size_t)j * channels] : 0.0f;
    }
    return sum;
}

static __device__ __forceinline__ float silu(float x) {
    return x * sigmoid(x);
}

/* A team: SLICE columns of one state,

       S' = e^g S + k u^T,  u = beta (v - e^g S^T k),  o = S'^T q = e^g S^T q + (q k) u,

   after convolution, SiLU and norms of q and k. A thread has four columns of every 32nd row, and a channel of q and of
   k. What is of earlier tokens is loaded before the wait. */
static __device__ __forceinline__ void delta_slice(const carry_decode_call &call, const carry_decode_delta &d,
                                                   const view &v, int tile, int before, bool waits) {
    constexpr int SLICES = KEY / SLICE, LOADS = KEY * SLICE / 4 / (32 * TEAM);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / TEAM, t = threadIdx.x % (32 * TEAM);
    const int row = t / 4, four = 4 * (t % 4), past = d.taps - 1;
    const int column = tile % SLICES * SLICE, head = tile / SLICES % d.value_heads;
    const int b = tile / SLICES / d.value_heads, key = head / (d.value_heads / d.heads) * KEY + t;
    const int keys = d.heads * KEY, values = d.value_heads * KEY, value = head * KEY + column + t % SLICE;
    const float *in = d.in + (size_t)b * d.in_stride;
    float *S = d.state + ((size_t)b * d.value_heads + head) * KEY * KEY + column + four;
    float4 s[LOADS];
    float part[3], last[3];
    if (!waits) { /* shared memory of the slice before */
        hopper::group_sync(2 + team, 32 * TEAM);
    }
    if (tile >= 0) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            s[j] = __ldcs((const float4 *)(S + (size_t)(row + 32 * j) * KEY));
        }
#pragma unroll
        for (int j = 0; j < 3; j++) { /* q, k, v */
            const int at = j == 2 ? value : key, channels = j == 2 ? values : keys;
            const float *w = (j == 0 ? d.wq : j == 1 ? d.wk : d.wv) + (size_t)at * d.taps;
            part[j] = before_now(w, d.tail[j] + (size_t)b * past * channels + at, channels, d.taps);
            last[j] = __ldg(w + past);
        }
    }
    if (waits) {
        wait_for(call, before);
    }
    if (tile < 0) {
        return;
    }
    const float q = silu(part[0] + last[0] * __ldcg(in + d.q + key));
    const float k = silu(part[1] + last[1] * __ldcg(in + d.k + key));
    const float x = silu(part[2] + last[2] * __ldcg(in + d.v + value));
    const float beta = d.b >= 0 ? d.beta_factor * sigmoid(__ldcg(in + d.b + head)) : 1.0f;
    const float decay =
        d.a >= 0 ? __expf(-__expf(__ldg(d.A_log + head)) * softplus(__ldcg(in + d.a + head) + __ldg(d.dt_bias + head)))
                 : 1.0f;
    const float qq = warp_sum(q * q), kk = warp_sum(k * k);
    if (lane == 0) {
        v.head->squares[warp][0] = qq;
        v.head->squares[warp][1] = kk;
    }
    if (t < SLICE) {
        v.head->values[team][t] = x;
    }
    hopper::group_sync(2 + team, 32 * TEAM);
    float squares[2] = {1e-6f, 1e-6f};
#pragma unroll
    for (int j = 0; j < TEAM; j++) {
        squares[0] += v.head->squares[team * TEAM + j][0];
        squares[1] += v.head->squares[team * TEAM + j][1];
    }
    float *mine = v.head->keys[team];
    mine[t] = q * rsqrtf(squares[0]) * d.scale;
    mine[KEY + t] = k * rsqrtf(squares[1]);
    hopper::group_sync(2 + team, 32 * TEAM);
    float sums[9] = {};
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const float a = mine[row + 32 * j], c = mine[KEY + row + 32 * j];
        s[j] = make_float4(s[j].x * decay, s[j].y * decay, s[j].z * decay, s[j].w * decay);
        sums[0] += c * s[j].x, sums[1] += c * s[j].y, sums[2] += c * s[j].z, sums[3] += c * s[j].w;
        sums[4] += a * s[j].x, sums[5] += a * s[j].y, sums[6] += a * s[j].z, sums[7] += a * s[j].w;
        sums[8] += a * c;
    }
#pragma unroll
    for (int j = 0; j < 9; j++) {
#pragma unroll
        for (int apart = 4; apart < 32; apart <<= 1) {
            sums[j] += __shfl_xor_sync(~0u, sums[j], apart);
        }
        if (lane < 4) {
            v.head->sums[(warp * 4 + lane) * 9 + j] = sums[j];
        }
    }
    hopper::group_sync(2 + team, 32 * TEAM);
#pragma unroll
    for (int j = 0; j < 9; j++) {
        sums[j] = 0.0f;
#pragma unroll
        for (int w = 0; w < TEAM; w++) {
            sums[j] += v.head->sums[((team * TEAM + w) * 4 + lane % 4) * 9 + j];
        }
    }
    float u[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u[j] = beta * (v.head->values[team][four + j] - sums[j]);
    }
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const float c = mine[KEY + row + 32 * j];
        __stcs((float4 *)(S + (size_t)(row + 32 * j) * KEY),
               make_float4(s[j].x + c * u[0], s[j].y + c * u[1], s[j].z + c * u[2], s[j].w + c * u[3]));
    }
    if (row == 0) {
        float *o = d.o + ((size_t)b * d.value_heads + head) * KEY + column + four;
        *(float4 *)o = make_float4(sums[4] + sums[8] * u[0], sums[5] + sums[8] * u[1], sums[6] + sums[8] * u[2],
                                   sums[7] + sums[8] * u[3]);
    }
}

static __device__ __forceinline__ void run_delta(const carry_decode_call &call, const carry_decode_op &op, int i,
                                                 const view &v) {
    const int first = first_tile(op), teams = WARPS / TEAM;
    if (first < op.tiles) {
        bool waits = true;
        int tile = first + (int)(threadIdx.x / (32 * TEAM) * gridDim.x);
        do { /* a team without work waits with the others, once */
            delta_slice(call, op.as.delta, v, tile < op.tiles ? tile : -1, i - 1, waits);
            waits = false;
            tile += teams * (int)gridDim.x;
        } while (tile < op.tiles);
    }
    finish(call, i);
}

static __device__ void run_embed(const carry_decode_call &call, const carry_decode_op &op, int i) {
    const carry_decode_embed &e = op.as.embed;
    for (int at = (first_tile(op) * THREADS + (int)threadIdx.x); at < call.sequences * e.width;
         at += gridDim.x * THREADS) {
        const int64_t id = call.ids[at / e.width];
        e.h[at] = __bfloat162float(((const __nv_bfloat16 *)e.table)[id * e.width + at % e.width]);
    }
    finish(call, i);
}

} // namespace decode

#endif
