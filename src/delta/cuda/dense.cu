/* Kernels around a dense scan. A warp has one token of one unit. Its lanes share the columns of V, so that whole rows
   of a state are read and written; sums over V use shuffles. The kernels read every state once or twice from memory,
   which bounds their time. */
#include "delta/cuda/device.cuh"

extern "C" {
#include "delta/dense.h"
}
#include "core/context.h"
#include "device/cuda.h"

namespace {

constexpr int WARPS = 4;
constexpr int EACH = CARRY_MAX_DELTA_DIM / 32; /* most columns of a lane */
constexpr int64_t MOST_BLOCKS = 1 << 20;

struct dense_job {
    carry_delta_job job;
    carry_delta_array grad_o, dv;
    carry_delta_units units;
};

/* A token of a unit. load_row puts its row of q or k into shared memory, normalised if the problem asks for it. */
struct dense_token {
    int64_t item, batch, token, head; /* item: the index among the tokens of all units of this call */

    __device__ __forceinline__ dense_token(const dense_job &d, int64_t at) : item(at) {
        const int64_t unit = d.units.first + at / d.job.tokens;
        batch = unit / d.job.value_heads;
        token = at % d.job.tokens;
        head = unit % d.job.value_heads;
    }

    __device__ __forceinline__ void load_row(float *to, const carry_delta_job &job, const carry_delta_array &from,
                                             int lane) const {
        const int64_t start = at_of(from, batch, token, head / job.group);
        float squares = 0.0f;
        for (int r = lane; r < job.key; r += 32) {
            const float x = load_one(from, start + r);
            to[r] = x;
            squares = fmaf(x, x, squares);
        }
        const float factor = job.l2norm ? 1.0f / sqrtf(over_warp(squares) + 1e-6f) : 1.0f;
        for (int r = lane; r < job.key; r += 32) {
            to[r] *= factor;
        }
        __syncwarp();
    }

    __device__ __forceinline__ void load_columns(float (&to)[EACH], const carry_delta_job &job,
                                                 const carry_delta_array &from, int lane) const {
        const int64_t start = at_of(from, batch, token, head);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            to[e] = e * 32 + lane < job.value ? load_one(from, start + e * 32 + lane) : 0.0f;
        }
    }

    __device__ __forceinline__ float decay(const carry_delta_job &job) const {
        return job.gated ? expf(gate_of(job, load_one(job.g, at_of(job.g, batch, token, head)), head)) : 1.0f;
    }

    __device__ __forceinline__ float beta(const carry_delta_job &job) const {
        return beta_of(job, load_one(job.beta, at_of(job.beta, batch, token, head)));
    }
};

__global__ void __launch_bounds__(WARPS * 32) dense_steps(const __grid_constant__ dense_job d, int64_t items) {
    __shared__ float rows[WARPS][CARRY_MAX_DELTA_DIM];
    const carry_delta_job &job = d.job;
    const int lane = (int)threadIdx.x % 32;
    float *k = rows[threadIdx.x / 32];
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < items; i += (int64_t)gridDim.x * WARPS) {
        const dense_token at(d, i);
        float v[EACH];
        at.load_row(k, job, job.k, lane);
        at.load_columns(v, job, job.v, lane);
        const float decay = at.token == 0 ? 0.0f : at.decay(job);
        const float beta = at.beta(job);
        float *A = d.units.A + i * job.key * job.key;
        float *b = d.units.S + i * job.key * job.value;
        for (int r = 0; r < job.key; r++) {
            const float along = beta * k[r];
            for (int c = lane; c < job.key; c += 32) {
                A[r * job.key + c] = (r == c ? decay : 0.0f) - decay * along * k[c];
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (e * 32 + lane < job.value) {
                    b[r * job.value + e * 32 + lane] = along * v[e];
                }
            }
        }
        __syncwarp();
    }
}

