/* Checks of the operators in 8-bit floats (fp8.h). */
#include "ops/fp8.h"

#include "core/context.h"
#include "core/tensor.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define WHOLE 16

bool carry_fp8_fits(int64_t rows, int64_t columns) {
    return rows > 0 && columns > 0 && rows % WHOLE == 0 && columns % WHOLE == 0;
}

static carry_status expect_codes(carry_ctx *ctx, const char *name, const carry_fp8 *codes, int64_t rows,
                                 int64_t columns, int device) {
    if (codes->rows != rows || codes->columns != columns || !carry_fp8_fits(rows, columns)) {
        return carry_fail(
            ctx, CARRY_ESHAPE, "%s is [%lld, %lld] in 8-bit floats: expected [%lld, %lld], multiples of %d", name,
            (long long)codes->rows, (long long)codes->columns, (long long)rows, (long long)columns, WHOLE);
    }
    return codes->device == device
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDEVICE, "%s is on device %d, not %d", name, codes->device, device);
}

static carry_status expect_bf16(carry_ctx *ctx, const char *name, const carry_tensor *x) {
    CARRY_TRY(carry_expect_rank(ctx, name, x, 2));
    CARRY_TRY(carry_expect_rows(ctx, name, x, x));
    return x->dtype == CARRY_BF16 ? CARRY_OK
                                  : carry_fail(ctx, CARRY_EDTYPE, "%s is %s: 8-bit floats are rounded from bf16", name,
                                               carry_dtype_name(x->dtype));
}

static carry_status expect_scales(carry_ctx *ctx, const carry_tensor *scales) {
    CARRY_TRY(carry_expect_rank(ctx, "scales", scales, 2));
    return carry_expect_f32(ctx, "scales", scales, 2, (const int64_t[]){scales->shape[0], CARRY_FP8_NUMBERS},
                            scales->device);
}

carry_status carry_fp8_round(carry_ctx *ctx, carry_fp8 to, carry_tensor x, bool transposed) {
    CARRY_OPERATOR(ctx, operators, fp8_round, &x)
    CARRY_TRY(expect_bf16(ctx, "x", &x));
    CARRY_TRY(expect_codes(ctx, "to", &to, x.shape[transposed], x.shape[!transposed], x.device));
    return operators->fp8_round(ctx, to, x, transposed);
}

carry_status carry_fp8_measure(carry_ctx *ctx, carry_tensor scale, carry_tensor x) {
    CARRY_OPERATOR(ctx, operators, fp8_measure, &x)
    CARRY_TRY(expect_bf16(ctx, "x", &x));
    CARRY_TRY(carry_expect_f32(ctx, "scale", &scale, 1, (const int64_t[]){CARRY_FP8_NUMBERS}, x.device));
    return operators->fp8_measure(ctx, scale, x);
}

carry_status carry_fp8_scales(carry_ctx *ctx, carry_tensor scales) {
    CARRY_OPERATOR(ctx, operators, fp8_scales, &scales)
    CARRY_TRY(expect_scales(ctx, &scales));
    return operators->fp8_scales(ctx, scales);
}

carry_status carry_fp8_product(carry_ctx *ctx, carry_tensor c, carry_fp8 a, carry_fp8 b, carry_tensor base) {
    CARRY_OPERATOR(ctx, operators, fp8_product, &c)
    CARRY_TRY(carry_expect_rank(ctx, "c", &c, 2));
    CARRY_TRY(carry_expect_rows(ctx, "c", &c, &c));
    CARRY_TRY(expect_codes(ctx, "a", &a, c.shape[0], a.columns, c.device));
    CARRY_TRY(expect_codes(ctx, "b", &b, c.shape[1], a.columns, c.device));
    if (c.dtype != CARRY_BF16 && c.dtype != CARRY_F16) {
        return carry_fail(ctx, CARRY_EDTYPE, "c is %s: products of 8-bit floats are bf16 or f16",
                          carry_dtype_name(c.dtype));
    }
    if (a.kind == CARRY_E5M2 && b.kind == CARRY_E5M2) {
        return carry_fail(ctx, CARRY_EDTYPE, "a and b are both e5m2: one of them must be e4m3");
    }
    if (carry_is_here(&base)) {
        CARRY_TRY(carry_expect_like(ctx, "c", &c, &c));
        CARRY_TRY(carry_expect_like(ctx, "base", &base, &c));
    }
    return operators->fp8_product(ctx, c, a, b, base);
}

