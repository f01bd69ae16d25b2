/* State space layers on Hopper GPUs: heads of 64, states of 128, 16-bit types.

   A block walks over two heads of one group along a row, chunk after chunk. A warpgroup has a head and keeps its state
   in registers in f32; one thread of a third warpgroup copies the tiles of the next chunks. For each chunk:

       scores = C B^T, times the decays between tokens and the steps: stays in registers as a left operand
       y = fade * (C S^T) + scores x + D x, where S is stored to shared memory in 16 bits
       S = fade[last] S + (x times steps and the decays to the end of the chunk)^T B

   fade[i] is the decay from the state before the chunk to token i; * multiplies rows.

   Long rows of few heads are cut into segments, as in ssm_tiles.cu. */
#ifdef CARRY_INSTANCE_F16
#define SSM_HOPPER ssm_hopper_f16
#else
#define SSM_HOPPER ssm_hopper_bf16
#endif

#include "ops/cuda/ssm_hopper_walk.cuh"

namespace {

constexpr int STAGES = 3;
constexpr int STAGE = 2 * STATE + 2 * BAND + 2048; /* C, B, two heads of x, their vectors */
constexpr int SHARED = STAGES * STAGE + 4 * STATE + 1024;

struct output_shared {
    stage_barriers<STAGES> stages;
    float fade[2][2][L], left[2][2][L]; /* of head, of chunks in turn */
};

[[maybe_unused]] __device__ __forceinline__ int64_t segment_begin(const ssm_job &job, int64_t segment) {
    return job.at.chunks * segment / job.at.segments;
}

[[maybe_unused]] __device__ __forceinline__ void output_copy(const hopper_job &given, const walk_range &range,
                                                             output_shared &m, uint32_t memory) {
    const ssm_job &job = given.job;
    const int64_t column = job.n * P + range.head0 * job.G / job.n * N;
    for (int64_t i = 0; i < range.end - range.begin; i++) {
        const uint32_t barrier = m.stages.wait_empty(i, 2 * STATE + 2 * BAND + 2 * VECTORS);
        const uint32_t stage = memory + (uint32_t)(i % STAGES) * STAGE;
        const int64_t chunk = range.chunk(i);
        copy_wide(stage, &given.xbc, column + job.G * N, chunk * L, range.row, barrier);
        copy_wide(stage + STATE, &given.xbc, column, chunk * L, range.row, barrier);
        for (int h = 0; h < 2; h++) {
            const int64_t head = range.head0 + h;
            copy_box(stage + 2 * STATE + h * BAND, &given.xbc, head * P, chunk * L, range.row, barrier);
            copy_vectors(stage + 2 * STATE + 2 * BAND + h * 1024, job,
                         (range.row * job.n + head) * job.at.chunks + chunk, barrier);
        }
    }
}

/* C B^T times decays and steps, as a left operand. Blocks above the diagonal are zeros. */
__device__ __forceinline__ void make_scores(uint32_t (&w)[16], const float (&cb)[32], const ssm_job &job,
                                            uint32_t vectors, int64_t first, int warp) {
    const float2 sum[2] = {sum_at(vectors, row_in(0)), sum_at(vectors, row_in(1))};
    const int seen[2] = {ssm_first_seen(job, first + row_in(0), first), ssm_first_seen(job, first + row_in(1), first)};
#pragma unroll
    for (int t = 0; t < 8; t++) {
        w[2 * t] = w[2 * t + 1] = 0;
        if (8 * t > 16 * warp + 15) {
            continue;
        }
        const int j = 8 * t + column_in();
        const float4 other = sums_at(vectors, j);
        const float a0 = step_at(vectors, j), a1 = step_at(vectors, j + 1);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const unsigned reach = (unsigned)(row_in(r) - seen[r]);
            const float low = cb[4 * t + 2 * r] * decay(sum[r], {other.x, other.y}) * a0;
            const float high = cb[4 * t + 2 * r + 1] * decay(sum[r], {other.z, other.w}) * a1;
            w[2 * t + r] =
                pack((unsigned)(j - seen[r]) <= reach ? low : 0.0f, (unsigned)(j + 1 - seen[r]) <= reach ? high : 0.0f);
        }
    }
}

/* y += D x. */
__device__ __forceinline__ void add_input(float (&y)[32], uint32_t x, float D) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t part[4];
        load_rows(part, x, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = unpack(part[i]);
            y[8 * k + 2 * i] += D * v.x;
            y[8 * k + 2 * i + 1] += D * v.y;
        }
    }
}

