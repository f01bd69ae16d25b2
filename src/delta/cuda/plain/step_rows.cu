/* One token for every sequence on a GPU where states are V x K (state_transposed): a row belongs to one value, so
   one warp holds the whole row and both products are sums over its lanes.

       seen = e^g S k;   u = beta (v - seen);   o = scale (e^g S q + (k.q) u);   S <- e^g S + u k^T

   A warp first loads all its rows, since their latency bounds the time. */
#include "delta/cuda/device.cuh"
#include "delta/cuda/plain/plain.h"

namespace {

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;

__device__ __forceinline__ float dot_four(float4 a, float4 b) {
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w)));
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ __forceinline__ float4 times(float4 a, float b) {
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

__device__ __forceinline__ float4 load_four(const carry_delta_array &array, int64_t at) {
    return make_float4(load_one(array, at), load_one(array, at + 1), load_one(array, at + 2), load_one(array, at + 3));
}

/* Each lane has FOURS pieces of 16 bytes of a row, so K is at most 128 FOURS. Each warp has ROWS rows. */
template <int FOURS, int ROWS>
__global__ void __launch_bounds__(THREADS) delta_step_rows(const __grid_constant__ carry_delta_job job, int blocks) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t lines = blockIdx.x / blocks; /* index over items and heads */
    const int64_t head = lines % job.value_heads, item = lines / job.value_heads;
    const int first = ((int)(blockIdx.x % blocks) * WARPS + (int)threadIdx.x / 32) * ROWS;
    const int64_t slot = job.slots != nullptr ? job.slots[item] : item;
    const int64_t start = (slot * job.value_heads + head) * job.value * job.key;
    float4 S[ROWS][FOURS], k[FOURS], q[FOURS], decay[FOURS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            const int column = (j * 32 + lane) * 4;
            S[r][j] =
                first + r < job.value && column < job.key
                    ? *reinterpret_cast<const float4 *>(job.initial + start + (int64_t)(first + r) * job.key + column)
                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    const float g = job.gated && !job.by_key ? gate_of(job, load_one(job.g, at_of(job.g, item, 0, head)), head) : 0.0f;
    const float beta = beta_of(job, load_one(job.beta, at_of(job.beta, item, 0, head)));
    float kk = 0.0f, qq = 0.0f, kq = 0.0f;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        const int column = (j * 32 + lane) * 4;
        const float e = expf(g);
        k[j] = q[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        decay[j] = make_float4(e, e, e, e);
        if (column < job.key) {
            k[j] = load_four(job.k, at_of(job.k, item, 0, head / job.group) + column);
            q[j] = load_four(job.q, at_of(job.q, item, 0, head / job.group) + column);
            if (job.by_key) {
                const float4 by = load_four(job.g, at_of(job.g, item, 0, head) + column);
                decay[j] = make_float4(expf(by.x), expf(by.y), expf(by.z), expf(by.w));
            }
        }
        kk += dot_four(k[j], k[j]);
        qq += dot_four(q[j], q[j]);
        kq += dot_four(k[j], q[j]);
    }
    const float k_norm = job.l2norm ? 1.0f / sqrtf(over_warp(kk) + 1e-6f) : 1.0f;
    const float q_norm = job.l2norm ? 1.0f / sqrtf(over_warp(qq) + 1e-6f) : 1.0f;
    kq = over_warp(kq) * k_norm * q_norm;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (first + r >= job.value) { /* the same for the whole warp */
            break;
        }
        float seen = 0.0f, out = 0.0f;
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            S[r][j] = times(S[r][j], decay[j]);
            seen += dot_four(S[r][j], k[j]);
            out += dot_four(S[r][j], q[j]);
        }
        seen = over_warp(seen) * k_norm;
        out = over_warp(out) * q_norm;
        const float v = load_one(job.v, at_of(job.v, item, 0, head) + first + r);
        const float u = beta * (v - seen);
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            const int column = (j * 32 + lane) * 4;
            const float4 more = times(k[j], u * k_norm);
            if (column < job.key) {
                *reinterpret_cast<float4 *>(job.final_state + start + (int64_t)(first + r) * job.key + column) =
                    make_float4(S[r][j].x + more.x, S[r][j].y + more.y, S[r][j].z + more.z, S[r][j].w + more.w);
            }
        }
        if (lane == 0) {
            carry_store_any(job.o.data, job.o.dtype, at_of(job.o, item, 0, head) + first + r,
                            job.scale * fmaf(kq, u, out));
        }
    }
}

template <int FOURS, int ROWS> cudaError_t launch(const carry_delta_job *job, cudaStream_t stream) {
    const int blocks = (job->value + WARPS * ROWS - 1) / (WARPS * ROWS);
    delta_step_rows<FOURS, ROWS>
        <<<(unsigned)(job->sequences * job->value_heads * blocks), THREADS, 0, stream>>>(*job, blocks);
    return cudaGetLastError();
}

} // namespace

bool carry_delta_step_rows_applies(const carry_delta_job *job) {
    return job->transposed && job->key % 4 == 0 && (uintptr_t)job->initial % 16 == 0 &&
           (uintptr_t)job->final_state % 16 == 0 && job->sequences * job->value_heads <= INT32_MAX / 32;
}

cudaError_t carry_delta_step_rows_launch(const carry_delta_job *job, cudaStream_t stream) {
    return job->key <= 128 ? launch<1, 8>(job, stream) : launch<2, 4>(job, stream);
}
