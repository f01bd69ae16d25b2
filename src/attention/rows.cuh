/* A thread's part of the scores and sums of a warp's 16 queries: rows g and g + 8, where g is its lane / 4, and two
   columns of every eight. The results of mma and of wgmma both have this layout.

   Scores are multiplied by log2 e, so that an exponential is one multiply-add and one instruction, and the bias of a
   run is part of the constant of that multiply-add. The largest score that is subtracted may be too small by up to LAG,
   a factor of 2^LAG. So sums are rarely rescaled, and probabilities stay in the range of bf16 and f32. */
#ifndef CARRY_ATTENTION_ROWS_CUH
#define CARRY_ATTENTION_ROWS_CUH

#include "attention/kernels.cuh"

constexpr float LAG = 8.0f;

/* Masks columns past the end of the run. */
template <int COUNT> static __device__ __forceinline__ void mask(float (&s)[COUNT], int valid) {
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i / 4 * 8 + i % 2 + column >= valid) {
            s[i] = -INFINITY;
        }
    }
}

/* NaN and infinity in a row of V must not reach queries that do not see its key, since a probability of 0 times either
   is NaN. In tiles with keys that some query does not see, such elements of V are replaced by zeros, and are added
   directly to the sums of the queries that see the key. */
static __device__ __forceinline__ bool is_odd_bf16(uint32_t pair) {
    return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
}

static __device__ __forceinline__ bool is_odd_bf16(const uint4 &v) {
    return is_odd_bf16(v.x) || is_odd_bf16(v.y) || is_odd_bf16(v.z) || is_odd_bf16(v.w);
}

static __device__ __forceinline__ uint32_t clear_odd_bf16(uint32_t pair) {
    pair = (pair & 0x7f80u) == 0x7f80u ? pair & 0xffff0000u : pair;
    return (pair & 0x7f800000u) == 0x7f800000u ? pair & 0xffffu : pair;
}

static __device__ __forceinline__ uint4 clear_odd_bf16(const uint4 &v) {
    return make_uint4(clear_odd_bf16(v.x), clear_odd_bf16(v.y), clear_odd_bf16(v.z), clear_odd_bf16(v.w));
}

/* Adds those of a pair of values that are not finite to two sums. */
static __device__ __forceinline__ void add_odd_bf16(float &low, float &high, uint32_t pair) {
    low += (pair & 0x7f80u) == 0x7f80u ? __uint_as_float(pair << 16) : 0.0f;
    high += (pair & 0x7f800000u) == 0x7f800000u ? __uint_as_float(pair & 0xffff0000u) : 0.0f;
}

/* The softmax of a thread's two rows so far. */
struct softmax_state {
    float largest[2], sum[2]; /* sums over this thread's columns only */
};

/* Replaces scores by exponentials. If the largest score of any row of the warp has grown by more than LAG, updates
   state.largest, sets the factors by which the caller scales the sums so far, and returns true. Otherwise the factors
   are not set. */
template <int COUNT>
static __device__ __forceinline__ bool exponentials(float (&s)[COUNT], softmax_state &state, float (&factor)[2],
                                                    float scale, float bias) {
    float most[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 1; i < COUNT / 2; i++) {
        most[0] = fmaxf(most[0], s[i / 2 * 4 + i % 2]);
        most[1] = fmaxf(most[1], s[i / 2 * 4 + i % 2 + 2]);
    }
    bool grows = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
        most[r] = fmaf(most[r], scale, bias);
        grows = grows || most[r] > state.largest[r] + LAG;
    }
    grows = __any_sync(0xffffffffu, grows);
    if (grows) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float larger = fmaxf(state.largest[r], most[r]);
            factor[r] = exp2_fast(state.largest[r] - larger);
            state.largest[r] = larger;
            state.sum[r] *= factor[r];
        }
    }
    float shift[2] = {bias - state.largest[0], bias - state.largest[1]};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        s[i] = exp2_fast(fmaf(s[i], scale, shift[i / 2 % 2]));
    }
    float part[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        part[i / 2 % 2][i % 2] += s[i];
    }
    state.sum[0] += part[0][0] + part[0][1];
    state.sum[1] += part[1][0] + part[1][1];
    return grows;
}

/* Sums over all columns of the rows, across the four lanes. */
static __device__ __forceinline__ void add_columns(softmax_state &state) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 1);
        state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 2);
    }
}

template <int COUNT> static __device__ __forceinline__ void pack(uint32_t (&p)[COUNT / 2], const float (&s)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }
}

template <int COUNT> static __device__ __forceinline__ void scale_rows(float (&o)[COUNT], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        o[i] *= factor[i / 2 % 2];
    }
}

/* Transposes words among four lanes: word j of lane t becomes word t of lane j. */
static __device__ __forceinline__ void transpose4(uint32_t (&w)[4]) {
    int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if ((i & step) == 0) {
                bool high = (lane & step) != 0;
                uint32_t other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + step], step);
                w[i] = high ? other : w[i];
                w[i + step] = high ? w[i + step] : other;
            }
        }
    }
}

template <int D>
static __device__ __forceinline__ void store_whole(const attention_job &job, const attention_item &item, int warp,
                                                   const float (&o)[D / 2], const softmax_state &state) {
    int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = item.row + 16 * warp + (int)threadIdx.x % 32 / 4 + 8 * r;
        float over = state.sum[r] > 0.0f || state.sum[r] != state.sum[r] ? 1.0f / state.sum[r] : 0.0f;
        uint16_t *to = job.o + row * job.o_row + item.head * job.o_head;
#pragma unroll
        for (int g = 0; g < D / 32; g++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = 16 * g + 4 * i + 2 * r;
                w[i] = pack_bf16(o[at] * over, o[at + 1] * over);
            }
            transpose4(w);
            if (row < job.queries) {
                *(uint4 *)(to + 32 * g + 8 * lane) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
        if (job.lse != NULL && lane == 0 && row < job.queries) {
            job.lse[(int64_t)item.head * job.queries + row] = lse_of(state.largest[r], state.sum[r]);
        }
    }
}

template <int D>
static __device__ __forceinline__ void store_piece(const attention_job &job, const attention_item &item, int warp,
                                                   const float (&o)[D / 2], const softmax_state &state) {
    int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t row = (int64_t)item.piece * job.cut.rows + 16 * warp + (int)threadIdx.x % 32 / 4 + 8 * r;
        float *to = job.cut.sums + row * D;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            *(float2 *)(to + 8 * i + 2 * lane) = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
        }
        if (lane == 0) {
            *(float2 *)(job.cut.weights + 2 * row) = make_float2(state.largest[r], state.sum[r]);
        }
    }
}

/* Stores the results of warp `warp` of the block: rows from 16 * warp on of the item. */
template <int D>
static __device__ __forceinline__ void store(const attention_job &job, const attention_item &item, int warp,
                                             const float (&o)[D / 2], const softmax_state &state) {
    if (item.piece < 0) {
        store_whole<D>(job, item, warp, o, state);
    } else {
        store_piece<D>(job, item, warp, o, state);
    }
}

#endif
