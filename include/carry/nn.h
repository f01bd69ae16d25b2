/* Operators of language models and video transformers, each with its gradient.

   Rows are tokens. Activations are f32, bf16 or f16 (one type for all activations of a call, unless said otherwise);
   sums are f32. Weights are f32, or of the activations' type (on the CPU any of these types); gradients of weights are
   f32 and are added to what is there, gradients of activations are written, or added where `accumulate` says so.
   Tensors are packed unless said otherwise. Results do not depend on the number of threads: sums over tokens are made
   in blocks of fixed size and added in order. Absent tensors have data NULL. Nothing is allocated; where an operator
   needs memory it says how much, never less for more tokens. CARRY_ESHAPE,
   CARRY_EDTYPE and CARRY_EDEVICE name the tensor, before anything is written.

   All tensors of a call, and its workspace, are on one device: the CPU, which has worked on return, or a GPU, where the
   work is enqueued on the context's stream (carry_ctx_set_stream) and nobody waits. That holds for token ids, targets,
   losses and norms too: nothing goes through the host between two operators. Ids and targets are validated on the host,
   once per batch and before they are uploaded, by carry_check_ids and carry_check_targets; on the CPU operators check
   them again, and on a GPU one that is out of range is not followed: its row or loss becomes NaN. */
#ifndef CARRY_NN_H
#define CARRY_NN_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[t] = W x[t]: y [T, out], x [T, in], W [out, in]. On a GPU a large product of 16-bit types that is added to what is
   there is rounded before it is added too, and weights of f32 under activations of 16 bits are slow: keep a copy. */
CARRY_API carry_status carry_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate);
/* dx = dy W and dW += dy^T x; either may be absent. */
CARRY_API carry_status carry_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy,
                                             carry_tensor x, carry_tensor W, bool accumulate);

/* y[t] = base[t] + W x[t], as a residual is: y may be base. */
CARRY_API carry_status carry_linear_add(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                        carry_tensor base);

/* Several linear maps of one input, as the projections of a layer are: y[i][t] = W[i] x[t], i < maps. Backward:
   dx = sum of dy[i] W[i], and dW[i] += dy[i]^T x; dx may be absent, and so may all of dW. On a GPU rows of y[i] and
   dy[i] may be further apart than they are long, and where maps lie side by side (W[i + 1] follows W[i] in memory, the
   first column of y[i + 1] the last one of y[i]) all of them are one product. */
#define CARRY_MERGED_MAPS 8
typedef struct carry_merged_linear_args {
    carry_tensor y[CARRY_MERGED_MAPS];
    carry_tensor x, W[CARRY_MERGED_MAPS];
    int maps;
} carry_merged_linear_args;
CARRY_API carry_status carry_merged_linear(carry_ctx *ctx, const carry_merged_linear_args *args);
typedef struct carry_merged_linear_backward_args {
    carry_tensor dx, dW[CARRY_MERGED_MAPS];
    carry_tensor dy[CARRY_MERGED_MAPS], x, W[CARRY_MERGED_MAPS];
    int maps;
    bool accumulate; /* for dx */
} carry_merged_linear_backward_args;
CARRY_API carry_status carry_merged_linear_backward(carry_ctx *ctx, const carry_merged_linear_backward_args *args);

/* y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w * silu(z[t]): x, y, z [T, n]; w [n] or absent (1); z absent: no gate. On a
   GPU z and dz may be [T / h, h, n], the rows of h n elements further apart than that. */
CARRY_API carry_status carry_rms_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor z,
                                      float eps);
/* workspace: carry_rms_norm_backward_workspace(T, n) bytes. accumulate is for dx. */
typedef struct carry_rms_norm_backward_args {
    carry_tensor dx, dw, dz; /* each may be absent */
    carry_tensor dy, x, w, z;
    float eps;
    bool accumulate;
} carry_rms_norm_backward_args;
CARRY_API carry_status carry_rms_norm_backward(carry_ctx *ctx, const carry_rms_norm_backward_args *args,
                                               void *workspace, size_t workspace_bytes);
