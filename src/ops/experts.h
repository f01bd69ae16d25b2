/* Operators of a mixture of experts. A router gives each of T tokens k of E experts, with weights:

       route          logits [T, E] -> chosen [T, k], weights [T, k]
       sort_experts   the T k pairs (token, choice), sorted by expert
       gather_pairs   a row for every pair, in that order
       grouped_linear one product for each expert with its rows
       combine_pairs  the weighted sum of a token's rows

   Pair p = t k + j is choice j of token t. After the sort, pair[r] is the pair at row r, place[p] is the row of pair p,
   and rows offsets[e] to offsets[e + 1] - 1 are those of expert e, in the order of their pairs. All shapes follow from
   T, k and E, so nothing is read back from a device, and sums have one order. Activations are f32, bf16 or f16; weights
   of the router are f32, and numbers of experts, pairs and rows are i64. */
#ifndef CARRY_OPS_EXPERTS_H
#define CARRY_OPS_EXPERTS_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_MAX_EXPERTS 4096

typedef enum carry_router_score { CARRY_ROUTER_SOFTMAX, CARRY_ROUTER_SIGMOID } carry_router_score;

/* With p = softmax or sigmoid of the logits and c = p + bias: the experts form `groups` groups of consecutive
   experts. The `kept_groups` groups with the largest sum of their two largest c are kept; of their experts, the k
   largest c are chosen. The weights are p of the chosen experts, divided by their sum (plus 1e-20) if `normalise` is
   set, times `scale`. Of equal numbers the first is chosen. If a logit of a token is NaN, any k different experts are
   chosen and all its weights are NaN. */
typedef struct carry_router {
    carry_router_score score;
    int64_t groups, kept_groups; /* groups 0 or 1: all experts are one group */
    bool normalise;
    float scale;
    /* For the router of a call: the smallest mark + t of the tokens t whose weights are NaN is stored here, on the
       device of the logits, if it is below the number that is there. NULL: nowhere. */
    int64_t *first_nan;
    int64_t mark;
} carry_router;

#define CARRY_ROUTER_NO_NAN INT64_MAX /* in first_nan: none so far */

/* weights [T, k], f32; chosen [T, k], i64; logits [T, E]; bias [E], f32, may be absent. */
carry_status carry_route(carry_ctx *ctx, carry_tensor weights, carry_tensor chosen, carry_tensor logits,
                         carry_tensor bias, const carry_router *router);
/* dlogits from dweights. The choice and the bias have no gradient. */
carry_status carry_route_backward(carry_ctx *ctx, carry_tensor dlogits, carry_tensor dweights, carry_tensor logits,
                                  carry_tensor chosen, const carry_router *router);

/* Shapes: pair, place [T k]; offsets [E + 1]; chosen [T, k]. */
carry_status carry_sort_experts(carry_ctx *ctx, carry_tensor pair, carry_tensor place, carry_tensor offsets,
                                carry_tensor chosen);

/* y[r] = x[pair[r] / k], times weights[pair[r]] if weights are present: y [T k, n], x [T, n], weights [T, k]. */
carry_status carry_gather_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor pair,
                                carry_tensor weights);
/* y[t] = base[t] + sum over j of weights[t, j] x[place[t k + j]]: y, base [T, n], x [T k, n]. base and weights may
   be absent; absent weights count as 1. y may be base. Backward: x's gradient is carry_gather_pairs, and dweights[t,
   j] = dy[t] . x[place[t k + j]]. */
carry_status carry_combine_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x, carry_tensor place,
                                 carry_tensor weights);
carry_status carry_combine_pairs_backward(carry_ctx *ctx, carry_tensor dweights, carry_tensor dy, carry_tensor x,
                                          carry_tensor place);

/* y[t] = base[t] + sigmoid(s[t]) x[t]: y, base, x [T, n]; s [T, 1]. base may be absent, and y may be base or x.
   Backward: dx = sigmoid(s) dy and ds = sigmoid'(s) (dy . x); dx may be dy. */
carry_status carry_row_gate(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x, carry_tensor s);
carry_status carry_row_gate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor ds, carry_tensor dy, carry_tensor x,
                                     carry_tensor s);

/* y[r] = W[e] x[r] for the rows r of expert e: x [rows, in], y [rows, out], W [E, out, in] with any stride over the
   first index. On a GPU, W may be a stack of quantised matrices (ops/quantised/tiles.h) in the forward product: up to 8
   rows of an expert on average, or any number while a stream is captured, read its tiles; for more, experts are decoded
   into a buffer. Rows of y and dy on a GPU may have a stride larger than their length. Backward: dx = dy W[e], or
   added to dx, and dW[e] += dy^T x; dW is f32 and shaped like W, with any stride over the first index. dx or dW may be
   absent. */
carry_status carry_grouped_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor offsets);
carry_status carry_grouped_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy,
                                           carry_tensor x, carry_tensor W, carry_tensor offsets, bool accumulate);

#ifdef __cplusplus
}
#endif
#endif
