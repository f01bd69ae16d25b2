/* Backward pass of state space layers on Hopper GPUs: the formulas of ops/ssm_backward.c, for the shapes of
   ssm_hopper.cu.

   Two walks, one in each direction and both in one launch, store the state before each chunk and the gradient of the
   state after it in 16 bits, as tiles that can be copied to shared memory as they are. A second launch then has one
   block for each chunk and group of heads, which takes the heads of its group in order. E, G, a (the steps) and left
   are those of ops/ssm_backward.c, and fade[i] = e^G[i]; * multiplies by element. W includes the factor a[j] here. With
   tokens j as rows and i as columns, the first warpgroup computes

       K^T = x dy^T,  W^T = E * a * (B C^T),  dx = D dy + a * left * (B dS^T) + W^T dy

   and adds up E * a * K^T over the heads. The second one adds up

       dC = fade * (dy S),  dB = a * left * (x dS)

   and computes C S^T for dG. After the last head it adds the products of the summed K with B and C to dC and dB. */
#ifdef CARRY_INSTANCE_F16
#define SSM_HOPPER_BACKWARD ssm_hopper_backward_f16
#else
#define SSM_HOPPER_BACKWARD ssm_hopper_backward_bf16
#endif

#include "ops/cuda/ssm_hopper_pairs.cuh"
#include "ops/cuda/ssm_hopper_walk.cuh"

namespace {

/* Blocks with even numbers walk forward, the others backward. */
__global__ void __launch_bounds__(WORKERS, 2) states_kernel(const __grid_constant__ hopper_job given) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ walk_shared m;
    const ssm_job &job = given.job;
    const uint32_t memory = dynamic_memory();
    const int64_t teams = job.n / 2, block = blockIdx.x / 2;
    const walk_range range = {block / teams, block % teams * 2, 0, job.at.chunks, blockIdx.x % 2 != 0};
    if (threadIdx.x == 0) {
        m.stages.init();
    }
    __syncthreads();
    const int64_t walk = range.row * job.n + range.head0 + (int)threadIdx.x / 128;
    unsigned char *to = (unsigned char *)(range.reverse ? job.at.dstate : job.at.state) + walk * job.at.chunks * STATE;
    float S[64] = {};
    (void)walk_states(given, range, m, memory, S, [&](int64_t chunk, const float(&s)[64]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int g = 0; g < 4; g++) {
                const uint32_t at = piece_at(0, row_in(r), 4 * g + lane_of() % 4);
                *(uint4 *)(to + chunk * STATE + at) = row_piece<N>(s, g, r);
            }
        }
    });
#endif
}

/* Copies B and C once, then the tiles of each head. */
[[maybe_unused]] __device__ __forceinline__ void
back_copy(const hopper_job &given, back_shared &m, const back_tiles &at, int64_t row, int64_t chunk, int64_t group) {
    const ssm_job &job = given.job;
    const int64_t share = job.n / job.G, column = job.n * P + group * N;
    const uint32_t full = shared_address(&m.group_full);
    barrier_expect(full, 2 * STATE);
    copy_wide(at.b, &given.xbc, column, chunk * L, row, full);
    copy_wide(at.c, &given.xbc, column + job.G * N, chunk * L, row, full);
    for (int64_t i = 0; i < share; i++) {
        const int64_t head = group * share + i, item = (row * job.n + head) * job.at.chunks + chunk;
        const uint32_t barrier = m.stages.wait_empty(i, 2 * STATE + 2 * BAND + VECTORS);
        const uint32_t stage = at.stages + (uint32_t)(i % STAGES) * STAGE;
        copy_box(stage + 2 * STATE, &given.xbc, head * P, chunk * L, row, barrier);
        copy_box(stage + 2 * STATE + BAND, &given.dy, head * P, chunk * L, row, barrier);
        copy_vectors(stage + 2 * STATE + 2 * BAND, job, item, barrier);
        copy_bytes(stage, (const char *)job.at.state + item * STATE, STATE, barrier);
        copy_bytes(stage + STATE, (const char *)job.at.dstate + item * STATE, STATE, barrier);
    }
}

/* A tile's rows as a left operand, each times its factor. */
__device__ __forceinline__ void load_scaled_rows(uint32_t (&left)[16], uint32_t tile, const float (&by)[2]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t part[4];
        load_rows(part, tile, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[4 * k + i] = scale(part[i], by[i % 2], by[i % 2]);
        }
    }
}

/* S . dS: the thread's part. */
__device__ __forceinline__ float dot_states(uint32_t S, uint32_t dS) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t at = (uint32_t)(i * 128 + (int)threadIdx.x % 128) * 16;
        const uint4 a = shared_load(S + at), b = shared_load(dS + at);
        const uint32_t u[4] = {a.x, a.y, a.z, a.w}, v[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 s = unpack(u[e]), d = unpack(v[e]);
            sum += s.x * d.x + s.y * d.y;
        }
    }
    return sum;
}

/* The sums of dy y over each row. */
__device__ __forceinline__ void sum_outputs(const float (&y)[32], back_shared &m, uint32_t dy, int turn) {
    float sums[2] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t part[4];
        load_rows(part, dy, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = unpack(part[i]);
            sums[i % 2] += v.x * y[8 * k + 2 * i] + v.y * y[8 * k + 2 * i + 1];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums[r] = row_sum(sums[r]);
        if (lane_of() % 4 == 0) {
            m.from_c[turn][row_in(r)] = sums[r];
        }
    }
}

