/* Backward pass of state space layers on tensor cores: the formulas of ops/ssm_backward.c.

   Two walks, one in each direction and both in one launch, store the state before each chunk and the gradient of the
   state after it in 16 bits. Then a block has a chunk and a group: it goes through the heads of the group in order and
   adds up their gradients of B and C in registers. */
#include "ops/cuda/ssm_tiles.cuh"

namespace {

using namespace ssm_mma;

/* Threads per chunk: a warp has 16 rows and half of the columns of every result. */
constexpr int BLOCK = 256;

template <int N> struct back_memory {
    alignas(16) uint16_t b[L * (N + 8)];
    alignas(16) uint16_t c[L * (N + 8)];
    alignas(16) uint16_t S[P * (N + 8)];
    alignas(16) uint16_t dS[P * (N + 8)];
    alignas(16) uint16_t x[L * LP];
    alignas(16) uint16_t dy[L * LP];
    alignas(16) uint16_t W[L * LL];
    alignas(16) uint16_t K[L * LL];
    float2 sum[L];
    float step[L], fade[L], left[L], by[L]; /* by: left times step */
    float rows[2][L], columns[4][L], from_x[2][L], from_c[2][L], trace[L];
    float whole[BLOCK / 32];
    int seen[L];
};

/* Blocks with even numbers walk forward, the others backward. */
template <typename T, int N>
__global__ void __launch_bounds__(128) states_kernel(const __grid_constant__ ssm_job job, bool aligned) {
    extern __shared__ uint4 shared_memory[];
    states_memory<N> &m = *(states_memory<N> *)shared_memory;
    const T type = {};
    const int64_t walk = blockIdx.x / 2;
    const bool reverse = blockIdx.x % 2 != 0;
    const states_source source = reverse ? states_source{job.dy, job.n * P, job.n * P + job.G * N, true}
                                         : states_source{job.xbc, job.channels, job.n * P, false};
    uint16_t *to = (uint16_t *)(reverse ? job.at.dstate : job.at.state) + walk * job.at.chunks * P * N;
    const int p0 = (int)threadIdx.x / 32 * 16;
    float S[N / 8][4] = {};
    (void)walk_states<T, N>(type, job, source, walk / job.n, walk % job.n, 0, job.at.chunks, m, S, aligned,
                            [&](int64_t chunk, const float(&s)[N / 8][4]) {
#pragma unroll
                                for (int i = 0; i < N / 8; i++) {
#pragma unroll
                                    for (int r = 0; r < 2; r++) {
                                        const int at = (p0 + row_in(r)) * N + 8 * i + column_in();
                                        *(unsigned *)&to[chunk * P * N + at] = pack(type, s[i][2 * r], s[i][2 * r + 1]);
                                    }
                                }
                            });
}

/* Sums a row over the four lanes that have it. */
__device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

template <typename T, int N>
__device__ __forceinline__ void load_head(const ssm_job &job, back_memory<N> &m, int64_t row, int64_t head,
                                          int64_t chunk, bool aligned) {
    const int thread = (int)threadIdx.x;
    const int64_t first = chunk * L, item = (row * job.n + head) * job.at.chunks + chunk;
    tile_load<P, BLOCK>(m.x, chunk_rows(job, job.xbc, job.channels, row, first, head * P), thread, aligned);
    tile_load<P, BLOCK>(m.dy, chunk_rows(job, job.dy, job.n * P, row, first, head * P), thread, aligned);
    tile_load<N, BLOCK>(m.S, {(const uint16_t *)job.at.state + item * P * N, N, P}, thread, true);
    tile_load<N, BLOCK>(m.dS, {(const uint16_t *)job.at.dstate + item * P * N, N, P}, thread, true);
    tile_commit();
    if (thread < L) {
        m.step[thread] = job.at.step[item * L + thread];
        m.sum[thread] = ((const float2 *)job.at.sum)[item * L + thread];
        m.fade[thread] = fade_of(job, item, first, thread);
        m.left[thread] = left_of(job, item, first, thread);
        m.by[thread] = m.left[thread] * m.step[thread];
        m.seen[thread] = ssm_first_seen(job, first + thread, first);
    }
    tile_wait<0>();
    __syncthreads();
}

/* C B^T of 16 rows and 32 columns. */
template <typename T, int N>
__device__ __forceinline__ void make_scores(T type, const back_memory<N> &m, float (&cb)[4][4], int i0, int j0) {
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        unsigned left[4], right[4];
        load_left<N + 8>(left, m.c, i0, k);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            load_right<N + 8>(right, m.b, k, j0 + 16 * j);
            multiply_two(type, cb[2 * j], cb[2 * j + 1], left, right);
        }
    }
}

