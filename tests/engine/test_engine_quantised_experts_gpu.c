/* The runner of a model with quantised experts on a GPU against the full forward pass of the decoded weights in f32 on
   the CPU: pieces and single tokens, launched and recorded. */
/* labels: gpu */
#include "gpu_model_support.h"
#include "quantised_model_support.h"
#include "runner_support.h"

/* Experts whose matrices are whole tiles, as are those of the shared one. */
static carry_lm_config config_of(int64_t chosen) {
    carry_lm_config c = gpu_config_experts(RUNNER_VOCABULARY, chosen);
    c.experts.width = 96;
    c.experts.shared_width = 80;
    return c;
}

static int64_t experts_kept(const carry_lm *lm) {
    int64_t kept = 0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        kept += lm->own.parameter[i].rank == 3 && lm->own.parameter[i].format != NULL;
    }
    return kept;
}

/* Activations are rounded to bf16, 4e-3 each, and so are weights in pieces of a prompt. A choice of experts may differ
   where two logits of a router are nearly equal; then the results of that token and of later ones differ. */
static void steps_equal_the_cpu(void **unused) {
    (void)unused;
    static const char *const formats[] = {"fp8_block", "int4_g128", "q8_0", "q4_k"};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        /* With all experts chosen no choice can differ. */
        carry_lm *lm = gpu_rounded_model(ctx, config_of(f % 2 == 0 ? 12 : 5));
        carry_lm *there = quantised_on_gpu(ctx, lm, carry_quant_format_named(formats[f]));
        assert_int_equal(experts_kept(there), 2 * lm->config.num_hidden_layers);
        print_message("%s\n", formats[f]);
        runner_open(&c, there, CARRY_BF16, false, 77 + (uint32_t)f);
        c.wants_all = true;
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){21, 3, 10, 5}); /* experts are decoded, or not */
        for (int i = 0; i < 8; i++) {
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, i % 3 > 0, i % 3 > 0, i % 3 > 1});
        }
        int of;
        const int different = runner_differences(&c, lm, 4e-2, f % 2 == 0, &of);
        print_message("%d of %d tokens differ\n", different, of);
        assert_true(different <= of / 5);
        c.runner->ops->close(c.runner);
        carry_lm_free(there);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Random weights for experts take the bytes of their tiles, and no others. */
static void experts_take_the_bytes_of_their_tiles(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm_config config = config_of(5);
    carry_lm *lm;
    size_t want = 0;
    assert_ok(ctx, carry_lm_new_quantised(ctx, &lm, &config, 1, &carry_quant_q4_k, CARRY_BF16));
    assert_ok(ctx, carry_lm_init_there(lm, 1));
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        size_t bytes = 0;
        if (p->format != NULL) {
            assert_true(
                carry_quant_bytes_on(&bytes, 1, p->format, p->count / p->shape[p->rank - 1], p->shape[p->rank - 1]));
        }
        want += bytes;
    }
    assert_true(lm->own.tiled_bytes == want);
    assert_int_equal(experts_kept(lm), 2 * config.num_hidden_layers);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_the_cpu),
        cmocka_unit_test(experts_take_the_bytes_of_their_tiles),
    };
    return cmocka_run_group_tests_name("engine_quantised_experts_gpu", tests, NULL, NULL);
}
