/* One token for every sequence (decoding) on a GPU: the state is read once and written once, which is all that costs.

   A block takes 64 columns of one state, a thread four columns of every 16th row, 16 bytes each, all of them loaded
   before anything else is waited for. The products with k and with q are made in one pass over the registers:

       seen = (e^g S)^T k;   u = beta (v - seen);   o = scale ((e^g S)^T q + (k.q) u);   S <- e^g S + k u^T */
#include "delta/rows.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int FOURS = 16;               /* 16-byte pieces of a row that a block takes */
constexpr int COLUMNS = 4 * FOURS;
constexpr int GROUPS = THREADS / FOURS; /* rows at a time */
constexpr int WARPS = THREADS / 32;

struct scratch {
    float k[CARRY_DELTA_MAX_DIM], q[CARRY_DELTA_MAX_DIM], decay[CARRY_DELTA_MAX_DIM];
    alignas(16) float seen[WARPS][COLUMNS];
    alignas(16) float out[WARPS][COLUMNS];
};

__device__ __forceinline__ float over_warp(float x) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        x += __shfl_xor_sync(WARP, x, far);
    }
    return x;
}

__device__ __forceinline__ float4 add_four(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float4 far_four(float4 a, int far) {
    return make_float4(__shfl_xor_sync(WARP, a.x, far), __shfl_xor_sync(WARP, a.y, far),
                       __shfl_xor_sync(WARP, a.z, far), __shfl_xor_sync(WARP, a.w, far));
}

__device__ __forceinline__ void fma_four(float4 &to, float4 a, float b) {
    to.x = fmaf(a.x, b, to.x);
    to.y = fmaf(a.y, b, to.y);
    to.z = fmaf(a.z, b, to.z);
    to.w = fmaf(a.w, b, to.w);
}

/* ROWS: of a thread. */
template <int ROWS>
__global__ void __launch_bounds__(THREADS, ROWS <= 8 ? 3 : 2)
    delta_step(const __grid_constant__ carry_delta_job job, int64_t units, int blocks) {
    __shared__ scratch s;
    const int lane = (int)threadIdx.x % 32;
    const int warp = (int)threadIdx.x / 32;
    const int group = (int)threadIdx.x / FOURS;
    for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const int64_t head = unit / blocks % job.value_heads;
        const int64_t item = unit / blocks / job.value_heads;
        const int column = (int)(unit % blocks) * COLUMNS + (int)threadIdx.x % FOURS * 4;
        const bool inside = column < job.value;
        float *state = job.final_state + (item * job.value_heads + head) * job.key * job.value + column;
        float4 S[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = i * GROUPS + group;
            S[i] = inside && row < job.key ? *reinterpret_cast<const float4 *>(state + row * job.value)
                                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        const float beta = beta_of(job, load_one(job.beta, at_of(job.beta, item, 0, head)));
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (inside) {
            int64_t at = at_of(job.v, item, 0, head) + column;
            v = make_float4(load_one(job.v, at), load_one(job.v, at + 1), load_one(job.v, at + 2),
                            load_one(job.v, at + 3));
        }
        float one = job.gated && !job.by_key ? expf(gate_of(job, load_one(job.g, at_of(job.g, item, 0, head)), head))
                                             : 1.0f;
        for (int i = (int)threadIdx.x; i < job.key; i += THREADS) {
            s.k[i] = load_one(job.k, at_of(job.k, item, 0, head / job.group) + i);
            s.q[i] = load_one(job.q, at_of(job.q, item, 0, head / job.group) + i);
            s.decay[i] = job.by_key ? expf(load_one(job.g, at_of(job.g, item, 0, head) + i)) : one;
        }
        __syncthreads();
        float kk = 0.0f;
        float qq = 0.0f;
        float kq = 0.0f;
        for (int i = lane; i < job.key; i += 32) {
            kk = fmaf(s.k[i], s.k[i], kk);
            qq = fmaf(s.q[i], s.q[i], qq);
            kq = fmaf(s.k[i], s.q[i], kq);
        }
        const float k_norm = job.l2norm ? 1.0f / sqrtf(over_warp(kk) + 1e-6f) : 1.0f;
        const float q_norm = job.l2norm ? 1.0f / sqrtf(over_warp(qq) + 1e-6f) : 1.0f;
        kq = over_warp(kq) * k_norm * q_norm;
        float4 seen = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4 out = seen;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = i * GROUPS + group;
            if (row < job.key) {
                float d = s.decay[row];
                S[i] = make_float4(S[i].x * d, S[i].y * d, S[i].z * d, S[i].w * d);
                fma_four(seen, S[i], s.k[row] * k_norm);
                fma_four(out, S[i], s.q[row] * q_norm);
            }
        }
        seen = add_four(seen, far_four(seen, FOURS));
        out = add_four(out, far_four(out, FOURS));
        if (lane < FOURS) {
            *reinterpret_cast<float4 *>(&s.seen[warp][lane * 4]) = seen;
            *reinterpret_cast<float4 *>(&s.out[warp][lane * 4]) = out;
        }
        __syncthreads();
        seen = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            seen = add_four(seen, *reinterpret_cast<const float4 *>(&s.seen[w][lane % FOURS * 4]));
        }
        const float4 u = make_float4(beta * (v.x - seen.x), beta * (v.y - seen.y), beta * (v.z - seen.z),
                                     beta * (v.w - seen.w));
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = i * GROUPS + group;
            if (inside && row < job.key) {
                fma_four(S[i], u, s.k[row] * k_norm);
                *reinterpret_cast<float4 *>(state + row * job.value) = S[i];
            }
        }
        if ((int)threadIdx.x < FOURS && inside) {
            out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                out = add_four(out, *reinterpret_cast<const float4 *>(&s.out[w][lane * 4]));
            }
            fma_four(out, u, kq);
            int64_t at = at_of(job.o, item, 0, head) + column;
            carry_store_any(job.o.data, job.o.dtype, at, job.scale * out.x);
            carry_store_any(job.o.data, job.o.dtype, at + 1, job.scale * out.y);
            carry_store_any(job.o.data, job.o.dtype, at + 2, job.scale * out.z);
            carry_store_any(job.o.data, job.o.dtype, at + 3, job.scale * out.w);
        }
        __syncthreads(); /* before the next unit's k and q */
    }
}

} // namespace

bool carry_delta_step_applies(const carry_delta_job *job) {
    return !job->transposed && job->value % 4 == 0 && (uintptr_t)job->final_state % 16 == 0;
}

cudaError_t carry_delta_step_launch(const carry_delta_job *job, cudaStream_t stream) {
    int blocks = (job->value + COLUMNS - 1) / COLUMNS;
    int64_t units = job->sequences * job->value_heads * blocks;
    unsigned grid = (unsigned)(units < INT32_MAX ? units : INT32_MAX);
    if (job->key <= 4 * GROUPS) {
        delta_step<4><<<grid, THREADS, 0, stream>>>(*job, units, blocks);
    } else if (job->key <= 8 * GROUPS) {
        delta_step<8><<<grid, THREADS, 0, stream>>>(*job, units, blocks);
    } else {
        delta_step<16><<<grid, THREADS, 0, stream>>>(*job, units, blocks);
    }
    return cudaGetLastError();
}
