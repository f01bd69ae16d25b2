/* Models whose matrices are quantised on a GPU, for tests that compare them with the decoded values on the CPU. */
#ifndef CARRY_TESTS_QUANTISED_MODEL_SUPPORT_H
#define CARRY_TESTS_QUANTISED_MODEL_SUPPORT_H

#include "gpu_model_support.h"

#include "ops/quantised/tiles.h"

/* Quantises parameter `index` of the GPU's model, and gives the CPU's model the decoded values. */
static inline void quantise(carry_ctx *ctx, carry_lm *here, carry_lm *there, int64_t index) {
    const carry_parameter *p = &there->own.parameter[index];
    const carry_quant_format *format = p->format;
    const int64_t columns = p->shape[p->rank - 1];
    const int64_t rows = p->count / columns; /* of all experts */
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

static inline carry_lm *quantised_on_gpu(carry_ctx *ctx, carry_lm *here, const carry_quant_format *format) {
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

#endif
