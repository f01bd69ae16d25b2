/* The backward walk of "keys64" (back.cuh). A block goes through the chunks of one value head of one sequence from the
   last to the first. It has 64 columns of V, 16 for each warp, and keeps the gradient of the state in registers. */
#include "delta/cuda/keys/back.cuh"

using namespace DELTA_KEYS;

namespace {

template <int D> struct side {
    static constexpr int LD = D + 8;
    alignas(16) uint16_t faded_k[C * LD], faded_q[C * LD], left_k[C * LD];
    alignas(16) uint16_t grad[C * LV], y[C * LV]; /* grad: the gradient of o */
    alignas(16) uint16_t A[C * LC], P[C * LC];
    alignas(16) uint16_t U[BLOCKS][BLOCK * LB];
    alignas(16) float end[D], beta[C];
};

template <int D, int SIDES> struct back_walk {
    const carry_delta_back_job &back;
    const carry_delta_keys_part &part;
    side<D> *sides;
    int64_t sequence, head;
    int first; /* first column of V */
    delta_place place;
    float dS[D / 8][4];

    __device__ int count_from(int64_t t) const {
        return place.length - t < C ? (int)(place.length - t) : C;
    }
    __device__ int64_t page_of(int64_t t) const {
        return (kept_of(place, sequence) + t / C - part.slot) * part.heads + head - part.first;
    }
    __device__ void fetch(int64_t t, int at) {
        if (t >= 0) {
            side<D> &m = sides[at % SIDES];
            const back_page<D> &from = static_cast<const back_page<D> *>(part.pages)[page_of(t)];
            copy_tile<D, THREADS>(m.left_k, from.left_k, C);
            copy_tile<D, THREADS>(m.faded_q, from.faded_q, C);
            copy_tile<D, THREADS>(m.faded_k, from.faded_k, C);
            copy_whole<THREADS>(m.A, from.A, sizeof from.A);
            copy_whole<THREADS>(m.P, from.P, sizeof from.P);
            copy_whole<THREADS>(m.U, from.U, sizeof from.U);
            copy_whole<THREADS>(m.end, from.end, sizeof from.end);
            copy_whole<THREADS>(m.beta, from.beta, sizeof from.beta);
            load_tile<COLUMNS>(m.grad, columns_from(back.grad_o, first), place, t, head, count_from(t),
                               back.job.value - first);
        }
        __pipeline_commit();
    }

    /* The index in a stored state of element x of dS[n], or -1 if the element lies outside of the state. */
    __device__ int64_t element(int n, int x) const {
        const carry_delta_job &job = back.job;
        const int v = first + 16 * warp_of() + row_in(x / 2), k = 8 * n + column_in() + x % 2;
        const int64_t inside = job.transposed ? (int64_t)v * job.key + k : (int64_t)k * job.value + v;
        return v >= job.value || k >= job.key ? -1 : (sequence * job.value_heads + head) * job.key * job.value + inside;
    }
    __device__ void load_gradient() {
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            const int64_t at = back.dfinal != nullptr ? element(i / 4, i % 4) : -1;
            dS[i / 4][i % 4] = at >= 0 ? back.dfinal[at] : 0.0f;
        }
    }
    __device__ void store_gradient() const {
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            const int64_t at = element(i / 4, i % 4);
            if (at >= 0) {
                back.dinitial[at] = dS[i / 4][i % 4];
            }
        }
    }
    /* Stores dS rounded to 16 bits, in the layout of the states that enter (walk.cu). */
    __device__ void store_rounded(int64_t at) const {
        uint16_t *to = part.dstates + (at * part.columns + first + 16 * warp_of()) * D;
#pragma unroll
        for (int i = 0; i < D / 4; i++) {
            const int n = i / 2, r = i % 2;
            *reinterpret_cast<unsigned *>(to + row_in(r) * D + 8 * n + column_in()) =
                pack(dS[n][2 * r], dS[n][2 * r + 1]);
        }
    }

    __device__ void make_y(side<D> &m, float (&y)[8][4], unsigned (&left)[4][4]) {
        {
            unsigned a[D / 16][4];
            slice_left<D>(a, dS);
            times_tokens<D>(y, a, m.left_k);
        }
        solve_back<COLUMNS>(y, left, m.grad, m.P, m.A, m.U, m.beta);
    }

    __device__ void chunk(side<D> &m) {
        float y[8][4];
        unsigned left[4][4];
        make_y(m, y, left);
        put_columns<COLUMNS>(m.y, y);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float2 end = *reinterpret_cast<const float2 *>(m.end + 8 * n + column_in());
            dS[n][0] *= end.x;
            dS[n][1] *= end.y;
            dS[n][2] *= end.x;
            dS[n][3] *= end.y;
        }
#pragma unroll
        for (int c = 0; c < BLOCKS; c++) {
            unsigned one[4];
            load_left_t<LV>(one, m.grad, 16 * warp_of(), 16 * c);
            add_tokens<D>(dS, one, m.faded_q, c);
            negate(one, left[c]);
            add_tokens<D>(dS, one, m.faded_k, c);
        }
    }

    __device__ void run() {
        load_gradient();
        int at = 0;
        int64_t t = (place.length + C - 1) / C * C - C;
        fetch(t, 0);
        for (; t >= 0; t -= C, at++) {
            side<D> &m = sides[at % SIDES];
            __pipeline_wait_prior(0);
            __syncthreads();
            if (SIDES > 1) {
                fetch(t - C, at + 1);
            }
            store_rounded(page_of(t));
            chunk(m);
            __syncthreads();
            if (SIDES == 1) {
                fetch(t - C, at + 1);
            }
            store_tile<COLUMNS>(columns_from(back.dv, first), m.y, place, t, head, count_from(t),
                                back.job.value - first);
        }
        if (back.dinitial != nullptr) {
            store_gradient();
        }
    }
};

template <int D, int SIDES>
__global__ void __launch_bounds__(THREADS)
    delta_keys_back_walk(const __grid_constant__ carry_delta_back_job back,
                         const __grid_constant__ carry_delta_keys_part part, int64_t items) {
    extern __shared__ float4 memory[];
    const int blocks = (int)(part.columns / COLUMNS);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        const int64_t unit = i / blocks, sequence = part.sequence + unit / part.heads;
        back_walk<D, SIDES> walk = {back,
                                    part,
                                    reinterpret_cast<side<D> *>(memory),
                                    sequence,
                                    part.first + unit % part.heads,
                                    (int)(i % blocks) * COLUMNS,
                                    place_of(back.job, sequence)};
        walk.run();
        __syncthreads();
    }
}

template <int D>
cudaError_t launch(const carry_delta_back_job *back, const carry_delta_keys_part *part, int ordinal, int units,
                   cudaStream_t stream) {
    const int64_t items = part->sequences * part->heads * (part->columns / COLUMNS);
    const int bytes = (int)sizeof(side<D>);
    bool two = false;
    cudaError_t error = has_two_sides(&two, items, bytes, ordinal, units);
    if (error != cudaSuccess) {
        return error;
    }
    return two ? launch_items(delta_keys_back_walk<D, 2>, items, THREADS, 2 * bytes, stream, *back, *part)
               : launch_items(delta_keys_back_walk<D, 1>, items, THREADS, bytes, stream, *back, *part);
}

} // namespace

cudaError_t DELTA_KEYS::launch_back_walk(const carry_delta_back_job *back, const carry_delta_keys_part *part,
                                         int ordinal, int units, cudaStream_t stream) {
    return back->job.key <= 64 ? launch<64>(back, part, ordinal, units, stream)
                               : launch<128>(back, part, ordinal, units, stream);
}