CARRY_API size_t carry_rms_norm_backward_workspace(int64_t tokens, int64_t n);

typedef enum carry_activation {
    CARRY_NO_ACTIVATION,
    CARRY_SILU,
    CARRY_RELU,
    CARRY_ELU,
    CARRY_SIGMOID,
    CARRY_GELU /* by tanh: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
} carry_activation;

/* y = f(x), element by element; dx = f'(x) dy. y may be x, dx may be dy. */
CARRY_API carry_status carry_activate(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_activation activation);
CARRY_API carry_status carry_activate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dy, carry_tensor x,
                                               carry_activation activation);

/* y[t] += b: y [T, n], b [n]. Backward: db += sum over t of dy[t]. */
CARRY_API carry_status carry_add_bias(carry_ctx *ctx, carry_tensor y, carry_tensor b);
CARRY_API carry_status carry_add_bias_backward(carry_ctx *ctx, carry_tensor db, carry_tensor dy);

/* x[t] += g * y[t], element by element along the row: x, y [T, n], g [n]. Backward, from dx: dy = g * dx and
   dg += sum over t of dx[t] * y[t]; either may be absent. */
CARRY_API carry_status carry_gated_add(carry_ctx *ctx, carry_tensor x, carry_tensor y, carry_tensor g);
CARRY_API carry_status carry_gated_add_backward(carry_ctx *ctx, carry_tensor dy, carry_tensor dg, carry_tensor dx,
                                                carry_tensor y, carry_tensor g);

/* y[t] = (x[t] - mean) / sqrt(variance + eps) * (w + plus) + b: x, y [T, n]; w, b [n] or absent (w absent: a factor of
   1). plus is 1 for the modulation of a video transformer, else 0. y may be x. Backward is added to dx where asked. */
CARRY_API carry_status carry_layer_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor b,
                                        float plus, float eps);
/* workspace: carry_layer_norm_backward_workspace(T, n) bytes. */
typedef struct carry_layer_norm_backward_args {
    carry_tensor dx, dw, db; /* each may be absent */
    carry_tensor dy, x, w;
    float plus, eps;
    bool accumulate;
} carry_layer_norm_backward_args;
CARRY_API carry_status carry_layer_norm_backward(carry_ctx *ctx, const carry_layer_norm_backward_args *args,
                                                 void *workspace, size_t workspace_bytes);
CARRY_API size_t carry_layer_norm_backward_workspace(int64_t tokens, int64_t n);

/* What stands between the attentions of a transformer, each one pass over memory on a GPU where that has one, else the
   operators above and below, one after the other.
   affine: y[t] = f(W x[t] + b), or y[t] += W x[t] + b. b [out]. On a GPU the bias and GELU of large products of 16-bit
   types are in the product, which is rounded once.
   add_layer_norm: x[t] += g * y[t] where there is y, then h[t] = carry_layer_norm of x[t] where there is h. */
CARRY_API carry_status carry_affine(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b,
                                    carry_activation activation, bool accumulate);
typedef struct carry_add_layer_norm_args {
    carry_tensor h, x;
    carry_tensor y, g, w, b;
    float plus, eps;
} carry_add_layer_norm_args;
CARRY_API carry_status carry_add_layer_norm(carry_ctx *ctx, const carry_add_layer_norm_args *args);

/* A root-mean-square norm whose rows are spread over ranks: sums[t] = sum of x[t]^2 (f32, [T]), to be added over ranks;
   then y[t] = x[t] / sqrt(sums[t] / whole + eps) * w, whole being the length of the whole row. y may be x. */
CARRY_API carry_status carry_row_squares(carry_ctx *ctx, carry_tensor sums, carry_tensor x);
CARRY_API carry_status carry_rms_scale(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor sums,
                                       carry_tensor w, int64_t whole, float eps);

