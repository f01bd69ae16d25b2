/* Shared by the two implementations of the convolution on NVIDIA GPUs: arguments and borders of sequences. */
#ifndef CARRY_OPS_CONV_CUH
#define CARRY_OPS_CONV_CUH

#include "ops/cuda/nn.cuh"

extern "C" {
#include "ops/conv.h"
}

template <typename T> struct conv_of {
    row_of<T> y, x, dx, dy;
    mixed w;
    const float *before;
    float *after, *dbefore, *partial;
    const int64_t *borders;
    int64_t sequences, batch, tokens, channels, width, block;
    int64_t x_row, dx_row; /* elements from token to token; may exceed the number of channels */
    int activation;
};

/* The sequence of a token, as carry_conv_borders finds it. The borders in GPU memory may differ from those that the
   host checked, so they are never used as an index. */
struct sequence {
    int64_t begin, end;
    bool first;
};

template <typename T> static __device__ __forceinline__ sequence sequence_of(const conv_of<T> &a, int64_t t) {
    if (a.borders == NULL) {
        return sequence{0, a.tokens, true};
    }
    int64_t low = 0, high = a.sequences;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (a.borders[middle] <= t) {
            low = middle;
        } else {
            high = middle;
        }
    }
    int64_t begin = a.borders[low] > 0 ? a.borders[low] : 0;
    int64_t end = a.borders[low + 1] < a.tokens ? a.borders[low + 1] : a.tokens;
    return sequence{begin, end, low == 0};
}

template <typename T>
static conv_of<T> common(const carry_tensor &x, const carry_tensor &w, const carry_tensor &before,
                         const carry_tensor &cu_seqlens, carry_activation activation) {
    conv_of<T> a = {};
    a.x = row<T>(x);
    a.w = mixed_of(w);
    a.before = (const float *)before.data;
    a.borders = (const int64_t *)cu_seqlens.data;
    a.sequences = cu_seqlens.data != NULL ? cu_seqlens.shape[0] - 1 : 1;
    a.batch = x.shape[0];
    a.tokens = x.shape[1];
    a.channels = x.shape[2];
    a.width = w.shape[w.rank - 1];
    a.x_row = row_step(x);
    a.activation = (int)activation;
    return a;
}

/* conv_wide.cu: for widths up to 4, and channels in whole vectors at aligned addresses. Return false, and do
   nothing, for other tensors. *blocks is set to the number of rows of the workspace that were written. */
bool conv_wide(const carry_conv_args *args, cudaStream_t stream);
bool conv_wide_backward(const carry_conv_backward_args *args, void *workspace, int64_t *blocks, cudaStream_t stream);

#endif
