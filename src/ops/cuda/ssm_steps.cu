/* Steps of a state space layer. Before the products: a = softplus(dt + bias), clamped, and the sums of a A.
   Backward: from the gradients of both to those of dt, A_log, dt_bias and D. */
#include "ops/cuda/ssm.cuh"

namespace {

constexpr double LOG2_E = 1.4426950408889634;

/* Finds the last border at or before each token. */
__global__ void __launch_bounds__(THREADS) starts_kernel(ssm_job job) {
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= job.T) {
        return;
    }
    int64_t low = 0, high = job.sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (job.cuts[middle] <= t) {
            low = middle;
        } else {
            high = middle;
        }
    }
    job.at.starts[t] = (int32_t)job.cuts[low];
}

__device__ __forceinline__ double softplus(double x) {
    return x > 40.0 ? x : log1p(exp(x));
}

/* A thread has a chunk of one head; neighbouring threads have neighbouring heads. */
template <typename T> __global__ void __launch_bounds__(THREADS) prepare_kernel(ssm_job job) {
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.at.items) {
        return;
    }
    const int64_t head = index % job.n, chunk = index / job.n % job.at.chunks, row = index / job.n / job.at.chunks;
    const int64_t item = (row * job.n + head) * job.at.chunks + chunk;
    const typename T::stored *dt = (const typename T::stored *)job.dt;
    const double rate = -exp((double)job.A_log[head]) * LOG2_E;
    double sum = 0.0;
    for (int i = 0; i < SSM_L; i++) {
        const int64_t t = chunk * SSM_L + i;
        double a = 0.0;
        if (t < job.T) {
            const double raw = (double)T::widen(dt[(row * job.T + t) * job.n + head]) + (double)job.dt_bias[head];
            a = softplus(raw);
            a = a < (double)job.least ? (double)job.least : a > (double)job.most ? (double)job.most : a;
            sum += a * rate;
        }
        const float high = (float)sum;
        job.at.step[item * SSM_L + i] = (float)a;
        ((float2 *)job.at.sum)[item * SSM_L + i] = {high, (float)(sum - (double)high)};
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) finish_kernel(ssm_job job) {
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.at.items) {
        return;
    }
    const int64_t head = index % job.n, chunk = index / job.n % job.at.chunks, row = index / job.n / job.at.chunks;
    const int64_t item = (row * job.n + head) * job.at.chunks + chunk;
    const typename T::stored *dt = (const typename T::stored *)job.dt;
    typename T::stored *ddt = (typename T::stored *)job.ddt;
    const double rate = -exp((double)job.A_log[head]);
    double dg = 0.0, d_rate = 0.0, d_bias = 0.0;
    for (int i = SSM_L - 1; i >= 0; i--) {
        const int64_t t = chunk * SSM_L + i, at = (row * job.T + t) * job.n + head;
        if (t >= job.T) {
            continue;
        }
        dg += (double)job.at.dG[item * SSM_L + i];
        const double raw = (double)T::widen(dt[at]) + (double)job.dt_bias[head], a = softplus(raw);
        const bool free = a > (double)job.least && a < (double)job.most;
        const double limited = free ? a : a <= (double)job.least ? (double)job.least : (double)job.most;
        const float d = free ? (float)(((double)job.at.da[item * SSM_L + i] + dg * rate) / (1.0 + exp(-raw))) : 0.0f;
        d_rate += dg * rate * limited;
        d_bias += (double)d;
        ddt[at] = T::narrow(d);
    }
    job.at.sums[item * 3] = d_rate;
    job.at.sums[item * 3 + 1] = d_bias;
}

/* A block adds up the contributions of the chunks of one head. */
__global__ void __launch_bounds__(THREADS) heads_kernel(ssm_job job) {
    __shared__ double parts[THREADS / 32];
    const int64_t head = blockIdx.x;
    float *to[] = {job.dA_log, job.ddt_bias, job.dD};
    for (int part = 0; part < 3; part++) {
        double sum = 0.0;
        for (int64_t i = threadIdx.x; i < job.B * job.at.chunks; i += THREADS) {
            const int64_t row = i / job.at.chunks, chunk = i % job.at.chunks;
            sum += job.at.sums[((row * job.n + head) * job.at.chunks + chunk) * 3 + part];
        }
        sum = group_sum<THREADS>(sum, parts);
        if (threadIdx.x == 0) {
            to[part][head] += (float)sum;
        }
    }
}

unsigned blocks_of(int64_t count) {
    return (unsigned)((count + THREADS - 1) / THREADS);
}

} // namespace

ssm_job ssm_job_of(const carry_ssm_args *args, void *workspace, bool backward) {
    ssm_job job = {};
    job.at = carry_ssm_layout_of(args, workspace, backward);
    job.B = args->xbc.shape[0];
    job.T = args->xbc.shape[1];
    job.channels = args->xbc.shape[2];
    job.n = args->heads;
    job.G = args->groups;
    job.N = args->state;
    job.P = (job.channels - 2 * job.G * job.N) / job.n;
    job.xbc = args->xbc.data;
    job.dt = args->dt.data;
    job.A_log = (const float *)args->A_log.data;
    job.dt_bias = (const float *)args->dt_bias.data;
    job.D = (const float *)args->D.data;
    job.initial = (const float *)args->initial.data;
    job.final_state = (float *)args->final.data;
    job.y = args->y.data;
    job.cuts = (const int64_t *)args->cu_seqlens.data;
    job.sequences = job.cuts != NULL ? args->cu_seqlens.shape[0] - 1 : 0;
    job.slots = args->slots;
    job.least = args->least;
    job.most = args->most;
    return job;
}

carry_status ssm_prepare(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type) {
    if (job.at.starts != NULL) {
        starts_kernel<<<blocks_of(job.T), THREADS, 0, at.stream>>>(job);
    }
    with_type(type, [&](auto t) {
        using T = decltype(t);
        prepare_kernel<T><<<blocks_of(job.at.items), THREADS, 0, at.stream>>>(job);
    });
    return launched(ctx, at, "steps of a state space layer cannot be launched");
}

carry_status ssm_finish(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        finish_kernel<T><<<blocks_of(job.at.items), THREADS, 0, at.stream>>>(job);
    });
    heads_kernel<<<(unsigned)job.n, THREADS, 0, at.stream>>>(job);
    return launched(ctx, at, "gradients of a state space layer cannot be launched");
}