[[maybe_unused]] __device__ __forceinline__ void output_walk(const ssm_job &job, const walk_range &range,
                                                             output_shared &m, uint32_t memory, float (&S)[64]) {
    const int h = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128;
    const int64_t head = range.head0 + h;
    const int warp = __shfl_sync(0xffffffffu, warp_of(), 0); /* known to be the same for a warp */
    const float D = job.D[head];
    for (int64_t i = 0; i < range.end - range.begin; i++) {
        const int64_t first = (range.begin + i) * L;
        const uint32_t c = memory + m.stages.wait_full(i) * STAGE, b = c + STATE;
        const uint32_t x = b + STATE + h * BAND, vectors = b + STATE + 2 * BAND + h * 1024;
        /* Two tiles in turn: a warp may still multiply by the last one. */
        const uint32_t state = memory + STAGES * STAGE + (uint32_t)(2 * h + i % 2) * STATE;
        float cb[32], y[32];
        store_tile<N>(state, S);
        products_begin();
        multiply_along<2>(cb, c, b);
        products_commit();
        float *fade = m.fade[h][i % 2], *left = m.left[h][i % 2];
        if (thread < L) {
            fade[thread] = fade_of(job, vectors, first, thread);
        } else {
            left[thread - L] = left_of(job, vectors, first, thread - L) * step_at(vectors, thread - L);
        }
        fence_async();
        group_sync(1 + h, 128);
        products_begin();
        multiply_along<2>(y, c, state);
        products_commit();
        products_wait<1>();
        keep_below(cb);
        uint32_t scores[16], steps[16];
        make_scores(scores, cb, job, vectors, first, warp);
        load_scaled(steps, x, left);
        const float fades[2] = {fade[row_in(0)], fade[row_in(1)]}, whole = fade[L - 1];
        products_wait<0>();
        keep_below(y);
#pragma unroll
        for (int e = 0; e < 32; e++) {
            y[e] *= fades[e / 2 % 2];
        }
#pragma unroll
        for (int e = 0; e < 64; e++) {
            S[e] *= whole;
        }
        products_begin();
        multiply_add(y, scores, x);
        products_commit();
        multiply_add(S, steps, b);
        products_commit();
        products_wait<1>();
        keep_below(y);
        add_input(y, x, D);
        store_rows<P>(y, (uint16_t *)job.y + ((range.row * job.T + first) * job.n + head) * P, job.n * P,
                      job.T - first);
        products_wait<0>();
        keep_below(S);
        m.stages.release(i);
    }
}

/* Two warpgroups multiply, the third copies. */
__global__ void __launch_bounds__(WORKERS + 128, 1) output_kernel(const __grid_constant__ hopper_job given) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ output_shared m;
    const ssm_job &job = given.job;
    const uint32_t memory = dynamic_memory();
    const int64_t teams = job.n / 2, segment = (int64_t)blockIdx.x / teams % job.at.segments;
    const walk_range range = {(int64_t)blockIdx.x / teams / job.at.segments, (int64_t)blockIdx.x % teams * 2,
                              segment_begin(job, segment), segment_begin(job, segment + 1), false};
    if (threadIdx.x == 0) {
        m.stages.init();
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        registers_give<24>();
        if (threadIdx.x == WORKERS) {
            output_copy(given, range, m, memory);
        }
    } else {
        registers_take<240>();
        const int64_t walk = range.row * job.n + range.head0 + (int)threadIdx.x / 128;
        const float *from = job.at.segments > 1   ? job.at.state + (walk * job.at.segments + segment) * P * N
                            : job.initial != NULL ? job.initial + walk * P * N
                                                  : NULL;
        float S[64];
        read_state(S, from);
        output_walk(job, range, m, memory, S);
        if (job.final_state != NULL && segment + 1 == job.at.segments) {
            write_state(S, job.final_state + walk * P * N);
        }
    }
#endif
}

/* Computes the contribution to the state, and the decay, of each segment except the last. */
__global__ void __launch_bounds__(WORKERS, 2) segments_kernel(const __grid_constant__ hopper_job given) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ walk_shared m;
    const ssm_job &job = given.job;
    const uint32_t memory = dynamic_memory();
    const int64_t teams = job.n / 2, parts = job.at.segments - 1, segment = (int64_t)blockIdx.x / teams % parts;
    const walk_range range = {(int64_t)blockIdx.x / teams / parts, (int64_t)blockIdx.x % teams * 2,
                              segment_begin(job, segment), segment_begin(job, segment + 1), false};
    if (threadIdx.x == 0) {
        m.stages.init();
    }
    __syncthreads();
    float S[64] = {};
    const float fade = walk_states(given, range, m, memory, S, [](int64_t, const float(&)[64]) {});
    const int64_t walk = range.row * job.n + range.head0 + (int)threadIdx.x / 128;
    write_state(S, job.at.state + (walk * job.at.segments + segment) * P * N);
    if (threadIdx.x % 128 == 0) {
        job.at.fade[walk * job.at.segments + segment] = fade;
    }
#endif
}

} // namespace

carry_status SSM_HOPPER(carry_ctx *ctx, const place &at, const ssm_job &job, bool *done) {
    static const bool works = is_compiled(output_kernel, at.ordinal); /* all GPUs of a process are alike */
    *done = works && job.P == P && job.N == N && job.n / job.G % 2 == 0 &&
            ((uintptr_t)job.xbc | (uintptr_t)job.y) % 16 == 0;
    if (!*done) {
        return CARRY_OK;
    }
    const int ordinal = at.ordinal;
    hopper_job given = {};
    given.job = job;
    CARRY_TRY(make_map(ctx, &given.xbc, job, job.xbc, job.channels, at.ordinal));
    CARRY_CUDA_TRY(cudaFuncSetAttribute(output_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
                   "no shared memory for a state space layer");
    const int64_t blocks = job.B * (job.n / 2);
    if (job.at.segments > 1) {
        CARRY_CUDA_TRY(cudaFuncSetAttribute(segments_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WALK_SHARED),
                       "no shared memory for a state space layer");
        segments_kernel<<<(unsigned)(blocks * (job.at.segments - 1)), WORKERS, WALK_SHARED, at.stream>>>(given);
        ssm_join(at, job);
    }
    output_kernel<<<(unsigned)(blocks * job.at.segments), WORKERS + 128, SHARED, at.stream>>>(given);
    return launched(ctx, at, "a state space layer cannot be launched");
}
