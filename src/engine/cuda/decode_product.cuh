/* Products of the decoding kernel: the input is copied to shared memory in bf16 as its words arrive, tiles of 8 rows of
   the weights are multiplied with it by tensor cores, and results are written as words.

   The kernels for few and for many sequences differ by MANY: if it is set, rows 8 to 15 of the first mma operand are
   sequences 8 to 15, else zeros. */
#ifndef CARRY_ENGINE_DECODE_PRODUCT_CUH
#define CARRY_ENGINE_DECODE_PRODUCT_CUH

#include "engine/cuda/decode_kernel.cuh"

namespace decode {

static __device__ __forceinline__ float squares_of(float4 x) {
    return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

/* The chunks of the input that a warp copies: every `step`-th chunk from `first` on, of `sequence` and of the sequence
   8 further on, if there is one. */
struct share {
    int sequence, first, step;
};

static __device__ __forceinline__ share share_of(const carry_decode_call &call) {
    const int warp = threadIdx.x / 32;
    const int lanes = call.sequences > 4 ? 8 : call.sequences > 2 ? 4 : call.sequences;
    return {warp % lanes, warp / lanes, WARPS / lanes};
}

/* Loads up to N chunks of a row, four columns per lane: c, c + step, ..., but none after `last`. Until chunk c has
   arrived, only that chunk is polled: all blocks read the same cache lines, and weights pass through the same cache. */
template <int N>
static __device__ __forceinline__ void await_chunks(two_words (&u)[N], const carry_decode_word *row, int c, int step,
                                                    int last, uint32_t tag) {
    const carry_decode_word *from = row + c * (CHUNK / 2) + 2 * (threadIdx.x % 32);
    u[0] = look2(from);
    while (!__all_sync(~0u, u[0].a.tag == tag && u[0].b.tag == tag)) {
        __nanosleep(40);
        u[0] = look2(from);
    }
    if (c + step > last) {
        return;
    }
    bool is_there;
    do {
#pragma unroll
        for (int j = 1; j < N; j++) {
            if (c + j * step <= last) {
                u[j] = look2(from + j * step * (CHUNK / 2));
            }
        }
        is_there = true;
#pragma unroll
        for (int j = 1; j < N; j++) {
            is_there = is_there && (c + j * step > last || (u[j].a.tag == tag && u[j].b.tag == tag));
        }
    } while (!__all_sync(~0u, is_there));
}

/* Writes each sequence's p.x, multiplied by the norm's weights, to its row of v.x. The results are divided by the root
   mean square later (scale_of). The sums of squares of chunks are added in the same order for any number of
   sequences. */
static __device__ __forceinline__ void input_norm(const carry_decode_call &call, const carry_decode_product &p,
                                                  const view &v) {
    const share mine = share_of(call);
    const int lane = threadIdx.x % 32, last = p.columns / CHUNK - 1;
    two_words u[AT_ONCE];
    float4 w[AT_ONCE];
    for (int start = mine.first; start <= last; start += AT_ONCE * mine.step) {
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            w[j] = __ldg((const float4 *)(p.w + min(start + j * mine.step, last) * CHUNK + 4 * lane));
        }
        for (int b = mine.sequence; b < call.sequences; b += WARPS) {
            await_chunks(u, p.x + (size_t)b * (p.columns / 2), start, mine.step, last, call.tag + p.x_from);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (start + j * mine.step <= last) {
                    const float4 x = four_of(u[j]);
                    const float sum = warp_sum(squares_of(x));
                    if (lane == 0) {
                        v.head->part[b * 64 + start + j * mine.step] = sum;
                    }
                    put4(v.x + (size_t)b * v.x_stride + (start + j * mine.step) * CHUNK + 4 * lane,
                         x.x * (p.plus + w[j].x), x.y * (p.plus + w[j].y), x.z * (p.plus + w[j].z),
                         x.w * (p.plus + w[j].w));
                }
            }
        }
    }
}

