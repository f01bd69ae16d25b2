/* Counter-based random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
   1, 2, 3" (2011).

   Elements 4i..4i+3 of a stream come from counter (stream, i), so any thread can make any part. */
#include "core/rng.h"

#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"

#define ROUNDS 10
#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define WEYL_0 0x9E3779B9u /* the golden ratio */
#define WEYL_1 0xBB67AE85u /* the square root of 3, less 1 */
#define TWO_PI 6.28318530717958647692

typedef struct fill {
    carry_tensor out;
    uint64_t seed, stream;
    float first, second; /* low and high, or mean and deviation */
    bool normal;
} fill;

static double unit_open(uint32_t word) {
    return ((double)word + 0.5) * 0x1p-32; /* in (0, 1): its logarithm is finite */
}

static void four_values(const fill *f, uint64_t block, float values[4]) {
    carry_words words = carry_philox(f->seed, f->stream, block);
    for (int i = 0; i < 4; i += 2) {
        double u = unit_open(words.word[i]);
        double v = unit_open(words.word[i + 1]);
        if (f->normal) {
            double radius = sqrt(-2.0 * log(u));
            values[i] = f->first + f->second * (float)(radius * cos(TWO_PI * v));
            values[i + 1] = f->first + f->second * (float)(radius * sin(TWO_PI * v));
        } else {
            values[i] = f->first + (f->second - f->first) * (float)u;
            values[i + 1] = f->first + (f->second - f->first) * (float)v;
        }
    }
}

static void store(const carry_tensor *out, int64_t index, float value) {
    if (out->dtype == CARRY_F32) {
        ((float *)out->data)[index] = value;
    } else {
        ((uint16_t *)out->data)[index] =
            out->dtype == CARRY_BF16 ? carry_bf16_from_f32(value) : carry_f16_from_f32(value);
    }
}

static void fill_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const fill *f = argument;
    int64_t count = carry_tensor_count(&f->out);
    for (int64_t block = begin; block < end; block++) {
        float values[4];
        four_values(f, (uint64_t)block, values);
        for (int64_t i = 0; i < 4 && 4 * block + i < count; i++) {
            store(&f->out, 4 * block + i, values[i]);
        }
    }
}

static carry_status run_fill(carry_ctx *ctx, const fill *f) {
    CARRY_TRY(carry_tensor_expect(ctx, "out", &f->out, f->out.rank, f->out.shape));
    if (!carry_dtype_is_real(f->out.dtype) || f->out.device != 0 || !carry_tensor_is_packed(&f->out, 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "out must be a packed f32, bf16 or f16 tensor on the CPU");
    }
    fill copy = *f;
    carry_parallel(ctx, (carry_tensor_count(&f->out) + 3) / 4, 4096, fill_blocks, &copy);
    return CARRY_OK;
}

carry_words carry_philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
    uint32_t key_0 = (uint32_t)key;
    uint32_t key_1 = (uint32_t)(key >> 32);
    carry_words c = {
        {(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high, (uint32_t)(counter_high >> 32)}};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product_0 = (uint64_t)MULTIPLIER_0 * c.word[0];
        uint64_t product_1 = (uint64_t)MULTIPLIER_1 * c.word[2];
        c = (carry_words){{(uint32_t)(product_1 >> 32) ^ c.word[1] ^ key_0, (uint32_t)product_1,
                           (uint32_t)(product_0 >> 32) ^ c.word[3] ^ key_1, (uint32_t)product_0}};
        key_0 += WEYL_0;
        key_1 += WEYL_1;
    }
    return c;
}

carry_status carry_random_uniform(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float low,
                                  float high) {
    return run_fill(ctx, &(fill){.out = out, .seed = seed, .stream = stream, .first = low, .second = high});
}

carry_status carry_random_normal(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float mean,
                                 float deviation) {
    return run_fill(
        ctx, &(fill){.out = out, .seed = seed, .stream = stream, .first = mean, .second = deviation, .normal = true});
}
