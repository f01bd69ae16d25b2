/* Few-step sampling of flows: uses velocities to go from noise (sigma 1) to clean latents (sigma 0). */
#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "model/dit/dit.h"

#define GRAIN 16384

typedef struct mixing {
    float *to;
    const float *a, *b;
    float by_a, by_b;
} mixing;

static void mix_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const mixing *m = argument;
    for (int64_t i = begin; i < end; i++) {
        m->to[i] = m->by_a * m->a[i] + m->by_b * m->b[i];
    }
}

static carry_status expect(carry_ctx *ctx, const char *name, const carry_tensor *tensor, const carry_tensor *like) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, like->rank, like->shape));
    if (tensor->dtype != CARRY_F32 || tensor->device != 0 || !carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s must be packed f32 on the CPU", name);
    }
    return CARRY_OK;
}

static carry_status expect_sigma(carry_ctx *ctx, double sigma) {
    if (!(sigma >= 0.0 && sigma <= 1.0)) {
        return carry_fail(ctx, CARRY_ERANGE, "sigma is %g: 0 (clean) to 1 (noise) is possible", sigma);
    }
    return CARRY_OK;
}

double carry_flow_sigma(double t, double shift) {
    const double sigma = t / 1000.0;
    return shift > 0.0 ? shift * sigma / (1.0 + (shift - 1.0) * sigma) : sigma;
}

carry_status carry_flow_clean(carry_ctx *ctx, carry_tensor x0, carry_tensor x, carry_tensor velocity, double sigma) {
    CARRY_TRY(expect(ctx, "x", &x, &x));
    CARRY_TRY(expect(ctx, "velocity", &velocity, &x));
    CARRY_TRY(expect(ctx, "x0", &x0, &x));
    CARRY_TRY(expect_sigma(ctx, sigma));
    mixing m = {.to = x0.data, .a = x.data, .b = velocity.data, .by_a = 1.0f, .by_b = (float)-sigma};
    carry_parallel(ctx, carry_tensor_count(&x), GRAIN, mix_range, &m);
    return CARRY_OK;
}

carry_status carry_flow_noise(carry_ctx *ctx, carry_tensor x, carry_tensor x0, double sigma, double scale,
                              uint64_t seed, uint64_t stream) {
    CARRY_TRY(expect(ctx, "x0", &x0, &x0));
    CARRY_TRY(expect(ctx, "x", &x, &x0));
    CARRY_TRY(expect_sigma(ctx, sigma));
    if (!(scale >= 0.0) || isinf(scale)) {
        return carry_fail(ctx, CARRY_ERANGE, "the noise's scale is %g: a number from 0 on is needed", scale);
    }
    if (x.data == x0.data) { /* x must be another tensor: the noise is generated in it */
        return carry_fail(ctx, CARRY_EARGUMENT, "x and x0 are the same memory: noise needs a place of its own");
    }
    CARRY_TRY(carry_random_normal(ctx, x, seed, stream, 0.0f, 1.0f));
    mixing m = {.to = x.data, .a = x0.data, .b = x.data, .by_a = (float)(1.0 - sigma), .by_b = (float)(sigma * scale)};
    carry_parallel(ctx, carry_tensor_count(&x), GRAIN, mix_range, &m);
    return CARRY_OK;
}
