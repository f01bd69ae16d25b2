/* The backward pass of "tiles64" (mma.cuh): a block walks the chunks of one value head of one sequence from the last to
   the first. Each chunk starts from the state that entered it, which the forward pass kept. dS is the gradient of the
   state that leaves. Warps with 16 columns of V each compute, as in the forward pass,

       dx = P^T do + left k dS;   (I + beta A)^T y = dx;   dv = beta y;   dbeta = y.rest
       dS <- e^{G[last]} dS + (fade scale q)^T do - (fade k)^T dv

   Then x, dv, S and dS are in shared memory, and warps with 16 tokens each compute the sums over V,
   Z[i,j] = do[i].x[j] and W[i,j] = dv[i].x[j]. With D[i,j] = e^{G[i]-G[j]}:

       dq[i] = scale (fade[i] S do[i] + sum_{j<=i} D[i,j] Z[i,j] k[j])
       dk[i] = left[i] dS x[i] - fade[i] S dv[i] - sum_{j<i} D[i,j] W[i,j] k[j]
               + sum_{m>=i} scale D[m,i] Z[m,i] q[m] - sum_{m>i} D[m,i] W[m,i] k[m]

   The gradient of a gate has the terms of S and dS, and the sum of M[i,j] = P[i,j] Z[i,j] - A[i,j] W[i,j] over the
   pairs with one token on each side of the gate. M is summed by rows and by columns from the same numbers, so that
   pairs with both tokens on one side cancel. */
#include "delta/cuda/tiles/rows.cuh"

using namespace DELTA_MMA;

namespace {

template <int D> struct backward_walk {
    static constexpr int SIDES = backward_memory<D>::SIDES;
    const carry_delta_back_job &back;
    backward_memory<D> &m;
    int64_t sequence, head;
    delta_place place;
    columns_walk<D> columns;
    rows_walk<D> rows;
    numbers next;

    __device__ int count_from(int64_t t) const {
        return place.length - t < C ? (int)(place.length - t) : C;
    }

    __device__ void fetch(int64_t t, int side) {
        const carry_delta_job &job = back.job;
        if (t >= 0) {
            const int count = count_from(t);
            load_tile<D>(m.q[side], job.q, place, t, head / job.group, count, job.key);
            load_tile<D>(m.k[side], job.k, place, t, head / job.group, count, job.key);
            load_tile<D>(m.v[side], job.v, place, t, head, count, job.value);
            load_tile<D>(m.grad[side], back.grad_o, place, t, head, count, job.value);
            next.fetch(job, place, t, head, count);
        }
        __pipeline_commit();
    }

    __device__ void run() {
        const carry_delta_job &job = back.job;
        const int64_t at = sequence * job.value_heads + head;
        clear<D / 8>(columns.dS);
        if (warp_of() < D / 16 && back.dfinal != nullptr) {
            load_slice<D>(columns.dS, job, back.dfinal, at, job.transposed);
        }
        int side = 0;
        int64_t t = (place.length + C - 1) / C * C - C;
        fetch(t, 0);
        for (; t >= 0; t -= C, side = SIDES - 1 - side) {
            const int count = count_from(t);
            const numbers now = next;
            __pipeline_wait_prior(0);
            __syncthreads();
            if (SIDES == 2) {
                fetch(t - C, 1 - side);
            }
            prepare<D>(m.p, m.q[side], m.k[side], job, now, head, count);
            if (warp_of() < D / 16) {
                columns.chunk(t, side);
            }
            __syncthreads();
            rows.chunk(t, side, count);
            store_tile<D>(back.dv, m.dv, place, t, head, count, job.value);
            __syncthreads();
            if (SIDES == 1) {
                fetch(t - C, 0);
            }
            if (warp_of() == 0) {
                rows.finish(t, count);
            }
        }
        if (warp_of() < D / 16 && back.dinitial != nullptr) {
            store_slice<D>(back.dinitial, at, columns.dS, job, job.transposed);
        }
    }
};

template <int D>
__global__ void __launch_bounds__(THREADS, 2)
    delta_tiles_backward(const __grid_constant__ carry_delta_back_job back, int64_t units) {
    extern __shared__ float4 memory[];
    auto &m = *reinterpret_cast<backward_memory<D> *>(memory);
    for (int64_t i = blockIdx.x; i < units; i += gridDim.x) {
        const int64_t sequence = i / back.job.value_heads;
        const int64_t head = i % back.job.value_heads;
        const delta_place place = place_of(back.job, sequence);
        backward_walk<D> walk = {
            back, m, sequence, head, place, {back, m, sequence, head, place}, {back, m, head, place}};
        walk.run();
        __syncthreads();
    }
}

template <int D> cudaError_t launch(const carry_delta_back_job *back, cudaStream_t stream) {
    return launch_items(delta_tiles_backward<D>, back->job.sequences * back->job.value_heads, THREADS,
                        (int)sizeof(backward_memory<D>), stream, *back);
}

} // namespace

cudaError_t carry_delta_tiles_backward(const carry_delta_back_job *back, int, cudaStream_t stream) {
    return back->job.key <= 32 && back->job.value <= 32 ? launch<32>(back, stream) : launch<64>(back, stream);
}
