/* Convolutions of pictures, as matrix products that read a picture in place.

   A picture is a packed tensor [height + 2, width + 2, channels]: channels last, inside a border of zeros one pixel
   wide; f32, or bf16 (a plain loop on the CPU). Three neighbouring pixels are then 3 x channels consecutive numbers,
   the windows of a row of pixels are a matrix whose rows overlap, and a 3 x 3 convolution is three products into the
   same sums, one for each row of the window: nothing is copied. A stride of 2 is a step of two pixels between the
   matrix's rows. A picture that is doubled first has only 2 x 2 different pixels in each window, so their weights
   are added beforehand, one set for each of the four positions of an output pixel: 4 multiplications instead of 9 for
   each pair of channels, and no doubled picture.

   A convolution that also runs over time, across three frames of a video, is one over three pictures with their
   channels concatenated: the frame, the one before it (past) and the one before that (older).

   The borders of outputs are neither read nor written: the creator of a picture sets them to zero once. */
#ifndef CARRY_OPS_CONV2D_H
#define CARRY_OPS_CONV2D_H

#include <stdbool.h>

#include "carry/tensor.h"

typedef enum carry_conv2d_form {
    CARRY_CONV2D_SAME,   /* 3 x 3, padding 1 */
    CARRY_CONV2D_HALF,   /* 3 x 3, padding 1, stride 2: (height + 1) / 2 by (width + 1) / 2 */
    CARRY_CONV2D_DOUBLE, /* the picture doubled (each pixel as 2 x 2), then 3 x 3, padding 1 */
    CARRY_CONV2D_POINT,  /* 1 x 1 */
    CARRY_CONV2D_AHEAD   /* 3 x 3, stride 2, padding 1 only at the right and the bottom: height / 2 by width / 2 */
} carry_conv2d_form;

/* The number of elements of the packed weights. */
int64_t carry_conv2d_packed(carry_conv2d_form form, int64_t out, int64_t in);

/* Packs weights. to: [carry_conv2d_packed], of the pictures' type; from: [out, in, 3, 3], or [out, in, 1, 1] for a
   point, f32; packed. first: the channels of x. If `in` is three times `first`, past and older have `first` channels
   each; otherwise past has the rest. The layout depends on this context's kernels. */
carry_status carry_conv2d_pack(carry_ctx *ctx, carry_tensor to, carry_tensor from, carry_conv2d_form form,
                               int64_t first);

/* y = f(conv([x, past, older], w) + bias + add), with channels concatenated; f is ReLU or the identity. past, older,
   bias ([out], f32) and add (like y) may be absent. An absent past or older counts as zeros if w has channels for it
   (`in` includes them); older needs past. y may be add, but not x, past or older. */
typedef struct carry_conv2d_args {
    carry_tensor y;
    carry_tensor x, past, older, w, bias, add;
    carry_conv2d_form form;
    int64_t in; /* channels that w was packed for */
    bool relu;
} carry_conv2d_args;

carry_status carry_conv2d(carry_ctx *ctx, const carry_conv2d_args *args);

#endif