/* Writes W a and E a K to shared memory, and the sums of columns of W * K (by element) and of rows of W * K * a. */
template <typename T, int N>
__device__ __forceinline__ void make_pairs(T type, back_memory<N> &m, const float (&cb)[4][4], int i0, int half) {
    const int j0 = 32 * half;
    float K[4][4] = {}, rows[2] = {}, columns[4][2] = {};
#pragma unroll
    for (int k = 0; k < P; k += 16) {
        unsigned left[4], right[4];
        load_left<LP>(left, m.dy, i0, k);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            load_right<LP>(right, m.x, k, j0 + 16 * j);
            multiply_two(type, K[2 * j], K[2 * j + 1], left, right);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = i0 + row_in(r), seen = m.seen[i];
        const float2 sum = m.sum[i];
#pragma unroll
        for (int tile = 0; tile < 4; tile++) {
            const int j = j0 + 8 * tile + column_in();
            float w[2], k[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const bool sees = j + e <= i && j + e >= seen;
                const float E = sees ? ssm_decay(sum, m.sum[j + e]) : 0.0f;
                const float a = m.step[j + e], own = K[tile][2 * r + e];
                const float weight = sees ? cb[tile][2 * r + e] * E : 0.0f, direct = weight * own;
                if (j + e == i) {
                    m.trace[i] = own;
                }
                columns[tile][e] += direct;
                rows[r] += direct * a;
                w[e] = weight * a;
                k[e] = sees ? own * E * a : 0.0f;
            }
            *(unsigned *)&m.W[i * LL + j] = pack(type, w[0], w[1]);
            *(unsigned *)&m.K[i * LL + j] = pack(type, k[0], k[1]);
        }
        rows[r] = row_sum(rows[r]);
        if (lane_of() % 4 == 0) {
            m.rows[half][i] = rows[r];
        }
    }
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = columns[tile][e];
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            }
            if (lane_of() < 4) {
                m.columns[i0 / 16][j0 + 8 * tile + column_in() + e] = sum;
            }
        }
    }
}

/* dx of 16 tokens and 32 of P. */
template <typename T, int N>
__device__ __forceinline__ void make_dx(T type, const ssm_job &job, back_memory<N> &m, int64_t row, int64_t head,
                                        int64_t first, int j0, int half) {
    const int p0 = 32 * half;
    const float D = job.D[head];
    float d[4][4] = {};
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        unsigned left[4], right[4];
        load_left<N + 8>(left, m.b, j0, k);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            load_right<N + 8>(right, m.dS, k, p0 + 16 * p);
            multiply_two(type, d[2 * p], d[2 * p + 1], left, right);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int j = j0 + row_in(r);
        const float by = m.by[j];
        float sum = 0.0f;
#pragma unroll
        for (int tile = 0; tile < 4; tile++) {
            const int at = j * LP + p0 + 8 * tile + column_in();
            const float2 x = unpack(type, *(const unsigned *)&m.x[at]);
            const float2 dy = unpack(type, *(const unsigned *)&m.dy[at]);
            sum += x.x * d[tile][2 * r] + x.y * d[tile][2 * r + 1];
            d[tile][2 * r] = by * d[tile][2 * r] + D * dy.x;
            d[tile][2 * r + 1] = by * d[tile][2 * r + 1] + D * dy.y;
        }
        sum = row_sum(sum);
        if (lane_of() % 4 == 0) {
            m.from_x[half][j] = sum;
        }
    }
    for (int k = j0; k < L; k += 16) {
        unsigned left[4], right[4];
        load_left_t<LL>(left, m.W, j0, k);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            load_right_t<LP>(right, m.dy, k, p0 + 16 * p);
            multiply_two(type, d[2 * p], d[2 * p + 1], left, right);
        }
    }
    uint16_t *to = (uint16_t *)job.dxbc + (row * job.T + first) * job.channels + head * P + p0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int j = j0 + row_in(r);
#pragma unroll
        for (int tile = 0; tile < 4 && first + j < job.T; tile++) {
            *(unsigned *)&to[j * job.channels + 8 * tile + column_in()] =
                pack(type, d[tile][2 * r], d[tile][2 * r + 1]);
        }
    }
}

