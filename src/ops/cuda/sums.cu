/* Sums in a fixed order on NVIDIA GPUs: blocks of partial sums, squares, and losses. */
#include "ops/cuda/nn.cuh"

constexpr int COLUMNS = 32, LANES = 32;

/* to[i] += the sum over b of from[b, i], with rows `stride` apart: each lane adds its share of blocks in order, then
   the lanes are added in order. */
__global__ void __launch_bounds__(COLUMNS *LANES)
    add_blocks_kernel(float *to, const float *from, int64_t blocks, int64_t n, int64_t stride) {
    __shared__ float sums[LANES][COLUMNS];
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const int64_t share = (blocks + LANES - 1) / LANES;
    const int64_t first = threadIdx.y * share;
    const int64_t last = first + share < blocks ? first + share : blocks;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t b = first; column < n && b < last; b++) {
        sum += from[b * stride + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
        float total = 0.0f;
        for (int i = 0; i < LANES; i++) {
            total += sums[i][threadIdx.x];
        }
        to[column] += total;
    }
}

extern "C" carry_status carry_cuda_add_blocks(carry_ctx *ctx, carry_tensor to, const float *from, int64_t blocks,
                                              int64_t n, int64_t stride) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, to.device));
    if (n == 0 || blocks == 0) {
        return CARRY_OK;
    }
    add_blocks_kernel<<<(unsigned)((n + COLUMNS - 1) / COLUMNS), dim3(COLUMNS, LANES), 0, at.stream>>>(
        (float *)to.data, from, blocks, n, stride);
    return launched(ctx, at, "sums over blocks cannot be launched");
}

__global__ void __launch_bounds__(THREADS) squares_kernel(double *partial, const float *x, int64_t count) {
    __shared__ double parts[THREADS / 32];
    double sum = 0.0;
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        sum = fma((double)x[i], (double)x[i], sum);
    }
    sum = group_sum<THREADS>(sum, parts);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(THREADS)
    total_kernel(double *to, const double *partial, int64_t count, bool accumulate) {
    __shared__ double parts[THREADS / 32];
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        sum += partial[i];
    }
    sum = group_sum<THREADS>(sum, parts);
    if (threadIdx.x == 0) {
        *to = accumulate ? *to + sum : sum;
    }
}

extern "C" carry_status carry_cuda_sum_squares(carry_ctx *ctx, carry_tensor sum, carry_tensor x, bool accumulate,
                                               void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t count = carry_tensor_count(&x);
    const int64_t blocks = (int64_t)(carry_sum_squares_workspace(count) / sizeof(double));
    squares_kernel<<<(unsigned)blocks, THREADS, 0, at.stream>>>((double *)workspace, (const float *)x.data, count);
    total_kernel<<<1, THREADS, 0, at.stream>>>((double *)sum.data, (const double *)workspace, blocks, accumulate);
    return launched(ctx, at, "sum_squares cannot be launched");
}

__global__ void __launch_bounds__(THREADS)
    sum_losses_kernel(double *total, const float *losses, const int64_t *targets, int64_t tokens, bool accumulate) {
    __shared__ double parts[THREADS / 32];
    double sum = 0.0, counted = 0.0;
#pragma unroll 8
    for (int64_t t = threadIdx.x; t < tokens; t += THREADS) { /* eight loads are issued before they are added */
        sum += (double)losses[t];
        counted += targets[t] != -100 ? 1.0 : 0.0;
    }
    sum = group_sum<THREADS>(sum, parts);
    counted = group_sum<THREADS>(counted, parts);
    if (threadIdx.x == 0) {
        total[0] = accumulate ? total[0] + sum : sum;
        total[1] = accumulate ? total[1] + counted : counted;
    }
}

extern "C" carry_status carry_cuda_sum_losses(carry_ctx *ctx, carry_tensor total, carry_tensor losses,
                                              carry_tensor targets, bool accumulate) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, losses.device));
    sum_losses_kernel<<<1, THREADS, 0, at.stream>>>((double *)total.data, (const float *)losses.data,
                                                    (const int64_t *)targets.data, losses.shape[0], accumulate);
    return launched(ctx, at, "sum_losses cannot be launched");
}
