/* Several linear maps of one input, and a linear map that is added to a residual. On the CPU they are the products
   of linear.c, one after the other, or all at once for a few tokens. */
#include "core/context.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/linear.h"
#include "ops/nn.h"
#include "ops/product/few.h"
#include "ops/quantised/many.h"
#include "ops/quantised/products.h"

carry_status carry_linear_add(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor base) {
    CARRY_OPERATOR(ctx, operators, linear_add, &x)
    CARRY_TRY(carry_expect_linear(ctx, "y", &y, &x, &W));
    CARRY_TRY(carry_expect_like(ctx, "base", &base, &y));
    return operators->linear_add(ctx, y, x, W, base);
}

carry_status carry_cpu_linear_add(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor base) {
    if (y.data != base.data) {
        CARRY_TRY(carry_cpu_convert(ctx, y, base));
    }
    return carry_cpu_linear(ctx, y, x, W, true);
}

static carry_status expect_maps(carry_ctx *ctx, int maps) {
    return maps >= 0 && maps <= CARRY_MAX_MERGED_MAPS
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT, "%d maps of one input: 0 to %d are possible", maps,
                            CARRY_MAX_MERGED_MAPS);
}

/* Like carry_expect_linear, but the row stride of y may be larger. */
static carry_status expect_map(carry_ctx *ctx, const char *name, const carry_tensor *y, const carry_tensor *x,
                               const carry_tensor *W) {
    carry_tensor like = *x;
    CARRY_TRY(carry_expect_rank(ctx, "x", x, 2));
    CARRY_TRY(carry_expect_rank(ctx, name, y, 2));
    like.shape[1] = y->shape[1];
    CARRY_TRY(carry_expect_rows(ctx, name, y, &like));
    const carry_tensor packed = carry_reshape(*y, 2, y->shape);
    return carry_expect_linear(ctx, name, &packed, x, W);
}

carry_status carry_merged_linear(carry_ctx *ctx, const carry_merged_linear_args *args) {
    CARRY_OPERATOR(ctx, operators, merged_linear, &args->x)
    CARRY_TRY(expect_maps(ctx, args->maps));
    for (int i = 0; i < args->maps; i++) {
        CARRY_TRY(expect_map(ctx, "y", &args->y[i], &args->x, &args->W[i]));
    }
    return operators->merged_linear(ctx, args);
}

carry_status carry_cpu_merged_linear(carry_ctx *ctx, const carry_merged_linear_args *args) {
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    if (ctx->fixed_rows == NULL &&
        (carry_few_tokens_merged(ctx, kernels, args) || carry_quantised_many_merged(ctx, kernels, args) ||
         carry_quantised_few_merged(ctx, kernels, args))) { /* threads wait once */
        return CARRY_OK;
    }
    bool x_packed = false;
    for (int i = 0; i < args->maps; i++) {
        CARRY_TRY(carry_linear_map(ctx, args->y[i], args->x, args->W[i], false, &x_packed));
    }
    return CARRY_OK;
}

carry_status carry_merged_linear_backward(carry_ctx *ctx, const carry_merged_linear_backward_args *args) {
    CARRY_OPERATOR(ctx, operators, merged_linear_backward, &args->x)
    CARRY_TRY(expect_maps(ctx, args->maps));
    if (carry_is_here(&args->dx)) {
        CARRY_TRY(carry_expect_like(ctx, "dx", &args->dx, &args->x));
    }
    for (int i = 0; i < args->maps; i++) {
        CARRY_TRY(expect_map(ctx, "dy", &args->dy[i], &args->x, &args->W[i]));
        if (carry_is_here(&args->dW[i]) != carry_is_here(&args->dW[0])) {
            return carry_fail(ctx, CARRY_EARGUMENT, "dW of map %d is %s and that of map 0 is not: all or none", i,
                              carry_is_here(&args->dW[i]) ? "given" : "absent");
        }
        if (carry_is_here(&args->dW[i])) {
            CARRY_TRY(carry_expect_f32(ctx, "dW", &args->dW[i], 2, args->W[i].shape, args->x.device));
        }
    }
    return operators->merged_linear_backward(ctx, args);
}

carry_status carry_cpu_merged_linear_backward(carry_ctx *ctx, const carry_merged_linear_backward_args *args) {
    for (int i = 0; i < args->maps; i++) {
        CARRY_TRY(carry_cpu_linear_backward(ctx, args->dx, args->dW[i], args->dy[i], args->x, args->W[i],
                                            args->accumulate || i > 0));
    }
    return CARRY_OK;
}