/* Adds a head's contribution to dC, for 16 tokens and half of N. */
template <typename T, int N>
__device__ __forceinline__ void add_dc(T type, back_memory<N> &m, float (&dc)[N / 16][4], int i0, int half) {
    const int n0 = N / 2 * half;
    const float fade[2] = {m.fade[i0 + row_in(0)], m.fade[i0 + row_in(1)]};
    float sums[2] = {};
    unsigned dy[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        load_left<LP>(dy[k], m.dy, i0, 16 * k);
    }
#pragma unroll
    for (int n = 0; n < N / 32; n++) {
        float u[2][4] = {};
        unsigned left[4], right[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            load_right_t<N + 8>(right, m.S, 16 * k, n0 + 16 * n);
            multiply_two(type, u[0], u[1], dy[k], right);
        }
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            const int tile = e / 4, r = e / 2 % 2;
            const float2 c = unpack(
                type, *(const unsigned *)&m.c[(i0 + row_in(r)) * (N + 8) + n0 + 16 * n + 8 * tile + column_in()]);
            sums[r] += c.x * u[tile][2 * r] + c.y * u[tile][2 * r + 1];
            dc[2 * n + tile][2 * r] += fade[r] * u[tile][2 * r];
            dc[2 * n + tile][2 * r + 1] += fade[r] * u[tile][2 * r + 1];
        }
        for (int k = 0; k <= i0; k += 16) {
            load_left<LL>(left, m.K, i0, k);
            load_right_t<N + 8>(right, m.b, k, n0 + 16 * n);
            multiply_two(type, dc[2 * n], dc[2 * n + 1], left, right);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums[r] = row_sum(sums[r]);
        if (lane_of() % 4 == 0) {
            m.from_c[half][i0 + row_in(r)] = sums[r];
        }
    }
}

template <typename T, int N>
__device__ __forceinline__ void add_db(T type, const back_memory<N> &m, float (&db)[N / 16][4], int j0, int half) {
    const int n0 = N / 2 * half;
    const float low = m.by[j0 + row_in(0)], high = m.by[j0 + row_in(1)];
    unsigned x[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        load_left<LP>(x[k], m.x, j0, 16 * k);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const float by = part % 2 == 0 ? low : high;
            x[k][part] = scale(type, x[k][part], by, by);
        }
    }
#pragma unroll
    for (int n = 0; n < N / 32; n++) {
        unsigned left[4], right[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            load_right_t<N + 8>(right, m.dS, 16 * k, n0 + 16 * n);
            multiply_two(type, db[2 * n], db[2 * n + 1], x[k], right);
        }
        for (int k = j0; k < L; k += 16) {
            load_left_t<LL>(left, m.K, j0, k);
            load_right_t<N + 8>(right, m.c, k, n0 + 16 * n);
            multiply_two(type, db[2 * n], db[2 * n + 1], left, right);
        }
    }
}

/* S . dS, as partial sums of the warps. */
template <typename T, int N> __device__ __forceinline__ void add_whole(T type, back_memory<N> &m) {
    float sum = 0.0f;
    for (int i = (int)threadIdx.x; i < P * N / 2; i += BLOCK) {
        const int at = i / (N / 2) * (N + 8) + i % (N / 2) * 2;
        const float2 s = unpack(type, *(const unsigned *)&m.S[at]), d = unpack(type, *(const unsigned *)&m.dS[at]);
        sum += s.x * d.x + s.y * d.y;
    }
    sum = warp_sum(sum);
    if (lane_of() == 0) {
        m.whole[threadIdx.x / 32] = sum;
    }
}

