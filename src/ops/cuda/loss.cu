/* Cross entropy on NVIDIA GPUs, of logits and of a linear layer whose logits are never all in memory.

   A thread block processes a row of logits. If its length is a multiple of 4 from WIDE_LEAST to WIDE and rows are
   aligned, a row is held in registers, and the next row is loaded as this row's gradient is written: every logit is
   read once. Other rows are read twice: for the maximum and the sum of exponentials relative to it, and for the
   gradient.

   The linear layer processes as many tokens at a time as the workspace holds f32 logits for (16-bit training:
   loss_half.cu). The gradient of a row overwrites its logits from the first element on, in the type of x and W if they
   have the same type, else in f32. A 16-bit gradient is half as long, so it never reaches logits that are not yet
   read. */
#include <math.h>

#include "ops/cuda/quantised_linear.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/loss.cuh"
#include "ops/cuda/over_block.cuh"
#include "ops/cuda/wide.cuh"

constexpr int64_t LEFT_OUT = -100;

constexpr int ROW_THREADS = 512; /* threads for a row of logits */

/* The largest logit so far, and the sum of exponentials relative to it. */
struct running {
    float largest, sum;
};

/* Uses 0 as the base if all logits so far are -inf, since -inf - -inf would be NaN. */
static __device__ __forceinline__ float base_of(float largest) {
    return largest == -INFINITY ? 0.0f : largest;
}

static __device__ __forceinline__ running join(running a, running b) {
    const float largest = fmaxf(a.largest, b.largest), base = base_of(largest);
    return running{largest, a.sum * expf(base_of(a.largest) - base) + b.sum * expf(base_of(b.largest) - base)};
}

/* Joins over the block, in a fixed order; all threads get the result. */
static __device__ __forceinline__ running join_block(running r, running *parts) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        r = join(r, running{__shfl_xor_sync(0xffffffffu, r.largest, step), __shfl_xor_sync(0xffffffffu, r.sum, step)});
    }
    __syncthreads(); /* parts may still be read */
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = r;
    }
    __syncthreads();
    running all = parts[0];
    for (int i = 1; i < ROW_THREADS / 32; i++) {
        all = join(all, parts[i]);
    }
    return all;
}

/* EACH neighbouring elements, 4 or 1; 4 are one access. */
template <typename T, int EACH> struct __align__(EACH * sizeof(typename T::stored)) piece {
    typename T::stored value[EACH];
};

/* Rows of logits are `row` elements apart, rows of the gradient d_row. The gradient may overwrite the logits if it
   starts at the same byte and its elements are not larger. A target that is neither LEFT_OUT nor in the vocabulary
   gives a loss of NaN. */
template <typename L, typename D, int EACH>
__global__ void __launch_bounds__(ROW_THREADS)
    loss_kernel(float *losses, row_of<D> dlogits, int64_t d_row, row_of<L> logits, int64_t row, const int64_t *targets,
                int64_t tokens, int64_t vocabulary, float scale) {
    __shared__ running parts[ROW_THREADS / 32];
    for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        const int64_t target = targets[t];
        const bool counts = target != LEFT_OUT;
        const bool known = target >= 0 && target < vocabulary;
        const typename L::stored *from = logits.data + t * row;
        running r = {-INFINITY, 0.0f};
        for (int64_t i = threadIdx.x * EACH; counts && i < vocabulary; i += ROW_THREADS * EACH) {
            const piece<L, EACH> p = *(const piece<L, EACH> *)(from + i);
            float largest = r.largest, sum = 0.0f;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                largest = fmaxf(largest, L::widen(p.value[j]));
            }
            const float base = base_of(largest);
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                sum += expf(L::widen(p.value[j]) - base);
            }
            r = running{largest, fmaf(r.sum, expf(base_of(r.largest) - base), sum)};
        }
        r = join_block(r, parts);
        const float largest = r.largest, sum = r.sum;
        const float at_target = counts && known ? L::widen(from[target]) : NAN;
        __syncthreads(); /* the gradient may overwrite it */
        if (threadIdx.x == 0) {
            losses[t] = counts ? (float)(log((double)sum) + ((double)largest - (double)at_target)) : 0.0f;
        }
        if (!dlogits.here()) {
            continue;
        }
        const float share = scale / sum;
        const float at_one = (float)((double)scale * (exp((double)at_target - (double)largest) / (double)sum - 1.0));
        for (int64_t first = 0; first < vocabulary; first += ROW_THREADS * EACH) {
            const int64_t i = first + threadIdx.x * EACH;
            piece<D, EACH> d = {};
            if (counts && i < vocabulary) {
                const piece<L, EACH> p = *(const piece<L, EACH> *)(from + i);
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const float value = expf(L::widen(p.value[j]) - largest) * share;
                    d.value[j] = D::narrow(i + j == target ? at_one : value);
                }
            }
            if (sizeof(typename D::stored) < sizeof(typename L::stored)) {
                __syncthreads(); /* this piece has been read and may be overwritten */
            }
            if (i < vocabulary) {
                *(piece<D, EACH> *)(dlogits.data + t * d_row + i) = d;
            }
        }
    }
}

