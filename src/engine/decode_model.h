/* The models that decoding kernels support, and their parameters as those kernels read them. */
#ifndef CARRY_ENGINE_DECODE_MODEL_H
#define CARRY_ENGINE_DECODE_MODEL_H

#include "model/lm/lm.h"

#define CARRY_DECODE_KEY 128 /* of a head of the delta rule */

/* A parameter in f32, and a matrix in bf16 or quantised; NULL, and a tensor without data, if the part lacks it. */
const float *carry_decode_wide(const carry_lm *lm, const carry_lm_sublayer *own, int slot);
carry_tensor carry_decode_matrix(const carry_lm *lm, const carry_lm_sublayer *own, int slot);

/* Layers have the delta rule with heads of 128, or attention over all tokens with up to `group` query heads of a key
   head, a SwiGLU, and norms before both; matrices are bf16, or may also be quantised, and have a multiple of `rows`
   rows. experts: some layers may have experts with gates, chosen by softmax, in place of the SwiGLU. *columns: of the
   widest matrix. */
typedef struct carry_decode_needs {
    int group, rows;
    bool experts, quantised;
} carry_decode_needs;
bool carry_decode_supports(const carry_lm *lm, const carry_decode_needs *needs, int64_t *columns);

/* Radians a position of attention, as the passes of model/lm round them, to [rotary / 2] on the device. */
carry_status carry_decode_put_rates(const carry_lm *lm, float *to);

#endif
