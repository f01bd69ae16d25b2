/* State space layers on tensor cores: heads of 64, states of 64 or 128, 16-bit types.

   A block walks over HEADS heads of one group along a row, chunk after chunk; four warps have a head. The state of a
   head stays in registers in f32, 16 rows per warp, and is rounded when it is used as a left operand. C B^T of a
   chunk is computed once for the heads of a block. Long rows of few heads are cut into segments: a first pass over
   the states alone gives the contribution of each segment, ssm_join computes the states at their starts, and then all
   segments are walked at once. */
#include "ops/cuda/ssm_tiles.cuh"

namespace {

using namespace ssm_mma;

template <int N, int HEADS> struct walk_memory {
    alignas(16) uint16_t b[L * (N + 8)];
    alignas(16) uint16_t c[L * (N + 8)];
    alignas(16) uint16_t x[HEADS][L * LP];
    alignas(16) uint16_t y[HEADS][L * LP];
    alignas(16) uint16_t M[HEADS][L * LL];
    float2 sum[HEADS][L];
    float step[HEADS][L], fade[HEADS][L], left[HEADS][L];
    int seen[L];
};

/* Chunks of a segment of a row. */
__device__ __forceinline__ int64_t segment_begin(const ssm_job &job, int64_t segment) {
    return job.at.chunks * segment / job.at.segments;
}

template <typename T, int N, int HEADS>
__device__ __forceinline__ void load_chunk(const ssm_job &job, walk_memory<N, HEADS> &m, int64_t row, int64_t head0,
                                           int64_t chunk, bool aligned) {
    constexpr int COUNT = 128 * HEADS;
    const int thread = (int)threadIdx.x;
    const int64_t group = head0 * job.G / job.n, first = chunk * L, b_at = job.n * P + group * N;
    tile_load<N, COUNT>(m.c, chunk_rows(job, job.xbc, job.channels, row, first, b_at + job.G * N), thread, aligned);
    tile_load<N, COUNT>(m.b, chunk_rows(job, job.xbc, job.channels, row, first, b_at), thread, aligned);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        tile_load<P, COUNT>(m.x[h], chunk_rows(job, job.xbc, job.channels, row, first, (head0 + h) * P), thread,
                            aligned);
    }
    tile_commit();
    if (thread < L * HEADS) {
        const int h = thread / L, i = thread % L;
        const int64_t item = (row * job.n + head0 + h) * job.at.chunks + chunk;
        const float a = job.at.step[item * L + i];
        m.step[h][i] = a;
        m.sum[h][i] = ((const float2 *)job.at.sum)[item * L + i];
        m.fade[h][i] = fade_of(job, item, first, i);
        m.left[h][i] = left_of(job, item, first, i) * a;
        if (h == 0) {
            m.seen[i] = ssm_first_seen(job, first + i, first);
        }
    }
    tile_wait<0>();
    __syncthreads();
}

/* M = C B^T times decays and steps, for each head. A warp has 16 rows; blocks above the diagonal are skipped. */
template <typename T, int N, int HEADS> __device__ __forceinline__ void make_scores(T type, walk_memory<N, HEADS> &m) {
    constexpr int WIDTH = HEADS == 2 ? 32 : 64;
    const int warp = (int)threadIdx.x / 32, i0 = warp % 4 * 16, j0 = warp / 4 * WIDTH;
    float cb[WIDTH / 8][4] = {};
    if (j0 > i0 + 15) {
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        unsigned left[4], right[4];
        load_left<N + 8>(left, m.c, i0, k);
#pragma unroll
        for (int j = 0; j < WIDTH / 16; j++) {
            load_right<N + 8>(right, m.b, k, j0 + 16 * j);
            multiply_two(type, cb[2 * j], cb[2 * j + 1], left, right);
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = i0 + row_in(r), seen = m.seen[i];
            const float2 sum = m.sum[h][i];
#pragma unroll
            for (int tile = 0; tile < WIDTH / 8; tile++) {
                const int j = j0 + 8 * tile + column_in();
                float value[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    value[e] = j + e <= i && j + e >= seen
                                   ? cb[tile][2 * r + e] * ssm_decay(sum, m.sum[h][j + e]) * m.step[h][j + e]
                                   : 0.0f;
                }
                *(unsigned *)&m.M[h][i * LL + j] = pack(type, value[0], value[1]);
            }
        }
    }
}

/* Computes y^T [16 of P, 64 tokens] of a warp into its columns of the tile of y. The loop over halves is not
   unrolled: otherwise S would be kept as 16-bit operands for both, and registers spill. */
