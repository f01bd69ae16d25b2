/* One token for every sequence (decoding) on a GPU: the state is read once and written once, which is all that costs.

   A thread takes four columns of eight rows of a state, 16 bytes each. Blocks stay, and while one works on its piece of
   a state the next piece is on its way to shared memory, each thread's own part, which nobody waits for but itself. The
   products with k and with q are made in one pass:

       seen = (e^g S)^T k;   u = beta (v - seen);   o = scale ((e^g S)^T q + (k.q) u);   S <- e^g S + k u^T */
#include <cuda_pipeline.h>

#include "delta/cuda/step_fours.cuh"

namespace {

constexpr int BLOCKS = 3; /* of a multiprocessor */

/* FOURS: pieces of 16 bytes of a row that a block takes; THREADS / FOURS rows at a time, 8 times that in all. */
template <int FOURS> struct step_memory {
    float4 ring[2][ROWS][THREADS];
    float k[2][CARRY_DELTA_MAX_DIM], q[2][CARRY_DELTA_MAX_DIM], decay[2][CARRY_DELTA_MAX_DIM];
    float4 seen[WARPS][FOURS], out[WARPS][FOURS];
};

__device__ __forceinline__ float4 faded(float4 a, float d) {
    return make_float4(a.x * d, a.y * d, a.z * d, a.w * d);
}

/* A piece of work, and the bits of what is small in it, which are asked for one piece ahead. */
template <int FOURS> struct piece {
    int64_t item, head;
    int column;
    unsigned k, q, g, beta, v[4];

    __device__ __forceinline__ void open(const carry_delta_job &job, int64_t unit, int blocks) {
        head = unit / blocks % job.value_heads;
        item = unit / blocks / job.value_heads;
        column = ((int)(unit % blocks) * FOURS + (int)threadIdx.x % FOURS) * 4;
        k = q = g = 0;
        if ((int)threadIdx.x < job.key) {
            k = load_bits(job.k, at_of(job.k, item, 0, head / job.group) + threadIdx.x);
            q = load_bits(job.q, at_of(job.q, item, 0, head / job.group) + threadIdx.x);
            if (job.gated) {
                g = load_bits(job.g, at_of(job.g, item, 0, head) + (job.by_key ? threadIdx.x : 0));
            }
        }
        beta = load_bits(job.beta, at_of(job.beta, item, 0, head));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = column < job.value ? load_bits(job.v, at_of(job.v, item, 0, head) + column + i) : 0;
        }
    }

    __device__ __forceinline__ int64_t at(const carry_delta_job &job) const {
        return (item * job.value_heads + head) * job.key * job.value + column;
    }

    __device__ __forceinline__ void fetch(const carry_delta_job &job, float4 (&to)[ROWS][THREADS]) const {
        const float *from = job.initial + at(job);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = i * (THREADS / FOURS) + (int)threadIdx.x / FOURS;
            if (row < job.key && column < job.value) {
                __pipeline_memcpy_async(&to[i][threadIdx.x], from + row * job.value, sizeof(float4));
            }
        }
    }
};

template <int FOURS>
__device__ void do_piece(const carry_delta_job &job, step_memory<FOURS> &s, const piece<FOURS> &now, int side) {
    const int lane = (int)threadIdx.x % 32;
    const float beta = beta_of(job, value_of(job.beta, now.beta));
    if ((int)threadIdx.x < job.key) {
        s.k[side][threadIdx.x] = value_of(job.k, now.k);
        s.q[side][threadIdx.x] = value_of(job.q, now.q);
        float g = job.gated ? value_of(job.g, now.g) : 0.0f;
        s.decay[side][threadIdx.x] = expf(job.by_key ? g : job.gated ? gate_of(job, g, now.head) : 0.0f);
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
    __pipeline_wait_prior(1); /* the next piece may still be on its way */
    float4 seen = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 out = seen;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = i * (THREADS / FOURS) + (int)threadIdx.x / FOURS;
        if (row < job.key && now.column < job.value) {
            float4 S = faded(s.ring[side][i][threadIdx.x], s.decay[side][row]);
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
    const float4 u = make_float4(
        beta * (value_of(job.v, now.v[0]) - seen.x), beta * (value_of(job.v, now.v[1]) - seen.y),
        beta * (value_of(job.v, now.v[2]) - seen.z), beta * (value_of(job.v, now.v[3]) - seen.w));
    float *state = job.final_state + now.at(job);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = i * (THREADS / FOURS) + (int)threadIdx.x / FOURS;
        if (row < job.key && now.column < job.value) {
            float4 S = faded(s.ring[side][i][threadIdx.x], s.decay[side][row]); /* again: registers are fewer */
            fma_four(S, u, s.k[side][row] * k_norm);
            *reinterpret_cast<float4 *>(state + row * job.value) = S;
        }
    }
    if ((int)threadIdx.x < FOURS && now.column < job.value) {
        out = over_warps<FOURS>(s.out);
        fma_four(out, u, kq);
        int64_t at = at_of(job.o, now.item, 0, now.head) + now.column;
        carry_store_any(job.o.data, job.o.dtype, at, job.scale * out.x);
        carry_store_any(job.o.data, job.o.dtype, at + 1, job.scale * out.y);
        carry_store_any(job.o.data, job.o.dtype, at + 2, job.scale * out.z);
        carry_store_any(job.o.data, job.o.dtype, at + 3, job.scale * out.w);
    }
}

template <int FOURS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    delta_step(const __grid_constant__ carry_delta_job job, int64_t units, int blocks) {
    extern __shared__ float4 memory[];
    step_memory<FOURS> &s = *reinterpret_cast<step_memory<FOURS> *>(memory);
    piece<FOURS> now;
    now.open(job, blockIdx.x, blocks);
    now.fetch(job, s.ring[0]);
    __pipeline_commit();
    int side = 0;
    for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        piece<FOURS> next = now;
        if (unit + gridDim.x < units) {
            next.open(job, unit + gridDim.x, blocks);
            next.fetch(job, s.ring[1 - side]);
        }
        __pipeline_commit();
        do_piece<FOURS>(job, s, now, side);
        now = next;
        side = 1 - side;
    }
}

template <int FOURS> cudaError_t launch(const carry_delta_job *job, int units, cudaStream_t stream) {
    constexpr int bytes = (int)sizeof(step_memory<FOURS>);
    int blocks = (job->value + 4 * FOURS - 1) / (4 * FOURS);
    int64_t pieces = job->sequences * job->value_heads * blocks;
    int64_t most = (int64_t)BLOCKS * (units > 0 ? units : 1);
    cudaError_t error =
        cudaFuncSetAttribute(delta_step<FOURS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    delta_step<FOURS><<<(unsigned)(pieces < most ? pieces : most), THREADS, bytes, stream>>>(*job, pieces, blocks);
    return cudaGetLastError();
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
