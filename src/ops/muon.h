/* Operators of the optimizer Muon (train/muon.h). f32 unless stated otherwise; tensors are packed and on one device. */
#ifndef CARRY_OPS_MUON_H
#define CARRY_OPS_MUON_H

#include <stdbool.h>

#include "carry/tensor.h"

/* m = momentum m + clip g, and then u = clip g + momentum m (Nesterov's): u, m, g have the same count; clip is [1] or
   absent. m may also be bf16, rounded as in dither.h; u is computed from the unrounded m. step [1], absent only if m is
   f32: the number of the step, for the rounding, below 2^24. If clip is NaN, m is unchanged and u is 0. */
carry_status carry_muon_momentum(carry_ctx *ctx, carry_tensor u, carry_tensor m, carry_tensor g, carry_tensor clip,
                                 carry_tensor step, double momentum);
/* x = u / (sqrt(squares) + 1e-7): u [rows, columns], squares [1] f64; x has the same shape, or [columns, rows] if
   transposed, and is f32, bf16 or f16. */
carry_status carry_muon_normalise(carry_ctx *ctx, carry_tensor x, carry_tensor u, carry_tensor squares,
                                  bool transposed);
/* y = a x + b z, all of one count and one type, f32, bf16 or f16; y may be x or z. */
carry_status carry_blend(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor z, double a, double b);
/* w = w - rates[0] scale o - rates[1] w: w [rows, columns]; o has the same shape or is transposed, and is f32, bf16
   or f16; rates [2]. `low`, if present, receives w rounded to its type. If clip ([1] or absent) is NaN, nothing
   changes. */
carry_status carry_muon_update(carry_ctx *ctx, carry_tensor w, carry_tensor low, carry_tensor o, carry_tensor rates,
                               carry_tensor clip, double scale, bool transposed);

#endif