constexpr int WIDE_THREADS = 1024, FOURS = 8; /* vectors of 4 logits of a thread */
constexpr int64_t WIDE = WIDE_THREADS * 4 * FOURS, WIDE_LEAST = 8192;

/* e^x = 2^(x log2 e). The error in the sum of a row is below the rounding of the sum. */
static __device__ __forceinline__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

template <typename L>
static __device__ __forceinline__ void load_four(float (&v)[4], const typename L::stored *row, int64_t i,
                                                 int64_t vocabulary) {
    if (i < vocabulary) {
        const piece<L, 4> p = *(const piece<L, 4> *)(row + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = L::widen(p.value[j]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = -INFINITY;
        }
    }
}

/* Like loss_kernel, for rows that fit the registers of a block. Each block takes every gridDim.x-th row. */
template <typename L, typename D>
__global__ void __launch_bounds__(WIDE_THREADS)
    loss_wide_kernel(float *losses, row_of<D> dlogits, int64_t d_row, row_of<L> logits, int64_t row,
                     const int64_t *targets, int64_t tokens, int64_t vocabulary, float scale) {
    __shared__ float most[32], sums[32], at_target;
    float v[FOURS][4];
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        load_four<L>(v[k], logits.data + blockIdx.x * row, 4 * ((int64_t)threadIdx.x + k * WIDE_THREADS), vocabulary);
    }
    for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        const int64_t target = targets[t];
        const bool counts = target != LEFT_OUT, known = target >= 0 && target < vocabulary;
        const int place = known ? (int)target : -1;
        float largest = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            largest = fmaxf(largest, fmaxf(fmaxf(v[k][0], v[k][1]), fmaxf(v[k][2], v[k][3])));
        }
        largest = over_block<WIDE_THREADS / 32>(largest, most, [](float a, float b) { return fmaxf(a, b); });
        const float base = base_of(largest);
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            const int at = place - 4 * ((int)threadIdx.x + k * WIDE_THREADS);
            if ((unsigned)at < 4u) { /* once a row */
                at_target = at == 0 ? v[k][0] : at == 1 ? v[k][1] : at == 2 ? v[k][2] : v[k][3];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[k][j] = counts ? exponential(v[k][j] - base) : 0.0f;
                sum += v[k][j];
            }
        }
        sum = over_block<WIDE_THREADS / 32>(sum, sums, [](float a, float b) { return a + b; });
        if (threadIdx.x == 0) {
            const double own = known ? (double)at_target : (double)NAN;
            losses[t] = counts ? (float)(log((double)sum) + ((double)largest - own)) : 0.0f;
        }
        const float share = counts ? scale / sum : 0.0f;
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            const int64_t i = 4 * ((int64_t)threadIdx.x + k * WIDE_THREADS);
            if (dlogits.here() && i < vocabulary) {
                const int at = place - (int)i;
                if ((unsigned)at < 4u && counts) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        v[k][j] -= at == j ? sum : 0.0f;
                    }
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    v[k][j] *= share;
                }
                store_all<D, 4>(dlogits.data + t * d_row + i, v[k]);
            }
            if (t + gridDim.x < tokens) {
                load_four<L>(v[k], logits.data + (t + gridDim.x) * row, i, vocabulary);
            }
        }
    }
}

