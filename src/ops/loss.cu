/* Cross entropy on NVIDIA GPUs, of logits and of a linear layer whose logits are never whole in memory.

   A block has a row of logits: its largest, the sum of exponentials relative to that, and the gradient. The linear layer
   goes on in blocks of as many tokens as the workspace holds logits of, in f32. Their gradient is written over them, in
   the weights' type, from the first element on: a gradient of 16 bits never reaches logits that are still to be read. */
#include <math.h>

#include "ops/linear.cuh"

constexpr int64_t LEFT_OUT = -100;

static __device__ __forceinline__ float block_largest(float value, float *parts) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    float largest = parts[0];
    for (int i = 1; i < THREADS / 32; i++) {
        largest = fmaxf(largest, parts[i]);
    }
    __syncthreads();
    return largest;
}

/* Rows of logits are `row` elements apart, those of the gradient d_row of theirs; the gradient may lie over the logits
   when it starts at the same byte and its elements are no larger. A target that is not in the vocabulary gives NaN. */
template <typename L, typename D>
__global__ void __launch_bounds__(THREADS)
    loss_kernel(float *losses, row_of<D> dlogits, int64_t d_row, row_of<L> logits, int64_t row, const int64_t *targets,
                int64_t tokens, int64_t vocabulary, float scale) {
    __shared__ float parts[THREADS / 32];
    for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        const int64_t target = targets[t];
        const bool counts = target != LEFT_OUT;
        const bool known = target >= 0 && target < vocabulary;
        const int64_t from = t * row, to = t * d_row;
        float largest = -INFINITY, sum = 0.0f;
        for (int64_t i = threadIdx.x; counts && i < vocabulary; i += THREADS) {
            largest = fmaxf(largest, logits.get(from + i));
        }
        largest = block_largest(largest, parts);
        for (int64_t i = threadIdx.x; counts && i < vocabulary; i += THREADS) {
            sum += expf(logits.get(from + i) - largest);
        }
        sum = group_sum<THREADS>(sum, parts);
        const float at_target = counts && known ? logits.get(from + target) : NAN;
        __syncthreads(); /* the gradient may lie over it */
        if (threadIdx.x == 0) {
            losses[t] = counts ? (float)(log((double)sum) + ((double)largest - (double)at_target)) : 0.0f;
        }
        if (!dlogits.here()) {
            continue;
        }
        const float share = scale / sum;
        for (int64_t first = 0; first < vocabulary; first += THREADS) {
            const int64_t i = first + threadIdx.x;
            float value = 0.0f;
            if (counts && i < vocabulary) {
                value = i == target ? (float)((double)scale * (exp((double)at_target - (double)largest) / (double)sum - 1.0))
                                    : expf(logits.get(from + i) - largest) * share;
            }
            if (sizeof(typename D::stored) < sizeof(typename L::stored)) {
                __syncthreads(); /* all of this piece is read: it may be written over */
            }
            if (i < vocabulary) {
                dlogits.put(to + i, value);
            }
        }
    }
}

template <typename L, typename D>
static void launch(const place &at, float *losses, void *dlogits, int64_t d_row, const void *logits, int64_t row,
                   const int64_t *targets, int64_t tokens, int64_t vocabulary, float scale) {
    loss_kernel<L, D><<<blocks_for(tokens, 1), THREADS, 0, at.stream>>>(
        losses, row_of<D>{(typename D::stored *)dlogits}, d_row, row_of<L>{(typename L::stored *)(void *)logits}, row,
        targets, tokens, vocabulary, scale);
}

extern "C" carry_status carry_cuda_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dlogits,
                                                 carry_tensor logits, carry_tensor targets, float scale) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, logits.device));
    const int64_t tokens = logits.shape[0], vocabulary = logits.shape[1];
    if (tokens == 0) {
        return CARRY_OK;
    }
    with_type(logits.dtype, [&](auto type) {
        using T = decltype(type);
        launch<T, T>(at, (float *)losses.data, dlogits.data, vocabulary, logits.data, vocabulary,
                     (const int64_t *)targets.data, tokens, vocabulary, scale);
    });
    return launched(ctx, at, "cross_entropy cannot be launched");
}

extern "C" carry_status carry_cuda_linear_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dx,
                                                        carry_tensor dW, carry_tensor x, carry_tensor W,
                                                        carry_tensor targets, float scale, void *workspace,
                                                        size_t workspace_bytes) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t tokens = x.shape[0], n = x.shape[1], vocabulary = W.shape[0];
    if (tokens == 0 || vocabulary == 0) {
        return CARRY_OK;
    }
    const int64_t most = (int64_t)(workspace_bytes / sizeof(float)) / vocabulary;
    const int64_t block = most < tokens ? most : tokens;
    const bool back = dx.data != NULL || dW.data != NULL;
    const carry_dtype type = x.dtype == W.dtype ? x.dtype : CARRY_F32; /* of the gradient */
    const int64_t d_row = vocabulary * (int64_t)(sizeof(float) / carry_dtype_size(type));
    for (int64_t first = 0; first < tokens; first += block) {
        const int64_t count = tokens - first < block ? tokens - first : block;
        const size_t offset = (size_t)(first * n) * carry_dtype_size(x.dtype);
        const matrix rows = {(const char *)x.data + offset, x.dtype, n, false};
        CARRY_TRY(multiply(ctx, x.device, workspace, CARRY_F32, count, vocabulary, n, rows,
                           matrix{W.data, W.dtype, n, true}, false));
        with_type(type, [&](auto of) {
            launch<type_f32, decltype(of)>(at, (float *)losses.data + first, back ? workspace : NULL, d_row, workspace,
                                           vocabulary, (const int64_t *)targets.data + first, count, vocabulary, scale);
        });
        CARRY_TRY(launched(ctx, at, "cross_entropy cannot be launched"));
        if (dx.data != NULL) {
            CARRY_TRY(multiply(ctx, x.device, (char *)dx.data + offset, dx.dtype, count, n, vocabulary,
                               matrix{workspace, type, d_row, false}, matrix{W.data, W.dtype, n, false}, false));
        }
        if (dW.data != NULL) {
            CARRY_TRY(multiply(ctx, x.device, dW.data, CARRY_F32, vocabulary, n, count,
                               matrix{workspace, type, d_row, true}, rows, true));
        }
    }
    return CARRY_OK;
}
