/* Operators of transformers that a GPU does in one pass over memory. On the CPU, and on a GPU without such a kernel,
   the separate operators run one after the other. */
#include "ops/fused.h"

#include <inttypes.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "ops/cpu.h"
#include "ops/device.h"
#include "ops/linear.h"
#include "ops/nn.h"
#include "ops/video.h"

carry_status carry_affine(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b,
                          carry_activation activation, bool accumulate) {
    CARRY_OPERATOR(ctx, operators, affine, &x)
    CARRY_TRY(carry_expect_linear(ctx, "y", &y, &x, &W));
    CARRY_TRY(carry_expect_weight(ctx, "b", &b, 1, &y.shape[1], &y));
    if (accumulate && activation != CARRY_NO_ACTIVATION) {
        return carry_fail(ctx, CARRY_EARGUMENT, "affine: what is added to y has no activation");
    }
    return operators->affine(ctx, y, x, W, b, activation, accumulate);
}

carry_status carry_affine_parts(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b,
                                carry_activation activation, bool accumulate) {
    CARRY_TRY(carry_linear(ctx, y, x, W, accumulate));
    CARRY_TRY(carry_add_bias(ctx, y, b));
    return activation != CARRY_NO_ACTIVATION ? carry_activate(ctx, y, y, activation) : CARRY_OK;
}

carry_status carry_cpu_affine(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b,
                              carry_activation activation, bool accumulate) {
    return carry_affine_parts(ctx, y, x, W, b, activation, accumulate);
}

carry_status carry_add_layer_norm(carry_ctx *ctx, const carry_add_layer_norm_args *args) {
    const carry_tensor h = args->h, x = args->x, y = args->y, g = args->g, w = args->w, b = args->b;
    CARRY_OPERATOR(ctx, operators, add_layer_norm, &x)
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    if (carry_is_here(&y)) {
        CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
        CARRY_TRY(carry_expect_weight(ctx, "g", &g, 1, &x.shape[1], &x));
    }
    if (carry_is_here(&h)) {
        CARRY_TRY(carry_expect_like(ctx, "h", &h, &x));
    }
    if (carry_is_here(&w)) {
        CARRY_TRY(carry_expect_weight(ctx, "w", &w, 1, &x.shape[1], &x));
    }
    if (carry_is_here(&b)) {
        CARRY_TRY(carry_expect_weight(ctx, "b", &b, 1, &x.shape[1], &x));
    }
    return operators->add_layer_norm(ctx, h, x, y, g, w, b, args->plus, args->eps);
}

carry_status carry_add_layer_norm_parts(carry_ctx *ctx, carry_tensor h, carry_tensor x, carry_tensor y, carry_tensor g,
                                        carry_tensor w, carry_tensor b, float plus, float eps) {
    if (carry_is_here(&y)) {
        CARRY_TRY(carry_gated_add(ctx, x, y, g));
    }
    return carry_is_here(&h) ? carry_layer_norm(ctx, h, x, w, b, plus, eps) : CARRY_OK;
}

carry_status carry_cpu_add_layer_norm(carry_ctx *ctx, carry_tensor h, carry_tensor x, carry_tensor y, carry_tensor g,
                                      carry_tensor w, carry_tensor b, float plus, float eps) {
    return carry_add_layer_norm_parts(ctx, h, x, y, g, w, b, plus, eps);
}

/* Checks that a tensor is [T, n] like the first part; on a GPU its row stride may be larger. */
static carry_status expect_rows(carry_ctx *ctx, const char *name, const carry_tensor *tensor,
                                const carry_tensor *like) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 2, like->shape));
    if (tensor->dtype != like->dtype || !carry_dtype_is_real(like->dtype)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and the first part is %s: f32, bf16 or f16 for all of them",
                          name, carry_dtype_name(tensor->dtype), carry_dtype_name(like->dtype));
    }
    const bool is_packed = carry_tensor_is_packed(tensor, 0);
    if (!is_packed && (like->device == 0 || !carry_tensor_is_apart(tensor, 1) || tensor->stride[0] < 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s has rows %" PRId64 " elements apart: %s", name, tensor->stride[0],
                          like->device == 0 ? "on the CPU they follow each other" : "they must not overlap");
    }
    return carry_device_expect(ctx, name, tensor, like->device);
}

static carry_status expect_part(carry_ctx *ctx, const carry_qk_norm_rotary_args *args, int i) {
    const carry_qk_part *part = &args->part[i];
    const carry_tensor *like = &args->part[0].from;
    const int64_t *shape = like->shape;
    CARRY_TRY(expect_rows(ctx, "from", &part->from, like));
    CARRY_TRY(expect_rows(ctx, "to", &part->to, like));
    if (carry_is_here(&part->w)) {
        CARRY_TRY(carry_expect_f32(ctx, "w", &part->w, 1, &shape[1], like->device));
    }
    if (carry_is_here(&part->sums)) {
        CARRY_TRY(carry_expect_f32(ctx, "sums", &part->sums, 1, shape, like->device));
    }
    if (!part->rotates) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_expect_rank(ctx, "table", &args->table, 3));
    const int64_t head = 2 * args->table.shape[1];
    if (head < 2 || shape[1] % head != 0) {
        return carry_fail(ctx, CARRY_ESHAPE, "rows of %" PRId64 " are not heads of %" PRId64, shape[1], head);
    }
    return carry_expect_f32(ctx, "table", &args->table, 3, (const int64_t[]){shape[0], head / 2, 2}, like->device);
}

carry_status carry_qk_norm_rotary(carry_ctx *ctx, const carry_qk_norm_rotary_args *args) {
    CARRY_OPERATOR(ctx, operators, qk_norm_rotary, &args->part[0].from)
    if (args->parts < 1 || args->parts > CARRY_MAX_QK_PARTS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "qk_norm_rotary: %d parts, where 1 to %d are possible", args->parts,
                          CARRY_MAX_QK_PARTS);
    }
    CARRY_TRY(carry_expect_rank(ctx, "from", &args->part[0].from, 2));
    for (int i = 0; i < args->parts; i++) {
        CARRY_TRY(expect_part(ctx, args, i));
    }
    return operators->qk_norm_rotary(ctx, args);
}

carry_status carry_cpu_qk_norm_rotary(carry_ctx *ctx, const carry_qk_norm_rotary_args *args) {
    for (int i = 0; i < args->parts; i++) {
        const carry_qk_part *part = &args->part[i];
        carry_tensor x = part->from;
        if (carry_is_here(&part->w)) {
            CARRY_TRY(carry_is_here(&part->sums)
                          ? carry_rms_scale(ctx, part->to, x, part->sums, part->w, args->whole, args->eps)
                          : carry_rms_norm(ctx, part->to, x, part->w, (carry_tensor){0}, args->eps));
            x = part->to;
        }
        if (part->rotates) {
            const int64_t head = 2 * args->table.shape[1];
            const int64_t heads = x.shape[1] / head;
            CARRY_TRY(carry_rotary(ctx, carry_reshape_3d(part->to, x.shape[0], heads, head),
                                   carry_reshape_3d(x, x.shape[0], heads, head), args->table, false));
        } else if (x.data != part->to.data) {
            CARRY_TRY(carry_convert(ctx, part->to, x));
        }
    }
    return CARRY_OK;
}
