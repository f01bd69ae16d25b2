/* The squared distance from a target on NVIDIA GPUs: a block sums a group, then one thread adds the groups in order. */
#include "ops/cuda/nn.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS)
    squared_error_kernel(double *losses, row_of<T> dy, row_of<T> y, const float *target, const float *weight,
                         int64_t each, double scale) {
    __shared__ double parts[THREADS / 32];
    const int64_t first = blockIdx.x * each;
    const double w = (double)weight[blockIdx.x];
    const bool is_out = w < 0.0;
    const float factor = (float)(2.0 * scale * w);
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < each; i += THREADS) {
        const float off = is_out ? 0.0f : y.get(first + i) - target[first + i];
        if (dy.here()) {
            dy.put(first + i, is_out ? 0.0f : factor * off);
        }
        sum += (double)off * (double)off;
    }
    sum = group_sum<THREADS>(sum, parts);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = is_out ? 0.0 : w * sum;
    }
}

__global__ void add_groups_kernel(double *total, const double *losses, int64_t groups) {
    double sum = 0.0;
    for (int64_t g = 0; g < groups; g++) {
        sum += losses[g];
    }
    *total = sum;
}

extern "C" carry_status carry_cuda_squared_error(carry_ctx *ctx, carry_tensor total, carry_tensor losses,
                                                 carry_tensor dy, carry_tensor y, carry_tensor target,
                                                 carry_tensor weight, double scale) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, y.device));
    const int64_t groups = weight.shape[0];
    if (groups > INT32_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "%lld groups on a GPU: at most %d", (long long)groups, INT32_MAX);
    }
    with_type(y.dtype, [&](auto type) {
        using T = decltype(type);
        squared_error_kernel<T><<<(unsigned)groups, THREADS, 0, at.stream>>>(
            (double *)losses.data, row<T>(dy), row<T>(y), (const float *)target.data, (const float *)weight.data,
            y.shape[0] / groups * y.shape[1], scale);
    });
    add_groups_kernel<<<1, 1, 0, at.stream>>>((double *)total.data, (const double *)losses.data, groups);
    return launched(ctx, at, "a squared error cannot be launched");
}