/* The second warpgroup. */
[[maybe_unused]] __device__ __forceinline__ void
work_on_states(const ssm_job &job, back_shared &m, const back_tiles &at, int64_t row, int64_t chunk, int64_t group) {
    const int64_t share = job.n / job.G, first = chunk * L;
    float dc[64] = {}, db[64] = {};
    for (int64_t h = 0; h < share; h++) {
        const int64_t item = (row * job.n + group * share + h) * job.at.chunks + chunk;
        const uint32_t S = at.stages + m.stages.wait_full(h) * STAGE, dS = S + STATE, x = dS + STATE;
        const uint32_t dy = x + BAND, vectors = dy + BAND;
        const int turn = (int)(h % 2);
        float y[32];
        uint32_t left[16], right[16];
        float fade[2], by[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            fade[r] = fade_of(job, vectors, first, row_in(r));
            by[r] = left_of(job, vectors, first, row_in(r)) * step_at(vectors, row_in(r));
        }
        load_scaled_rows(left, dy, fade);
        load_scaled_rows(right, x, by);
        products_begin();
        multiply_along<2>(y, at.c, S);
        products_commit();
        multiply_add(dc, left, S);
        multiply_add(db, right, dS);
        products_commit();
        float whole = warp_sum(dot_states(S, dS));
        if (lane_of() == 0) {
            m.whole[turn][warp_of()] = whole;
        }
        products_wait<1>();
        keep_below(y);
        sum_outputs(y, m, dy, turn);
        group_sync(2, 128);
        if (threadIdx.x % 128 < L) {
            const int i = (int)threadIdx.x % 128;
            const float states = m.whole[turn][0] + m.whole[turn][1] + m.whole[turn][2] + m.whole[turn][3];
            job.at.dG_states[item * L + i] =
                fade_of(job, vectors, first, i) * m.from_c[turn][i] +
                (i == last_of(job, first) ? states * fade_of(job, vectors, first, L - 1) : 0.0f);
        }
        products_wait<0>();
        keep_below(dc);
        keep_below(db);
        m.stages.release(h);
    }
    group_sync(3, WORKERS);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        product_across(db, describe(at.K + k * 32, 0), describe(at.c + k * 2048, BAND), 1);
        product_turned(dc, describe(at.K + k * 2048, 0), describe(at.b + k * 2048, BAND), 1);
    }
    products_commit();
    products_wait<0>();
    keep_below(dc);
    keep_below(db);
    uint16_t *to = (uint16_t *)job.dxbc + (row * job.T + first) * job.channels + job.n * P + group * N;
    store_rows<N>(db, to, job.channels, job.T - first);
    store_rows<N>(dc, to + job.G * N, job.channels, job.T - first);
}

__global__ void __launch_bounds__(WORKERS + 128, 1) gradients_kernel(const __grid_constant__ hopper_job given) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ back_shared m;
    const ssm_job &job = given.job;
    const uint32_t memory = dynamic_memory();
    const back_tiles at = {memory, memory + STATE, memory + 2 * STATE, memory + 2 * STATE + BAND};
    const int64_t group = (int64_t)blockIdx.x % job.G, chunk = (int64_t)blockIdx.x / job.G % job.at.chunks;
    const int64_t row = (int64_t)blockIdx.x / job.G / job.at.chunks;
    if (threadIdx.x == 0) {
        m.stages.init();
        barrier_init(shared_address(&m.group_full), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < L) {
        m.seen[threadIdx.x] = ssm_first_seen(job, chunk * L + threadIdx.x, chunk * L);
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        registers_give<24>();
        if (threadIdx.x == WORKERS) {
            back_copy(given, m, at, row, chunk, group);
        }
    } else {
        registers_take<240>();
        barrier_wait(shared_address(&m.group_full), 0);
        if (threadIdx.x < 128) {
            work_on_pairs(job, m, at, row, chunk, group);
        } else {
            work_on_states(job, m, at, row, chunk, group);
        }
    }
#endif
}

} // namespace

carry_status SSM_HOPPER_BACKWARD(carry_ctx *ctx, const place &at, const ssm_job &job, bool *done) {
    static const bool works = is_compiled(gradients_kernel, at.ordinal); /* all GPUs of a process are alike */
    *done = works && job.P == P && job.N == N && job.n / job.G % 2 == 0 &&
            ((uintptr_t)job.xbc | (uintptr_t)job.dy | (uintptr_t)job.dxbc) % 16 == 0;
    if (!*done) {
        return CARRY_OK;
    }
    const int ordinal = at.ordinal;
    hopper_job given = {};
    given.job = job;
    CARRY_TRY(make_map(ctx, &given.xbc, job, job.xbc, job.channels, ordinal));
    CARRY_TRY(make_map(ctx, &given.dy, job, job.dy, job.n * P, ordinal));
    CARRY_CUDA_TRY(cudaFuncSetAttribute(states_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WALK_SHARED),
                   "no shared memory for a state space layer");
    CARRY_CUDA_TRY(cudaFuncSetAttribute(gradients_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
                   "no shared memory for gradients of a state space layer");
    states_kernel<<<(unsigned)(job.B * job.n), WORKERS, WALK_SHARED, at.stream>>>(given);
    gradients_kernel<<<(unsigned)(job.B * job.at.chunks * job.G), WORKERS + 128, SHARED, at.stream>>>(given);
    return launched(ctx, at, "gradients of a state space layer cannot be launched");
}