/* Rotary positions, pairs interleaved: (y[2i], y[2i+1]) = (x[2i] c - x[2i+1] s, x[2i] s + x[2i+1] c), with
   (c, s) = table[t, i]. x, y [T, H, D]; table [T, D/2, 2], f32. inverse turns back, which is the gradient. y may be
   x. */
CARRY_API carry_status carry_rotary(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse);

/* Rotary positions of a part of a head, in pairs half of that part apart: with half = table.shape[1],
   (y[i], y[i+half]) = (x[i] c - x[i+half] s, x[i+half] c + x[i] s), (c, s) = table[t, i]; elements from 2 half on are
   copied. x, y [T, H, D], D up to 4096; table [T, half, 2], f32. inverse turns back. y may be x. */
CARRY_API carry_status carry_rotary_halves(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table,
                                           bool inverse);

/* to[t, into + i] = from[t, first + i], i < width: to [T, m] and from [T, n], of one type. */
CARRY_API carry_status carry_copy_columns(carry_ctx *ctx, carry_tensor to, int64_t into, carry_tensor from,
                                          int64_t first, int64_t width);

/* Queries and keys on their way to attention: to[t] = from[t] / sqrt(mean square + eps) * w where there is w, then
   rotary positions of heads of 2 table.shape[1] elements where it rotates; neither: a copy. For up to three parts, of
   the same rows: queries, keys, and values that are only put into a cache. */
#define CARRY_QK_PARTS 3
typedef struct carry_qk_part {
    carry_tensor to, from; /* [T, n]; on a GPU rows may be further apart than n. to may be from */
    carry_tensor w;        /* [n], f32, or absent */
    carry_tensor sums;     /* [T], f32: of carry_row_squares over all ranks, for rows of `whole`; absent: of from */
    bool rotates;
} carry_qk_part;
typedef struct carry_qk_norm_rotary_args {
    carry_qk_part part[CARRY_QK_PARTS];
    int parts;
    carry_tensor table; /* [T, D/2, 2], f32, as carry_rotary's */
    int64_t whole;
    float eps;
} carry_qk_norm_rotary_args;
CARRY_API carry_status carry_qk_norm_rotary(carry_ctx *ctx, const carry_qk_norm_rotary_args *args);

/* How much each query takes of each of a few keys: attention without its sum over values. With
       u[t] = q[t] / sqrt(mean square + eps) * w where there is w, else q[t],
       p[t, h, j] = softmax over j < keys of (u[t, h] . k[j, h] / sqrt(D) + last at j = keys - 1), 0 from keys on.
   The sums over values and a linear map of them are then one product, of p with the map's image of the values. */
typedef struct carry_key_weights_args {
    carry_tensor p; /* [T, heads * S], S at least keys; all of one type */
    carry_tensor q; /* [T, heads * D] */
    carry_tensor k; /* [keys or more, heads * D] */
    carry_tensor w; /* [heads * D], f32, or absent */
    int64_t heads, keys;
    float last, eps;
} carry_key_weights_args;
CARRY_API carry_status carry_key_weights(carry_ctx *ctx, const carry_key_weights_args *args);

/* Attention whose bias depends on the distance of query and key alone, as T5's does:
       p[h, t, j] = softmax over j < keys of (scores[h, t, j] + bias[h, j - t + T - 1]), and 0 from keys on
   scores [H, T, S], f32; bias [H, T + S - 1], f32; p [H, T, S]. p may be scores where it is f32. */
CARRY_API carry_status carry_relative_softmax(carry_ctx *ctx, carry_tensor p, carry_tensor scores, carry_tensor bias,
                                              int64_t keys);

/* y = silu(gate) * up; dgate may be gate and dup may be up. On a GPU rows of these four, along the last index, may be
   further apart than they are long. */
CARRY_API carry_status carry_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up);
CARRY_API carry_status carry_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup, carry_tensor dy,
                                             carry_tensor gate, carry_tensor up);

