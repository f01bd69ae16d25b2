/* Backward pass of state space layers on Hopper GPUs: the formulas of ops/ssm_backward.c, for the shapes of
   ssm_hopper.cu.

   Two walks, one in each direction and both in one launch, store the states before each chunk and their gradients
   after it in 16 bits, as tiles that can be copied to shared memory as they are. Then a block has a chunk and a group
   and goes through the heads of the group in order. With tokens j as rows and i as columns, the first warpgroup
   computes

       K^T = x dy^T,  W^T = (B C^T) decays steps,  dx = D dy + step left (B dS^T) + W^T dy

   and adds up K^T times decays and steps over the heads. The second one adds up

       dC = fade dy S,  dB = step left x dS

   and multiplies C S^T for the gradients of the sums. After the last head it adds the products of the summed K with B
   and C. */
#ifdef CARRY_INSTANCE_F16
#define SSM_HOPPER_BACKWARD ssm_hopper_backward_f16
#else
#define SSM_HOPPER_BACKWARD ssm_hopper_backward_bf16
#endif

#include "ops/cuda/ssm_hopper_walk.cuh"

namespace {

constexpr int STAGES = 3;
constexpr int STAGE = 2 * STATE + 2 * BAND + 1024; /* S, dS, x, dy, vectors */
constexpr int SHARED = STAGES * STAGE + 2 * STATE + BAND + 1024;

struct back_shared {
    stage_barriers<STAGES> stages;
    uint64_t group_full;
    int seen[L];
    /* Sums over rows and columns, of heads in turn. */
    float pairs[2][L], from_x[2][L], rows[2][4][L], trace[2][4];
    float from_c[2][L], whole[2][4];
};

/* Addresses in shared memory. */
struct back_tiles {
    uint32_t c, b, K, stages;
};

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

/* Sums a row over the four lanes that have it. */
__device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
/* Sums 16 columns, of which lanes with the same lane % 4 have parts: afterwards lane / 4 has columns 2 (lane / 4) and
   the next one of the 16. fold: one of three exchanges, after which HALF are left. */
template <int HALF> __device__ __forceinline__ void fold(float (&v)[16]) {
    const bool high = (lane_of() & 2 * HALF) != 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float other = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + HALF], 2 * HALF);
        v[i] = (high ? v[i + HALF] : v[i]) + other;
    }
}
__device__ __forceinline__ float2 column_sums(float (&v)[16]) {
    fold<8>(v);
    fold<4>(v);
    fold<2>(v);
    return {v[0], v[1]};
}

/* Makes W^T an operand, adds K^T times decays and steps to `sum`, and stores sums over rows and columns of W K. cb:
   B C^T; K: x dy^T. */
