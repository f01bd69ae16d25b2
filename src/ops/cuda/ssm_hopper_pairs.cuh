/* Gradients of a chunk's tokens on Hopper GPUs: the first warpgroup of a block of ssm_hopper_backward.cu, which has the
   formulas. Tokens j are rows and tokens i columns of its results. */
#ifndef CARRY_OPS_SSM_HOPPER_PAIRS_CUH
#define CARRY_OPS_SSM_HOPPER_PAIRS_CUH

#include "ops/cuda/ssm_hopper.cuh"

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

/* Sums a row over the four lanes that have it. */
__device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
/* column_sums adds up 16 columns over the eight lanes with the same lane % 4. Afterwards a lane has the sums of columns
   2 (lane / 4) and 2 (lane / 4) + 1. fold is one of its three exchanges, after which HALF columns are left. */
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

/* Makes W^T = E * a * cb an operand and adds E * a * K to `sum`; cb is B C^T, K is x dy^T (K^T of the formulas), and *
   multiplies by element. Stores, of E * cb * K, the sums of rows in m.pairs and, multiplied by a, the sums of columns
   in m.rows (a part for each warp); stores the trace of K in m.trace. */
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

} // namespace

#endif
