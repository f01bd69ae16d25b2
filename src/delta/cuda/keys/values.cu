/* Runs between the backward walk of "keys64" and its gradients (back.cuh). For every chunk it computes the corrected
   values x again from the state that entered, then dv and dbeta from the y of the backward walk. A warp has 16 columns
   of V for all tokens, as in the walks. */
#include "delta/cuda/keys/back.cuh"

using namespace DELTA_KEYS;

namespace {

template <int D> struct value_memory {
    alignas(16) uint16_t faded_k[C * (D + 8)];
    alignas(16) uint16_t v[C * LV], y[C * LV]; /* later x and dv */
    prepared p;
    float on_beta[WARPS][C];
};

template <int D> struct value_chunk {
    const carry_delta_back_job &back;
    const carry_delta_keys_part &part;
    value_memory<D> &m;
    chunk_at at;
    int64_t slot, head, page; /* page: also the index of states and values */

    __device__ void load() {
        const back_page<D> &from = static_cast<const back_page<D> *>(part.pages)[page];
        copy_tile<D, THREADS>(m.faded_k, from.faded_k, C);
        copy_whole<THREADS>(m.p.A, from.A, sizeof from.A);
        copy_whole<THREADS>(m.p.T, from.T, sizeof from.T);
        copy_whole<THREADS>(m.p.beta, from.beta, sizeof from.beta);
        if (threadIdx.x < C) { /* the page already includes these factors */
            m.p.fade[threadIdx.x] = m.p.k_norm[threadIdx.x] = 1.0f;
        }
        for (int i = (int)threadIdx.x; i < WARPS * C; i += THREADS) {
            m.on_beta[i / C][i % C] = 0.0f;
        }
    }

    /* Loads a warp's columns of the state as left operands. States in f32 are loaded half by half, and all elements of
       a half before the first is used. */
    static __device__ __forceinline__ int value_at(int i) {
        return 16 * warp_of() + row_in(i % 2);
    }
    static __device__ __forceinline__ int key_at(int i) {
        return i / 4 * 16 + i % 4 / 2 * 8 + column_in();
    }
    __device__ void load_state(unsigned (&a)[D / 16][4], int first) const {
        const carry_delta_job &job = back.job;
        if (part.states != nullptr) {
            const uint16_t *states = part.states + (page * part.columns + first) * D;
#pragma unroll
            for (int i = 0; i < D / 4; i++) {
                a[i / 4][i % 4] = *reinterpret_cast<const unsigned *>(states + value_at(i) * D + key_at(i));
            }
            return;
        }
        const float *kept = job.kept + (slot * job.value_heads + head) * job.key * job.value + first;
        constexpr int HALF = D / 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float low[HALF], high[HALF];
#pragma unroll
            for (int i = 0; i < HALF; i++) {
                const int v = value_at(i), k = key_at(half * HALF + i);
                const bool there = first + v < job.value;
                low[i] = there && k < job.key ? kept[k * job.value + v] : 0.0f;
                high[i] = there && k + 1 < job.key ? kept[(k + 1) * job.value + v] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < HALF; i++) {
                a[(half * HALF + i) / 4][i % 4] = pack(low[i], high[i]);
            }
        }
    }

    /* Stores x over v, and dv over y. */
    __device__ void columns(int first) {
        float rest[8][4], y[8][4];
        unsigned x[4][4];
        {
            unsigned a[D / 16][4];
            load_state(a, first);
            times_tokens<D>(rest, a, m.faded_k);
        }
        right_side<COLUMNS>(rest, m.p, m.v);
        (void)solve(rest, x, m.p);
#pragma unroll
        for (int c = 0; c < BLOCKS; c++) {
            unsigned of_y[4];
            load_left_t<LV>(of_y, m.y, 16 * warp_of(), 16 * c);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                y[2 * c + i / 4][i % 4] = number_in(of_y, i / 4, i % 4);
            }
        }
        __syncwarp(); /* every lane has loaded its v and y */
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int token = token_in(n, e);
                float sum = fmaf(y[n][e], rest[n][e], y[n][2 + e] * rest[n][2 + e]);
                sum += __shfl_xor_sync(WARP, sum, 4);
                sum += __shfl_xor_sync(WARP, sum, 8);
                sum += __shfl_xor_sync(WARP, sum, 16);
                if (lane_of() < 4) {
                    m.on_beta[warp_of()][token] += sum;
                }
                const float beta = m.p.beta[token];
                y[n][e] *= beta;
                y[n][2 + e] *= beta;
                rest[n][e] *= beta;
                rest[n][2 + e] *= beta;
            }
        }
        put_columns<COLUMNS>(m.v, rest);
        put_columns<COLUMNS>(m.y, y);
    }

    __device__ void store_values(int first) const {
        uint16_t *to = part.values + page * part.value_step + first;
        for (int i = (int)threadIdx.x; i < C * (COLUMNS / 8); i += THREADS) {
            const int row = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
            *reinterpret_cast<uint4 *>(to + row * part.columns + column) =
                *reinterpret_cast<const uint4 *>(m.v + row * LV + column);
        }
    }

    __device__ void run() {
        const carry_delta_job &job = back.job;
        load();
        for (int first = 0; first < job.value; first += COLUMNS) {
            const carry_delta_array dv = columns_from(back.dv, first);
            load_tile<COLUMNS>(m.v, columns_from(job.v, first), at.place, at.first, head, at.count, job.value - first);
            load_tile<COLUMNS>(m.y, dv, at.place, at.first, head, at.count, job.value - first);
            __pipeline_commit();
            __pipeline_wait_prior(0);
            __syncthreads();
            columns(first);
            __syncthreads();
            store_values(first);
            store_tile<COLUMNS>(dv, m.y, at.place, at.first, head, at.count, job.value - first);
            __syncthreads();
        }
        const int i = (int)threadIdx.x;
        if (i < at.count) {
            float sum = 0.0f;
            for (int w = 0; w < WARPS; w++) {
                sum += m.on_beta[w][i];
            }
            back.part_beta[(at.place.token + at.first + i) * job.value_heads + head] = sum;
        }
    }
};

template <int D>
__global__ void __launch_bounds__(THREADS)
    delta_keys_values(const __grid_constant__ carry_delta_back_job back,
                      const __grid_constant__ carry_delta_keys_part part, int64_t items) {
    extern __shared__ float4 memory[];
    auto &m = *reinterpret_cast<value_memory<D> *>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        const int64_t slot = part.slot + i / part.heads;
        const chunk_at at = chunk_of(back.job, slot);
        if (at.count > 0) {
            value_chunk<D> one = {back, part, m, at, slot, part.first + i % part.heads, i};
            one.run();
        }
        __syncthreads();
    }
}

template <int D>
cudaError_t launch(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream) {
    return launch_items(delta_keys_values<D>, part->slots * part->heads, THREADS, (int)sizeof(value_memory<D>), stream,
                        *back, *part);
}

} // namespace

cudaError_t DELTA_KEYS::launch_values(const carry_delta_back_job *back, const carry_delta_keys_part *part,
                                      cudaStream_t stream) {
    return back->job.key <= 64 ? launch<64>(back, part, stream) : launch<128>(back, part, stream);
}
