/* Shared by the chunk kernels: the location of a chunk's tokens, and the layout of its prepared tiles in the
   workspace.

   A chunk of a value head takes CHUNK_BYTES of the workspace: T = (I + A)^-1 and W = P T in 16 bits, then 64
   numbers each of

       fade_k[i] = beta[i] e^G[i] / |k[i]|,   fade_q[i] = scale e^G[i] / |q[i]|,   left_k[i] = e^(G[C] - G[i]) / |k[i]|,

   beta[i], log2 of e^G[i] as two floats, 1 / |k[i]| and 1 / |q[i]| (1 without l2norm).

   T and W (64 x 64) are zero above the diagonal. The workspace holds their 32 left columns, then the 32 right
   columns of the lower 32 rows, as rows of 64 bytes in the swizzle that wgmma expects. In shared memory, the upper
   right quarter lies between the two and is set to zero at the start.

   W = P T is kept in place of the scores P. P V' equals W R with R = beta (V - e^G K S), but P V' suffers from
   cancellation where keys are alike: the error of the outputs is then 6.5e-3 if P and V' are rounded to bf16, and
   2.5e-3 if W and R are. */
#ifndef CARRY_DELTA_CHUNK_DEVICE_CUH
#define CARRY_DELTA_CHUNK_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* The kernels are compiled once for each type (cmake/instances.cmake), each time in a separate namespace. */
#ifdef CARRY_INSTANCE_F16
#define DELTA_CHUNK delta_chunk_f16
#define DELTA_CHUNK_KERNELS carry_delta_chunk_f16
#define HOPPER_ELEMENT "f16"
#else
#define DELTA_CHUNK delta_chunk
#define DELTA_CHUNK_KERNELS carry_delta_chunk_bf16
#endif

#include "delta/cuda/chunk/chunk.h"
#include "device/hopper.cuh"

