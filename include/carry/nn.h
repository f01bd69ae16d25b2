/* Operators of language models, each with its gradient.

   Rows are tokens. Activations are f32, bf16 or f16, of one type in a call unless stated otherwise; sums are f32.
   Weights are f32 or of the type of the activations (on the CPU, of any of these types). Gradients of weights are f32
   and are accumulated; gradients of activations are overwritten, or accumulated if `accumulate` is set. Tensors are
   packed unless stated otherwise. Absent tensors have data NULL. Results do not depend on the number of threads: sums
   over tokens are computed in blocks of fixed size and added in order. Nothing is allocated; operators that need a
   workspace have a function that returns its size, which never shrinks as tokens grow. CARRY_ESHAPE, CARRY_EDTYPE and
   CARRY_EDEVICE name the tensor, before anything is written.

   All tensors of a call and its workspace are on one device. On the CPU the work is done on return; on a GPU it is
   enqueued on the context's stream (carry_ctx_set_stream) and the call does not wait. This includes token ids, targets,
   losses and norms: nothing goes through the host between two operators. Validate ids and targets on the host with
   carry_check_ids and carry_check_targets, once per batch, before they are uploaded. Operators on the CPU check them
   again; on a GPU an id or target out of range is not used as an index, and its row or loss becomes NaN. */
#ifndef CARRY_NN_H
#define CARRY_NN_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[t] = W x[t]: y [T, out], x [T, in], W [out, in]. On a GPU, a large product of 16-bit types with accumulate is
   rounded before it is added, and f32 weights with 16-bit activations are slow: keep a 16-bit copy of the weights. */
CARRY_API carry_status carry_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate);
/* dx = dy W and dW += dy^T x; either may be absent. */
CARRY_API carry_status carry_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy,
                                             carry_tensor x, carry_tensor W, bool accumulate);

/* y[t] = base[t] + W x[t], for residual connections. y may be base. */
CARRY_API carry_status carry_linear_add(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                        carry_tensor base);

/* Several linear maps of one input, such as the projections of a layer: y[i][t] = W[i] x[t], i < maps. Backward:
   dx = sum of dy[i] W[i], and dW[i] += dy[i]^T x; dx may be absent, and so may all of dW. On a GPU, rows of y[i]
   and dy[i] may have a stride larger than their length, and adjacent maps (W[i + 1] follows W[i] in memory, and the
   first column of y[i + 1] follows the last of y[i]) are computed as one product. */
#define CARRY_MAX_MERGED_MAPS 8
typedef struct carry_merged_linear_args {
    carry_tensor y[CARRY_MAX_MERGED_MAPS];
    carry_tensor x, W[CARRY_MAX_MERGED_MAPS];
    int maps;
} carry_merged_linear_args;
CARRY_API carry_status carry_merged_linear(carry_ctx *ctx, const carry_merged_linear_args *args);
typedef struct carry_merged_linear_backward_args {
    carry_tensor dx, dW[CARRY_MAX_MERGED_MAPS];
    carry_tensor dy[CARRY_MAX_MERGED_MAPS], x, W[CARRY_MAX_MERGED_MAPS];
    int maps;
    bool accumulate; /* for dx */
} carry_merged_linear_backward_args;
CARRY_API carry_status carry_merged_linear_backward(carry_ctx *ctx, const carry_merged_linear_backward_args *args);

/* y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w * silu(z[t]): x, y, z [T, n]; w [n] or absent (1); z absent: no gate. On a
   GPU, z and dz may also be [T / h, h, n] with a larger stride over the first index. */
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
    CARRY_GELU /* tanh approximation: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
} carry_activation;

/* y = f(x), element by element; dx = f'(x) dy. y may be x, dx may be dy. */
CARRY_API carry_status carry_activate(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_activation activation);
CARRY_API carry_status carry_activate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dy, carry_tensor x,
                                               carry_activation activation);

/* y[t] += b: y [T, n], b [n]. Backward: db += sum over t of dy[t]. */
CARRY_API carry_status carry_add_bias(carry_ctx *ctx, carry_tensor y, carry_tensor b);
CARRY_API carry_status carry_add_bias_backward(carry_ctx *ctx, carry_tensor db, carry_tensor dy);

/* y[t] = (x[t] - mean) / sqrt(variance + eps) * (w + plus) + b: x, y [T, n]; w, b [n] or absent (w absent: a factor of
   1). plus is 1 if w is stored as the difference from 1, else 0. y may be x. */
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

