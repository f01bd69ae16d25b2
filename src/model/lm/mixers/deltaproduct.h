/* Layers with a product of delta rules; deltaproduct.c explains them. */
#ifndef CARRY_MODEL_LM_DELTAPRODUCT_H
#define CARRY_MODEL_LM_DELTAPRODUCT_H

#include "model/lm/mixers/delta.h"

typedef struct carry_lm_deltaproduct {
    int64_t steps;
    void *recurrence;
    const carry_lm_recurrence *method;
    int64_t *cuts; /* cu_seqlens of steps */
    char about[192];
} carry_lm_deltaproduct;

typedef struct carry_lm_deltaproduct_rows {
    carry_tensor q_in, k_in, v_in, q, k, v, a, b, z; /* as in delta.h */
    carry_tensor q_wide, a_wide, o_wide;             /* with a row for each step */
    carry_tensor o, y;
    void *kept;
} carry_lm_deltaproduct_rows;

/* Computes o_wide from the inputs of the delta rule, with a row for each step; the states are in the call's pool. */
carry_status carry_lm_deltaproduct_pooled(const carry_lm_call *call);

#endif
