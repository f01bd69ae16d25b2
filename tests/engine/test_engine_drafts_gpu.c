/* Guessed tokens on a GPU against the full forward pass of the same model in f32 on the CPU, launched and recorded. */
/* labels: gpu */
#include "draft_support.h"

#include "carry/device.h"

static carry_lm *moved_to(carry_ctx *ctx, const carry_lm *lm, int device) {
    carry_lm *there;
    assert_ok(ctx, carry_lm_new(ctx, &there, &lm->config, device));
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *from = &lm->own.parameter[i];
        assert_ok(ctx, carry_parameters_upload(&there->own, there->own.weights, there->own.parameter[i].offset,
                                               lm->own.weights + from->offset, from->count));
    }
    return there;
}

/* Devices differ by the order of sums: 2e-4 is twenty times what is seen. */
static void guesses_in_f32_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < RUNNER_MODELS - 1; i++) { /* the last is for the CPU only */
        carry_lm *lm = model(ctx, runner_model(i));
        carry_lm *there = moved_to(ctx, lm, 1);
        draft_open(&c, there, CARRY_F32, false);
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){61, 30, 2, 9});
        draft_step(&c, 20);
        draft_step(&c, 1);
        runner_finish(&c, false);
        runner_compare(&c, lm, 2e-4);
        c.runner->ops->close(c.runner);
        carry_lm_free(there);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Heads that the kernels for bf16 take, so that steps are recorded. */
static carry_lm_config wide_config(void) {
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_qwen3_5);
    carry_lm_hybrid_of(&c)->layers_listed = 3;
    c.vocab_size = RUNNER_VOCABULARY;
    c.hidden_size = 256;
    c.num_hidden_layers = 3;
    c.mixer[1] = CARRY_LM_MIXER_ATTENTION;
    memset(c.feedforward, CARRY_LM_FEEDFORWARD_SWIGLU, sizeof c.feedforward);
    c.swiglu.width = 640;
    c.delta.heads = 4;
    c.delta.value_heads = 8;
    c.delta.key = c.delta.value = 128;
    c.attention.heads = 4;
    c.attention.kv_heads = 2;
    c.attention.head_dim = 256;
    c.attention.rope_theta = 10000.0;
    c.attention.rotary_factor = 0.25;
    c.pad_token_id = c.eos_token_id = -1;
    return c;
}

/* A model whose weights are numbers of bf16: activations alone are rounded, to 4e-3 each. */
static carry_lm *rounded_model(carry_ctx *ctx) {
    carry_lm *lm = model_scaled(ctx, wide_config(), 3.0f);
    for (int64_t i = 0; i < lm->own.count; i++) {
        uint32_t bits;
        memcpy(&bits, &lm->own.weights[i], sizeof bits);
        bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
        memcpy(&lm->own.weights[i], &bits, sizeof bits);
    }
    return lm;
}

/* Four guesses after one token of sequence 0, of which three are right. */
static void guess_alone(runner_case *c) {
    carry_run runs[DRAFT_GUESSES];
    carry_run_result results[DRAFT_GUESSES];
    int32_t wrong[DRAFT_GUESSES];
    const int64_t n = draft_guess(c, 0, 4, 3, wrong, runs);
    assert_ok(c->ctx, c->runner->ops->step(c->runner, runs, n));
    assert_ok(c->ctx, c->runner->ops->results(c->runner, results, n));
    for (int i = 0; i < 4; i++) {
        c->length[0]++;
        runner_keep(c, 0, &results[i]);
    }
    assert_ok(c->ctx, c->runner->ops->copy_slot(c->runner, c->slot[0], runs[3].slot));
}

static void guesses_in_bf16_are_recorded_and_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = rounded_model(ctx);
    carry_lm *there = moved_to(ctx, lm, 1);
    static runner_case c;
    draft_open(&c, there, CARRY_BF16, false);
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){30, 3, 20, 5});
    for (int i = 0; i < 12; i++) { /* recorded from the second time on */
        guess_alone(&c);
        if (i % 4 == 3) {
            draft_step(&c, 1 + i % 3);
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, 1, 1, 1});
        }
    }
    runner_finish(&c, false);
    runner_compare(&c, lm, 3e-2);
    c.runner->ops->close(c.runner);
    carry_lm_free(there);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_in_f32_equal_the_cpu),
        cmocka_unit_test(guesses_in_bf16_are_recorded_and_equal_the_cpu),
    };
    return cmocka_run_group_tests_name("engine_drafts_gpu", tests, NULL, NULL);
}
