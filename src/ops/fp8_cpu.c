/* The operators in 8-bit floats on the CPU: plain loops, which are the specification of the kernels on GPUs. */
#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/cpu.h"
#include "ops/f8.h"
#include "ops/fp8.h"
#include "ops/nn.h"

#define LEAST (-14) /* exponent of the smallest normal number of e5m2 */

static void put(const carry_tensor *to, int64_t i, float value) {
    ((uint16_t *)to->data)[i] = to->dtype == CARRY_BF16 ? carry_bf16_from_f32(value) : carry_f16_from_f32(value);
}

/* The code of a number. e5m2: value / step of the least significant bit of its exponent, after the exponents below. */
static unsigned char code_of(float value, carry_fp8_kind kind) {
    const unsigned char sign = signbit(value) ? 0x80 : 0;
    if (kind == CARRY_E4M3) {
        return carry_f8_round(value);
    }
    if (!isfinite(value)) {
        return sign | 0x7f;
    }
    const float magnitude = fabsf(value) < 57344.0f ? fabsf(value) : 57344.0f;
    int exponent;
    (void)frexpf(magnitude, &exponent);
    exponent = magnitude == 0.0f || exponent - 1 < LEAST ? LEAST : exponent - 1;
    const int steps = (int)rintf(ldexpf(magnitude, 2 - exponent));
    return (unsigned char)(sign | (((exponent - LEAST) << 2) + steps));
}

static float value_of(unsigned char code, carry_fp8_kind kind) {
    const int exponent = (code & 0x7f) >> 2, fraction = code & 3;
    const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
    if (kind == CARRY_E4M3) {
        return carry_f8_value(code);
    }
    if (exponent == 31) {
        return fraction == 0 ? sign * INFINITY : NAN;
    }
    return sign *
           (exponent == 0 ? ldexpf((float)fraction, LEAST - 2) : ldexpf((float)(4 + fraction), exponent - 3 + LEAST));
}

/* Any number that is not finite is recorded as infinity. */
static void record(float *scale, carry_tensor x) {
    const int64_t count = carry_tensor_count(&x);
    for (int64_t i = 0; i < count; i++) {
        const float magnitude = fabsf((float)carry_tensor_at(&x, i));
        scale[CARRY_FP8_LARGEST] = !isfinite(magnitude)                   ? INFINITY
                                   : magnitude > scale[CARRY_FP8_LARGEST] ? magnitude
                                                                          : scale[CARRY_FP8_LARGEST];
    }
}

carry_status carry_cpu_fp8_round(carry_ctx *ctx, carry_fp8 to, carry_tensor x, bool transposed) {
    (void)ctx;
    for (int64_t i = 0; i < x.shape[0]; i++) {
        for (int64_t j = 0; j < x.shape[1]; j++) {
            const float value = (float)carry_tensor_at(&x, i * x.shape[1] + j);
            const int64_t at = transposed ? j * x.shape[0] + i : i * x.shape[1] + j;
            to.codes[at] = code_of(isfinite(value) ? value * to.scale[CARRY_FP8_INVERSE] : NAN, to.kind);
        }
    }
    if (!transposed) {
        record(to.scale, x);
    }
    return CARRY_OK;
}

carry_status carry_cpu_fp8_measure(carry_ctx *ctx, carry_tensor scale, carry_tensor x) {
    (void)ctx;
    record(scale.data, x);
    return CARRY_OK;
}

carry_status carry_cpu_fp8_scales(carry_ctx *ctx, carry_tensor scales) {
    (void)ctx;
    float *scale = scales.data;
    for (int64_t i = 0; i < scales.shape[0]; i++, scale += CARRY_FP8_NUMBERS) {
        const float largest = scale[CARRY_FP8_LARGEST];
        if (largest > 0.0f && isfinite(largest)) {
            scale[CARRY_FP8_SCALE] = fmaxf(largest, 1e-30f) / scale[CARRY_FP8_TOP];
            scale[CARRY_FP8_INVERSE] = 1.0f / scale[CARRY_FP8_SCALE];
        }
        scale[CARRY_FP8_LARGEST] = 0.0f;
    }
    return CARRY_OK;
}

