/* The runner of a model with quantised weights on a GPU against the full forward pass of the decoded weights in f32 on
   the CPU: pieces and single tokens, launched and recorded. */
/* labels: gpu */
#include "gpu_model_support.h"
#include "runner_support.h"

#include "ops/quantised/quantised.h"

/* Quantises parameter `index` of the GPU's model, and gives the CPU's model the decoded values. */
static void quantise(carry_ctx *ctx, carry_lm *here, carry_lm *there, int64_t index) {
    const carry_parameter *p = &there->own.parameter[index];
    const carry_quant_format *format = p->format;
    const int64_t rows = p->shape[0];
    const int64_t columns = p->shape[1];
    const int64_t padded = (columns + format->block - 1) / format->block * format->block;
    const size_t row_bytes = carry_quant_row_bytes(format, columns);
    float *weights = here->own.weights + here->own.parameter[index].offset;
    float *row = calloc((size_t)padded, sizeof *row);
    unsigned char *blocks = malloc((size_t)rows * row_bytes);
    assert_non_null(row);
    assert_non_null(blocks);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(row, weights + r * columns, (size_t)columns * sizeof *row);
        format->encode(blocks + (size_t)r * row_bytes, row, padded / format->block);
    }
    const carry_tensor W = carry_quant_view(blocks, format, rows, columns);
    for (int64_t r = 0; r < rows; r++) {
        carry_quant_decode(&W, r, 0, columns, weights + r * columns);
    }
    assert_ok(ctx, carry_parameters_put_blocks(&there->own, index, blocks, rows));
    free(blocks);
    free(row);
}

static carry_lm *quantised_on_gpu(carry_ctx *ctx, carry_lm *here, const carry_quant_format *format) {
    carry_lm *there;
    int quantised = 0;
    assert_ok(ctx, carry_lm_new_quantised(ctx, &there, &here->config, 1, format, CARRY_F32));
    for (int64_t i = 0; i < here->own.parameters; i++) {
        const carry_parameter *p = &there->own.parameter[i];
        if (p->format != NULL) {
            quantise(ctx, here, there, i);
            quantised++;
        } else {
            assert_ok(ctx, carry_parameters_upload(&there->own, there->own.weights, p->offset,
                                                   here->own.weights + here->own.parameter[i].offset, p->count));
        }
    }
    assert_true(quantised > 20);
    return there;
}

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
