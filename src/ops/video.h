/* Operators that only the video transformer, its codecs and its text encoder use. The conventions are those of
   carry/nn.h. */
#ifndef CARRY_OPS_VIDEO_H
#define CARRY_OPS_VIDEO_H

#include "carry/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x[t] += g * y[t], element by element along the row: x, y [T, n], g [n]. Backward, from dx: dy = g * dx and
   dg += sum over t of dx[t] * y[t]; either may be absent. */
carry_status carry_gated_add(carry_ctx *ctx, carry_tensor x, carry_tensor y, carry_tensor g);
carry_status carry_gated_add_backward(carry_ctx *ctx, carry_tensor dy, carry_tensor dg, carry_tensor dx, carry_tensor y,
                                      carry_tensor g);

/* Fused operators for the layers between attentions of a transformer. Each is one pass over memory if the GPU has a
   fused kernel, else a sequence of other operators.
   affine: y[t] = f(W x[t] + b), or y[t] += W x[t] + b. b [out]. On a GPU with cuBLASLt, if x, W and b have one 16-bit
   type, the product includes the bias and GELU and is rounded once.
   add_layer_norm: x[t] += g * y[t] if y is present, then h[t] = carry_layer_norm of x[t] if h is present. */
carry_status carry_affine(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b,
                          carry_activation activation, bool accumulate);
typedef struct carry_add_layer_norm_args {
    carry_tensor h, x;
    carry_tensor y, g, w, b;
    float plus, eps;
} carry_add_layer_norm_args;
carry_status carry_add_layer_norm(carry_ctx *ctx, const carry_add_layer_norm_args *args);

/* An RMS norm whose rows are split over ranks: sums[t] = sum of x[t]^2 (f32, [T]), which the caller adds over ranks;
   then y[t] = x[t] / sqrt(sums[t] / whole + eps) * w, where `whole` is the length of the whole row. y may be x. On a
   GPU, x of carry_row_squares may have a row stride larger than its rows. */
carry_status carry_row_squares(carry_ctx *ctx, carry_tensor sums, carry_tensor x);
carry_status carry_rms_scale(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor sums, carry_tensor w,
                             int64_t whole, float eps);

/* Rotary position embedding with interleaved pairs: (y[2i], y[2i+1]) = (x[2i] c - x[2i+1] s, x[2i] s + x[2i+1] c), with
   (c, s) = table[t, i]. x, y [T, H, D]; table [T, D/2, 2], f32. inverse rotates backwards, which gives the gradient. y
   may be x. */
carry_status carry_rotary(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse);

/* Prepares queries and keys for attention: to[t] = from[t] / sqrt(mean square + eps) * w if w is present, then, if
   rotates is set, rotary position embedding with heads of 2 * table.shape[1] elements. With neither, a copy. Takes up
   to three parts of one shape: queries, keys, and values, which are only copied into a cache. */
#define CARRY_MAX_QK_PARTS 3
typedef struct carry_qk_part {
    carry_tensor to, from; /* [T, n]; on a GPU the row stride may be larger than n. to may be from */
    carry_tensor w;        /* [n], f32, or absent */
    carry_tensor sums;     /* [T], f32: carry_row_squares added over all ranks, for rows of `whole` elements;
                              absent: computed from `from` */
    bool rotates;
} carry_qk_part;
typedef struct carry_qk_norm_rotary_args {
    carry_qk_part part[CARRY_MAX_QK_PARTS];
    int parts;
    carry_tensor table; /* [T, D/2, 2], f32, as in carry_rotary */
    int64_t whole;
    float eps;
} carry_qk_norm_rotary_args;
carry_status carry_qk_norm_rotary(carry_ctx *ctx, const carry_qk_norm_rotary_args *args);

/* Attention weights for a small number of keys, without the sum over values:
       u[t] = q[t] / sqrt(mean square + eps) * w if w is present, else q[t]
       p[t, h, j] = softmax over j < keys of (u[t, h] . k[j, h] / sqrt(D) + (last if j = keys - 1)); 0 for j >= keys
   The sum over values and a linear map after it then become one product, of p with the mapped values. */
typedef struct carry_key_weights_args {
    carry_tensor p; /* [T, heads * S], S at least keys; all of one type */
    carry_tensor q; /* [T, heads * D] */
    carry_tensor k; /* [keys or more, heads * D] */
    carry_tensor w; /* [heads * D], f32, or absent */
    int64_t heads, keys;
    float last, eps;
} carry_key_weights_args;
carry_status carry_key_weights(carry_ctx *ctx, const carry_key_weights_args *args);

/* Attention weights with a relative position bias, which depends only on the distance between query and key, as in T5:
       p[h, t, j] = softmax over j < keys of (scores[h, t, j] + bias[h, j - t + T - 1]); 0 for j >= keys
   scores [H, T, S], f32; bias [H, T + S - 1], f32; p [H, T, S]. p may be scores if it is f32. */
carry_status carry_relative_softmax(carry_ctx *ctx, carry_tensor p, carry_tensor scores, carry_tensor bias,
                                    int64_t keys);

/* The weighted squared error of y [T, n] against target [T, n], f32. The rows form G groups of equal size:
       losses[g] = weight[g] sum (y - target)^2;   dy = 2 scale weight[g] (y - target);   total = sum over g of losses
   total [1] and losses [G], f64; weight [G], f32. A weight below 0 excludes its group: the target is not read, and dy
   and the loss are zero. dy may be absent. */
typedef struct carry_squared_error_args {
    carry_tensor total, losses, dy;
    carry_tensor y, target, weight;
    double scale;
} carry_squared_error_args;
carry_status carry_squared_error(carry_ctx *ctx, const carry_squared_error_args *args);

#ifdef __cplusplus
}
#endif
#endif