carry_status carry_cpu_fp8_product(carry_ctx *ctx, carry_tensor c, carry_fp8 a, carry_fp8 b, carry_tensor base) {
    (void)ctx;
    const float scale = a.scale[CARRY_FP8_SCALE] * b.scale[CARRY_FP8_SCALE];
    const bool adds = carry_is_here(&base);
    float of_a[256];
    float of_b[256];
    for (int i = 0; i < 256; i++) {
        of_a[i] = value_of((unsigned char)i, a.kind);
        of_b[i] = value_of((unsigned char)i, b.kind);
    }
    for (int64_t i = 0; i < c.shape[0]; i++) {
        for (int64_t j = 0; j < c.shape[1]; j++) {
            float sum = 0.0f;
            for (int64_t l = 0; l < a.columns; l++) {
                sum += of_a[a.codes[i * a.columns + l]] * of_b[b.codes[j * b.columns + l]];
            }
            const int64_t at = i * c.shape[1] + j;
            put(&c, at, scale * sum + (adds ? (float)carry_tensor_at(&base, at) : 0.0f));
        }
    }
    return CARRY_OK;
}

carry_status carry_cpu_fp8_loss(carry_ctx *ctx, carry_tensor losses, carry_tensor logits, carry_tensor targets,
                                carry_fp8 codes, float scale) {
    (void)ctx;
    const int64_t words = logits.shape[1];
    carry_tensor gradients = logits;
    gradients.dtype = CARRY_BF16;
    if (codes.codes != NULL) {
        codes.scale[CARRY_FP8_SCALE] = scale / CARRY_FP8_TOP_E5M2;
        codes.scale[CARRY_FP8_INVERSE] = CARRY_FP8_TOP_E5M2 / scale;
    }
    for (int64_t t = 0; t < logits.shape[0]; t++) {
        const int64_t target = ((const int64_t *)targets.data)[t];
        const bool counts = target >= 0;
        double largest = -INFINITY;
        double sum = 0.0;
        for (int64_t i = 0; i < words; i++) {
            largest = fmax(largest, carry_tensor_at(&logits, t * words + i));
        }
        for (int64_t i = 0; i < words; i++) {
            sum += exp(carry_tensor_at(&logits, t * words + i) - largest);
        }
        ((float *)losses.data)[t] =
            counts ? (float)(log(sum) + largest - carry_tensor_at(&logits, t * words + target)) : 0.0f;
        for (int64_t i = 0; i < words; i++) {
            const int64_t at = t * words + i;
            const double share = exp(carry_tensor_at(&logits, at) - largest) / sum - (i == target ? 1.0 : 0.0);
            put(&gradients, at, counts ? (float)((double)scale * share) : 0.0f);
            if (codes.codes != NULL) {
                codes.codes[at] = code_of(counts ? (float)(share * (double)CARRY_FP8_TOP_E5M2) : 0.0f, codes.kind);
            }
        }
    }
    return CARRY_OK;
}

carry_status carry_cpu_fp8_rms_norm(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor x, carry_tensor w,
                                    float eps) {
    CARRY_TRY(carry_rms_norm(ctx, y, x, w, (carry_tensor){0}, eps));
    return carry_fp8_round(ctx, codes, y, false);
}

carry_status carry_cpu_fp8_swiglu(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor gate, carry_tensor up) {
    CARRY_TRY(carry_swiglu(ctx, y, gate, up));
    return carry_fp8_round(ctx, codes, y, false);
}

/* The columns of one matrix are rounded apart. */
static void round_columns(carry_fp8 to, carry_tensor x, int64_t first) {
    for (int64_t i = 0; i < x.shape[0]; i++) {
        for (int64_t j = 0; j < x.shape[1]; j++) {
            const float value = (float)carry_tensor_at(&x, i * x.shape[1] + j);
            to.codes[i * to.columns + first + j] =
                code_of(isfinite(value) ? value * to.scale[CARRY_FP8_INVERSE] : NAN, to.kind);
        }
    }
    record(to.scale, x);
}

carry_status carry_cpu_fp8_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup, carry_fp8 codes,
                                           carry_tensor dy, carry_tensor gate, carry_tensor up) {
    CARRY_TRY(carry_swiglu_backward(ctx, dgate, dup, dy, gate, up));
    round_columns(codes, dgate, 0);
    round_columns(codes, dup, dgate.shape[1]);
    return CARRY_OK;
}
