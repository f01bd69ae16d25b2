/* Chunks of a state space layer, packed in f32. */
#include "ops/cuda/ssm_plain.cuh"

namespace {

template <typename T>
__global__ void __launch_bounds__(THREADS) pack_kernel(ssm_job job, float *to, const typename T::stored *from,
                                                       int64_t channels, int64_t column, int64_t width, int64_t share) {
    const int64_t count = job.at.items * SSM_L * width;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < count; e += (int64_t)gridDim.x * THREADS) {
        const int64_t item = e / width / SSM_L, t = item % job.at.chunks * SSM_L + e / width % SSM_L;
        const int64_t head = item / job.at.chunks % job.n, row = item / job.at.chunks / job.n;
        const int64_t at = (row * job.T + t) * channels + column + head / share * width + e % width;
        to[e] = t < job.T ? T::widen(from[at]) : 0.0f;
    }
}

__global__ void __launch_bounds__(THREADS)
    scale_kernel(ssm_job job, float *to, const float *from, int64_t width, ssm_factor factor) {
    __shared__ float by[SSM_L];
    const int64_t item = blockIdx.x;
    if (threadIdx.x < SSM_L) {
        by[threadIdx.x] = ssm_factor_of(job, item, (int)threadIdx.x, factor);
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < SSM_L * width; e += THREADS) {
        to[item * SSM_L * width + e] = from[item * SSM_L * width + e] * by[e / width];
    }
}

/* A thread has one element of a state, and goes through the chunks in order. */
__global__ void __launch_bounds__(THREADS) chain_kernel(ssm_job job, float *states, bool reverse) {
    const int64_t size = job.P * job.N, e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= job.B * job.n * size) {
        return;
    }
    const int64_t walk = e / size, number = e % size;
    float S = !reverse && job.initial != NULL ? job.initial[e] : 0.0f;
    for (int64_t i = 0; i < job.at.chunks; i++) {
        const int64_t chunk = reverse ? job.at.chunks - 1 - i : i, item = walk * job.at.chunks + chunk;
        const int64_t first = chunk * SSM_L;
        const bool seen = ssm_first_seen(job, first + SSM_L - 1, first) < 0;
        const float fade = seen ? ssm_decay(((const float2 *)job.at.sum)[item * SSM_L + SSM_L - 1]) : 0.0f;
        const float added = states[item * size + number];
        states[item * size + number] = S;
        S = fmaf(S, fade, added);
    }
    if (!reverse && job.final_state != NULL) {
        job.final_state[e] = S;
    }
}

} // namespace

void ssm_pack(const place &at, const ssm_job &job, carry_dtype type, float *to, const void *from, int64_t channels,
              int64_t column, int64_t width, int64_t share) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        pack_kernel<T><<<blocks_for(job.at.items * SSM_L * width, THREADS), THREADS, 0, at.stream>>>(
            job, to, (const typename T::stored *)from, channels, column, width, share);
    });
}

void ssm_scale(const place &at, const ssm_job &job, float *to, const float *from, int64_t width, ssm_factor factor) {
    scale_kernel<<<(unsigned)job.at.items, THREADS, 0, at.stream>>>(job, to, from, width, factor);
}

void ssm_chain(const place &at, const ssm_job &job, float *states, bool reverse) {
    const int64_t count = job.B * job.n * job.P * job.N;
    chain_kernel<<<(unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, at.stream>>>(job, states, reverse);
}

carry_status ssm_states(const ssm_products &with, float *scaled) {
    const ssm_job &job = with.job;
    ssm_scale(with.at, job, scaled, job.at.b, job.N, SSM_LEFT);
    CARRY_TRY(with.run({job.at.state, job.P, job.N, SSM_L}, {job.at.x, true}, {scaled, false}, false));
    ssm_chain(with.at, job, job.at.state, false);
    return launched(with.ctx, with.at, "states of a state space layer cannot be launched");
}
