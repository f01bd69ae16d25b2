/* The models that the decoding kernels support, and their parameters in the form that the kernels read. */
#ifndef CARRY_ENGINE_DECODE_MODEL_H
#define CARRY_ENGINE_DECODE_MODEL_H

#include "model/lm/lm.h"

#define CARRY_DECODE_KEY 128 /* width of a head of the delta rule */

/* carry_decode_wide returns a parameter of a sublayer in f32, or NULL if the sublayer does not have it.
   carry_decode_matrix returns a matrix, in bf16 or quantised, without data if the sublayer does not have it. */
const float *carry_decode_wide(const carry_lm *lm, const carry_lm_sublayer *own, int slot);
carry_tensor carry_decode_matrix(const carry_lm *lm, const carry_lm_sublayer *own, int slot);

/* The models that a kernel supports. Every layer has a mixer (the delta rule with heads of 128, or attention over all
   tokens with up to `group` query heads per key head) and a SwiGLU, and norms before both. Matrices are bf16, or also
   quantised if allowed, and the number of their rows is a multiple of `rows`. experts: some layers may have experts
   with gates, chosen by softmax, instead of the SwiGLU. *columns: the columns of the widest matrix. */
typedef struct carry_decode_needs {
    int group, rows;
    bool experts, quantised;
} carry_decode_needs;
bool carry_decode_supports(const carry_lm *lm, const carry_decode_needs *needs, int64_t *columns);

/* Copies the rotary rates of attention (radians per position), rounded as in the passes of model/lm, to [rotary / 2] on
   the device. */
carry_status carry_decode_put_rates(const carry_lm *lm, float *to);

#endif
