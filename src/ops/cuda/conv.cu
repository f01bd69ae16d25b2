/* Causal depthwise convolution along tokens on NVIDIA GPUs, and its gradient, for any width and number of channels;
   conv_wide.cu has the usual ones.

   A thread has one channel, so that neighbouring threads read neighbouring elements, and walks over a block of tokens.
   The inputs of a token are a window in registers that moves with the token. The backward pass also has such a window
   of ds (conv_backward.c). dw is summed per block of tokens into the workspace, whose rows are then added in order. */
#include "ops/cuda/conv.cuh"

constexpr int CHANNELS = 128; /* channels and threads of a block */
constexpr int TOKENS = 16;    /* tokens of a thread, forward */

/* Input (b, s, c) as a token of this sequence sees it; s may be before the sequence's first token. */
template <typename T>
static __device__ __forceinline__ float seen(const conv_of<T> &a, const sequence &in, int64_t b, int64_t s, int64_t c) {
    if (s >= in.begin) {
        return a.x.get((b * a.tokens + s) * a.x_row + c);
    }
    bool known = in.first && a.before != NULL && s < 0;
    return known ? a.before[(b * (a.width - 1) + s + a.width - 1) * a.channels + c] : 0.0f;
}

/* Loads the inputs of token t into registers: window[i] belongs to token t - (width - 1) + i. WIDTH is at least the
   width. */
template <typename T, int WIDTH>
static __device__ __forceinline__ void load_window(const conv_of<T> &a, float (&window)[WIDTH], const sequence &in,
                                                   int64_t b, int64_t t, int64_t c) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        window[i] = i < a.width ? seen(a, in, b, t - (a.width - 1) + i, c) : 0.0f;
    }
}

/* Shifts the window by one and puts `next` at index width - 1. */
template <int WIDTH>
static __device__ __forceinline__ void move_window(float (&window)[WIDTH], float next, int64_t width) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float following = i + 1 < WIDTH ? window[i + 1 < WIDTH ? i + 1 : i] : 0.0f;
        window[i] = i + 1 < width ? following : i + 1 == width ? next : 0.0f;
    }
}

/* The sum before the activation. */
template <int WIDTH>
static __device__ __forceinline__ float sum_of(const float (&tap)[WIDTH], const float (&window)[WIDTH]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        sum = fmaf(tap[i], window[i], sum);
    }
    return sum;
}

template <typename T, int WIDTH>
static __device__ __forceinline__ void load_taps(const conv_of<T> &a, float (&tap)[WIDTH], int64_t c) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        tap[i] = i < a.width ? a.w[c * a.width + i] : 0.0f;
    }
}

/* Moves the window to token t, whose x is `next`. If t is in the next sequence, the window is loaded again. */
template <typename T, int WIDTH>
static __device__ __forceinline__ void move_on(const conv_of<T> &a, float (&window)[WIDTH], sequence &in, float next,
                                               int64_t b, int64_t t, int64_t c) {
    if (t >= in.end) {
        in = sequence_of(a, t);
        load_window<T, WIDTH>(a, window, in, b, t, c);
    } else {
        move_window<WIDTH>(window, next, a.width);
    }
}

template <typename T, int WIDTH> __global__ void __launch_bounds__(CHANNELS) conv_kernel(conv_of<T> a) {
    const int64_t c = (int64_t)blockIdx.y * CHANNELS + threadIdx.x;
    const int64_t token_blocks = (a.tokens + TOKENS - 1) / TOKENS;
    float tap[WIDTH], window[WIDTH], x[TOKENS];
    if (c >= a.channels) {
        return;
    }
    load_taps<T, WIDTH>(a, tap, c);
    for (int64_t block = blockIdx.x; block < a.batch * token_blocks; block += gridDim.x) {
        const int64_t b = block / token_blocks;
        const int64_t first = block % token_blocks * TOKENS;
        sequence in = sequence_of(a, first);
#pragma unroll
        for (int i = 0; i < TOKENS; i++) { /* all loads before the first use, so that their latencies overlap */
            x[i] = first + i < a.tokens ? a.x.get((b * a.tokens + first + i) * a.x_row + c) : 0.0f;
        }
        load_window<T, WIDTH>(a, window, in, b, first, c);
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int64_t t = first + i;
            if (t < a.tokens) {
                if (i > 0) {
                    move_on<T, WIDTH>(a, window, in, x[i], b, t, c);
                }
                a.y.put((b * a.tokens + t) * a.channels + c, activate_one(sum_of<WIDTH>(tap, window), a.activation));
            }
        }
    }
}

/* Stores the rows that a token after the last one would see. In ascending order, so that `after` may be `before`. */
template <typename T> __global__ void __launch_bounds__(CHANNELS) keep_last_kernel(conv_of<T> a) {
    const int64_t i = (int64_t)blockIdx.x * CHANNELS + threadIdx.x;
    if (i >= a.batch * a.channels) {
        return;
    }
    const int64_t b = i / a.channels, c = i % a.channels;
    const sequence in = sequence_of(a, a.tokens);
    for (int64_t k = 0; k < a.width - 1; k++) {
        a.after[(b * (a.width - 1) + k) * a.channels + c] = seen(a, in, b, a.tokens - (a.width - 1) + k, c);
    }
}

