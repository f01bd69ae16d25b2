/* One token for every sequence (decoding) on a GPU: the time is bounded by reading and writing the state once. The
   products with k and with q are computed in one pass (step.cuh):

       seen = (e^g S)^T k;   u = beta (v - seen);   o = scale ((e^g S)^T q + (k.q) u);   S <- e^g S + k u^T */
#include "delta/cuda/plain/step.cuh"

namespace {

constexpr int BLOCKS = 3; /* blocks on a multiprocessor */

template <int FOURS> struct step_memory {
    float4 state[2][ROWS][THREADS];
    float k[2][CARRY_MAX_DELTA_DIM], q[2][CARRY_MAX_DELTA_DIM], decay[2][CARRY_MAX_DELTA_DIM];
    float4 seen[WARPS][FOURS], out[WARPS][FOURS];
};

__device__ __forceinline__ float4 faded(float4 a, float d) {
    return make_float4(a.x * d, a.y * d, a.z * d, a.w * d);
}

template <int FOURS> struct piece : step_piece<FOURS> {
    __device__ __forceinline__ void fetch(const carry_delta_job &job, float4 (&to)[ROWS][THREADS]) const {
        step_piece<FOURS>::fetch(job, job.initial, to);
    }

    __device__ void run(const carry_delta_job &job, step_memory<FOURS> &s, int side) const {
        const int lane = (int)threadIdx.x % 32;
        const float of_beta = beta_of(job, value_of(job.beta, this->beta));
        if ((int)threadIdx.x < job.key) {
            s.k[side][threadIdx.x] = value_of(job.k, this->k);
            s.q[side][threadIdx.x] = value_of(job.q, this->q);
            s.decay[side][threadIdx.x] = this->decay(job);
        }
        __syncthreads();
        float kk = 0.0f;
        float qq = 0.0f;
        float kq = 0.0f;
        for (int i = lane; i < job.key; i += 32) {
            kk = fmaf(s.k[side][i], s.k[side][i], kk);
            qq = fmaf(s.q[side][i], s.q[side][i], qq);
            kq = fmaf(s.k[side][i], s.q[side][i], kq);
        }
        const float k_norm = job.l2norm ? 1.0f / sqrtf(over_warp(kk) + 1e-6f) : 1.0f;
        const float q_norm = job.l2norm ? 1.0f / sqrtf(over_warp(qq) + 1e-6f) : 1.0f;
        kq = over_warp(kq) * k_norm * q_norm;
        __pipeline_wait_prior(1); /* the next piece may still be in flight */
        float4 seen = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4 out = seen;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = this->row(i);
            if (this->has_row(job, i)) {
                float4 S = faded(s.state[side][i][threadIdx.x], s.decay[side][row]);
                fma_four(seen, S, s.k[side][row] * k_norm);
                fma_four(out, S, s.q[side][row] * q_norm);
            }
        }
        seen = over_rows<FOURS>(seen);
        out = over_rows<FOURS>(out);
        if (lane < FOURS) {
            s.seen[threadIdx.x / 32][lane] = seen;
            s.out[threadIdx.x / 32][lane] = out;
        }
        __syncthreads();
        seen = over_warps<FOURS>(s.seen);
        const float4 u = this->correct(job, of_beta, seen);
        float *state = job.final_state + this->offset(job);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = this->row(i);
            if (this->has_row(job, i)) {
                /* Computed again to save registers. */
                float4 S = faded(s.state[side][i][threadIdx.x], s.decay[side][row]);
                fma_four(S, u, s.k[side][row] * k_norm);
                *reinterpret_cast<float4 *>(state + row * job.value) = S;
            }
        }
        if ((int)threadIdx.x < FOURS && this->column < job.value) {
            out = over_warps<FOURS>(s.out);
            fma_four(out, u, kq);
            this->write_output(job, out);
        }
    }
};

template <int FOURS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    delta_step(const __grid_constant__ carry_delta_job job, int64_t pieces, int blocks) {
    extern __shared__ float4 memory[];
    run_pieces<piece<FOURS>>(job, *reinterpret_cast<step_memory<FOURS> *>(memory), pieces, blocks);
}

template <int FOURS> cudaError_t launch(const carry_delta_job *job, int units, cudaStream_t stream) {
    return launch_pieces<FOURS, carry_delta_job>(delta_step<FOURS>, *job, job, (int)sizeof(step_memory<FOURS>), BLOCKS,
                                                 units, stream);
}

} // namespace

bool carry_delta_step_applies(const carry_delta_job *job) {
    return !job->transposed && job->value % 4 == 0 && (uintptr_t)job->initial % 16 == 0 &&
           (uintptr_t)job->final_state % 16 == 0;
}

cudaError_t carry_delta_step_launch(const carry_delta_job *job, int units, cudaStream_t stream) {
    return job->key <= 64    ? launch<32>(job, units, stream)
           : job->key <= 128 ? launch<16>(job, units, stream)
                             : launch<8>(job, units, stream);
}
