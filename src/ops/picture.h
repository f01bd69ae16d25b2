/* Conversion between pictures of convolutions (ops/conv2d.h) and planes or bytes; and the norm between convolutions. */
#ifndef CARRY_OPS_PICTURE_H
#define CARRY_OPS_PICTURE_H

#include <stdbool.h>

#include "carry/tensor.h"

/* The map of every value: v becomes 3 tanh(v / 3) if tanh3 is set, else scale v + shift. If clamped, the result is
   limited to 0..1 and NaN becomes 0, so that any latents give a valid picture. */
typedef struct carry_picture_map {
    float scale, shift;
    bool tanh3, clamped;
} carry_picture_map;

/* picture [height + 2, width + 2, channels], f32 or bf16; its border is neither read nor written. planes [channels,
   height, width]: f32, bf16 or f16; each plane is packed, with any stride between planes. Both are on one device. */
carry_status carry_picture_read(carry_ctx *ctx, carry_tensor picture, carry_tensor planes, carry_picture_map map);
carry_status carry_picture_write(carry_ctx *ctx, carry_tensor planes, carry_tensor picture, carry_picture_map map);
/* Writes height * width * channels bytes on the picture's device, channels last: 255 v, rounded, where v is always
   clamped. */
carry_status carry_picture_bytes(carry_ctx *ctx, unsigned char *bytes, carry_tensor picture, carry_picture_map map);

/* y[t] = silu(x[t] / sqrt(mean(x[t]^2) + eps) * w): x, y [T, n]; w [n]. Rows of zeros, such as those of a border,
   give zeros. y may be x. */
carry_status carry_rms_norm_silu(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, float eps);

#endif
