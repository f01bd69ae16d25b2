/* Start values of the parameters of a language model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "model/lm/lm.h"
#include "model/lm/lm_quantised.h"
#include "ops/sampler.h"

static carry_status start(const void *model, const carry_parameter *p, carry_tensor whole, uint64_t seed) {
    const carry_lm *lm = model;
    float *w = whole.data;
    uint64_t stream = carry_crc32c(0, p->name, strlen(p->name));
    switch (p->start) {
    case CARRY_LM_NORMAL:
        return carry_random_normal(lm->ctx, whole, seed, stream, 0.0f, (float)lm->config.initializer_range);
    case CARRY_LM_ONES:
        for (int64_t i = 0; i < p->count; i++) {
            w[i] = 1.0f;
        }
        return CARRY_OK;
    case CARRY_LM_ZEROS:
        return carry_zero(lm->ctx, whole);
    case CARRY_LM_DECAY_RATE:
        CARRY_TRY(carry_random_uniform(lm->ctx, whole, seed, stream, 0.0f, 16.0f));
        for (int64_t i = 0; i < p->count; i++) {
            w[i] = logf(fmaxf(w[i], 1e-6f)); /* U(0, 16) may be 0 */
            w[i] += lm->forget > 0.0 ? (float)log(lm->forget) : 0.0f;
        }
        return CARRY_OK;
    case CARRY_LM_STEP_BIAS:
        CARRY_TRY(carry_random_uniform(lm->ctx, whole, seed, stream, logf(0.001f), logf(0.1f)));
        for (int64_t i = 0; i < p->count; i++) {
            float step = fmaxf(expf(w[i]), 1e-4f);
            w[i] = step + logf(-expm1f(-step)); /* softplus of it is step */
        }
        return CARRY_OK;
    }
    return CARRY_OK;
}

carry_status carry_lm_init(carry_lm *lm, uint64_t seed) {
    return carry_parameters_start(&lm->own, start, lm, seed);
}

/* Initialises a parameter without normally distributed values: it is small and is computed in host memory. */
static carry_status start_by_host(carry_lm *lm, int64_t index, uint64_t seed) {
    const carry_parameter *p = &lm->own.parameter[index];
    float *values = malloc((size_t)p->count * sizeof *values);
    if (values == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    carry_status status = start(lm, p, carry_view(values, CARRY_F32, p->rank, p->shape), seed);
    status =
        status == CARRY_OK ? carry_parameters_upload(&lm->own, lm->own.weights, p->wide, values, p->count) : status;
    free(values);
    return status;
}

carry_status carry_lm_init_there(carry_lm *lm, uint64_t seed) {
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        if (p->format != NULL) {
            CARRY_TRY(carry_lm_start_quantised(lm, i, seed, carry_crc32c(0, p->name, strlen(p->name))));
            continue;
        }
        const uint64_t stream = carry_crc32c(0, p->name, strlen(p->name));
        const carry_tensor flat = p->wide < 0 ? carry_parameters_low(&lm->own, p->offset, p->count)
                                              : carry_parameters_flat(&lm->own, lm->own.weights, p->wide, p->count);
        CARRY_TRY(p->start == CARRY_LM_NORMAL
                      ? carry_random_fill(lm->ctx, flat, seed, stream, 0.0f, (float)lm->config.initializer_range)
                      : start_by_host(lm, i, seed));
    }
    return carry_parameters_round(&lm->own);
}
