/* Products of rows with one weight per expert. On the CPU every expert is one linear layer, whose products all
   threads share: this suits experts with few and with many rows, and reads a weight once. */
#include "core/context.h"
#include "core/tensor.h"
#include "ops/cpu.h"
#include "ops/linear.h"
#include "ops/nn.h"
#include "ops/quantised/tiles.h"

/* Matrix `e` of [E, out, in]. */
static carry_tensor expert_of(carry_tensor W, int64_t e) {
    carry_tensor one = carry_view_2d(NULL, W.dtype, W.shape[1], W.shape[2]);
    if (W.data != NULL) {
        one.data = (unsigned char *)W.data + (size_t)(e * W.stride[0]) * carry_dtype_size(W.dtype);
    }
    return one;
}

/* Checks that W is [E, out, in], packed except for the first index; f32 if it is a gradient, else of a type that
   carry_linear accepts. */
static carry_status expect_experts(carry_ctx *ctx, const char *name, const carry_tensor *W, const carry_tensor *x,
                                   int64_t out, int64_t experts, bool gradient) {
    CARRY_TRY(carry_expect_rank(ctx, name, W, 3));
    const int64_t shape[] = {out, x->shape[1]};
    carry_tensor one = *W;
    one.rank = 2;
    for (int i = 0; i < 2; i++) {
        one.shape[i] = W->shape[i + 1];
        one.stride[i] = W->stride[i + 1];
    }
    if (W->shape[0] != experts || W->stride[0] < W->shape[1] * W->shape[2]) {
        return carry_fail(ctx, CARRY_ESHAPE, "%s has %lld matrices %lld elements apart: expected %lld", name,
                          (long long)W->shape[0], (long long)W->stride[0], (long long)experts);
    }
    return gradient ? carry_expect_f32(ctx, name, &one, 2, shape, x->device)
                    : carry_expect_weight(ctx, name, &one, 2, shape, x);
}

/* Checks that W is a stack of quantised matrices on a GPU (quantised/tiles.h), [E, out, in]. */
static carry_status expect_quantised(carry_ctx *ctx, const carry_tensor *W, const carry_tensor *x, int64_t out,
                                     int64_t experts) {
    const int64_t shape[] = {experts, out, x->shape[1]};
    carry_quant_tiles layout;
    if (W->device == 0 || W->device != x->device || !carry_quant_tiles_of_stack(&layout, W)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "W is quantised: experts are decoded on the CPU, and on a GPU in tiles of the device of x");
    }
    return carry_tensor_expect(ctx, "W", W, 3, shape);
}

static carry_status expect_grouped(carry_ctx *ctx, const char *y_name, const carry_tensor *y, const carry_tensor *x,
                                   const carry_tensor *W, const carry_tensor *offsets) {
    CARRY_TRY(carry_expect_rank(ctx, "x", x, 2));
    CARRY_TRY(carry_expect_rank(ctx, y_name, y, 2));
    CARRY_TRY(carry_expect_rank(ctx, "offsets", offsets, 1));
    CARRY_TRY(carry_expect_like(ctx, "x", x, x));
    CARRY_TRY(carry_expect_i64(ctx, "offsets", offsets, offsets->shape[0], x->device));
    CARRY_TRY(W->dtype == CARRY_QUANTISED ? expect_quantised(ctx, W, x, y->shape[1], offsets->shape[0] - 1)
                                          : expect_experts(ctx, "W", W, x, y->shape[1], offsets->shape[0] - 1, false));
    carry_tensor like = *x;
    like.shape[1] = y->shape[1];
    return carry_expect_rows(ctx, y_name, y, &like);
}

carry_status carry_grouped_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                  carry_tensor offsets) {
    CARRY_OPERATOR(ctx, operators, grouped_linear, &x)
    CARRY_TRY(expect_grouped(ctx, "y", &y, &x, &W, &offsets));
    return operators->grouped_linear(ctx, y, x, W, offsets);
}

/* Finds the rows of expert e, and checks that they are inside x. */
static carry_status rows_of(carry_ctx *ctx, const carry_tensor *offsets, int64_t e, int64_t rows, int64_t *first,
                            int64_t *count) {
    const int64_t *at = offsets->data;
    *first = at[e];
    *count = at[e + 1] - at[e];
    return *first >= 0 && *count >= 0 && *first <= rows && *count <= rows - *first
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ERANGE, "offsets[%lld] is %lld and the next %lld: %lld rows are there",
                            (long long)e, (long long)at[e], (long long)at[e + 1], (long long)rows);
}

carry_status carry_cpu_grouped_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                      carry_tensor offsets) {
    for (int64_t e = 0; e < W.shape[0]; e++) {
        int64_t first;
        int64_t count;
        CARRY_TRY(rows_of(ctx, &offsets, e, x.shape[0], &first, &count));
        if (count > 0) {
            CARRY_TRY(carry_cpu_linear(ctx, carry_slice(y, first, count), carry_slice(x, first, count), expert_of(W, e),
                                       false));
        }
    }
    return CARRY_OK;
}

carry_status carry_grouped_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy,
                                           carry_tensor x, carry_tensor W, carry_tensor offsets, bool accumulate) {
    CARRY_OPERATOR(ctx, operators, grouped_linear_backward, &x)
    CARRY_TRY(expect_grouped(ctx, "dy", &dy, &x, &W, &offsets));
    if (W.dtype == CARRY_QUANTISED) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "W is quantised: products of experts have no gradients with it");
    }
    if (carry_is_here(&dx)) {
        CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    }
    if (carry_is_here(&dW)) {
        CARRY_TRY(expect_experts(ctx, "dW", &dW, &x, dy.shape[1], W.shape[0], true));
    }
    return operators->grouped_linear_backward(ctx, dx, dW, dy, x, W, offsets, accumulate);
}

carry_status carry_cpu_grouped_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy,
                                               carry_tensor x, carry_tensor W, carry_tensor offsets, bool accumulate) {
    for (int64_t e = 0; e < W.shape[0]; e++) {
        int64_t first;
        int64_t count;
        CARRY_TRY(rows_of(ctx, &offsets, e, x.shape[0], &first, &count));
        if (count > 0) {
            CARRY_TRY(carry_cpu_linear_backward(ctx, carry_is_here(&dx) ? carry_slice(dx, first, count) : dx,
                                                expert_of(dW, e), carry_slice(dy, first, count),
                                                carry_slice(x, first, count), expert_of(W, e), accumulate));
        }
    }
    return CARRY_OK;
}
