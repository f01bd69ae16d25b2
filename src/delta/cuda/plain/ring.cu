/* Steps with a ring on a GPU (step.cuh; the formulas are in ring.c): only the step that fills the ring writes the
   state. Keys in the ring are shared by the blocks of columns of a head: the first block writes them, to a slot that no
   block of the same launch reads. Heads of 128 have a kernel of their own on Hopper GPUs (ring_hopper.cuh). */
#include "delta/cuda/plain/ring_job.h"
#include "delta/cuda/plain/step.cuh"

extern "C" {
#include "core/context.h"
#include "core/span.h"
}
#include "device/cuda.h"

namespace {

constexpr int MOST = CARRY_MAX_DELTA_RING, SOME = 8; /* SOME: tokens that are loaded at once */
static_assert(MOST % SOME == 0, "tokens are loaded in groups");

/* The keys of the ring follow it in memory, `length` rows of KEYS floats. */
template <int FOURS> struct ring_memory {
    static constexpr int KEYS = ROWS * THREADS / FOURS;
    static constexpr int BLOCKS = FOURS == 8 ? 2 : 3; /* most blocks on a multiprocessor */
    float4 state[2][ROWS][THREADS];
    float k[KEYS], q[KEYS], base[KEYS];
    float on_k[MOST], on_q[MOST];
    float4 seen[WARPS][FOURS], out[WARPS][FOURS];

    __device__ __forceinline__ float *keys(int j) {
        return reinterpret_cast<float *>(this + 1) + j * KEYS;
    }
    static int bytes(int64_t length) {
        return (int)(sizeof(ring_memory) + (size_t)length * KEYS * sizeof(float));
    }
};

using ring_job = carry_delta_ring_job;

template <int FOURS> struct piece : step_piece<FOURS> {
    int waiting; /* tokens in the ring */

    __device__ __forceinline__ void open(const ring_job &r, int64_t index, int blocks) {
        step_piece<FOURS>::open(r.job, index, blocks);
        waiting = r.ring.counts[this->unit(r.job) * CARRY_DELTA_RING_COUNTS + this->block];
    }
    __device__ __forceinline__ void fetch(const ring_job &r, float4 (&to)[ROWS][THREADS]) const {
        step_piece<FOURS>::fetch(r.job, r.job.final_state, to);
    }
    __device__ __forceinline__ float4 *u(const ring_job &r, int j) const {
        return reinterpret_cast<float4 *>(r.ring.u + (this->unit(r.job) * r.ring.length + j) * r.job.value +
                                          this->column);
    }
    __device__ void run(const ring_job &r, ring_memory<FOURS> &s, int side) const;
};

/* Writes the token's k and q, and the keys of the ring times their decays up to this token, to shared memory. Returns
   the token's decay. One thread for each key channel. */
template <int FOURS>
__device__ __forceinline__ float weigh(const ring_job &r, ring_memory<FOURS> &s, const piece<FOURS> &now) {
    const carry_delta_job &job = r.job;
    const int c = (int)threadIdx.x;
    if (c >= job.key) {
        return 1.0f;
    }
    const int64_t unit = now.unit(job);
    const float *k = r.ring.k + unit * r.ring.length * job.key + c;
    const float *d = r.ring.decay + unit * r.ring.length * r.ring.decays + (job.by_key ? c : 0);
    s.k[c] = value_of(job.k, now.k);
    s.q[c] = value_of(job.q, now.q);
    const float decay = now.decay(job);
    float base = decay;
#pragma unroll
    for (int first = MOST - SOME; first >= 0; first -= SOME) {
        float keys[SOME], decays[SOME];
#pragma unroll
        for (int j = 0; j < SOME; j++) {
            keys[j] = first + j < now.waiting ? k[(first + j) * job.key] : 0.0f;
            decays[j] = first + j < now.waiting ? d[(first + j) * r.ring.decays] : 1.0f;
        }
#pragma unroll
        for (int j = SOME - 1; j >= 0; j--) {
            if (first + j < now.waiting) {
                s.keys(first + j)[c] = base * keys[j];
                base *= decays[j];
            }
        }
    }
    s.base[c] = base;
    return decay;
}

/* Adds the tokens of the ring and this one to the state. */
template <int FOURS>
__device__ __forceinline__ void write_state(const ring_job &r, ring_memory<FOURS> &s, const piece<FOURS> &now, float4 u,
                                            float k_norm, int side) {
    const carry_delta_job &job = r.job;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = now.row(i);
        if (now.has_row(job, i)) {
            float4 S = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            fma_four(S, s.state[side][i][threadIdx.x], s.base[row]);
            for (int j = 0; j < now.waiting; j++) {
                fma_four(S, *now.u(r, j), s.keys(j)[row]);
            }
            fma_four(S, u, s.k[row] * k_norm);
            *reinterpret_cast<float4 *>(job.final_state + now.offset(job) + row * job.value) = S;
        }
    }
}