carry_status carry_fp8_loss(carry_ctx *ctx, carry_tensor losses, carry_tensor logits, carry_tensor targets,
                            carry_fp8 codes, float scale) {
    CARRY_OPERATOR(ctx, operators, fp8_loss, &logits)
    CARRY_TRY(carry_expect_rank(ctx, "logits", &logits, 2));
    CARRY_TRY(carry_expect_like(ctx, "logits", &logits, &logits));
    if (logits.dtype != CARRY_F16 || logits.shape[1] > CARRY_FP8_WORDS || logits.shape[1] % WHOLE != 0) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "logits are %s, %lld a token: expected f16, at most %d and a multiple of "
                          "%d",
                          carry_dtype_name(logits.dtype), (long long)logits.shape[1], CARRY_FP8_WORDS, WHOLE);
    }
    if (codes.codes != NULL) {
        CARRY_TRY(expect_codes(ctx, "codes", &codes, logits.shape[0], logits.shape[1], logits.device));
    }
    CARRY_TRY(carry_expect_f32(ctx, "losses", &losses, 1, logits.shape, logits.device));
    CARRY_TRY(carry_expect_i64(ctx, "targets", &targets, logits.shape[0], logits.device));
    CARRY_TRY(logits.device == 0 ? carry_check_targets(ctx, NULL, targets, logits.shape[1]) : CARRY_OK);
    return operators->fp8_loss(ctx, losses, logits, targets, codes, scale);
}

carry_status carry_fp8_rms_norm(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor x, carry_tensor w,
                                float eps) {
    CARRY_OPERATOR(ctx, operators, fp8_rms_norm, &x)
    CARRY_TRY(expect_bf16(ctx, "x", &x));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    if (carry_is_here(&w)) {
        CARRY_TRY(carry_expect_weight(ctx, "w", &w, 1, &x.shape[1], &x));
    }
    CARRY_TRY(expect_codes(ctx, "codes", &codes, x.shape[0], x.shape[1], x.device));
    return operators->fp8_rms_norm(ctx, y, codes, x, w, eps);
}

carry_status carry_fp8_swiglu(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor gate, carry_tensor up) {
    CARRY_OPERATOR(ctx, operators, fp8_swiglu, &y)
    CARRY_TRY(expect_bf16(ctx, "y", &y));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &y));
    CARRY_TRY(carry_expect_rows(ctx, "gate", &gate, &y));
    CARRY_TRY(carry_expect_rows(ctx, "up", &up, &y));
    CARRY_TRY(expect_codes(ctx, "codes", &codes, y.shape[0], y.shape[1], y.device));
    return operators->fp8_swiglu(ctx, y, codes, gate, up);
}

carry_status carry_fp8_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup, carry_fp8 codes,
                                       carry_tensor dy, carry_tensor gate, carry_tensor up) {
    CARRY_OPERATOR(ctx, operators, fp8_swiglu_backward, &dy)
    CARRY_TRY(expect_bf16(ctx, "dy", &dy));
    CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &dy));
    CARRY_TRY(carry_expect_rows(ctx, "gate", &gate, &dy));
    CARRY_TRY(carry_expect_rows(ctx, "up", &up, &dy));
    CARRY_TRY(carry_expect_rows(ctx, "dgate", &dgate, &dy));
    CARRY_TRY(carry_expect_rows(ctx, "dup", &dup, &dy));
    CARRY_TRY(expect_codes(ctx, "codes", &codes, dy.shape[0], 2 * dy.shape[1], dy.device));
    return operators->fp8_swiglu_backward(ctx, dgate, dup, codes, dy, gate, up);
}

bool carry_fp8_is_fast(carry_ctx *ctx, int device, bool by_rows, const char **why) {
    const carry_operators *operators;
    int ordinal;
    *why = "it has no instructions for them";
    if (carry_operators_of(ctx, &operators, "fp8_product", device, &ordinal) != CARRY_OK ||
        operators->fp8_absence == NULL) {
        return false;
    }
    *why = operators->fp8_absence(ctx, ordinal, by_rows);
    return *why == NULL;
}
