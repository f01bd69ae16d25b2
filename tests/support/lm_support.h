/* Small models for tests. */
#ifndef CARRY_TESTS_LM_SUPPORT_H
#define CARRY_TESTS_LM_SUPPORT_H

#include <math.h>

#include "support.h"

#include "model/lm/families/fla.h"
#include "model/lm/lm.h"

#define SUPPORT_VOCABULARY 11

/* Of a family of flash-linear-attention. */
static inline carry_lm_config small(const carry_lm_family *family) {
    carry_lm_config c = carry_lm_config_default(family);
    carry_lm_fla *own = carry_lm_fla_of(&c);
    c.vocab_size = SUPPORT_VOCABULARY;
    c.hidden_size = 12;
    c.num_hidden_layers = 2;
    c.delta.heads = 2;
    own->head_dim = 5;
    own->expand_v = family == &carry_lm_family_delta_net ? 1.0 : 2.0;
    own->intermediate_size = 20;
    /* Heads this small sometimes give outputs near zero, and a norm with a small eps turns those into noise. */
    c.norm_eps = 1e-2;
    return c;
}

/* Initial weights, with matrices `factor` times as large: with 20, every part has a visible effect. */
static inline carry_lm *model_scaled(carry_ctx *ctx, carry_lm_config config, float factor) {
    carry_lm *lm;
    assert_ok(ctx, carry_lm_new(ctx, &lm, &config, 0));
    assert_ok(ctx, carry_lm_init(lm, 7));
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        carry_lm_parameter *p = &lm->own.parameter[i];
        for (int64_t j = 0; j < p->count; j++) {
            lm->own.weights[p->offset + j] *= p->start == CARRY_LM_NORMAL ? factor : 1.0f + 0.03f * (float)(j % 7);
        }
    }
    assert_ok(ctx, carry_lm_want_gradients(lm));
    return lm;
}

static inline carry_lm *model(carry_ctx *ctx, carry_lm_config config) {
    return model_scaled(ctx, config, 20.0f);
}

/* Runs one call in memory of exactly the stated size, filled with NaN. */
static inline carry_status run_once(carry_lm *lm, const carry_lm_pass_options *options, const carry_lm_args *args) {
    carry_lm_pass *pass;
    carry_status status = carry_lm_pass_new(lm, &pass, options);
    if (status != CARRY_OK) {
        return status;
    }
    size_t bytes = carry_lm_pass_memory(pass);
    unsigned char *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    status = carry_lm_run(pass, args, memory, bytes);
    free(memory);
    carry_lm_pass_free(pass);
    return status;
}

/* Relative RMS of a difference. */
static inline double apart(const float *got, const double *wanted, int64_t count) {
    double difference = 0.0;
    double magnitude = 0.0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)got[i] - wanted[i]) * ((double)got[i] - wanted[i]);
        magnitude += wanted[i] * wanted[i];
    }
    return sqrt(difference / magnitude);
}

static inline double apart_f32(const float *got, const float *wanted, int64_t count) {
    double *exact = calloc((size_t)count + 1, sizeof(double));
    assert_non_null(exact);
    for (int64_t i = 0; i < count; i++) {
        exact[i] = (double)wanted[i];
    }
    double result = apart(got, exact, count);
    free(exact);
    return result;
}

#endif