/* Multiplies the tokens of the ring by k and q, a token for each warp at a time. */
template <int FOURS>
__device__ __forceinline__ void multiply_ring(const ring_job &r, ring_memory<FOURS> &s, int waiting, float k_norm,
                                              float q_norm) {
    const int lane = (int)threadIdx.x % 32;
    for (int j = (int)threadIdx.x / 32; j < waiting; j += WARPS) {
        float on_k = 0.0f, on_q = 0.0f;
        for (int i = lane; i < r.job.key; i += 32) {
            on_k = fmaf(s.keys(j)[i], s.k[i], on_k);
            on_q = fmaf(s.keys(j)[i], s.q[i], on_q);
        }
        on_k = over_warp(on_k) * k_norm;
        on_q = over_warp(on_q) * q_norm;
        if (lane == 0) {
            s.on_k[j] = on_k;
            s.on_q[j] = on_q;
        }
    }
}

template <int FOURS> __device__ void piece<FOURS>::run(const ring_job &r, ring_memory<FOURS> &s, int side) const {
    const carry_delta_job &job = r.job;
    const piece<FOURS> &now = *this;
    const int64_t unit = now.unit(job);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, group = (int)threadIdx.x / FOURS;
    const bool inside = now.column < job.value;
    const float beta = beta_of(job, value_of(job.beta, now.beta));
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    constexpr int AT_ONCE = THREADS / FOURS, OLD = (MOST + AT_ONCE - 1) / AT_ONCE; /* rows of u for each thread */
    float4 old[OLD];
#pragma unroll
    for (int i = 0; i < OLD; i++) {
        const int j = group + i * AT_ONCE;
        old[i] = j < now.waiting && inside ? *now.u(r, j) : none;
    }
    __syncthreads(); /* all threads have read the piece before this one */
    const float decay = weigh<FOURS>(r, s, now);
    __syncthreads();
    float kk = 0.0f, qq = 0.0f, kq = 0.0f;
    for (int i = lane; i < job.key; i += 32) {
        kk = fmaf(s.k[i], s.k[i], kk);
        qq = fmaf(s.q[i], s.q[i], qq);
        kq = fmaf(s.k[i], s.q[i], kq);
    }
    const float k_norm = job.l2norm ? 1.0f / sqrtf(over_warp(kk) + 1e-6f) : 1.0f;
    const float q_norm = job.l2norm ? 1.0f / sqrtf(over_warp(qq) + 1e-6f) : 1.0f;
    kq = over_warp(kq) * k_norm * q_norm;
    multiply_ring<FOURS>(r, s, now.waiting, k_norm, q_norm);
    __pipeline_wait_prior(1); /* the next piece may still be in flight */
    __syncthreads();
    float4 seen = none, out = none;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = now.row(i);
        if (now.has_row(job, i)) {
            const float4 S = s.state[side][i][threadIdx.x];
            fma_four(seen, S, s.base[row] * s.k[row] * k_norm);
            fma_four(out, S, s.base[row] * s.q[row] * q_norm);
        }
    }
#pragma unroll
    for (int i = 0; i < OLD; i++) {
        const int j = group + i * AT_ONCE;
        if (j < now.waiting) {
            fma_four(seen, old[i], s.on_k[j]);
            fma_four(out, old[i], s.on_q[j]);
        }
    }
    seen = over_rows<FOURS>(seen);
    out = over_rows<FOURS>(out);
    if (lane < FOURS) {
        s.seen[warp][lane] = seen;
        s.out[warp][lane] = out;
    }
    __syncthreads();
    seen = over_warps<FOURS>(s.seen);
    const float4 u = now.correct(job, beta, seen);
    const bool fills = now.waiting + 1 >= r.ring.length;
    if (fills) {
        write_state<FOURS>(r, s, now, u, k_norm, side);
    } else if (now.block == 0 && (int)threadIdx.x < job.key) {
        const int64_t at = unit * r.ring.length + now.waiting;
        r.ring.k[at * job.key + threadIdx.x] = s.k[threadIdx.x] * k_norm;
        if ((int)threadIdx.x < r.ring.decays) {
            r.ring.decay[at * r.ring.decays + threadIdx.x] = decay;
        }
    }
    if ((int)threadIdx.x < FOURS && inside) {
        if (!fills) {
            *now.u(r, now.waiting) = u;
        }
        out = over_warps<FOURS>(s.out);
        fma_four(out, u, kq);
        now.write_output(job, out);
    }
    if (threadIdx.x == 0) {
        r.ring.counts[unit * CARRY_DELTA_RING_COUNTS + now.block] = fills ? 0 : now.waiting + 1;
    }
}