template <typename T, int N, int HEADS>
__device__ __forceinline__ void make_output(T type, walk_memory<N, HEADS> &m, const float (&S)[N / 8][4], int h, int p0,
                                            float D) {
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        float y[4][4] = {};
        unsigned left[4], right[4];
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            as_left(type, left, S[2 * k], S[2 * k + 1]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                load_right<N + 8>(right, m.c, 16 * k, 32 * half + 16 * i);
                multiply_two(type, y[2 * i], y[2 * i + 1], left, right);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int block = 2 * half + i, column = 16 * block + column_in();
#pragma unroll
            for (int e = 0; e < 8; e++) {
                y[2 * i + e / 4][e % 4] *= m.fade[h][column + e / 4 * 8 + e % 2];
            }
            for (int k = 0; k <= block; k++) { /* the last operand is the block's own x */
                load_left_t<LP>(left, m.x[h], p0, 16 * k);
                load_right<LL>(right, m.M[h], 16 * k, 16 * block);
                multiply_two(type, y[2 * i], y[2 * i + 1], left, right);
            }
#pragma unroll
            for (int part = 0; part < 4; part++) { /* a left operand has the elements of two results */
                const float2 value = unpack(type, left[part]);
                float(&to)[4] = y[2 * i + part / 2];
                const float low = to[part % 2 * 2] + D * value.x, high = to[part % 2 * 2 + 1] + D * value.y;
                const unsigned both = pack(type, low, high);
                uint16_t *at = &m.y[h][(column + part / 2 * 8) * LP + p0 + row_in(part % 2)];
                at[0] = (uint16_t)(both & 0xffffu);
                at[LP] = (uint16_t)(both >> 16);
            }
        }
    }
}

/* Stores the 16 columns of a warp from the tile of y. */
template <int N, int HEADS>
__device__ __forceinline__ void store_output(const ssm_job &job, const walk_memory<N, HEADS> &m, int64_t row,
                                             int64_t head, int64_t first, int h, int p0, bool aligned) {
    const int64_t left = job.T - first;
    uint16_t *to = (uint16_t *)job.y + ((row * job.T + first) * job.n + head) * P + p0;
    __syncwarp();
#pragma unroll
    for (int piece = lane_of(); piece < 2 * L; piece += 32) {
        const int i = piece / 2, column = piece % 2 * 8;
        const uint16_t *from = &m.y[h][i * LP + p0 + column];
        uint16_t *at = to + (int64_t)i * job.n * P + column;
        if (i < left && aligned) {
            *(uint4 *)at = *(const uint4 *)from;
        } else {
            for (int e = 0; e < 8 && i < left; e++) {
                at[e] = from[e];
            }
        }
    }
}

/* Reads a state into registers: the 16 rows of a warp, from p0 on. */
template <int N> __device__ __forceinline__ void read_state(float (&S)[N / 8][4], const float *from, int p0) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 pair =
                from != NULL ? *(const float2 *)&from[(p0 + row_in(r)) * N + 8 * i + column_in()] : float2{0.0f, 0.0f};
            S[i][2 * r] = pair.x;
            S[i][2 * r + 1] = pair.y;
        }
    }
}
template <int N> __device__ __forceinline__ void write_state(const float (&S)[N / 8][4], float *to, int p0) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            *(float2 *)&to[(p0 + row_in(r)) * N + 8 * i + column_in()] = {S[i][2 * r], S[i][2 * r + 1]};
        }
    }
}

template <typename T, int N, int HEADS>
__global__ void __launch_bounds__(128 * HEADS, 4 / HEADS)
    walk_kernel(const __grid_constant__ ssm_job job, bool aligned) {
    extern __shared__ uint4 shared_memory[];
    walk_memory<N, HEADS> &m = *(walk_memory<N, HEADS> *)shared_memory;
    const T type = {};
    const int64_t teams = job.n / HEADS, head0 = (int64_t)blockIdx.x % teams * HEADS;
    const int64_t segment = (int64_t)blockIdx.x / teams % job.at.segments;
    const int64_t row = (int64_t)blockIdx.x / teams / job.at.segments;
    const int warp = (int)threadIdx.x / 32, h = warp / 4, p0 = warp % 4 * 16;
    const int64_t head = head0 + h, walk = row * job.n + head, size = (int64_t)P * N;
    const float D = job.D[head];
    const float *from = job.at.segments > 1   ? job.at.state + (walk * job.at.segments + segment) * size
                        : job.initial != NULL ? job.initial + walk * size
                                              : NULL;
    float S[N / 8][4];
    read_state<N>(S, from, p0);
    const int64_t end = segment_begin(job, segment + 1);
    for (int64_t chunk = segment_begin(job, segment); chunk < end; chunk++) {
        load_chunk<T, N, HEADS>(job, m, row, head0, chunk, aligned);
        make_scores<T, N, HEADS>(type, m);
        __syncthreads();
        make_output<T, N, HEADS>(type, m, S, h, p0, D);
        store_output<N, HEADS>(job, m, row, head, chunk * L, h, p0, aligned);
        advance<T, N>(type, S, m.x[h], p0, m.b, m.left[h], m.fade[h][L - 1]);
        __syncthreads();
    }
    if (job.final_state != NULL && segment + 1 == job.at.segments) {
        write_state<N>(S, job.final_state + walk * size, p0);
    }
}

