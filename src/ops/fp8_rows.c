/* Products in 8-bit floats with a scale for each row: checks, and the operators on the CPU, which are the specification
   of the kernels on GPUs, up to the sign of a code of zero. */
#include "ops/fp8_rows.h"

#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/cpu.h"
#include "ops/f8.h"
#include "ops/kernels/kernels.h"
#include "ops/nn.h"

#define WHOLE 16

static carry_status expect_codes(carry_ctx *ctx, const char *name, const carry_fp8_rows *codes, int64_t rows,
                                 int64_t columns, int device) {
    if (codes->rows != rows || codes->columns != columns || columns % WHOLE != 0) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "%s is [%lld, %lld] in 8-bit floats: expected [%lld, %lld], and a multiple of %d columns",
                          name, (long long)codes->rows, (long long)codes->columns, (long long)rows, (long long)columns,
                          WHOLE);
    }
    return codes->device == device
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDEVICE, "%s is on device %d, not %d", name, codes->device, device);
}

static carry_status expect_bf16(carry_ctx *ctx, const char *name, const carry_tensor *x) {
    CARRY_TRY(carry_expect_rank(ctx, name, x, 2));
    CARRY_TRY(carry_expect_rows(ctx, name, x, x));
    return x->dtype == CARRY_BF16
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDTYPE, "%s is %s: 8-bit floats are rounded from bf16, and their products to it",
                            name, carry_dtype_name(x->dtype));
}

carry_status carry_fp8_rows_round(carry_ctx *ctx, carry_fp8_rows to, carry_tensor x) {
    CARRY_OPERATOR(ctx, operators, fp8_rows_round, &x)
    CARRY_TRY(expect_bf16(ctx, "x", &x));
    CARRY_TRY(expect_codes(ctx, "to", &to, x.shape[0], x.shape[1], x.device));
    return operators->fp8_rows_round(ctx, to, x);
}

carry_status carry_fp8_rows_affine(carry_ctx *ctx, carry_tensor y, carry_fp8_rows x, carry_fp8_rows W, carry_tensor b,
                                   carry_activation activation, bool accumulate) {
    CARRY_OPERATOR(ctx, operators, fp8_rows_affine, &y)
    CARRY_TRY(expect_bf16(ctx, "y", &y));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &y));
    CARRY_TRY(expect_codes(ctx, "x", &x, y.shape[0], x.columns, y.device));
    CARRY_TRY(expect_codes(ctx, "W", &W, y.shape[1], x.columns, y.device));
    if (carry_is_here(&b)) {
        CARRY_TRY(carry_expect_weight(ctx, "b", &b, 1, &y.shape[1], &y));
        CARRY_TRY(b.dtype == CARRY_BF16
                      ? CARRY_OK
                      : carry_fail(ctx, CARRY_EDTYPE, "b is %s, and y is bf16", carry_dtype_name(b.dtype)));
    }
    if (W.rows % WHOLE != 0) {
        return carry_fail(ctx, CARRY_ESHAPE, "W has %lld rows: expected a multiple of %d", (long long)W.rows, WHOLE);
    }
    if ((activation != CARRY_NO_ACTIVATION && activation != CARRY_GELU) ||
        (accumulate && activation != CARRY_NO_ACTIVATION)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a product in 8-bit floats may have GELU as its activation, and none if it is added to y");
    }
    return operators->fp8_rows_affine(ctx, y, x, W, b, activation, accumulate);
}

carry_status carry_cpu_fp8_rows_round(carry_ctx *ctx, carry_fp8_rows to, carry_tensor x) {
    (void)ctx;
    for (int64_t i = 0; i < x.shape[0]; i++) {
        const uint16_t *from = (const uint16_t *)x.data + i * x.shape[1];
        float largest = 0.0f;
        bool is_finite = true;
        for (int64_t j = 0; j < x.shape[1]; j++) {
            const float magnitude = fabsf(carry_f32_from_bf16(from[j]));
            is_finite = is_finite && isfinite(magnitude);
            largest = magnitude > largest ? magnitude : largest;
        }
        const float scale = is_finite ? fmaxf(largest, CARRY_FP8_ROWS_LEAST) / CARRY_FP8_ROWS_MOST : 1.0f;
        const float inverse = 1.0f / scale;
        to.scale[i] = scale;
        for (int64_t j = 0; j < x.shape[1]; j++) {
            const float value = carry_f32_from_bf16(from[j]);
            to.codes[i * x.shape[1] + j] = carry_f8_round(isfinite(value) ? value * inverse : NAN);
        }
    }
    return CARRY_OK;
}

carry_status carry_cpu_fp8_rows_affine(carry_ctx *ctx, carry_tensor y, carry_fp8_rows x, carry_fp8_rows W,
                                       carry_tensor b, carry_activation activation, bool accumulate) {
    const carry_kernels *kernels;
    float values[256];
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    for (int i = 0; i < 256; i++) {
        values[i] = carry_f8_value((uint8_t)i);
    }
    for (int64_t i = 0; i < x.rows; i++) {
        uint16_t *to = (uint16_t *)y.data + i * W.rows;
        for (int64_t j = 0; j < W.rows; j++) {
            float sum = 0.0f;
            for (int64_t l = 0; l < x.columns; l++) {
                sum += values[x.codes[i * x.columns + l]] * values[W.codes[j * W.columns + l]];
            }
            sum *= x.scale[i] * W.scale[j];
            sum += carry_is_here(&b) ? carry_f32_from_bf16(((const uint16_t *)b.data)[j]) : 0.0f;
            sum += accumulate ? carry_f32_from_bf16(to[j]) : 0.0f;
            if (activation == CARRY_GELU) {
                kernels->rows->activate(&sum, &sum, 1, CARRY_GELU);
            }
            to[j] = carry_bf16_from_f32(sum);
        }
    }
    return CARRY_OK;
}