/* 1 / rms of a sequence's x, in the four lanes that need it. */
static __device__ __forceinline__ float scale_of(const carry_decode_product &p, const view &v, int sequence) {
    const float *part = v.head->part + sequence * 64;
    float sum = 0.0f;
    for (int c = threadIdx.x % 4; c < p.columns / CHUNK; c += 4) {
        sum += part[c];
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return rsqrtf(sum / (float)p.columns + p.eps);
}

/* A chunk is a head of 128 columns with its own norm; or there is no norm, and heads have 1 << head_shift chunks. */
static __device__ __forceinline__ void input_gated(const carry_decode_call &call, const carry_decode_product &p,
                                                   const view &v) {
    const bool norm = p.input == CARRY_DECODE_GATED_NORM;
    const share mine = share_of(call);
    const int lane = threadIdx.x % 32, last = p.columns / CHUNK - 1;
    const float4 w = norm ? __ldg((const float4 *)p.w + lane) : make_float4(0, 0, 0, 0);
    for (int b = mine.sequence; b < call.sequences; b += WARPS) {
        for (int start = mine.first; start <= last; start += AT_ONCE * mine.step) {
            two_words u[AT_ONCE], z[AT_ONCE];
            bool is_there;
            do { /* the gate was written long before x */
                is_there = true;
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    const int c = start + j * mine.step;
                    if (c <= last) {
                        z[j] = look2(p.gate + (size_t)b * p.gate_stride + (c >> p.head_shift) * p.gate_head +
                                     (c & ((1 << p.head_shift) - 1)) * (CHUNK / 2) + 2 * lane);
                    }
                }
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    is_there = is_there && (start + j * mine.step > last || (z[j].a.tag == call.tag + p.gate_from &&
                                                                             z[j].b.tag == call.tag + p.gate_from));
                }
            } while (!__all_sync(~0u, is_there));
            await_chunks(u, p.x + (size_t)b * (p.columns / 2), start, mine.step, last, call.tag + p.x_from);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (start + j * mine.step <= last) {
                    const float4 g = four_of(z[j]);
                    float4 y = four_of(u[j]);
                    if (norm) {
                        const float r = rsqrtf(warp_sum(squares_of(y)) / (float)CHUNK + p.eps);
                        y = make_float4(y.x * r * (p.plus + w.x) * g.x, y.y * r * (p.plus + w.y) * g.y,
                                        y.z * r * (p.plus + w.z) * g.z, y.w * r * (p.plus + w.w) * g.w);
                    }
                    put4(v.x + (size_t)b * v.x_stride + (start + j * mine.step) * CHUNK + 4 * lane, y.x * sigmoid(g.x),
                         y.y * sigmoid(g.y), y.z * sigmoid(g.z), y.w * sigmoid(g.w));
                }
            }
        }
    }
}

static __device__ __forceinline__ void input_pairs(const carry_decode_call &call, const carry_decode_product &p,
                                                   const view &v) {
    const share mine = share_of(call);
    const int lane = threadIdx.x % 32, last = p.columns / CHUNK - 1;
    for (int b = mine.sequence; b < call.sequences; b += WARPS) {
        for (int start = mine.first; start <= last; start += PAIRS_AT_ONCE * mine.step) {
            two_words u[PAIRS_AT_ONCE];
            await_chunks(u, p.x + (size_t)b * (p.columns / 2), start, mine.step, last, call.tag + p.x_from);
#pragma unroll
            for (int j = 0; j < PAIRS_AT_ONCE; j++) {
                if (start + j * mine.step <= last) {
                    *(uint2 *)(v.x + (size_t)b * v.x_stride + (start + j * mine.step) * CHUNK + 4 * lane) =
                        make_uint2(u[j].a.value, u[j].b.value);
                }
            }
        }
    }
}

static __device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Loads 16 bytes of shared memory if `condition` is true, without a branch: lanes that do not load cause no bank
   conflicts. */
static __device__ __forceinline__ void load_if(int condition, uint4 &x, uint32_t from) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "r"(from), "r"(condition)
                 : "memory");
}

/* Computes a warp's part of the product of one tile, which `team` warps share. Each lane returns rows 2 (lane % 4) and
   2 (lane % 4) + 1: x and y for sequence lane / 4, z and w for sequence lane / 4 + 8. In the mma, rows of x are the
   rows of A, and rows of W the columns of B. Within each 32 columns of x and W, the order is permuted in the same way
   for both, so that a lane reads 16 bytes of each. */
template <bool MANY>
static __device__ __forceinline__ float4 tile_product(const carry_decode_call &call, const carry_decode_product &p,
                                                      const view &v, ring_place &at, int team) {
    const int member = threadIdx.x / 32 % team, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int has_x = g < call.sequences, has_more = MANY && g + 8 < call.sequences;
    const int further = 8 * v.x_stride * 2; /* bytes to the sequence 8 further on */
    float d[4][4] = {};
    uint4 y[4] = {}, z[4] = {}; /* stay zero in lanes without a sequence */
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
                if (MANY) {
                    load_if(has_more, z[j], hopper::shared_address(x + j * step + further));
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                multiply(d[j % 2 * 2], y[j].x, MANY ? z[j].x : 0, y[j].y, MANY ? z[j].y : 0, w[j].x, w[j].y);
                multiply(d[j % 2 * 2 + 1], y[j].z, MANY ? z[j].z : 0, y[j].w, MANY ? z[j].w : 0, w[j].z, w[j].w);
            }
        }