template <int FOURS>
__global__ void __launch_bounds__(THREADS, ring_memory<FOURS>::BLOCKS)
    delta_step_ring(const __grid_constant__ ring_job r, int64_t pieces, int blocks) {
    extern __shared__ float4 memory[];
    run_pieces<piece<FOURS>>(r, *reinterpret_cast<ring_memory<FOURS> *>(memory), pieces, blocks);
}

/* Adds the tokens of the rings of units from `first` on to their states. One block for each state. */
__global__ void __launch_bounds__(THREADS)
    delta_ring_flush(const __grid_constant__ ring_job r, int64_t first, int64_t units) {
    __shared__ float keys[MOST][CARRY_MAX_DELTA_DIM], base[CARRY_MAX_DELTA_DIM];
    const carry_delta_job &job = r.job;
    for (int64_t unit = first + blockIdx.x; unit < first + units; unit += gridDim.x) {
        const int waiting = r.ring.counts[unit * CARRY_DELTA_RING_COUNTS];
        __syncthreads(); /* all threads have read the count */
        if ((int)threadIdx.x < CARRY_DELTA_RING_COUNTS) {
            r.ring.counts[unit * CARRY_DELTA_RING_COUNTS + threadIdx.x] = 0;
        }
        if ((int)threadIdx.x < job.key) {
            float w = 1.0f;
            for (int j = waiting - 1; j >= 0; j--) {
                const int64_t at = unit * r.ring.length + j;
                keys[j][threadIdx.x] = w * r.ring.k[at * job.key + threadIdx.x];
                w *= r.ring.decay[at * r.ring.decays + (job.by_key ? threadIdx.x : 0)];
            }
            base[threadIdx.x] = w;
        }
        __syncthreads();
        float *S = job.final_state + unit * job.key * job.value;
        for (int i = (int)threadIdx.x; i < job.key * job.value && waiting > 0; i += THREADS) {
            const int row = i / job.value;
            float sum = base[row] * S[i];
            for (int j = 0; j < waiting; j++) {
                sum = fmaf(keys[j][row], r.ring.u[(unit * r.ring.length + j) * job.value + i % job.value], sum);
            }
            S[i] = sum;
        }
        __syncthreads();
    }
}

template <int FOURS> cudaError_t launch(const ring_job *r, int units, cudaStream_t stream) {
    const int blocks = r->ring.length > 8 ? 2 : ring_memory<FOURS>::BLOCKS; /* more have no room */
    return launch_pieces<FOURS, ring_job>(delta_step_ring<FOURS>, *r, &r->job,
                                          ring_memory<FOURS>::bytes(r->ring.length), blocks, units, stream);
}

} // namespace

carry_status carry_delta_cuda_step_ring(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                        const int32_t *slots, const carry_delta_ring *ring,
                                        const carry_delta_forward_args *inputs) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    ring_job r = {carry_delta_step_job(plan, o, state, inputs), *ring};
    r.job.slots = slots;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    CARRY_CUDA_TRY(carry_delta_ring_copies_apply(&r, ordinal)
                       ? carry_delta_ring_copies_launch(&r, plan->gpu.units, stream)
                   : r.job.key <= 64  ? launch<32>(&r, plan->gpu.units, stream)
                   : r.job.key <= 128 ? launch<16>(&r, plan->gpu.units, stream)
                                      : launch<8>(&r, plan->gpu.units, stream),
                   "a step of the delta rule could not be started");
    return CARRY_OK;
}

carry_status carry_delta_cuda_ring_flush(carry_delta_plan *plan, const carry_tensor *state,
                                         const carry_delta_ring *ring, int64_t first, int64_t units) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    ring_job r = {carry_delta_step_job(plan, NULL, state, NULL), *ring};
    CARRY_TRY(carry_delta_begin(plan, &stream));
    delta_ring_flush<<<(unsigned)(units < INT32_MAX ? units : INT32_MAX), THREADS, 0, stream>>>(r, first, units);
    CARRY_CUDA_TRY(cudaGetLastError(), "a ring could not be flushed");
    return CARRY_OK;
}
