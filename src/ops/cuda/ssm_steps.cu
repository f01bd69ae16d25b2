/* Steps of a state space layer. Before the products: a = softplus(dt + dt_bias), clamped, and the sums G of a A / ln 2
   (ssm.cuh). Backward: computes the gradients of dt, A_log and dt_bias from those of a and of the sums, and adds up the
   gradient of D. */
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

/* A block has a chunk of HEADS heads: rows of dt are read along heads, and vectors of an item are written along tokens.
   Within an item a warp has a head, and a lane two tokens. */
constexpr int HEADS = 32;

struct steps_place {
    int64_t row, chunk, head0;
    __device__ __forceinline__ steps_place(const ssm_job &job) {
        const int64_t teams = (job.n + HEADS - 1) / HEADS;
        head0 = (int64_t)blockIdx.x % teams * HEADS;
        chunk = (int64_t)blockIdx.x / teams % job.at.chunks;
        row = (int64_t)blockIdx.x / teams / job.at.chunks;
    }
    /* Calls with(i, h, index in dt) for each token i and head h that there are; others are left out. */
    template <typename WITH> __device__ __forceinline__ void each(const ssm_job &job, WITH with) const {
        for (int e = (int)threadIdx.x; e < SSM_L * HEADS; e += THREADS) {
            const int i = e / HEADS, h = e % HEADS;
            const int64_t t = chunk * SSM_L + i;
            if (t < job.T && head0 + h < job.n) {
                with(i, h, (row * job.T + t) * job.n + head0 + h);
            }
        }
    }
    __device__ __forceinline__ int64_t item(const ssm_job &job, int h) const {
        return (row * job.n + head0 + h) * job.at.chunks + chunk;
    }
};

/* Return the sum of x over the lanes before this one (sum_before), or after it (sum_after). */
__device__ __forceinline__ double sum_before(double x) {
    const int lane = (int)threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, x, (unsigned)step);
        x += lane >= step ? other : 0.0;
    }
    const double before = __shfl_up_sync(0xffffffffu, x, 1);
    return lane > 0 ? before : 0.0;
}
__device__ __forceinline__ double sum_after(double x) {
    const int lane = (int)threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_down_sync(0xffffffffu, x, (unsigned)step);
        x += lane + step < 32 ? other : 0.0;
    }
    const double after = __shfl_down_sync(0xffffffffu, x, 1);
    return lane < 31 ? after : 0.0;
}

__device__ __forceinline__ float2 two_floats(double x) {
    const float high = (float)x;
    return {high, (float)(x - (double)high)};
}

template <typename T> __global__ void __launch_bounds__(THREADS) prepare_kernel(ssm_job job) {
    __shared__ double a[SSM_L][HEADS + 1];
    const steps_place at(job);
    const typename T::stored *dt = (const typename T::stored *)job.dt;
    for (int e = (int)threadIdx.x; e < SSM_L * (HEADS + 1); e += THREADS) {
        a[e / (HEADS + 1)][e % (HEADS + 1)] = 0.0;
    }
    __syncthreads();
    at.each(job, [&](int i, int h, int64_t from) {
        const double step = softplus((double)T::widen(dt[from]) + (double)job.dt_bias[at.head0 + h]);
        a[i][h] = step < (double)job.least ? (double)job.least : step > (double)job.most ? (double)job.most : step;
    });
    __syncthreads();
    for (int h = (int)threadIdx.x / 32; h < HEADS && at.head0 + h < job.n; h += THREADS / 32) {
        const int i = (int)threadIdx.x % 32 * 2;
        const int64_t to = at.item(job, h) * SSM_L + i;
        const double rate = -exp((double)job.A_log[at.head0 + h]) * LOG2_E;
        const double g0 = a[i][h] * rate, g1 = a[i + 1][h] * rate, before = sum_before(g0 + g1);
        const float2 s0 = two_floats(before + g0), s1 = two_floats(before + (g0 + g1));
        *(float2 *)&job.at.step[to] = {(float)a[i][h], (float)a[i + 1][h]};
        *(float4 *)&job.at.sum[2 * to] = {s0.x, s0.y, s1.x, s1.y};
    }
}

struct two_slopes {
    double x, y;
};

/* The gradient of G of two tokens; zero after the end of the row. */
__device__ __forceinline__ two_slopes slopes(const ssm_job &job, int64_t from, int64_t first_token) {
    float2 d = *(const float2 *)&job.at.dG[from];
    two_slopes sum = {(double)d.x, (double)d.y};
    if (job.at.dG_states != NULL) {
        d = *(const float2 *)&job.at.dG_states[from];
        sum = {sum.x + (double)d.x, sum.y + (double)d.y};
    }
    return {first_token < job.T ? sum.x : 0.0, first_token + 1 < job.T ? sum.y : 0.0};
}

template <typename T> __global__ void __launch_bounds__(THREADS) finish_kernel(ssm_job job) {
    __shared__ float value[SSM_L][HEADS + 1]; /* dt, then its gradient */
    const steps_place at(job);
    const typename T::stored *dt = (const typename T::stored *)job.dt;
    typename T::stored *ddt = (typename T::stored *)job.ddt;
    at.each(job, [&](int i, int h, int64_t from) { value[i][h] = T::widen(dt[from]); });
    __syncthreads();
    for (int h = (int)threadIdx.x / 32; h < HEADS && at.head0 + h < job.n; h += THREADS / 32) {
        const int i = (int)threadIdx.x % 32 * 2;
        const int64_t item = at.item(job, h), from = item * SSM_L + i, t = at.chunk * SSM_L + i;
        const double rate = -exp((double)job.A_log[at.head0 + h]), bias = (double)job.dt_bias[at.head0 + h];
        const two_slopes dG = slopes(job, from, t);
        const float2 da = *(const float2 *)&job.at.da[from];
        const double after = sum_after(dG.x + dG.y);
        double d_rate = 0.0, d_bias = 0.0;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (t + e < job.T) {
                const double dg = after + (e == 0 ? dG.x + dG.y : dG.y), raw = (double)value[i + e][h] + bias;
                const double a = softplus(raw);
                const bool free = a > (double)job.least && a < (double)job.most;
                const double limited = free ? a : a <= (double)job.least ? (double)job.least : (double)job.most;
                const float d = free ? (float)(((double)(e == 0 ? da.x : da.y) + dg * rate) / (1.0 + exp(-raw))) : 0.0f;
                d_rate += dg * rate * limited;
                d_bias += (double)d;
                value[i + e][h] = d;
            }
        }
        d_rate = warp_sum(d_rate);
        d_bias = warp_sum(d_bias);
        if (threadIdx.x % 32 == 0) {
            job.at.sums[item * 3] = d_rate;
            job.at.sums[item * 3 + 1] = d_bias;
        }
    }
    __syncthreads();
    at.each(job, [&](int i, int h, int64_t to) { ddt[to] = T::narrow(value[i][h]); });
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

unsigned steps_blocks(const ssm_job &job) {
    return (unsigned)(job.B * job.at.chunks * ((job.n + HEADS - 1) / HEADS));
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
        prepare_kernel<T><<<steps_blocks(job), THREADS, 0, at.stream>>>(job);
    });
    return launched(ctx, at, "steps of a state space layer cannot be launched");
}

carry_status ssm_finish(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        finish_kernel<T><<<steps_blocks(job), THREADS, 0, at.stream>>>(job);
    });
    heads_kernel<<<(unsigned)job.n, THREADS, 0, at.stream>>>(job);
    return launched(ctx, at, "gradients of a state space layer cannot be launched");
}
