/* Decays of KDA on NVIDIA GPUs. Forward: one thread per element. Backward: a block has the columns of one head, and a
   thread takes every THREADS-th of these columns through all tokens: it writes da and adds up the gradients of A_log
   and dt_bias, in double and in a fixed order. */
#include <math.h>

extern "C" {
#include "ops/decay.h"
}

#include "ops/cuda/nn.cuh"

namespace {

template <typename T> struct decay_job {
    row_of<T> a, da;
    float *g; /* backward: dg */
    const float *A_log, *dt_bias;
    float *dA_log, *ddt_bias;
    int64_t tokens, width, each; /* width: columns of all heads; each: of one head */
    float bound;
};

__device__ __forceinline__ float softplus_of(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

template <typename T> __global__ void __launch_bounds__(THREADS) decay_kernel(decay_job<T> j) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < j.tokens * j.width;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t c = i % j.width;
        const float rate = expf(j.A_log[c / j.each]), x = j.a.get(i) + j.dt_bias[c];
        j.g[i] = j.bound != 0.0f ? j.bound * sigmoid_of(rate * x) : -rate * softplus_of(x);
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) decay_backward_kernel(decay_job<T> j) {
    __shared__ double parts[THREADS / 32];
    const int64_t head = blockIdx.x;
    const float rate = -expf(j.A_log[head]);
    double dA = 0.0;
    for (int64_t c = head * j.each + threadIdx.x; c < (head + 1) * j.each; c += THREADS) {
        double dbias = 0.0;
        for (int64_t t = 0; t < j.tokens; t++) {
            const int64_t i = t * j.width + c;
            const float x = j.a.get(i) + j.dt_bias[c], dg = j.g[i];
            const float s = sigmoid_of(j.bound != 0.0f ? -rate * x : x);
            const float da = j.bound != 0.0f ? -dg * j.bound * s * (1.0f - s) * rate : dg * rate * s;
            dA += (double)(j.bound != 0.0f ? da * x : dg * rate * softplus_of(x));
            dbias += (double)da;
            j.da.put(i, da);
        }
        j.ddt_bias[c] += (float)dbias;
    }
    dA = group_sum<THREADS>(dA, parts);
    if (threadIdx.x == 0) {
        j.dA_log[head] += (float)dA;
    }
}

template <typename T>
decay_job<T> job_of(const carry_tensor &g, const carry_tensor &a, const carry_tensor &A_log,
                    const carry_tensor &dt_bias, float bound) {
    decay_job<T> j = {};
    j.bound = bound;
    j.a = row<T>(a);
    j.g = (float *)g.data;
    j.A_log = (const float *)A_log.data;
    j.dt_bias = (const float *)dt_bias.data;
    j.tokens = a.shape[0];
    j.width = a.shape[1];
    j.each = a.shape[1] / A_log.shape[0];
    return j;
}

} // namespace

extern "C" carry_status carry_cuda_decay_gate(carry_ctx *ctx, carry_tensor g, carry_tensor a, carry_tensor A_log,
                                              carry_tensor dt_bias, float bound) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, a.device));
    with_type(a.dtype, [&](auto type) {
        using T = decltype(type);
        decay_kernel<T><<<blocks_for(a.shape[0] * a.shape[1], THREADS), THREADS, 0, at.stream>>>(
            job_of<T>(g, a, A_log, dt_bias, bound));
    });
    return launched(ctx, at, "decays cannot be launched");
}

extern "C" carry_status carry_cuda_decay_gate_backward(carry_ctx *ctx, const carry_decay_gate_backward_args *args) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->a.device));
    with_type(args->a.dtype, [&](auto type) {
        using T = decltype(type);
        decay_job<T> j = job_of<T>(args->dg, args->a, args->A_log, args->dt_bias, args->bound);
        j.da = row<T>(args->da);
        j.dA_log = (float *)args->dA_log.data;
        j.ddt_bias = (float *)args->ddt_bias.data;
        decay_backward_kernel<T><<<(unsigned)args->A_log.shape[0], THREADS, 0, at.stream>>>(j);
    });
    return launched(ctx, at, "gradients of decays cannot be launched");
}