/* Causal depthwise convolution along tokens, then an activation:
       y[b, t, c] = f(sum_{i < W} w[c, i] x[b, t - (W-1) + i, c])
   x, y [B, T, C]; w [C, 1, W] or [C, W], W from 1 to 16. What is before the first token is `before` [B, W-1, C], f32,
   or zeros when absent; `after` [B, W-1, C], f32, gets the last W-1 inputs (those of before included where T is
   shorter), and may be before. cu_seqlens ([N+1], i64; B is then 1) cuts: a sequence sees nothing of the one before it;
   only the tokens up to the first cut see `before`. T may be 1 (generation). On a GPU rows of x and dx may be further
   apart than C. */
typedef struct carry_conv_args {
    carry_tensor y, after;
    carry_tensor x, w, before, cu_seqlens;
    carry_activation activation;
} carry_conv_args;

CARRY_API carry_status carry_conv(carry_ctx *ctx, const carry_conv_args *args);

/* The convolution is done again where its sum is needed, so nothing is kept. dx is written, dw is added to, dbefore
   (what reaches the tokens before the first) is written. workspace: carry_conv_backward_workspace bytes. */
typedef struct carry_conv_backward_args {
    carry_tensor dx, dw, dbefore;
    carry_tensor dy;
    carry_tensor x, w, before, cu_seqlens;
    carry_activation activation;
} carry_conv_backward_args;

CARRY_API carry_status carry_conv_backward(carry_ctx *ctx, const carry_conv_backward_args *args, void *workspace,
                                           size_t workspace_bytes);
CARRY_API size_t carry_conv_backward_workspace(int64_t batch, int64_t tokens, int64_t channels, int64_t width);

/* For tensors in host memory, i64, packed: CARRY_ERANGE names the first id that is not in 0..vocabulary-1; a target may
   also be -100. *counted, unless NULL, gets the number of targets that are not. */
CARRY_API carry_status carry_check_ids(carry_ctx *ctx, carry_tensor ids, int64_t vocabulary);
CARRY_API carry_status carry_check_targets(carry_ctx *ctx, int64_t *counted, carry_tensor targets, int64_t vocabulary);

/* y[t] = table[ids[t]]: y [T, n], table [vocabulary, n], ids [T] i64. CARRY_ERANGE names the first id that is not in
   the table. Backward adds dy[t] to dtable[ids[t]], in the order of tokens. */
CARRY_API carry_status carry_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, carry_tensor ids);
CARRY_API carry_status carry_embed_backward(carry_ctx *ctx, carry_tensor dtable, carry_tensor dy, carry_tensor ids);

/* Cross entropy of softmax(logits) [T, vocabulary] with targets [T], i64; a target of -100 is left out. losses [T],
   f32, gets the loss of each token, 0 where left out. dlogits = scale (softmax - one-hot), zero where left out; it may
   be logits, or absent. */
CARRY_API carry_status carry_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dlogits,
                                           carry_tensor logits, carry_tensor targets, float scale);
/* The same with logits = W x, never whole in memory: block after block of tokens. dx, dW (added to) as of
   carry_linear_backward, either absent: loss only. On a GPU a block has as many tokens as the workspace holds logits
   of in f32: more than the least makes it faster, until a few thousand tokens, and dlogits are of the type of x and W.
 */
typedef struct carry_linear_cross_entropy_args {
    carry_tensor losses, dx, dW;
    carry_tensor x, W, targets;
    float scale;
} carry_linear_cross_entropy_args;
CARRY_API carry_status carry_linear_cross_entropy(carry_ctx *ctx, const carry_linear_cross_entropy_args *args,
                                                  void *workspace, size_t workspace_bytes);
CARRY_API size_t carry_linear_cross_entropy_workspace(int64_t tokens, int64_t n, int64_t vocabulary);
/* total [2], f64: the sum of losses [T] in float64, and the number of targets [T] that are not -100; added to what is
   there where asked. Copy it to the host (carry_copy) when somebody wants to see it. */