namespace DELTA_CHUNK {

constexpr int C = 64, D = 128;
constexpr int BAND = C * 128;  /* bytes of 64 columns */
constexpr int TILE = 2 * BAND; /* bytes of a tile of q or k */
/* Bytes of T or W: of 32 columns, of 32 rows of 32 columns, and of both parts in the workspace. */
constexpr int HALF = C * 64, QUARTER = HALF / 2, KEPT = HALF + QUARTER;
constexpr int NUMBERS_AT = 2 * KEPT;
constexpr int FADE_K = 0, FADE_Q = 64, LEFT_K = 128, BETA = 192, HIGH = 256, LOW = 320, NORM_K = 384, NORM_Q = 448;
constexpr int NUMBERS_BYTES = 2048;
constexpr int CHUNK_BYTES = NUMBERS_AT + NUMBERS_BYTES;
/* With gates by key channel (keys_prepare.cuh), the numbers are BETA and, where HIGH and LOW otherwise are, the decay
   of each channel over the chunk. Three tiles of 64 tokens follow: k e^G, scale q e^G and k e^(G[C] - G), in bands of
   64 channels with the 128-byte swizzle of TMA. */
constexpr int END = 256, KEYED_NUMBERS_BYTES = (END + D - BETA) * 4;
constexpr int KEYS_AT = CHUNK_BYTES, KEYS_BYTES = CHUNK_BYTES + 3 * TILE;

/* How many lanes of a warp arrive at a barrier after the warp has read or written its part. One is enough, but
   racecheck does not see that this arrival covers the accesses of the other lanes, so in builds for racecheck
   (-DCARRY_DELTA_EVERY_LANE) all lanes arrive. */
#ifdef CARRY_DELTA_EVERY_LANE
constexpr int ARRIVING = 32;
#else
constexpr int ARRIVING = 1;
#endif

/* The sizes of a problem. Each value head is walked as 1 << shift heads of 64 * bands values; value_heads counts
   these. */
struct shape {
    int batch, tokens, heads, value_heads, state_heads, sequences, shift, bands, key_bands;
    const int64_t *cu_seqlens;
    int segments, segment_chunks; /* parts of a sequence that are walked at once; 1 where sequences are packed */
    int first_token;              /* borders of packed sequences are relative to this token */
};

/* tile_of: the index of the prepared tile for a chunk and a walked value head. state_bytes, value_bytes: the size of a
   kept state (bands of keys, values in rows) and of kept values. */
static __device__ __forceinline__ int64_t tile_of(const shape &s, int64_t slot, int value_head) {
    return slot * (s.value_heads >> s.shift) + (value_head >> s.shift);
}
static __device__ __forceinline__ int state_bytes(const shape &s) {
    return s.key_bands * s.bands * BAND;
}
static __device__ __forceinline__ int value_bytes(const shape &s) {
    return s.bands * BAND;
}
/* The number of halves of 128 keys. With K = 64, the second 64 keys of the half are zeros. */
static __device__ __forceinline__ int halves_of(const shape &s) {
    return (s.key_bands + 1) / 2;
}

/* Saves memory in the backward pass when the results of all chunks do not fit. If `each` is positive, the forward walk
   (states) and the reverse walk (their gradients) first go to the middle of a sequence or segment, then on in parts of
   `each` chunks. After every part, the gradients of the chunks that both walks have passed are computed. A walk stores
   its results before the middle in the order of their distance from it. Beyond the middle it first uses `each` more
   slots, then the slots of chunks that are done. If `each` is 0, the walks run in one part and results are stored by
   slot. If `count` is positive, a round handles `count` segments of every sequence, and results are stored by lane: the
   index of a segment among all segments of the round. */
struct ring {
    int half, each, part; /* half: chunks before the middle */
    int rooms[2];         /* slots of a lane: for states, for their gradients */
    int from, count;      /* segments of this round */
    __device__ __forceinline__ int sequence_of_lane(int lane, int segments) const {
        return count == 0 ? lane : lane / count * segments + from + lane % count;
    }
};

/* Returns the chunks [first, last) of a walk's current part; `last` is at most `chunks`. */
static __device__ __forceinline__ int2 part_of(const ring &r, bool reverse, int chunks) {
    int first = 0, last = chunks;
    if (r.each > 0 && !reverse) {
        first = r.part == 0 ? 0 : r.half + (r.part - 1) * r.each;
        last = r.half + r.part * r.each;
    } else if (r.each > 0) {
        first = r.half - r.part * r.each;
        last = r.part == 0 ? chunks : first + r.each;
    }
    return {max(first, 0), min(last, chunks)};
}

/* The index at which a walk stores its results for a chunk, in units of a value head's tile. */
static __device__ __forceinline__ int64_t kept_at(const ring &r, bool reverse, int lane, int slot, int chunk) {
    if (r.each == 0) {
        return r.count == 0 ? slot + chunk : (int64_t)lane * r.rooms[reverse] + chunk;
    }
    bool before = chunk < r.half;
    int distance = before ? r.half - 1 - chunk : chunk - r.half;
    return (int64_t)lane * r.rooms[reverse] + distance + (before != reverse ? r.each : 0);
}

struct sequence_place {
    int batch, first, length, slot; /* slot: the slot of its first chunk */
};

/* Returns the position of sequence or segment `index`. The first slot of packed sequence i is cu[i] / 64 + i (cu
   relative to the first token), which leaves enough slots for all chunks of the sequences before it. */
static __device__ __forceinline__ sequence_place sequence_of(const shape &s, int index) {
    if (s.cu_seqlens == nullptr) {
        int batch = index / s.segments, chunk = index % s.segments * s.segment_chunks;
        return {batch, chunk * C, min(s.tokens - chunk * C, s.segment_chunks * C),
                batch * ((s.tokens + C - 1) / C) + chunk};
    }
    int first = (int)s.cu_seqlens[index] - s.first_token;
    return {0, first, (int)s.cu_seqlens[index + 1] - s.first_token - first, first / C + index};
}

struct chunk_place {
    int batch, first, length; /* length <= 0: the slot has no chunk */
};

static __device__ __forceinline__ chunk_place chunk_of(const shape &s, int slot) {
    if (s.cu_seqlens == nullptr) {
        int chunks = (s.tokens + C - 1) / C, first = slot % chunks * C;
        return {slot / chunks, first, min(C, s.tokens - first)};
    }
    int low = 0, high = s.sequences - 1; /* search for the last sequence that starts at or before the slot */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (((int)s.cu_seqlens[middle] - s.first_token) / C + middle <= slot) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    sequence_place place = sequence_of(s, low);
    int at = (slot - place.slot) * C;
    return {place.batch, place.first + at, min(C, place.length - at)};
}

static inline int64_t slots_of(const carry_delta_job *job) {
    return job->borders == nullptr ? job->batch * ((job->tokens + C - 1) / C) : job->tokens / C + job->sequences;
}

/* The address of 16-byte part `part` of a row of T or W in their compact layout; rows 0 to 31 have parts 0 to 3
   only. */
static __device__ __forceinline__ uint32_t kept_part(uint32_t tile, int row, int part) {
    return tile + (uint32_t)((part < 4 ? row * 64 : HALF - QUARTER + row * 64) + ((part % 4 ^ (row >> 1 & 3)) << 4));
}

/* The wgmma descriptor of an operand in bands of 32 columns: rows of 64 bytes with the 64-byte swizzle. */
static __device__ __forceinline__ uint64_t describe_half(uint32_t address, int band) {
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(band >> 4) << 16 | (uint64_t)(512 >> 4) << 32 |
           (uint64_t)2 << 62;
}

/* The address of 16-byte part `part` of a 128-byte row in a swizzled tile. */
static __device__ __forceinline__ uint32_t swizzled(uint32_t tile, int row, int part) {
    return tile + (uint32_t)(row * 128 + ((part ^ (row & 7)) << 4));
}

static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn." HOPPER_ELEMENT "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

static __device__ __forceinline__ void store_matrices_across(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                                             uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_across(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* d[16, 8] += a b, by one warp. */
static __device__ __forceinline__ void product_of_warp(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HOPPER_ELEMENT "." HOPPER_ELEMENT ".f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ float low_half(uint32_t pair) {
#ifdef CARRY_INSTANCE_F16
    return __half2float(__ushort_as_half((unsigned short)(pair & 0xffffu)));
#else
    return __uint_as_float(pair << 16);
#endif
}

static __device__ __forceinline__ float high_half(uint32_t pair) {
#ifdef CARRY_INSTANCE_F16
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
#else
    return __uint_as_float(pair & 0xffff0000u);
#endif
}

/* Decays of a chunk, computed from its numbers: e^G[i], and e^(G[i] - G[j]). */
static __device__ __forceinline__ float fade_of(const float *numbers, int i) {
    return power_of_two(numbers[HIGH + i] + numbers[LOW + i]);
}
static __device__ __forceinline__ float decay_of(const float *numbers, int i, int j) {
    return power_of_two((numbers[HIGH + i] - numbers[HIGH + j]) + (numbers[LOW + i] - numbers[LOW + j]));
}

/* dv = beta Y is stored in place of Y (scan.cuh), and gradients divide by beta where they need Y. Rows whose beta is
   too small to divide by store Y itself until the gradients are done. */
constexpr float TINY_BETA = 0x1p-20f;
static __device__ __forceinline__ bool tiny(float beta) {
    return fabsf(beta) < TINY_BETA;
}
/* given_beta: the factor that the stored Y was already multiplied by. left_beta: the factor that is still to be
   applied. */
static __device__ __forceinline__ float given_beta(float beta) {
    return tiny(beta) ? 1.0f : beta;
}
static __device__ __forceinline__ float left_beta(float beta) {
    return tiny(beta) ? beta : 1.0f;
}

/* Sets rows from `length` on to zero in `bands` bands. Called by 128 threads. */
static __device__ __forceinline__ void clear_rows(uint32_t tile, int bands, int length, int thread) {
    int parts = (C - length) * 8;
    for (int i = thread; i < bands * parts; i += 128) {
        uint32_t to = tile + (uint32_t)(i / parts * BAND + length * 128 + i % parts * 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
}

} // namespace DELTA_CHUNK

#endif