/* Rotary position embedding of the first 2 * half elements of each head, where half = table.shape[1] and element i is
   paired with i + half: (y[i], y[i+half]) = (x[i] c - x[i+half] s, x[i+half] c + x[i] s), (c, s) = table[t, i]. The
   remaining elements are copied. x, y [T, H, D], D up to 4096; table [T, half, 2], f32. inverse rotates backwards. y
   may be x. */
CARRY_API carry_status carry_rotary_halves(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor table,
                                           bool inverse);

/* to[t, into + i] = from[t, first + i], i < width: to [T, m] and from [T, n], of one type. */
CARRY_API carry_status carry_copy_columns(carry_ctx *ctx, carry_tensor to, int64_t into, carry_tensor from,
                                          int64_t first, int64_t width);

/* y = silu(gate) * up; dgate may be gate and dup may be up. On a GPU rows of these four may have a stride larger than
   their length. */
CARRY_API carry_status carry_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up);
CARRY_API carry_status carry_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup, carry_tensor dy,
                                             carry_tensor gate, carry_tensor up);

/* Causal depthwise convolution along tokens, then an activation:
       y[b, t, c] = f(sum_{i < W} w[c, i] x[b, t - (W-1) + i, c])
   x, y [B, T, C]; w [C, 1, W] or [C, W], W from 1 to 16. `before` [B, W-1, C], f32, holds the inputs before the first
   token; absent: zeros. `after` [B, W-1, C], f32, receives the last W-1 inputs (including some of `before` if T is less
   than W-1), and may be `before`. With cu_seqlens ([N+1], i64; B is then 1) a sequence does not see the previous one,
   and only the first sees `before`. T may be 1 (generation). On a GPU, the rows of x and dx may have a stride larger
   than C. */
typedef struct carry_conv_args {
    carry_tensor y, after;
    carry_tensor x, w, before, cu_seqlens;
    carry_activation activation;
} carry_conv_args;

CARRY_API carry_status carry_conv(carry_ctx *ctx, const carry_conv_args *args);

/* Recomputes the convolution if its sum is needed, so the forward pass keeps nothing. dx and dbefore (the gradient of
   `before`) are overwritten, dw is accumulated. workspace: carry_conv_backward_workspace bytes. */
typedef struct carry_conv_backward_args {
    carry_tensor dx, dw, dbefore;
    carry_tensor dy;
    carry_tensor x, w, before, cu_seqlens;
    carry_activation activation;
} carry_conv_backward_args;

CARRY_API carry_status carry_conv_backward(carry_ctx *ctx, const carry_conv_backward_args *args, void *workspace,
                                           size_t workspace_bytes);
CARRY_API size_t carry_conv_backward_workspace(int64_t batch, int64_t tokens, int64_t channels, int64_t width);

/* For packed i64 tensors in host memory: CARRY_ERANGE names the first id outside 0..vocabulary-1. A target may also be
   -100; *counted, unless counted is NULL, receives the number of targets that are not -100. */
CARRY_API carry_status carry_check_ids(carry_ctx *ctx, carry_tensor ids, int64_t vocabulary);
CARRY_API carry_status carry_check_targets(carry_ctx *ctx, int64_t *counted, carry_tensor targets, int64_t vocabulary);

/* y[t] = table[ids[t]]: y [T, n], table [vocabulary, n], ids [T] i64. CARRY_ERANGE names the first id outside the
   table. Backward adds dy[t] to dtable[ids[t]], in token order. */
CARRY_API carry_status carry_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, carry_tensor ids);
CARRY_API carry_status carry_embed_backward(carry_ctx *ctx, carry_tensor dtable, carry_tensor dy, carry_tensor ids);

/* Cross entropy of softmax(logits) [T, vocabulary] with targets [T], i64; targets of -100 are ignored. losses [T], f32,
   receives the loss of each token, 0 for ignored ones. dlogits = scale (softmax - one-hot), zero for ignored tokens; it
   may be logits, or absent. */
CARRY_API carry_status carry_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dlogits,
                                           carry_tensor logits, carry_tensor targets, float scale);
/* The same with logits = W x, computed in blocks of tokens, so that all logits are never in memory at once. dx is
   overwritten and dW accumulated, as in carry_linear_backward; either may be absent. On a GPU the
   workspace determines the block size, the number of tokens whose f32 logits fit: a workspace larger than the minimum
   is faster, up to a few thousand tokens. There dlogits have the type of x and W. If x and W are bf16, a gradient is
   wanted and there are 8192 to 32768 words, a GPU rounds logits to f16 (losses change by up to 2^-11 of a logit) where
   the workspace has room for copies of x and W in f16. */