__global__ void __launch_bounds__(WARPS * 32) dense_outputs(const __grid_constant__ dense_job d, int64_t items) {
    __shared__ float rows[WARPS][CARRY_MAX_DELTA_DIM];
    const carry_delta_job &job = d.job;
    const int lane = (int)threadIdx.x % 32;
    float *q = rows[threadIdx.x / 32];
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < items; i += (int64_t)gridDim.x * WARPS) {
        const dense_token at(d, i);
        const float *S = d.units.S + i * job.key * job.value;
        float o[EACH] = {};
        at.load_row(q, job, job.q, lane);
        for (int r = 0; r < job.key; r++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (e * 32 + lane < job.value) {
                    o[e] = fmaf(job.scale * q[r], S[r * job.value + e * 32 + lane], o[e]);
                }
            }
        }
        const int64_t start = at_of(job.o, at.batch, at.token, at.head);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (e * 32 + lane < job.value) {
                carry_store_any(job.o.data, job.o.dtype, start + e * 32 + lane, o[e]);
            }
        }
        __syncwarp();
    }
}

__global__ void __launch_bounds__(WARPS * 32) dense_seeds(const __grid_constant__ dense_job d, int64_t items) {
    __shared__ float rows[WARPS][CARRY_MAX_DELTA_DIM];
    const carry_delta_job &job = d.job;
    const int lane = (int)threadIdx.x % 32;
    float *q = rows[threadIdx.x / 32];
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < items; i += (int64_t)gridDim.x * WARPS) {
        const dense_token at(d, i);
        float *L = d.units.L + i * job.key * job.value;
        float grad[EACH];
        at.load_row(q, job, job.q, lane);
        at.load_columns(grad, job, d.grad_o, lane);
        for (int r = 0; r < job.key; r++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (e * 32 + lane < job.value) {
                    L[r * job.value + e * 32 + lane] = job.scale * q[r] * grad[e];
                }
            }
        }
        __syncwarp();
    }
}

/* A and b are those of dense.h. With L the gradient of b[t] and P = S[t-1], dA = L P^T is not written to memory:
       dq = scale S do      dv = beta L^T k      dbeta = k^T L v - e^g k^T dA k
       dk = beta L v - beta e^g (L (P^T k) + P (L^T k))      dg = e^g (tr dA - beta k^T dA k) */
__global__ void __launch_bounds__(WARPS * 32) dense_parts(const __grid_constant__ dense_job d, int64_t items) {
    __shared__ float rows[WARPS][CARRY_MAX_DELTA_DIM];
    const carry_delta_job &job = d.job;
    const int lane = (int)threadIdx.x % 32;
    float *k = rows[threadIdx.x / 32];
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < items; i += (int64_t)gridDim.x * WARPS) {
        const dense_token at(d, i);
        const int64_t size = (int64_t)job.key * job.value;
        const float *S = d.units.S + i * size;
        const float *L = d.units.L + i * size;
        const bool has_past = at.token > 0;
        const int64_t row = (at.batch * job.tokens + at.token) * job.value_heads + at.head;
        const float decay = at.decay(job);
        const float beta = at.beta(job);
        float v[EACH], grad[EACH], L_k[EACH] = {}, P_k[EACH] = {};
        float trace = 0.0f;
        at.load_row(k, job, job.k, lane);
        at.load_columns(v, job, job.v, lane);
        at.load_columns(grad, job, d.grad_o, lane);
        for (int r = 0; r < job.key; r++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int c = e * 32 + lane;
                if (c < job.value) {
                    const float l = L[r * job.value + c];
                    const float p = has_past ? S[r * job.value + c - size] : 0.0f;
                    L_k[e] = fmaf(k[r], l, L_k[e]);
                    P_k[e] = fmaf(k[r], p, P_k[e]);
                    trace = fmaf(l, p, trace);
                }
            }
        }
        float along = 0.0f;
        const int64_t dv_at = at_of(d.dv, at.batch, at.token, at.head);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            along = fmaf(L_k[e], P_k[e], along);
            if (e * 32 + lane < job.value) {
                carry_store_any(d.dv.data, d.dv.dtype, dv_at + e * 32 + lane, beta * L_k[e]);
            }
        }
        along = over_warp(along);
        trace = over_warp(trace);
        float dbeta = -decay * along;
        for (int r = 0; r < job.key; r++) {
            float dq = 0.0f, on_v = 0.0f, on_k = 0.0f;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int c = e * 32 + lane;
                if (c < job.value) {
                    const float l = L[r * job.value + c];
                    const float p = has_past ? S[r * job.value + c - size] : 0.0f;
                    dq = fmaf(S[r * job.value + c], grad[e], dq);
                    on_v = fmaf(l, v[e], on_v);
                    on_k = fmaf(l, P_k[e], fmaf(p, L_k[e], on_k));
                }
            }
            dq = over_warp(dq);
            on_v = over_warp(on_v);
            on_k = over_warp(on_k);
            dbeta = fmaf(k[r], on_v, dbeta);
            if (lane == 0) {
                d.units.part_q[row * job.key + r] = job.scale * dq;
                d.units.part_k[row * job.key + r] = beta * (on_v - decay * on_k);
            }
        }
        if (lane == 0) {
            d.units.part_beta[row] = dbeta;
            d.units.part_g[row] = decay * (trace - beta * along);
        }
        __syncwarp();
    }
}