/* Writes da and dG of the chunk; the first warp adds up the contributions of all tokens to the G of the last one. */
template <int N>
__device__ __forceinline__ void finish_head(const ssm_job &job, const back_memory<N> &m, int64_t item, int64_t first) {
    if (threadIdx.x >= 32) {
        return;
    }
    const int64_t last = first + L <= job.T ? L - 1 : job.T - 1 - first;
    float added = 0.0f, trace = 0.0f, dG[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = lane_of() + 32 * half;
        const float pairs = m.columns[0][i] + m.columns[1][i] + m.columns[2][i] + m.columns[3][i];
        const float by_step = m.left[i] * (m.from_x[0][i] + m.from_x[1][i]);
        job.at.da[item * L + i] = pairs + by_step;
        dG[half] = m.rows[0][i] + m.rows[1][i] - pairs * m.step[i] + m.fade[i] * (m.from_c[0][i] + m.from_c[1][i]) -
                   by_step * m.step[i];
        added += by_step * m.step[i];
        trace += m.trace[i];
    }
    added = warp_sum(added);
    trace = warp_sum(trace);
    float whole = 0.0f;
    for (int i = 0; i < BLOCK / 32; i++) {
        whole += m.whole[i];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = lane_of() + 32 * half;
        job.at.dG[item * L + i] = dG[half] + (i == last ? added + whole * m.fade[L - 1] : 0.0f);
    }
    if (lane_of() == 0) {
        job.at.sums[item * 3 + 2] = (double)trace;
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK, 2) gradients_kernel(const __grid_constant__ ssm_job job, bool aligned) {
    extern __shared__ uint4 shared_memory[];
    back_memory<N> &m = *(back_memory<N> *)shared_memory;
    const T type = {};
    const int64_t group = (int64_t)blockIdx.x % job.G, chunk = (int64_t)blockIdx.x / job.G % job.at.chunks;
    const int64_t row = (int64_t)blockIdx.x / job.G / job.at.chunks, first = chunk * L, share = job.n / job.G;
    const int64_t b_at = job.n * P + group * N;
    const int thread = (int)threadIdx.x, warp = thread / 32, i0 = warp % 4 * 16, half = warp / 4;
    tile_load<N, BLOCK>(m.b, chunk_rows(job, job.xbc, job.channels, row, first, b_at), thread, aligned);
    tile_load<N, BLOCK>(m.c, chunk_rows(job, job.xbc, job.channels, row, first, b_at + job.G * N), thread, aligned);
    tile_commit();
    tile_wait<0>();
    __syncthreads();
    float cb[4][4] = {}, db[N / 16][4] = {}, dc[N / 16][4] = {};
    make_scores<T, N>(type, m, cb, i0, 32 * half);
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        load_head<T, N>(job, m, row, head, chunk, aligned);
        make_pairs<T, N>(type, m, cb, i0, half);
        add_whole<T, N>(type, m);
        __syncthreads();
        make_dx<T, N>(type, job, m, row, head, first, i0, half);
        add_dc<T, N>(type, m, dc, i0, half);
        add_db<T, N>(type, m, db, i0, half);
        __syncthreads();
        finish_head<N>(job, m, (row * job.n + head) * job.at.chunks + chunk, first);
        __syncthreads();
    }
    uint16_t *to = (uint16_t *)job.dxbc + (row * job.T + first) * job.channels + b_at + N / 2 * half;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = i0 + row_in(r);
#pragma unroll
        for (int tile = 0; tile < N / 16 && first + i < job.T; tile++) {
            uint16_t *at = to + i * job.channels + 8 * tile + column_in();
            *(unsigned *)at = pack(type, db[tile][2 * r], db[tile][2 * r + 1]);
            *(unsigned *)(at + job.G * N) = pack(type, dc[tile][2 * r], dc[tile][2 * r + 1]);
        }
    }
}

template <typename T, int N> cudaError_t launch(const ssm_job &job, cudaStream_t stream) {
    const bool aligned = is_aligned(job);
    const int walk_bytes = (int)sizeof(states_memory<N>), bytes = (int)sizeof(back_memory<N>);
    cudaError_t error =
        cudaFuncSetAttribute(states_kernel<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, walk_bytes);
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(gradients_kernel<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    }
    if (error == cudaSuccess) {
        states_kernel<T, N><<<(unsigned)(job.B * job.n * 2), 128, walk_bytes, stream>>>(job, aligned);
        gradients_kernel<T, N><<<(unsigned)(job.B * job.at.chunks * job.G), BLOCK, bytes, stream>>>(job, aligned);
        error = cudaGetLastError();
    }
    return error;
}

} // namespace

carry_status ssm_tiles_backward(carry_ctx *ctx, const place &at, const ssm_job &given, carry_dtype type) {
    ssm_job job = given;
    bool done = false;
    CARRY_TRY(ssm_prepare(ctx, at, job, type));
    CARRY_TRY(type == CARRY_BF16 ? ssm_hopper_backward_bf16(ctx, at, job, &done)
                                 : ssm_hopper_backward_f16(ctx, at, job, &done));
    if (done) {
        return ssm_finish(ctx, at, job, type);
    }
    job.at.dG_states = NULL;
    const bool wide = job.N == 128;
    const cudaError_t error =
        type == CARRY_BF16 ? (wide ? launch<type_bf16, 128>(job, at.stream) : launch<type_bf16, 64>(job, at.stream))
                           : (wide ? launch<type_f16, 128>(job, at.stream) : launch<type_f16, 64>(job, at.stream));
    return error == cudaSuccess
               ? ssm_finish(ctx, at, job, type)
               : carry_cuda_failed(ctx, error, "gradients of a state space layer cannot be launched", at.ordinal);
}
