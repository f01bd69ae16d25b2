/* Backward pass of state space layers of any shape and type on NVIDIA GPUs: the formulas of ops/ssm_backward.c on
   chunks that are packed in f32, all at once. Gradients of B and C are added over the heads of a group in order. */
#include "ops/cuda/ssm_plain.cuh"

namespace {

/* Replaces M, which is C B^T on entry, by W a, and K by E a K (W, E, K and the steps a as in ops/ssm_backward.c), and
   writes the contributions of pairs of tokens to da and dG. One block for each chunk of a head. */
__global__ void __launch_bounds__(THREADS) pairs_kernel(ssm_job job) {
    __shared__ float direct[SSM_L][SSM_L + 1];
    __shared__ float trace[SSM_L];
    const int64_t item = blockIdx.x, first = item % job.at.chunks * SSM_L;
    const float2 *sum = (const float2 *)job.at.sum + item * SSM_L;
    const float *a = job.at.step + item * SSM_L;
    float *M = job.at.M + item * SSM_L * SSM_L, *K = job.at.K + item * SSM_L * SSM_L;
    for (int e = (int)threadIdx.x; e < SSM_L * SSM_L; e += THREADS) {
        const int i = e / SSM_L, j = e % SSM_L;
        const bool sees = j <= i && j >= ssm_first_seen(job, first + i, first);
        const float E = sees ? ssm_decay(sum[i], sum[j]) : 0.0f;
        if (i == j) {
            trace[i] = K[e];
        }
        direct[i][j] = sees ? M[e] * E * K[e] : 0.0f;
        M[e] = sees ? M[e] * E * a[j] : 0.0f;
        K[e] = sees ? K[e] * E * a[j] : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x < SSM_L) {
        const int i = (int)threadIdx.x;
        double row = 0.0, column = 0.0;
        for (int j = 0; j < SSM_L; j++) {
            row += (double)direct[i][j] * (double)a[j];
            column += (double)direct[j][i];
        }
        job.at.da[item * SSM_L + i] = (float)column;
        job.at.dG[item * SSM_L + i] = (float)(row - column * (double)a[i]);
    }
    if (threadIdx.x == 0) {
        double all = 0.0;
        for (int i = 0; i < SSM_L; i++) {
            all += (double)trace[i];
        }
        job.at.sums[item * 3 + 2] = all;
    }
}

/* Adds the contribution of the states: dx in y, dB and dC, da and dG. Each warp has some tokens of the chunk. */
__global__ void __launch_bounds__(THREADS) states_back_kernel(ssm_job job) {
    __shared__ double parts[THREADS / 32];
    __shared__ double added[SSM_L];
    const int64_t item = blockIdx.x, P = job.P, N = job.N, head = item / job.at.chunks % job.n;
    const int64_t first = item % job.at.chunks * SSM_L;
    const float *S = job.at.state + item * P * N, *dS = job.at.dstate + item * P * N;
    const int lane = (int)threadIdx.x % 32;
    double whole = 0.0;
    for (int64_t e = threadIdx.x; e < P * N; e += THREADS) {
        whole += (double)S[e] * (double)dS[e];
    }
    whole = group_sum<THREADS>(whole, parts);
    for (int i = (int)threadIdx.x / 32; i < SSM_L; i += THREADS / 32) {
        const int64_t row = item * SSM_L + i;
        const float a = job.at.step[row], fade = ssm_factor_of(job, item, i, SSM_FADE);
        const float by = ssm_factor_of(job, item, i, SSM_LEFT); /* with a, which may be 0 */
        const float2 *sum = (const float2 *)job.at.sum + item * SSM_L;
        const bool kept = i >= ssm_first_seen(job, first + SSM_L - 1, first);
        const float left = kept ? ssm_decay(sum[SSM_L - 1], sum[i]) : 0.0f;
        double by_step = 0.0, by_sum = 0.0;
        for (int64_t p = lane; p < P; p += 32) {
            const float t = job.at.t[row * P + p];
            by_step += (double)job.at.x[row * P + p] * (double)t;
            job.at.y[row * P + p] += by * t + job.D[head] * job.at.dy[row * P + p];
        }
        for (int64_t l = lane; l < N; l += 32) {
            const float u = job.at.u[row * N + l];
            by_sum += (double)job.at.c[row * N + l] * (double)u;
            job.at.dc[row * N + l] += fade * u;
            job.at.db[row * N + l] += by * job.at.r[row * N + l];
        }
        by_step = warp_sum(by_step) * (double)left;
        by_sum = warp_sum(by_sum) * (double)fade;
        if (lane == 0) {
            added[i] = by_step * (double)a;
            job.at.da[row] += (float)by_step;
            job.at.dG[row] += (float)(by_sum - by_step * (double)a);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = whole * (double)ssm_factor_of(job, item, SSM_L - 1, SSM_FADE);
        for (int i = 0; i < SSM_L; i++) {
            all += added[i];
        }
        const int64_t last = first + SSM_L <= job.T ? SSM_L - 1 : job.T - 1 - first;
        job.at.dG[item * SSM_L + last] += (float)all;
    }
}

/* Collects dxbc from the gradients of the heads. */
template <typename T> __global__ void __launch_bounds__(THREADS) collect_kernel(ssm_job job) {
    const int64_t count = job.B * job.T * job.channels, share = job.n / job.G, inner = job.n * job.P;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < count; e += (int64_t)gridDim.x * THREADS) {
        const int64_t column = e % job.channels, t = e / job.channels % job.T, row = e / job.channels / job.T;
        const bool is_x = column < inner;
        const int64_t other = is_x ? 0 : (column - inner) % (job.G * job.N);
        const int64_t head0 = is_x ? column / job.P : other / job.N * share;
        const int64_t width = is_x ? job.P : job.N, inside = is_x ? column % job.P : other % job.N;
        const float *from = is_x ? job.at.y : column - inner < job.G * job.N ? job.at.db : job.at.dc;
        float sum = 0.0f;
        for (int64_t h = head0; h < head0 + (is_x ? 1 : share); h++) {
            const int64_t item = (row * job.n + h) * job.at.chunks + t / SSM_L;
            sum += from[(item * SSM_L + t % SSM_L) * width + inside];
        }
        ((typename T::stored *)job.dxbc)[e] = T::narrow(sum);
    }
}

carry_status backward(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type) {
    const ssm_products with = {ctx, at, job};
    const carry_ssm_layout &w = job.at;
    const int64_t P = job.P, N = job.N, L = SSM_L;
    CARRY_TRY(ssm_prepare(ctx, at, job, type));
    ssm_pack(at, job, type, w.x, job.xbc, job.channels, 0, P, 1);
    ssm_pack(at, job, type, w.b, job.xbc, job.channels, job.n * P, N, job.n / job.G);
    ssm_pack(at, job, type, w.c, job.xbc, job.channels, job.n * P + job.G * N, N, job.n / job.G);
    ssm_pack(at, job, type, w.dy, job.dy, job.n * P, 0, P, 1);
    CARRY_TRY(ssm_states(with, w.u));
    ssm_scale(at, job, w.u, w.c, N, SSM_FADE);
    CARRY_TRY(with.run({w.dstate, P, N, L}, {w.dy, true}, {w.u, false}, false));
    ssm_chain(at, job, w.dstate, true);
    CARRY_TRY(with.run({w.M, L, L, N}, {w.c, false}, {w.b, true}, false));
    CARRY_TRY(with.run({w.K, L, L, P}, {w.dy, false}, {w.x, true}, false));
    pairs_kernel<<<(unsigned)w.items, THREADS, 0, at.stream>>>(job);
    CARRY_TRY(with.run({w.y, L, P, L}, {w.M, true}, {w.dy, false}, false));
    CARRY_TRY(with.run({w.t, L, P, N}, {w.b, false}, {w.dstate, true}, false));
    CARRY_TRY(with.run({w.dc, L, N, L}, {w.K, false}, {w.b, false}, false));
    CARRY_TRY(with.run({w.db, L, N, L}, {w.K, true}, {w.c, false}, false));
    CARRY_TRY(with.run({w.u, L, N, P}, {w.dy, false}, {w.state, false}, false));
    CARRY_TRY(with.run({w.r, L, N, P}, {w.x, false}, {w.dstate, false}, false));
    states_back_kernel<<<(unsigned)w.items, THREADS, 0, at.stream>>>(job);
    with_type(type, [&](auto t) {
        using T = decltype(t);
        collect_kernel<T><<<blocks_for(job.B * job.T * job.channels, THREADS), THREADS, 0, at.stream>>>(job);
    });
    return ssm_finish(ctx, at, job, type);
}

} // namespace

extern "C" carry_status carry_cuda_ssm_backward(carry_ctx *ctx, const carry_ssm_backward_args *args, void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->dy.device));
    ssm_job job = ssm_job_of(&args->forward, workspace, true);
    const carry_dtype type = args->dy.dtype;
    job.dy = args->dy.data;
    job.dxbc = args->dxbc.data;
    job.ddt = args->ddt.data;
    job.dA_log = (float *)args->dA_log.data;
    job.ddt_bias = (float *)args->ddt_bias.data;
    job.dD = (float *)args->dD.data;
    if (job.B < 1 || job.T < 1) {
        return CARRY_OK;
    }
    return job.at.tiles ? ssm_tiles_backward(ctx, at, job, type) : backward(ctx, at, job, type);
}
