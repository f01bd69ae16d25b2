/* Walks over the states of heads on Hopper GPUs, for ssm_hopper.cu (contributions of segments) and
   ssm_hopper_backward.cu (the state before each chunk, and the gradient of the state after it). A warpgroup has one
   head, whose state stays in registers; a block has two heads of one group. */
#ifndef CARRY_OPS_SSM_HOPPER_WALK_CUH
#define CARRY_OPS_SSM_HOPPER_WALK_CUH

#include "ops/cuda/ssm_hopper.cuh"

namespace {

constexpr int WALK_STAGES = 3;
constexpr int WALK_STAGE = STATE + 2 * BAND + 2048; /* B or C, two heads of x or dy, their vectors */
constexpr int WALK_SHARED = WALK_STAGES * WALK_STAGE + 1024;

struct walk_shared {
    stage_barriers<WALK_STAGES> stages;
    float factor[2][2][L]; /* of head, of chunks in turn */
};

/* Chunks [begin, end) of two heads from head0 on; in reverse, of dy and C instead of x and B. */
struct walk_range {
    int64_t row, head0, begin, end;
    bool reverse;
    __device__ __forceinline__ int64_t chunk(int64_t i) const {
        return reverse ? end - 1 - i : begin + i;
    }
};

/* Starts the copies of step i of the walk. Called by one thread, which waits until the stage is free. */
__device__ __forceinline__ void walk_copy(const hopper_job &given, const walk_range &range, walk_shared &m,
                                          uint32_t memory, int64_t i) {
    const ssm_job &job = given.job;
    if (i >= range.end - range.begin) {
        return;
    }
    const int64_t chunk = range.chunk(i), group = range.head0 * job.G / job.n;
    const int64_t column = job.n * P + group * N + (range.reverse ? job.G * N : 0);
    const uint32_t barrier = m.stages.wait_empty(i, STATE + 2 * BAND + 2 * VECTORS);
    const uint32_t stage = memory + (uint32_t)(i % WALK_STAGES) * WALK_STAGE;
    copy_wide(stage, &given.xbc, column, chunk * L, range.row, barrier);
    for (int h = 0; h < 2; h++) {
        const int64_t head = range.head0 + h;
        copy_box(stage + STATE + h * BAND, range.reverse ? &given.dy : &given.xbc, head * P, chunk * L, range.row,
                 barrier);
        copy_vectors(stage + STATE + 2 * BAND + h * 1024, job, (range.row * job.n + head) * job.at.chunks + chunk,
                     barrier);
    }
}

/* x^T as a left operand, each token times its factor. */
__device__ __forceinline__ void load_scaled(uint32_t (&left)[16], uint32_t x, const float *factor) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t part[4];
        load_columns(part, x, k);
        const float2 low = *(const float2 *)&factor[16 * k + column_in()];
        const float2 high = *(const float2 *)&factor[16 * k + 8 + column_in()];
        left[4 * k] = scale(part[0], low.x, low.y);
        left[4 * k + 1] = scale(part[1], low.x, low.y);
        left[4 * k + 2] = scale(part[2], high.x, high.y);
        left[4 * k + 3] = scale(part[3], high.x, high.y);
    }
}

/* `each` is called with the state before each chunk. Returns the decay of the whole range. */
template <typename EACH>
__device__ __forceinline__ float walk_states(const hopper_job &given, const walk_range &range, walk_shared &m,
                                             uint32_t memory, float (&S)[64], EACH each) {
    const ssm_job &job = given.job;
    const int h = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128;
    float whole = 1.0f;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WALK_STAGES - 1; i++) {
            walk_copy(given, range, m, memory, i);
        }
    }
    for (int64_t i = 0; i < range.end - range.begin; i++) {
        const int64_t chunk = range.chunk(i), first = chunk * L;
        if (threadIdx.x == 0) {
            walk_copy(given, range, m, memory, i + WALK_STAGES - 1);
        }
        each(chunk, S);
        const uint32_t stage = memory + m.stages.wait_full(i) * WALK_STAGE;
        const uint32_t x = stage + STATE + h * BAND, vectors = stage + STATE + 2 * BAND + h * 1024;
        float *factor = m.factor[h][i % 2];
        if (thread < L) {
            factor[thread] = range.reverse ? fade_of(job, vectors, first, thread)
                                           : left_of(job, vectors, first, thread) * step_at(vectors, thread);
        }
        const float fade = fade_of(job, vectors, first, L - 1);
        group_sync(1 + h, 128);
        uint32_t left[16];
        load_scaled(left, x, factor);
#pragma unroll
        for (int e = 0; e < 64; e++) {
            S[e] *= fade;
        }
        products_begin();
        multiply_add(S, left, stage);
        products_commit();
        whole *= fade;
        products_wait<0>();
        keep_below(S);
        m.stages.release(i);
    }
    return whole;
}

/* State [P, N] in f32; NULL is zeros. */
__device__ __forceinline__ void read_state(float (&S)[64], const float *from) {
#pragma unroll
    for (int t = 0; t < 16; t++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 pair =
                from != NULL ? *(const float2 *)&from[row_in(r) * N + 8 * t + column_in()] : float2{0.0f, 0.0f};
            S[4 * t + 2 * r] = pair.x;
            S[4 * t + 2 * r + 1] = pair.y;
        }
    }
}
__device__ __forceinline__ void write_state(const float (&S)[64], float *to) {
#pragma unroll
    for (int t = 0; t < 16; t++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            *(float2 *)&to[row_in(r) * N + 8 * t + column_in()] = {S[4 * t + 2 * r], S[4 * t + 2 * r + 1]};
        }
    }
}

} // namespace

#endif
