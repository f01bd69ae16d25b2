/* Steps by the decoding kernel against the same model in f32 on the CPU, and in batches of different sizes. */
/* labels: gpu */
#include "gpu_model_support.h"

#include "engine/decode.h"
#include "engine/decode_ops.h"
#include "engine/generator.h"

#define VOCABULARY 520
#define PROMPT 5
#define STEPS 300 /* beyond the first capacity of a cache, which is then moved */

/* A product with more columns than a slot of the ring holds. */
static carry_lm_config wide_config(void) {
    return gpu_config(VOCABULARY, 1152);
}

static int64_t token_of(int64_t sequence, int64_t at) {
    return (sequence * 131 + at * at * 7 + at / 3) % VOCABULARY;
}

/* Reads PROMPT + sequence % 3 tokens of `batch` sequences beginning with `first`, then runs steps. Gives the logits of
   the last step, [batch, VOCABULARY]. */
static void generate(carry_ctx *ctx, carry_lm *lm, carry_dtype dtype, int64_t first, int64_t batch, int64_t steps,
                     float *logits) {
    carry_lm_generator *g;
    int64_t ids[8];
    assert_ok(ctx, carry_lm_generator_new(lm, &g, batch, dtype));
    for (int64_t b = 0; b < batch; b++) {
        int64_t prompt[PROMPT + 3];
        const int64_t count = PROMPT + (first + b) % 3;
        for (int64_t i = 0; i < count; i++) {
            prompt[i] = token_of(first + b, i);
        }
        assert_ok(ctx, carry_lm_generator_prompt(g, b, prompt, count, logits + b * VOCABULARY));
    }
    for (int64_t step = 0; step < steps; step++) {
        for (int64_t b = 0; b < batch; b++) {
            ids[b] = token_of(first + b, 100 + step);
        }
        assert_ok(ctx, carry_lm_generator_step(g, ids, logits));
    }
    carry_lm_generator_free(g);
}

static int first_device(void) {
    int ordinal;
    for (int device = 1; device < carry_device_count(); device++) {
        if (carry_decode_device_of(device, &ordinal) != NULL) {
            return device;
        }
    }
    return 0;
}

/* Each of three layers rounds the inputs of its products to bf16, 2^-9 of them; sums of hundreds of such errors of
   random sign and the states of 300 tokens amount to some 2^-6 of the largest logit. */
static void steps_match_the_cpu(void **unused) {
    (void)unused;
    const int device = first_device();
    if (device == 0) {
        skip();
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *here = gpu_rounded_model(ctx, wide_config());
    carry_lm *there = gpu_moved_to(ctx, here, device);
    static float want[2 * VOCABULARY], got[2 * VOCABULARY];
    for (int64_t steps = 1; steps <= STEPS; steps = steps == STEPS ? STEPS + 1 : steps < 8 ? 2 * steps : STEPS) {
        generate(ctx, here, CARRY_F32, 0, 2, steps, want);
        generate(ctx, there, CARRY_BF16, 0, 2, steps, got);
        float largest = 0.0f;
        float apart = 0.0f;
        for (int i = 0; i < 2 * VOCABULARY; i++) {
            largest = fmaxf(largest, fabsf(want[i]));
            apart = fabsf(got[i] - want[i]) <= apart ? apart : fabsf(got[i] - want[i]); /* NaN stays */
        }
        print_message("%d steps: %.3g of %.3g apart\n", (int)steps, (double)apart, (double)largest);
        assert_true(apart <= 0.03f * largest);
    }
    carry_lm_free(there);
    carry_lm_free(here);
    carry_ctx_free(ctx);
}

static void a_sequence_has_the_same_bits_in_every_batch(void **unused) {
    (void)unused;
    const int device = first_device();
    if (device == 0) {
        skip();
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *here = gpu_rounded_model(ctx, wide_config());
    carry_lm *there = gpu_moved_to(ctx, here, device);
    static float alone[8][VOCABULARY], together[8 * VOCABULARY];
    for (int64_t b = 0; b < 8; b++) {
        generate(ctx, there, CARRY_BF16, b, 1, 40, alone[b]);
    }
    for (int64_t batch = 2; batch <= 8; batch++) {
        for (int repeat = 0; repeat < 3; repeat++) {
            memset(together, 0xff, sizeof together);
            generate(ctx, there, CARRY_BF16, 0, batch, 40, together);
            for (int64_t b = 0; b < batch; b++) {
                if (memcmp(together + b * VOCABULARY, alone[b], sizeof alone[b]) != 0) {
                    fail_msg("sequence %d of %d differs from itself alone: %g and %g", (int)b, (int)batch,
                             (double)together[b * VOCABULARY], (double)alone[b][0]);
                }
            }
        }
    }
    carry_lm_free(there);
    carry_lm_free(here);
    carry_ctx_free(ctx);
}

static void the_kernel_takes_such_models_and_no_others(void **unused) {
    (void)unused;
    const int device = first_device();
    if (device == 0) {
        skip();
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int odd = 0; odd < 2; odd++) {
        carry_lm_config config = wide_config();
        config.delta.key = odd ? 64 : 128;
        carry_lm *lm;
        carry_lm_state *state;
        carry_decode *decode;
        assert_ok(ctx, carry_lm_new(ctx, &lm, &config, device));
        assert_ok(ctx, carry_parameters_want_low(&lm->own, CARRY_BF16));
        assert_ok(ctx, carry_lm_state_new(lm, &state, 3));
        assert_ok(ctx,
                  carry_decode_open(&decode, lm, state, (carry_tensor){0}, &(carry_decode_options){.sequences = 3}));
        assert_int_equal(decode != NULL, !odd);
        carry_decode_close(decode);
        carry_lm_state_free(state);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_match_the_cpu),
        cmocka_unit_test(a_sequence_has_the_same_bits_in_every_batch),
        cmocka_unit_test(the_kernel_takes_such_models_and_no_others),
    };
    if (first_device() == 0) {
        (void)puts("skipped: no Hopper GPU");
        return 77;
    }
    return cmocka_run_group_tests_name("engine/decode", tests, NULL, NULL);
}
