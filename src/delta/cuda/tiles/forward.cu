/* The forward pass of "tiles64" (mma.cuh): a block walks the chunks of one value head of one sequence, and loads the
   tiles of the next chunk while it works on this one. */
#include "delta/cuda/tiles/prepare.cuh"

using namespace DELTA_MMA;

namespace {

template <int D> struct forward_memory {
    static constexpr int TILE = C * (D + 8);
    alignas(16) uint16_t q[2][TILE], k[2][TILE], v[2][TILE]; /* v later holds o */
    prepared p;
    alignas(16) uint16_t rest[C * LC]; /* the rounding error of P */
};

template <int D> struct forward_walk {
    const carry_delta_job &job;
    forward_memory<D> &m;
    int64_t sequence, head;
    delta_place place;
    float S[D / 8][4];
    numbers next;

    __device__ int count_from(int64_t t) const {
        return place.length - t < C ? (int)(place.length - t) : C;
    }

    __device__ void fetch(int64_t t, int side) {
        if (t < place.length) {
            const int count = count_from(t);
            load_tile<D>(m.q[side], job.q, place, t, head / job.group, count, job.key);
            load_tile<D>(m.k[side], job.k, place, t, head / job.group, count, job.key);
            load_tile<D>(m.v[side], job.v, place, t, head, count, job.value);
            next.fetch(job, place, t, head, count);
        }
        __pipeline_commit();
    }

    __device__ void chunk(int64_t t, int side) {
        const prepared &s = m.p;
        float rest[8][4], o[8][4];
        unsigned a[D / 16][4], x[4][4];
        if (job.kept != nullptr) {
            const int64_t slot = kept_of(place, sequence) + t / C;
            store_slice<D>(job.kept, slot * job.kept_heads + head, S, job, false);
        }
        slice_left<D>(a, S);
        times_tokens<D>(rest, a, m.k[side]);
        right_side<D>(rest, s, m.v[side]);
        const int first = solve(rest, x, s);
        if (job.o.data != nullptr) {
            times_tokens<D>(o, a, m.q[side]);
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = token_in(n, i);
                    o[n][i] *= job.scale * s.q_norm[at] * s.fade[at];
                }
            }
            put_outputs<D>(m.v[side], o, x, s.P, m.rest, first);
        }
        const float end = s.fade[C - 1];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                S[n][i] *= end;
            }
        }
#pragma unroll
        for (int c = 0; c < BLOCKS; c++) {
            unsigned left[4];
            weighed(left, rest, c, [&](int at) { return s.beta[at] * s.left[at] * s.k_norm[at]; });
            add_tokens<D>(S, left, m.k[side], c);
        }
    }

    __device__ void run() {
        const int64_t at = sequence * job.value_heads + head;
        clear<D / 8>(S);
        if (warp_of() < D / 16 && job.initial != nullptr) {
            load_slice<D>(S, job, job.initial, at, job.transposed);
        }
        fetch(0, 0);
        int side = 0;
        for (int64_t t = 0; t < place.length; t += C, side = 1 - side) {
            const int count = count_from(t);
            const numbers now = next;
            __pipeline_wait_prior(0);
            __syncthreads();
            fetch(t + C, 1 - side);
            prepare<D>(m.p, m.q[side], m.k[side], job, now, head, count, m.rest);
            if (warp_of() < D / 16) {
                chunk(t, side);
            }
            __syncthreads();
            if (job.o.data != nullptr) {
                store_tile<D>(job.o, m.v[side], place, t, head, count, job.value);
            }
        }
        if (warp_of() < D / 16 && job.final_state != nullptr) {
            store_slice<D>(job.final_state, at, S, job, job.transposed);
        }
    }
};

template <int D>
__global__ void __launch_bounds__(THREADS, 2)
    delta_tiles_forward(const __grid_constant__ carry_delta_job job, int64_t units) {
    extern __shared__ float4 memory[];
    auto &m = *reinterpret_cast<forward_memory<D> *>(memory);
    for (int64_t i = blockIdx.x; i < units; i += gridDim.x) {
        const int64_t sequence = i / job.value_heads;
        forward_walk<D> walk = {job, m, sequence, i % job.value_heads, place_of(job, sequence)};
        walk.run();
        __syncthreads();
    }
}

template <int D> cudaError_t launch(const carry_delta_job *job, cudaStream_t stream) {
    return launch_items(delta_tiles_forward<D>, job->sequences * job->value_heads, THREADS,
                        (int)sizeof(forward_memory<D>), stream, *job);
}

} // namespace

cudaError_t carry_delta_tiles_forward(const carry_delta_job *job, int, cudaStream_t stream) {
    return job->key <= 32 && job->value <= 32 ? launch<32>(job, stream) : launch<64>(job, stream);
}
