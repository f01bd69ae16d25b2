/* The second kernel of "keys64" (keys.cuh): a block walks the chunks of one value head of one sequence, with 64 columns
   of V. With pages of the backward pass, it only computes the states that enter chunks. */
#include "delta/cuda/keys/keys.cuh"

using namespace DELTA_KEYS;

namespace {

/* A buffer in shared memory. Rows are padded to avoid bank conflicts. */
template <int D> struct side {
    static constexpr int LD = D + 8;
    alignas(16) uint16_t faded_k[C * LD], faded_q[C * LD], left_k[C * LD];
    alignas(16) uint16_t v[C * (COLUMNS + 8)]; /* later o */
    alignas(16) uint16_t rest[C * LC];
    alignas(16) float end[D];
    prepared p;
};

template <int D, int SIDES, typename PAGE> struct keys_walk {
    const carry_delta_job &job;
    const carry_delta_keys_part &part;
    side<D> *sides;
    int64_t sequence, head;
    int first; /* first column of V */
    delta_place place;
    float S[D / 8][4];

    __device__ int count_from(int64_t t) const {
        return place.length - t < C ? (int)(place.length - t) : C;
    }
    __device__ int64_t page_of(int64_t t) const {
        return (kept_of(place, sequence) + t / C - part.slot) * part.heads + head - part.first;
    }
    __device__ void fetch(int64_t t, int at) {
        if (t < place.length) {
            side<D> &m = sides[at % SIDES];
            const PAGE &from = static_cast<const PAGE *>(part.pages)[page_of(t)];
            copy_tile<D, THREADS>(m.faded_k, from.faded_k, C);
            copy_tile<D, THREADS>(m.left_k, from.left_k, C);
            copy_whole<THREADS>(m.p.A, from.A, sizeof from.A);
            if constexpr (!PAGE::BACK) {
                copy_tile<D, THREADS>(m.faded_q, from.faded_q, C);
                copy_whole<THREADS>(m.p.P, from.P, sizeof from.P);
                copy_whole<THREADS>(m.rest, from.rest, sizeof from.rest);
            }
            copy_whole<THREADS>(m.p.T, from.T, sizeof from.T);
            copy_whole<THREADS>(m.end, from.end, sizeof from.end);
            copy_whole<THREADS>(m.p.beta, from.beta, sizeof from.beta);
            load_tile<COLUMNS>(m.v, columns_from(job.v, first), place, t, head, count_from(t), job.value - first);
        }
        __pipeline_commit();
    }
    /* The index in a stored state of element x of S[n], or -1 if the element lies outside of the state. */
    __device__ int64_t element(int n, int x, bool transposed) const {
        const int v = first + 16 * warp_of() + row_in(x / 2), k = 8 * n + column_in() + x % 2;
        return v >= job.value || k >= job.key ? -1 : transposed ? (int64_t)v * job.key + k : (int64_t)k * job.value + v;
    }
    __device__ void load_state() {
        const float *from = job.initial + (sequence * job.value_heads + head) * job.key * job.value;
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            const int64_t at = job.initial != nullptr ? element(i / 4, i % 4, job.transposed) : -1;
            S[i / 4][i % 4] = at >= 0 ? from[at] : 0.0f;
        }
    }
    __device__ void store_state(float *states, int64_t unit, bool transposed) {
        float *to = states + unit * job.key * job.value;
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            const int64_t at = element(i / 4, i % 4, transposed);
            if (at >= 0) {
                to[at] = S[i / 4][i % 4];
            }
        }
    }
    /* For the backward pass: stores the state rounded to 16 bits, with one row of K for each column of V. */
    __device__ void store_rounded(int64_t at) {
        uint16_t *to = part.states + (at * part.columns + first + 16 * warp_of()) * D;
#pragma unroll
        for (int i = 0; i < D / 4; i++) {
            const int n = i / 2, r = i % 2;
            *reinterpret_cast<unsigned *>(to + row_in(r) * D + 8 * n + column_in()) =
                pack(S[n][2 * r], S[n][2 * r + 1]);
        }
    }
    __device__ void output(side<D> &m, const unsigned (&x)[4][4], int bad) {
        float o[8][4];
        {
            unsigned a[D / 16][4]; /* computed again: they would not stay in registers through the solve */
            slice_left<D>(a, S);
            times_tokens<D>(o, a, m.faded_q);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            o[i / 4][i % 4] *= job.scale;
        }
        put_outputs<COLUMNS>(m.v, o, x, m.p.P, m.rest, bad);
    }
    /* x = beta (v - k S - A x) for all tokens. Returns the first token with NaN or infinity; x is zero from it on. */
    __device__ int make_values(side<D> &m, unsigned (&x)[4][4]) {
        float rest[8][4];
        unsigned a[D / 16][4];
        slice_left<D>(a, S);
        times_tokens<D>(rest, a, m.faded_k);
        right_side<COLUMNS>(rest, m.p, m.v);
        return solve(rest, x, m.p);
    }
    __device__ void chunk(side<D> &m) {
        unsigned x[4][4];
        const int bad = make_values(m, x);
        if (!PAGE::BACK && job.o.data != nullptr) {
            output(m, x, bad);
        }
        /* NaN spoils the state of this warp's columns. */
        const float number = bad < C ? __int_as_float(0x7fffffff) : 1.0f;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float2 end = *reinterpret_cast<const float2 *>(m.end + 8 * n + column_in());
            S[n][0] *= end.x * number;
            S[n][1] *= end.y * number;
            S[n][2] *= end.x * number;
            S[n][3] *= end.y * number;
        }