#pragma unroll 1
        for (; left > 0; left--, from += step, x += step) {
            const uint4 w = *(const uint4 *)from;
            load_if(has_x, y[0], hopper::shared_address(x));
            if (MANY) {
                load_if(has_more, z[0], hopper::shared_address(x + further));
            }
            multiply(d[0], y[0].x, MANY ? z[0].x : 0, y[0].y, MANY ? z[0].y : 0, w.x, w.y);
            multiply(d[1], y[0].z, MANY ? z[0].z : 0, y[0].w, MANY ? z[0].w : 0, w.z, w.w);
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
    return make_float4((d[0][0] + d[1][0]) + (d[2][0] + d[3][0]), (d[0][1] + d[1][1]) + (d[2][1] + d[3][1]),
                       (d[0][2] + d[1][2]) + (d[2][2] + d[3][2]), (d[0][3] + d[1][3]) + (d[2][3] + d[3][3]));
}

/* The sum over a team's warps; its first warp gets the result. */
template <bool MANY> static __device__ __forceinline__ float4 team_sum(float4 y, float *sums, int team) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (team == 1) {
        return y;
    }
    if (MANY) {
        *(float4 *)(sums + warp * 128 + 4 * lane) = y;
    } else {
        *(float2 *)(sums + warp * 128 + 2 * lane) = make_float2(y.x, y.y);
    }
    hopper::group_sync(2 + warp / team, 32 * team);
    if (warp % team == 0) {
        for (int i = 1; i < team; i++) {
            if (MANY) {
                const float4 other = *(const float4 *)(sums + (warp + i) * 128 + 4 * lane);
                y = make_float4(y.x + other.x, y.y + other.y, y.z + other.z, y.w + other.w);
            } else {
                const float2 other = *(const float2 *)(sums + (warp + i) * 128 + 2 * lane);
                y.x += other.x;
                y.y += other.y;
            }
        }
    }
    return y;
}

/* Stores two rows of a tile for one sequence. gate: the first factor of SwiGLU; now: the previous h. */
static __device__ __forceinline__ void put_pair(const carry_decode_call &call, const carry_decode_product &p,
                                                const carry_decode_segment &s, int row, int sequence, int op, float2 y,
                                                float2 gate, float2 now) {
    const size_t base = (size_t)sequence * s.stride;
    if (p.output == CARRY_DECODE_LOGITS) {
        *(float2 *)((float *)s.y + base + row) = y;
        return;
    }
    if (p.output == CARRY_DECODE_SWIGLU) {
        y = make_float2(gate.x * sigmoid(gate.x) * y.x, gate.y * sigmoid(gate.y) * y.y);
    } else if (p.output == CARRY_DECODE_ADD) {
        y = make_float2(now.x + y.x, now.y + y.y);
        tell2(p.h + 2 * base + row, y.x, y.y, call.tag + op);
    }
    tell(s.y + base + row / 2, pair_of(y.x, y.y), call.tag + op);
}

static __device__ __forceinline__ float2 await_pair(const carry_decode_word *at, uint32_t tag) {
    two_words w;
    do {
        w = look2(at);
    } while (w.a.tag != tag || w.b.tag != tag);
    return make_float2(__uint_as_float(w.a.value), __uint_as_float(w.b.value));
}

/* Shifts the inputs of a layer's convolutions by one token. A thread handles one channel of one sequence. It loads the
   values before it waits for this operation's input, and stores them after the wait, when the convolutions have read
   the old ones. With many sequences, a thread handles further channels after the wait. */
struct shifted {
    float *tail; /* NULL: none */
    int channels, before;
    float x[3];
};

static __device__ __forceinline__ shifted shift_load(const carry_decode_call &call, const carry_decode_delta &d,
                                                     int i) {
    const int keys = d.heads * KEY, values = d.value_heads * KEY, all = 2 * keys + values;
    shifted s = {};
    if (i < call.sequences * all) {
        const int b = i / all, c = i % all, which = c < keys ? 0 : c < 2 * keys ? 1 : 2;
        const int channel = c - which * keys;
        s.channels = which == 2 ? values : keys;
        s.before = d.taps - 1;
        s.tail = d.tail[which] + (size_t)call.turn->slot[b] * s.before * s.channels + channel;
        const int column = (which == 0 ? d.q : which == 1 ? d.k : d.v) + channel;
        const carry_decode_word *in = d.in + (size_t)b * d.in_stride + column / 2;
        for (int j = 1; j < s.before; j++) {
            s.x[j - 1] = s.tail[(size_t)j * s.channels];
        }
        carry_decode_word w;
        do {
            w = look(in);
        } while (w.tag != call.tag + d.from);
        s.x[s.before - 1] = of_column(w.value, column);
    }
    return s;
}