template <typename L, typename D>
static void launch(const place &at, float *losses, void *dlogits, int64_t d_row, const void *logits, int64_t row,
                   const int64_t *targets, int64_t tokens, int64_t vocabulary, float scale) {
    const bool by_four = vocabulary % 4 == 0 && (uintptr_t)logits % 16 == 0 && (uintptr_t)dlogits % 16 == 0;
    const row_of<D> d = {(typename D::stored *)dlogits};
    const row_of<L> l = {(typename L::stored *)(void *)logits};
    int units = 0;
    const bool wide = by_four && vocabulary >= WIDE_LEAST && vocabulary <= WIDE && d_row % 4 == 0 &&
                      cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, at.ordinal) == cudaSuccess;
    if (wide) {
        loss_wide_kernel<L, D><<<(unsigned)(tokens < units ? tokens : units), WIDE_THREADS, 0, at.stream>>>(
            losses, d, d_row, l, row, targets, tokens, vocabulary, scale);
    } else if (by_four) {
        loss_kernel<L, D, 4><<<blocks_for(tokens, 1), ROW_THREADS, 0, at.stream>>>(losses, d, d_row, l, row, targets,
                                                                                   tokens, vocabulary, scale);
    } else {
        loss_kernel<L, D, 1><<<blocks_for(tokens, 1), ROW_THREADS, 0, at.stream>>>(losses, d, d_row, l, row, targets,
                                                                                   tokens, vocabulary, scale);
    }
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

/* Tokens of a block, at most `most`: blocks of about equal size, in whole tiles of products. Logits of 2,340 tokens
   at a time take 216 us, of 2,304 164 (H200, 768 x 32000). */
static int64_t even_block(int64_t tokens, int64_t most) {
    constexpr int64_t WHOLE = 256;
    if (most >= tokens || most < WHOLE) {
        return most < tokens ? most : tokens;
    }
    const int64_t whole = most / WHOLE * WHOLE, blocks = (tokens + whole - 1) / whole;
    return ((tokens + blocks - 1) / blocks + WHOLE - 1) / WHOLE * WHOLE;
}

extern "C" carry_status carry_cuda_linear_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dx,
                                                        carry_tensor dW, carry_tensor x, carry_tensor W,
                                                        carry_tensor targets, float scale, void *workspace,
                                                        size_t workspace_bytes) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    if (W.dtype == CARRY_QUANTISED) {
        carry_tensor decoded;
        CARRY_TRY(quantised_decoded(ctx, &decoded, W, x.dtype));
        const carry_status status = carry_cuda_linear_cross_entropy(ctx, losses, dx, dW, x, decoded, targets, scale,
                                                                    workspace, workspace_bytes);
        carry_cuda_free_on(ctx, at.ordinal, decoded.data, (carry_stream *)at.stream);
        return status;
    }
    const int64_t tokens = x.shape[0], n = x.shape[1], vocabulary = W.shape[0];
    if (tokens == 0 || vocabulary == 0) {
        return CARRY_OK;
    }
    const int64_t block = even_block(tokens, (int64_t)(workspace_bytes / sizeof(float)) / vocabulary);
    const bool back = dx.data != NULL || dW.data != NULL;
    const half_loss half = {(float *)losses.data, dx, dW, x, W, targets, scale, workspace, workspace_bytes};
    const int64_t more = back ? even_block(tokens, half_loss_block(half)) : 0;
    if (more > block || (more == tokens && more > 0)) {
        return half_loss_run(ctx, half, more);
    }
    const carry_dtype type = x.dtype == W.dtype ? x.dtype : CARRY_F32; /* type of the gradient */
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
