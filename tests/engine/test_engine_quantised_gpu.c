/* The runner of a model with quantised weights on a GPU against the full forward pass of the decoded weights in f32 on
   the CPU: pieces and single tokens, launched and recorded. */
/* labels: gpu */
#include "gpu_model_support.h"
#include "quantised_model_support.h"
#include "runner_support.h"

/* Activations are rounded to bf16, 4e-3 each, and so are weights in pieces of a prompt. */
static void steps_equal_the_cpu_in_every_format(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
        carry_lm *there = quantised_on_gpu(ctx, lm, carry_quant_format_at(f));
        print_message("%s\n", carry_quant_format_at(f)->name);
        runner_open(&c, there, CARRY_BF16, false, 77 + (uint32_t)f);
        c.wants_all = true;
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){63, 3, 20, 5});
        for (int i = 0; i < 12; i++) {
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, i % 3 > 0, i % 3 > 0, i % 3 > 1});
        }
        runner_finish(&c, false);
        runner_compare(&c, lm, 4e-2);
        c.runner->ops->close(c.runner);
        carry_lm_free(there);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_the_cpu_in_every_format),
    };
    return cmocka_run_group_tests_name("engine_quantised_gpu", tests, NULL, NULL);
}