#pragma unroll
        for (int c = 0; c < BLOCKS; c++) {
            add_tokens<D>(S, x[c], m.left_k, c);
        }
    }
    __device__ void run() {
        for (int i = (int)threadIdx.x; i < SIDES * C; i += THREADS) { /* the pages already include these factors */
            sides[i / C].p.fade[i % C] = sides[i / C].p.k_norm[i % C] = 1.0f;
        }
        load_state();
        fetch(0, 0);
        int at = 0;
        for (int64_t t = 0; t < place.length; t += C, at++) {
            side<D> &m = sides[at % SIDES];
            __pipeline_wait_prior(0);
            __syncthreads();
            if (SIDES > 1) {
                fetch(t + C, at + 1);
            }
            if (PAGE::BACK) {
                store_rounded(page_of(t));
            } else if (job.kept != nullptr) {
                store_state(job.kept, (kept_of(place, sequence) + t / C) * job.value_heads + head, false);
            }
            chunk(m);
            __syncthreads();
            if (!PAGE::BACK && job.o.data != nullptr) {
                store_tile<COLUMNS>(columns_from(job.o, first), m.v, place, t, head, count_from(t), job.value - first);
            }
            if (SIDES == 1) {
                __syncthreads();
                fetch(t + C, at + 1);
            }
        }
        if (job.final_state != nullptr) {
            store_state(job.final_state, sequence * job.value_heads + head, job.transposed);
        }
    }
};

template <int D, int SIDES, typename PAGE>
__global__ void __launch_bounds__(THREADS)
    delta_keys_walk(const __grid_constant__ carry_delta_job job, const __grid_constant__ carry_delta_keys_part part,
                    int64_t items) {
    extern __shared__ float4 memory[];
    auto *sides = reinterpret_cast<side<D> *>(memory);
    const int blocks = (job.value + COLUMNS - 1) / COLUMNS;
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        const int64_t unit = i / blocks, sequence = part.sequence + unit / part.heads;
        keys_walk<D, SIDES, PAGE> walk = {job,
                                          part,
                                          sides,
                                          sequence,
                                          part.first + unit % part.heads,
                                          (int)(i % blocks) * COLUMNS,
                                          place_of(job, sequence)};
        walk.run();
        __syncthreads();
    }
}

template <int D, typename PAGE>
cudaError_t launch(const carry_delta_job *job, const carry_delta_keys_part *part, int ordinal, int units,
                   cudaStream_t stream) {
    const int64_t items = part->sequences * part->heads * ((job->value + COLUMNS - 1) / COLUMNS);
    const int bytes = (int)sizeof(side<D>);
    bool two = false;
    cudaError_t error = has_two_sides(&two, items, bytes, ordinal, units);
    if (error != cudaSuccess) {
        return error;
    }
    return two ? launch_items(delta_keys_walk<D, 2, PAGE>, items, THREADS, 2 * bytes, stream, *job, *part)
               : launch_items(delta_keys_walk<D, 1, PAGE>, items, THREADS, bytes, stream, *job, *part);
}

} // namespace

cudaError_t DELTA_KEYS::launch_walk(const carry_delta_job *job, const carry_delta_keys_part *part, bool back,
                                    int ordinal, int units, cudaStream_t stream) {
    return job->key <= 64 ? back ? launch<64, back_page<64>>(job, part, ordinal, units, stream)
                                 : launch<64, page<64>>(job, part, ordinal, units, stream)
           : back ? launch<128, back_page<128>>(job, part, ordinal, units, stream)
                          : launch<128, page<128>>(job, part, ordinal, units, stream);
}
