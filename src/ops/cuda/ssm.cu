/* State space layers of any shape and type on NVIDIA GPUs: chunks are packed in f32, products are the general ones
   (matmul.cu), and kernels between them apply decays. A single token is one step, in which the state is read and
   written once. Shapes with special kernels are in ssm_tiles.cu. */
#include "ops/cuda/ssm.cuh"
#include "ops/cuda/ssm_plain.cuh"

namespace {

/* A block has one head of one batch row: warps have rows of its state, lanes have columns. */
template <typename T> __global__ void __launch_bounds__(THREADS) step_kernel(ssm_job job) {
    const int64_t row = blockIdx.x / job.n, head = blockIdx.x % job.n, group = head * job.G / job.n;
    const int64_t own = (job.slots != NULL ? job.slots[row] : row) * job.n + head;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const typename T::stored *x = (const typename T::stored *)job.xbc + row * job.channels;
    const typename T::stored *b = x + job.n * job.P + group * job.N, *c = b + job.G * job.N;
    const float *S = job.initial != NULL ? job.initial + own * job.P * job.N : NULL;
    float *to = job.final_state != NULL ? job.final_state + own * job.P * job.N : NULL;
    const double raw =
        (double)T::widen(((const typename T::stored *)job.dt)[row * job.n + head]) + (double)job.dt_bias[head];
    double a = raw > 40.0 ? raw : log1p(exp(raw));
    a = a < (double)job.least ? (double)job.least : a > (double)job.most ? (double)job.most : a;
    const float fade = (float)exp(-a * exp((double)job.A_log[head]));
    for (int64_t p = warp; p < job.P; p += THREADS / 32) {
        const float value = T::widen(x[head * job.P + p]), added = (float)a * value;
        float sum = 0.0f;
        for (int64_t l = lane; l < job.N; l += 32) {
            const float s = fmaf(S != NULL ? S[p * job.N + l] : 0.0f, fade, added * T::widen(b[l]));
            sum = fmaf(s, T::widen(c[l]), sum);
            if (to != NULL) {
                to[p * job.N + l] = s;
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            ((typename T::stored *)job.y)[(row * job.n + head) * job.P + p] = T::narrow(fmaf(job.D[head], value, sum));
        }
    }
}

/* M[i, j] times 2^(G[i] - G[j]) a[j]. */
__global__ void __launch_bounds__(THREADS) decay_kernel(ssm_job job) {
    const int64_t item = blockIdx.x, first = item % job.at.chunks * SSM_L;
    const float2 *sum = (const float2 *)job.at.sum + item * SSM_L;
    for (int e = (int)threadIdx.x; e < SSM_L * SSM_L; e += THREADS) {
        const int i = e / SSM_L, j = e % SSM_L;
        float *m = job.at.M + item * SSM_L * SSM_L + e;
        *m = j <= i && j >= ssm_first_seen(job, first + i, first)
                 ? *m * ssm_decay(sum[i], sum[j]) * job.at.step[item * SSM_L + j]
                 : 0.0f;
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) output_kernel(ssm_job job) {
    const int64_t count = job.B * job.T * job.n * job.P;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < count; e += (int64_t)gridDim.x * THREADS) {
        const int64_t p = e % job.P, head = e / job.P % job.n, t = e / job.P / job.n % job.T,
                      row = e / job.P / job.n / job.T;
        const int64_t from = (((row * job.n + head) * job.at.chunks + t / SSM_L) * SSM_L + t % SSM_L) * job.P + p;
        ((typename T::stored *)job.y)[e] = T::narrow(fmaf(job.D[head], job.at.x[from], job.at.y[from]));
    }
}

carry_status forward(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type) {
    const ssm_products with = {ctx, at, job};
    CARRY_TRY(ssm_prepare(ctx, at, job, type));
    ssm_pack(at, job, type, job.at.x, job.xbc, job.channels, 0, job.P, 1);
    ssm_pack(at, job, type, job.at.b, job.xbc, job.channels, job.n * job.P, job.N, job.n / job.G);
    ssm_pack(at, job, type, job.at.c, job.xbc, job.channels, job.n * job.P + job.G * job.N, job.N, job.n / job.G);
    CARRY_TRY(with.run({job.at.M, SSM_L, SSM_L, job.N}, {job.at.c, false}, {job.at.b, true}, false));
    decay_kernel<<<(unsigned)job.at.items, THREADS, 0, at.stream>>>(job);
    CARRY_TRY(with.run({job.at.y, SSM_L, job.P, SSM_L}, {job.at.M, false}, {job.at.x, false}, false));
    CARRY_TRY(ssm_states(with, job.at.b));
    ssm_scale(at, job, job.at.c, job.at.c, job.N, SSM_FADE);
    CARRY_TRY(with.run({job.at.y, SSM_L, job.P, job.N}, {job.at.c, false}, {job.at.state, true}, true));
    with_type(type, [&](auto t) {
        using T = decltype(t);
        output_kernel<T><<<blocks_for(job.B * job.T * job.n * job.P, THREADS), THREADS, 0, at.stream>>>(job);
    });
    return launched(ctx, at, "a state space layer cannot be launched");
}

} // namespace

extern "C" carry_status carry_cuda_ssm(carry_ctx *ctx, const carry_ssm_args *args, void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->xbc.device));
    const ssm_job job = ssm_job_of(args, workspace, false);
    const carry_dtype type = args->xbc.dtype;
    if (job.B < 1 || job.T < 1) {
        return CARRY_OK;
    }
    if (job.T == 1 && job.cuts == NULL) {
        with_type(type, [&](auto t) {
            using T = decltype(t);
            step_kernel<T><<<(unsigned)(job.B * job.n), THREADS, 0, at.stream>>>(job);
        });
        return launched(ctx, at, "a step of a state space layer cannot be launched");
    }
    return job.at.tiles ? ssm_tiles(ctx, at, job, type) : forward(ctx, at, job, type);
}