typedef struct carry_linear_cross_entropy_args {
    carry_tensor losses, dx, dW;
    carry_tensor x, W, targets;
    float scale;
} carry_linear_cross_entropy_args;
CARRY_API carry_status carry_linear_cross_entropy(carry_ctx *ctx, const carry_linear_cross_entropy_args *args,
                                                  void *workspace, size_t workspace_bytes);
CARRY_API size_t carry_linear_cross_entropy_workspace(int64_t tokens, int64_t n, int64_t vocabulary);
/* total [2], f64: the sum of losses [T] in float64, and the number of targets [T] that are not -100; accumulated if
   `accumulate` is set. Copy it to the host with carry_copy to read it. */
CARRY_API carry_status carry_sum_losses(carry_ctx *ctx, carry_tensor total, carry_tensor losses, carry_tensor targets,
                                        bool accumulate);

/* sum [1], f64: the sum of squares, in float64, of a packed f32 tensor; accumulated if `accumulate` is set. NaN and
   infinity propagate. workspace: carry_sum_squares_workspace(number of elements of x) bytes. */
CARRY_API carry_status carry_sum_squares(carry_ctx *ctx, carry_tensor sum, carry_tensor x, bool accumulate,
                                         void *workspace, size_t workspace_bytes);
CARRY_API size_t carry_sum_squares_workspace(int64_t count);

/* factor [1], f32: the factor that clips gradients to a norm of at most limit, given the sum of their squares in
   squares [1], f64. It is 1 if the norm is within limit or limit is 0, and NaN if squares is not finite. */
CARRY_API carry_status carry_clip_factor(carry_ctx *ctx, carry_tensor factor, carry_tensor squares, double limit);

/* Counts consecutive steps whose gradients are not finite in bad [1], f32, which starts at 0 and is kept from step to
   step. factor comes from carry_clip_factor: if it is NaN, bad increases by one, else it is reset to 0. Once bad
   exceeds limit it stays, and factor is set to NaN in every later step. So the device skips steps whose gradients are
   not finite, without waiting for the host, and after too many in a row it no longer changes the weights. */
CARRY_API carry_status carry_skip_guard(carry_ctx *ctx, carry_tensor factor, carry_tensor bad, int64_t limit);

/* AdamW, one pass over f32 w and gradient g, and m and v, of equal count:
       g' = factor clip g;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
       w = w - rate (m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps) + decay w)
   m and v are both f32 or both bf16; bf16 is rounded up or down at random, by bits that depend only on the step, the
   element's index and its numbers, and w is computed from the unrounded m and v. step counts from 1. `low`, if present,
   receives w rounded to its own type. clip is a number on the device, usually from carry_clip_factor; absent: 1. If it
   is NaN, nothing is changed, so a step whose gradients are not finite has no effect and the host can report it later.
   factors, if present, replaces rate, b1, b2, eps, decay, factor and step; it holds the values from carry_adamw_factors
   on the device of w, so that a recorded step (carry_graph_begin) can be replayed with another rate. spared, if
   present, holds ascending pairs (first, end): elements [first, end) do not decay. These numbers are multiples of 4,
   except that the last end may be the count. All parameters of a model that are contiguous in memory thus need one
   call, which is one launch on a GPU. */
typedef struct carry_adamw {
    size_t size; /* CARRY_INIT */
    double rate, b1, b2, eps, decay, factor;
    int64_t step;
    carry_tensor clip;    /* [1], f32, or absent */
    carry_tensor factors; /* [CARRY_ADAMW_FACTORS], f32, or absent */
    carry_tensor spared;  /* [2 n], i64, on the device of w, or absent */
} carry_adamw;

#define CARRY_ADAMW_FACTORS 10
CARRY_API carry_status carry_adamw_factors(carry_ctx *ctx, float factors[CARRY_ADAMW_FACTORS],
                                           const carry_adamw *options);

CARRY_API carry_status carry_adamw_step(carry_ctx *ctx, carry_tensor w, carry_tensor m, carry_tensor v,
                                        carry_tensor low, carry_tensor g, const carry_adamw *options);

#ifdef __cplusplus
}
#endif
#endif