/* Computes the contribution to the state, and the decay, of each segment except the last. */
template <typename T, int N>
__global__ void __launch_bounds__(128) segments_kernel(const __grid_constant__ ssm_job job, bool aligned) {
    extern __shared__ uint4 shared_memory[];
    states_memory<N> &m = *(states_memory<N> *)shared_memory;
    const int64_t parts = job.at.segments - 1, walk = (int64_t)blockIdx.x % (job.B * job.n);
    const int64_t segment = (int64_t)blockIdx.x / (job.B * job.n) % parts;
    const states_source source = {job.xbc, job.channels, job.n * P, false};
    float S[N / 8][4] = {};
    const float fade =
        walk_states<T, N>(T{}, job, source, walk / job.n, walk % job.n, segment_begin(job, segment),
                          segment_begin(job, segment + 1), m, S, aligned, [](int64_t, const float(&)[N / 8][4]) {});
    const int64_t at = walk * job.at.segments + segment;
    write_state<N>(S, job.at.state + at * P * N, (int)threadIdx.x / 32 * 16);
    if (threadIdx.x == 0) {
        job.at.fade[at] = fade;
    }
}

__global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ ssm_job job) {
    const int64_t size = job.P * job.N, e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= job.B * job.n * size) {
        return;
    }
    const int64_t walk = e / size;
    float S = job.initial != NULL ? job.initial[e] : 0.0f;
    for (int64_t segment = 0; segment < job.at.segments; segment++) {
        const int64_t at = walk * job.at.segments + segment;
        float *here = job.at.state + at * size + e % size;
        const float added = segment + 1 < job.at.segments ? *here : 0.0f;
        const float fade = segment + 1 < job.at.segments ? job.at.fade[at] : 0.0f;
        *here = S;
        S = fmaf(S, fade, added);
    }
}

} // namespace

void ssm_join(const place &at, const ssm_job &job) {
    const int64_t count = job.B * job.n * job.P * job.N;
    join_kernel<<<(unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, at.stream>>>(job);
}

namespace {

template <typename T, int N, int HEADS> cudaError_t launch_walk(const ssm_job &job, bool aligned, cudaStream_t stream) {
    const int bytes = (int)sizeof(walk_memory<N, HEADS>);
    const int64_t blocks = job.B * job.at.segments * (job.n / HEADS);
    cudaError_t error =
        cudaFuncSetAttribute(walk_kernel<T, N, HEADS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) {
        walk_kernel<T, N, HEADS><<<(unsigned)blocks, 128 * HEADS, bytes, stream>>>(job, aligned);
        error = cudaGetLastError();
    }
    return error;
}

template <typename T, int N> cudaError_t launch(const ssm_job &job, cudaStream_t stream) {
    const bool aligned = is_aligned(job);
    if (job.at.segments > 1) {
        const int bytes = (int)sizeof(states_memory<N>);
        const int64_t walks = job.B * job.n;
        const cudaError_t error =
            cudaFuncSetAttribute(segments_kernel<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess) {
            return error;
        }
        segments_kernel<T, N><<<(unsigned)(walks * (job.at.segments - 1)), 128, bytes, stream>>>(job, aligned);
        ssm_join({0, stream}, job);
    }
    return job.n / job.G % 2 == 0 ? launch_walk<T, N, 2>(job, aligned, stream)
                                  : launch_walk<T, N, 1>(job, aligned, stream);
}

} // namespace

carry_status ssm_tiles(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type) {
    bool done = false;
    CARRY_TRY(ssm_prepare(ctx, at, job, type));
    CARRY_TRY(type == CARRY_BF16 ? ssm_hopper_bf16(ctx, at, job, &done) : ssm_hopper_f16(ctx, at, job, &done));
    if (done) {
        return CARRY_OK;
    }
    const bool wide = job.N == 128;
    const cudaError_t error =
        type == CARRY_BF16 ? (wide ? launch<type_bf16, 128>(job, at.stream) : launch<type_bf16, 64>(job, at.stream))
                           : (wide ? launch<type_f16, 128>(job, at.stream) : launch<type_f16, 64>(job, at.stream));
    return error == cudaSuccess ? CARRY_OK
                                : carry_cuda_failed(ctx, error, "a state space layer cannot be launched", at.ordinal);
}