/* blockIdx.x selects the block of tokens over all sequences. In the window, ds[j] belongs to token s + j. */
template <typename T, int WIDTH> __global__ void __launch_bounds__(CHANNELS) conv_backward_kernel(conv_of<T> a) {
    const int64_t c = (int64_t)blockIdx.y * CHANNELS + threadIdx.x;
    const int64_t token_blocks = (a.tokens + a.block - 1) / a.block;
    const int64_t b = blockIdx.x / token_blocks;
    const int64_t first = blockIdx.x % token_blocks * a.block;
    const int64_t last = first + a.block < a.tokens ? first + a.block : a.tokens;
    const int64_t start = first == 0 ? -(a.width - 1) : first;
    float tap[WIDTH], turned[WIDTH], window[WIDTH], ds[WIDTH] = {}, sum[WIDTH] = {};
    if (c >= a.channels) {
        return;
    }
    load_taps<T, WIDTH>(a, tap, c);
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        turned[j] = j < a.width ? a.w[c * a.width + a.width - 1 - j] : 0.0f;
    }
    sequence of_t = sequence_of(a, first), of_s = sequence_of(a, start);
    load_window<T, WIDTH>(a, window, of_t, b, first, c);
    for (int64_t t = start; t < last + a.width - 1; t++) { /* t enters the window, s = t - (width - 1) leaves it */
        float next = 0.0f;
        if (t >= 0 && t < a.tokens) {
            const int64_t at = b * a.tokens + t;
            if (t > first) {
                move_on<T, WIDTH>(a, window, of_t, a.x.get(at * a.x_row + c), b, t, c);
            }
            next = activate_back(a.dy.get(at * a.channels + c), sum_of<WIDTH>(tap, window), a.activation);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                sum[i] = t < last ? fmaf(next, window[i], sum[i]) : sum[i];
            }
        }
        move_window<WIDTH>(ds, next, a.width);
        const int64_t s = t - (a.width - 1);
        if (s < start) {
            continue;
        }
        of_s = s >= of_s.end ? sequence_of(a, s) : of_s;
        float value = 0.0f;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            value = s + j >= 0 && s + j < of_s.end ? fmaf(turned[j], ds[j], value) : value;
        }
        if (s >= 0 && a.dx.here()) {
            a.dx.put((b * a.tokens + s) * a.dx_row + c, value);
        } else if (s < 0 && a.dbefore != NULL) {
            a.dbefore[(b * (a.width - 1) + s + a.width - 1) * a.channels + c] = value;
        }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        if (a.partial != NULL && i < a.width) {
            a.partial[((int64_t)blockIdx.x * a.channels + c) * a.width + i] = sum[i];
        }
    }
}

static unsigned channel_blocks(int64_t channels) {
    return (unsigned)((channels + CHANNELS - 1) / CHANNELS);
}

extern "C" carry_status carry_cuda_conv(carry_ctx *ctx, const carry_conv_args *args) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->x.device));
    with_type(args->x.dtype, [&](auto type) {
        using T = decltype(type);
        conv_of<T> a = common<T>(args->x, args->w, args->before, args->cu_seqlens, args->activation);
        a.y = row<T>(args->y);
        a.after = (float *)args->after.data;
        const dim3 grid(blocks_for(a.batch * ((a.tokens + TOKENS - 1) / TOKENS), 1), channel_blocks(a.channels));
        if (a.batch * a.tokens * a.channels > 0 && !conv_wide(args, at.stream)) {
            if (a.width <= 4) {
                conv_kernel<T, 4><<<grid, CHANNELS, 0, at.stream>>>(a);
            } else {
                conv_kernel<T, CARRY_CONV_WIDTHS><<<grid, CHANNELS, 0, at.stream>>>(a);
            }
        }
        if (a.after != NULL && a.batch * a.channels > 0) {
            keep_last_kernel<T>
                <<<(unsigned)((a.batch * a.channels + CHANNELS - 1) / CHANNELS), CHANNELS, 0, at.stream>>>(a);
        }
    });
    return launched(ctx, at, "conv cannot be launched");
}

template <typename T>
static void launch_backward(const carry_conv_backward_args *args, void *workspace, int64_t block, int64_t blocks,
                            const place &at) {
    conv_of<T> a = common<T>(args->x, args->w, args->before, args->cu_seqlens, args->activation);
    a.dx = row<T>(args->dx);
    a.dx_row = row_step(args->dx);
    a.dy = row<T>(args->dy);
    a.dbefore = (float *)args->dbefore.data;
    a.partial = args->dw.data != NULL ? (float *)workspace : NULL;
    a.block = block;
    const dim3 grid((unsigned)blocks, channel_blocks(a.channels));
    if (a.width <= 4) {
        conv_backward_kernel<T, 4><<<grid, CHANNELS, 0, at.stream>>>(a);
    } else {
        conv_backward_kernel<T, CARRY_CONV_WIDTHS><<<grid, CHANNELS, 0, at.stream>>>(a);
    }
}

extern "C" carry_status carry_cuda_conv_backward(carry_ctx *ctx, const carry_conv_backward_args *args,
                                                 void *workspace) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, args->x.device));
    const carry_tensor *x = &args->x;
    const int64_t block = carry_token_block(x->shape[1]);
    int64_t blocks = x->shape[0] * ((x->shape[1] + block - 1) / block);
    const int64_t weights = x->shape[2] * args->w.shape[args->w.rank - 1];
    if (carry_tensor_count(x) == 0) {
        return args->dbefore.data != NULL ? carry_zero(ctx, args->dbefore) : CARRY_OK;
    }
    if (!conv_wide_backward(args, workspace, &blocks, at.stream)) {
        with_type(x->dtype, [&](auto type) { launch_backward<decltype(type)>(args, workspace, block, blocks, at); });
    }
    CARRY_TRY(launched(ctx, at, "conv_backward cannot be launched"));
    return args->dw.data != NULL
               ? carry_cuda_add_blocks(ctx, args->dw, (const float *)workspace, blocks, weights, weights)
               : CARRY_OK;
}
