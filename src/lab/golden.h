/* Vectors made elsewhere: a .safetensors file of delta-rule cases, tensors named case.tensor; or a folder with a
   language model and what it should give. */
#ifndef CARRY_LAB_GOLDEN_H
#define CARRY_LAB_GOLDEN_H

#include <stdbool.h>

#include "carry/tensor.h"

/* One comparison: the relative RMS error of a tensor of a case. */
typedef struct carry_golden_line {
    const char *name; /* the case */
    const char *method;
    const char *tensor;
    carry_dtype dtype;
    double error, bound;
    int column; /* the widest tensor's name, for a table; 0: 15 */
} carry_golden_line;

/* Runs every case in f32 and in bf16, forward and backward, by every method, and reports each tensor. */
carry_status carry_golden_delta(carry_ctx *ctx, const char *path,
                                void (*report)(void *user, const carry_golden_line *line), void *user);

/* Whichever path is: such a file, or a folder with config.json, model.safetensors and expected.safetensors (input_ids,
   logits, loss, grad.NAME), whose model_type decides; logits, loss and every gradient are reported, in f32. */
carry_status carry_golden(carry_ctx *ctx, const char *path, void (*report)(void *user, const carry_golden_line *line),
                          void *user);

#endif
