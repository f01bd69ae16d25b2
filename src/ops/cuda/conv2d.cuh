/* Shared by the implementations of the 2D convolution on NVIDIA GPUs: the windows of each form. */
#ifndef CARRY_OPS_CONV2D_CUH
#define CARRY_OPS_CONV2D_CUH

#include "ops/cuda/nn.cuh"

constexpr int CONV2D_INPUTS = 3;

/* The windows of a convolution: side length, stride, the first window's start in the zero-padded picture, and the
   number of sets of weights (for a doubled picture, one for each of the four positions of an output pixel). */
struct conv2d_window {
    int side, step, start, phases;
};

static inline conv2d_window window_of(carry_conv2d_form form) {
    switch (form) {
    case CARRY_CONV2D_HALF:
        return conv2d_window{3, 2, 0, 1};
    case CARRY_CONV2D_DOUBLE:
        return conv2d_window{2, 1, 0, 4};
    case CARRY_CONV2D_POINT:
        return conv2d_window{1, 1, 1, 1};
    case CARRY_CONV2D_AHEAD:
        return conv2d_window{3, 2, 1, 1};
    default:
        return conv2d_window{3, 1, 0, 1};
    }
}

/* Arguments of both implementations in bf16. Weights are laid out as [phase][out][input][pixel of the
   window][channel]. */
struct conv2d_job {
    const uint16_t *from[CONV2D_INPUTS]; /* NULL: this input and those after it are absent */
    int channels[CONV2D_INPUTS];
    int inputs;
    uint16_t *y;
    const uint16_t *w, *add;
    const float *bias;
    int x_height, x_width; /* with the frame */
    int height, width;     /* of y, without the frame, for one phase */
    int out, depth;        /* depth: length of a row of w, channels of all inputs times pixels of a window */
    conv2d_window window;
    bool relu;
};

/* conv2d_bf16.cu: any shape, with instructions of Ampere GPUs. */
carry_status carry_conv2d_bf16(carry_ctx *ctx, const conv2d_job &job, const place &at);
/* conv2d_hopper.cu: *done is false if the call is not supported; then nothing was enqueued. */
carry_status carry_conv2d_hopper(carry_ctx *ctx, const conv2d_job &job, const place &at, bool *done);

#endif