CARRY_API carry_status carry_sum_losses(carry_ctx *ctx, carry_tensor total, carry_tensor losses, carry_tensor targets,
                                        bool accumulate);

/* The squared distance of y [T, n] from target [T, n], f32, whose rows are G groups of equal size, each with a weight:
       losses[g] = weight[g] sum (y - target)^2;   dy = 2 scale weight[g] (y - target);   total = sum over g of losses
   total [1] and losses [G], f64; weight [G], f32. A weight below 0 leaves its group out: the target is not read, dy and
   the loss are zero. dy may be absent. */
typedef struct carry_squared_error_args {
    carry_tensor total, losses, dy;
    carry_tensor y, target, weight;
    double scale;
} carry_squared_error_args;
CARRY_API carry_status carry_squared_error(carry_ctx *ctx, const carry_squared_error_args *args);

/* sum [1], f64: the sum of squares, in float64, of a packed f32 tensor, added to what is there where asked; NaN and
   infinity come through. workspace: carry_sum_squares_workspace(elements of x) bytes. */
CARRY_API carry_status carry_sum_squares(carry_ctx *ctx, carry_tensor sum, carry_tensor x, bool accumulate,
                                         void *workspace, size_t workspace_bytes);
CARRY_API size_t carry_sum_squares_workspace(int64_t count);

/* factor [1], f32: what brings gradients whose squares add up to squares [1], f64, to a norm of at most limit: 1 where
   they have it, or where limit is 0; NaN where squares is not finite. */
CARRY_API carry_status carry_clip_factor(carry_ctx *ctx, carry_tensor factor, carry_tensor squares, double limit);

/* bad [1], f32: how many steps in a row had no finite gradients, kept from step to step; it starts at 0. factor is of
   carry_clip_factor: where it is NaN bad grows by one, else it is 0 again; once it is above limit it stays, and factor
   is NaN from then on. So steps whose gradients are not finite are skipped on the device, nobody waits to see that, and
   after too many the weights stay as they were. */
CARRY_API carry_status carry_skip_guard(carry_ctx *ctx, carry_tensor factor, carry_tensor bad, int64_t limit);

/* AdamW, one pass over f32 w, m, v and gradient g of equal count:
       g' = factor clip g;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
       w = w - rate (m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps) + decay w)
   step counts from 1. `low`, where present, gets w in its own type. clip is a number on the device, of
   carry_clip_factor as a rule; absent, it is 1. Where it is NaN nothing is changed, so that a step whose gradients are
   not finite can be refused when that is known on the host. factors, where present, replace rate, b1, b2, eps, decay,
   factor and step: what carry_adamw_factors wrote, on the device of w, so that a recorded step (carry_graph_begin) may
   be replayed at another rate. spared, where present, holds pairs first, end: elements [first, end)
   do not decay; pairs ascend, and their numbers are multiples of 4 (the last end may be the count). So all parameters
   of a model that lie side by side take one call, which is one launch on a GPU. */
typedef struct carry_adamw {
    double rate, b1, b2, eps, decay, factor;
    int64_t step;
    carry_tensor clip;    /* [1], f32, or absent */
    carry_tensor factors; /* [CARRY_ADAMW_FACTORS], f32, or absent */
    carry_tensor spared;  /* [2 n], i64, on the device of w, or absent */
} carry_adamw;

#define CARRY_ADAMW_FACTORS 9
CARRY_API void carry_adamw_factors(float factors[CARRY_ADAMW_FACTORS], const carry_adamw *options);

CARRY_API carry_status carry_adamw_step(carry_ctx *ctx, carry_tensor w, carry_tensor m, carry_tensor v,
                                        carry_tensor low, carry_tensor g, const carry_adamw *options);

#ifdef __cplusplus
}
#endif
#endif