static __device__ __forceinline__ void shift_store(const shifted &s) {
    for (int j = 0; s.tail != nullptr && j < s.before; j++) {
        s.tail[(size_t)j * s.channels] = s.x[j];
    }
}

static __device__ __forceinline__ void take_input(const carry_decode_call &call, const carry_decode_product &p,
                                                  const view &v) {
    if (p.input == CARRY_DECODE_NORM) {
        input_norm(call, p, v);
    } else if (p.input == CARRY_DECODE_PAIRS) {
        input_pairs(call, p, v);
    } else {
        input_gated(call, p, v);
    }
}

/* A team of 1, 2, 4 or 8 warps takes a tile; the teams of a block take its tiles in turn. */
template <bool MANY>
static __device__ __forceinline__ void run_product(const carry_decode_call &call, const carry_decode_op &op, int i,
                                                   const view &v, unsigned &filled) {
    const carry_decode_product &p = op.as.product;
    const int subs = p.output == CARRY_DECODE_SWIGLU ? 2 : 1, pieces = (p.columns + COLUMNS - 1) / COLUMNS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = p.team, teams = WARPS / team, g = lane / 4;
    const int first = first_tile(op), tiles = first < op.tiles ? (op.tiles - first - 1) / (int)gridDim.x + 1 : 0;
    if (tiles == 0) {
        return;
    }
    if (p.shift >= 0) {
        const carry_decode_delta &d = call.ops[p.shift].as.delta;
        const int each = min(op.tiles, (int)gridDim.x) * THREADS, all = (2 * d.heads + d.value_heads) * KEY;
        const int own = first * THREADS + (int)threadIdx.x;
        const shifted s = shift_load(call, d, own);
        __syncwarp();
        take_input(call, p, v);
        consumers_sync();
        shift_store(s);
        for (int more = own + each; more < call.sequences * all; more += each) {
            shift_store(shift_load(call, d, more));
        }
    } else {
        take_input(call, p, v);
        consumers_sync();
    }
    const bool norm = p.input == CARRY_DECODE_NORM;
    const float r = norm ? scale_of(p, v, g) : 1.0f, r8 = MANY && norm ? scale_of(p, v, g + 8) : 1.0f;
    for (int n = warp / team, turn = 0; n < tiles; n += teams, turn ^= 1) {
        ring_place at = place_of(filled + (unsigned)(n * subs * pieces), v.slots);
        float *sums = v.head->sums + turn * (SUMS / 2);
        int row;
        const carry_decode_segment &s = segment_of(p, first + n * (int)gridDim.x, 0, &row);
        row += 2 * (lane % 4);
        const bool writes = warp % team == 0 && g < call.sequences;
        const bool writes8 = MANY && warp % team == 0 && g + 8 < call.sequences;
        float2 now = make_float2(0, 0), now8 = now;
        if (p.output == CARRY_DECODE_ADD && writes) {
            now = await_pair(p.h + 2 * g * s.stride + row, call.tag + p.h_from);
            now8 = writes8 ? await_pair(p.h + 2 * (g + 8) * s.stride + row, call.tag + p.h_from) : now8;
        }
        __syncwarp();
        float4 y = make_float4(0, 0, 0, 0), other = y;
#pragma unroll 1
        for (int sub = 0; sub < subs; sub++) { /* not unrolled: fetching instructions is as slow as fetching data */
            other = y;
            y = team_sum<MANY>(tile_product<MANY>(call, p, v, at, team), sums + sub * WARPS * 128, team);
            y = make_float4(y.x * r, y.y * r, y.z * r8, y.w * r8);
        }
        if (writes) {
            put_pair(call, p, s, row, g, i, make_float2(y.x, y.y), make_float2(other.x, other.y), now);
        }
        if (writes8) {
            put_pair(call, p, s, row, g + 8, i, make_float2(y.z, y.w), make_float2(other.z, other.w), now8);
        }
    }
    filled += (unsigned)(tiles * subs * pieces);
}

} // namespace decode

#endif