typedef void (*dense_kernel)(const dense_job, int64_t);

carry_status launch(const carry_delta_plan *plan, dense_kernel kernel, const dense_job &d) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    const int64_t items = d.units.count * d.job.tokens;
    const int64_t blocks = (items + WARPS - 1) / WARPS;
    cudaStream_t stream;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    kernel<<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), WARPS * 32, 0, stream>>>(d, items);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule as a scan could not be started");
    return CARRY_OK;
}

carry_status do_steps(const carry_delta_plan *plan, const carry_delta_inputs *in, const carry_delta_units *units) {
    return launch(plan, dense_steps, dense_job{carry_delta_job_of(plan, in), {}, {}, *units});
}

carry_status do_outputs(const carry_delta_plan *plan, const carry_delta_inputs *in, carry_tensor o,
                        const carry_delta_units *units) {
    dense_job d = {carry_delta_job_of(plan, in), {}, {}, *units};
    d.job.o = carry_delta_array_of(&o);
    return launch(plan, dense_outputs, d);
}

carry_status do_seeds(const carry_delta_plan *plan, const carry_delta_inputs *in, carry_tensor grad_o,
                      const carry_delta_units *units) {
    return launch(plan, dense_seeds,
                  dense_job{carry_delta_job_of(plan, in), carry_delta_array_of(&grad_o), {}, *units});
}

carry_status do_parts(const carry_delta_plan *plan, const carry_delta_backward_args *args,
                      const carry_delta_units *units) {
    const carry_delta_inputs in = carry_delta_back_inputs_of(args);
    return launch(plan, dense_parts,
                  dense_job{carry_delta_job_of(plan, &in), carry_delta_array_of(&args->d_o),
                            carry_delta_array_of(&args->dv), *units});
}

carry_status do_gradients(const carry_delta_plan *plan, const carry_delta_backward_args *args,
                          const carry_delta_units *units) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    carry_delta_back_job back = carry_delta_back_job_of(plan, args);
    back.part_q = units->part_q;
    back.part_k = units->part_k;
    back.part_beta = units->part_beta;
    back.part_g = units->part_g;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    CARRY_CUDA_TRY(carry_delta_gradients_launch(&back, stream), "gradients of the delta rule could not be summed");
    return CARRY_OK;
}

} // namespace

extern "C" {
extern const carry_delta_dense carry_delta_cuda_dense;
const carry_delta_dense carry_delta_cuda_dense = {
    .steps = do_steps, .outputs = do_outputs, .seeds = do_seeds, .parts = do_parts, .gradients = do_gradients};
}