__device__ __forceinline__ void make_pairs(uint32_t (&w)[16], float (&sum)[32], const float (&cb)[32],
                                           const float (&K)[32], back_shared &m, uint32_t vectors, int turn, int warp) {
    const float2 own[2] = {sum_at(vectors, row_in(0)), sum_at(vectors, row_in(1))};
    const float a[2] = {step_at(vectors, row_in(0)), step_at(vectors, row_in(1))};
    float rows[2] = {}, columns[16], trace = 0.0f;
#pragma unroll
    for (int t = 0; t < 8; t++) {
        const int i = 8 * t + column_in();
        columns[2 * t] = columns[2 * t + 1] = 0.0f;
        w[2 * t] = w[2 * t + 1] = 0;
        if (8 * t + 7 < 16 * warp) {
            continue;
        }
        const float4 other = sums_at(vectors, i);
        const int2 seen = *(const int2 *)&m.seen[i];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int j = row_in(r);
            float weight[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = 4 * t + 2 * r + e;
                const float E = decay(e == 0 ? float2{other.x, other.y} : float2{other.z, other.w}, own[r]);
                const float faded = j <= i + e && j >= (e == 0 ? seen.x : seen.y) ? E : 0.0f;
                const float k = K[at];
                weight[e] = cb[at] * faded;
                const float direct = weight[e] * k;
                trace += j == i + e ? k : 0.0f;
                rows[r] += direct;
                columns[2 * t + e] += direct * a[r];
                sum[at] += k * faded * a[r];
            }
            w[2 * t + r] = pack(weight[0] * a[r], weight[1] * a[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        rows[r] = row_sum(rows[r]);
        if (lane_of() % 4 == 0) {
            m.pairs[turn][row_in(r)] = rows[r];
        }
    }
    /* Element 2 t + e has column 8 t + 2 (lane % 4) + e, and lane / 4 gets t = lane / 4. */
    const float2 of = column_sums(columns);
    *(float2 *)&m.rows[turn][warp_of()][8 * (lane_of() / 4) + column_in()] = of;
    trace = warp_sum(trace);
    if (lane_of() == 0) {
        m.trace[turn][warp_of()] = trace;
    }
}

/* dx = by dx + D dy, and the sums of x dx over each row. */
__device__ __forceinline__ void add_inputs(float (&dx)[32], back_shared &m, uint32_t x, uint32_t dy,
                                           const float (&by)[2], float D, int turn) {
    float sums[2] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t own[4], other[4];
        load_rows(own, x, k);
        load_rows(other, dy, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 u = unpack(own[i]), v = unpack(other[i]);
            float &low = dx[8 * k + 2 * i], &high = dx[8 * k + 2 * i + 1];
            sums[i % 2] += u.x * low + u.y * high;
            low = by[i % 2] * low + D * v.x;
            high = by[i % 2] * high + D * v.y;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums[r] = row_sum(sums[r]);
        if (lane_of() % 4 == 0) {
            m.from_x[turn][row_in(r)] = sums[r];
        }
    }
}

__device__ __forceinline__ int64_t last_of(const ssm_job &job, int64_t first) {
    return first + L <= job.T ? L - 1 : job.T - 1 - first;
}

/* da, and dG except for the contributions of states. By one warp. */
__device__ __forceinline__ void finish_pairs(const ssm_job &job, const back_shared &m, uint32_t vectors, int64_t item,
                                             int64_t first, int turn) {
    float added = 0.0f, dG[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = lane_of() + 32 * half;
        const float a = step_at(vectors, i), by_step = left_of(job, vectors, first, i) * m.from_x[turn][i];
        const float da = m.pairs[turn][i] + by_step;
        job.at.da[item * L + i] = da;
        dG[half] = m.rows[turn][0][i] + m.rows[turn][1][i] + m.rows[turn][2][i] + m.rows[turn][3][i] - da * a;
        added += by_step * a;
    }
    added = warp_sum(added);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = lane_of() + 32 * half;
        job.at.dG[item * L + i] = dG[half] + (i == last_of(job, first) ? added : 0.0f);
    }
    if (lane_of() == 0) {
        job.at.sums[item * 3 + 2] =
            (double)m.trace[turn][0] + (double)m.trace[turn][1] + (double)m.trace[turn][2] + (double)m.trace[turn][3];
    }
}

/* The first warpgroup. */
[[maybe_unused]] __device__ __forceinline__ void work_on_pairs(const ssm_job &job, back_shared &m, const back_tiles &at,
                                                               int64_t row, int64_t chunk, int64_t group) {
    const int64_t share = job.n / job.G, first = chunk * L;
    const int warp = __shfl_sync(0xffffffffu, warp_of(), 0); /* known to be the same for a warp */
    float cb[32], sum[32] = {};
    products_begin();
    multiply_along<2>(cb, at.b, at.c);
    products_commit();
    products_wait<0>();
    keep_below(cb);
    for (int64_t h = 0; h < share; h++) {
        const int64_t head = group * share + h, item = (row * job.n + head) * job.at.chunks + chunk;
        const uint32_t stage = at.stages + m.stages.wait_full(h) * STAGE, dS = stage + STATE, x = dS + STATE;
        const uint32_t dy = x + BAND, vectors = dy + BAND;
        const int turn = (int)(h % 2);
        float K[32], dx[32];
        products_begin();
        multiply_along<1>(K, x, dy);
        products_commit();
        multiply_along<2>(dx, at.b, dS);
        products_commit();
        const float by[2] = {left_of(job, vectors, first, row_in(0)) * step_at(vectors, row_in(0)),
                             left_of(job, vectors, first, row_in(1)) * step_at(vectors, row_in(1))};
        products_wait<1>();
        keep_below(K);
        uint32_t w[16];
        make_pairs(w, sum, cb, K, m, vectors, turn, warp);
        products_wait<0>();
        keep_below(dx);
        add_inputs(dx, m, x, dy, by, job.D[head], turn);
        products_begin();
        multiply_add(dx, w, dy);
        products_commit();
        group_sync(1, 128);
        products_wait<0>();
        keep_below(dx);
        if (warp == 0) {
            finish_pairs(job, m, vectors, item, first, turn);
        }
        m.stages.release(h);
        store_rows<P>(dx, (uint16_t *)job.dxbc + (row * job.T + first) * job.channels + head * P, job.channels,
                      job.T - first);
    }
    store_tile<L>(at.K, sum);
    fence_async();
    group_arrive(3, WORKERS);
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
