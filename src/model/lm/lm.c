/* The parameters of a language model: what they are and how they start. */
#include "model/lm/lm.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"

static const char *const layer_keys[] = {
#define X(name, key) key,
    CARRY_LM_LAYER_LIST(X)
#undef X
};

static carry_lm_parameter matrix(bool present, int64_t out, int64_t in) {
    return (carry_lm_parameter){.rank = present ? 2 : 0, .shape = {out, in}, .decays = true, .start = CARRY_LM_NORMAL};
}

/* What a layer's parameter is like, or rank 0 when the configuration has none. */
static carry_lm_parameter describe(const carry_lm_config *c, carry_lm_slot slot) {
    bool gated = c->kind == CARRY_LM_GATED_DELTANET;
    int64_t d = c->hidden_size;
    int64_t W = c->conv_size;
    carry_lm_parameter conv = {.rank = c->use_short_conv ? 3 : 0, .shape = {0, 1, W}, .decays = true};
    carry_lm_parameter head = {.rank = gated ? 1 : 0, .shape = {c->value_heads}, .decays = false};
    carry_lm_parameter norm = {.rank = 1, .shape = {d}, .decays = true, .start = CARRY_LM_ONES};
    switch (slot) {
    case CARRY_LM_ATTN_NORM:
    case CARRY_LM_MLP_NORM:
        return norm;
    case CARRY_LM_O_NORM:
        norm.shape[0] = c->value;
        return norm;
    case CARRY_LM_Q_PROJ:
    case CARRY_LM_K_PROJ:
        return matrix(true, c->key_width, d);
    case CARRY_LM_V_PROJ:
        return matrix(true, c->value_width, d);
    case CARRY_LM_A_PROJ:
        return matrix(gated, c->value_heads, d);
    case CARRY_LM_B_PROJ:
        return matrix(gated || c->use_beta, c->value_heads, d);
    case CARRY_LM_G_PROJ:
        return matrix(c->use_gate, c->value_width, d);
    case CARRY_LM_A_LOG:
        head.start = CARRY_LM_DECAY_RATE;
        return head;
    case CARRY_LM_DT_BIAS:
        head.start = CARRY_LM_STEP_BIAS;
        return head;
    case CARRY_LM_Q_CONV:
    case CARRY_LM_K_CONV:
        conv.shape[0] = c->key_width;
        return conv;
    case CARRY_LM_V_CONV:
        conv.shape[0] = c->value_width;
        return conv;
    case CARRY_LM_O_PROJ:
        return matrix(true, d, c->value_width);
    case CARRY_LM_GATE_PROJ:
    case CARRY_LM_UP_PROJ:
        return matrix(true, c->intermediate, d);
    case CARRY_LM_DOWN_PROJ:
        return matrix(true, d, c->intermediate);
    case CARRY_LM_SLOTS:
        break;
    }
    return (carry_lm_parameter){0};
}

static int64_t add_named(carry_lm *lm, const char *name, carry_lm_parameter parameter) {
    (void)snprintf(parameter.name, sizeof parameter.name, "%s", name);
    return carry_parameters_add(&lm->own, parameter); /* carry_lm_config_finish has bounded the sum of them */
}

static void list_parameters(carry_lm *lm) {
    const carry_lm_config *c = &lm->config;
    const carry_lm_parameter table = {
        .rank = 2, .shape = {c->vocab_size, c->hidden_size}, .decays = true, .start = CARRY_LM_NORMAL};
    const carry_lm_parameter norm = {.rank = 1, .shape = {c->hidden_size}, .decays = true, .start = CARRY_LM_ONES};
    lm->embeddings = add_named(lm, "model.embeddings.weight", table);
    for (int64_t layer = 0; layer < c->num_hidden_layers; layer++) {
        for (carry_lm_slot slot = 0; slot < CARRY_LM_SLOTS; slot++) {
            carry_lm_parameter parameter = describe(c, slot);
            (void)snprintf(parameter.name, sizeof parameter.name, "model.layers.%" PRId64 ".%s", layer,
                           layer_keys[slot]);
            lm->layer[layer][slot] = carry_parameters_add(&lm->own, parameter);
        }
    }
    lm->norm = add_named(lm, "model.norm.weight", norm);
    lm->head = c->tie_word_embeddings ? lm->embeddings : add_named(lm, "lm_head.weight", table);
}

static carry_status make(carry_lm *lm, int device, const char *folder) {
    CARRY_TRY(carry_lm_config_finish(lm->ctx, &lm->config));
    const int64_t layers = lm->config.num_hidden_layers;
    lm->layer = calloc((size_t)layers, sizeof *lm->layer);
    if (lm->layer == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: a model of %" PRId64 " layers", layers);
    }
    CARRY_TRY(carry_parameters_open(lm->ctx, &lm->own, device, layers * CARRY_LM_SLOTS + 3));
    list_parameters(lm);
    CARRY_TRY(folder != NULL ? carry_parameters_check(&lm->own, folder) : CARRY_OK);
    return carry_parameters_allocate(&lm->own);
}

carry_status carry_lm_new(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device) {
    return carry_lm_new_for(ctx, made, config, device, NULL);
}

carry_status carry_lm_new_for(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                              const char *folder) {
    *made = NULL;
    carry_lm *lm = calloc(1, sizeof *lm);
    if (lm == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a model");
    }
    lm->ctx = ctx;
    lm->config = *config;
    carry_status status = make(lm, device, folder);
    if (status != CARRY_OK) {
        carry_lm_free(lm);
        return status;
    }
    *made = lm;
    return CARRY_OK;
}

void carry_lm_free(carry_lm *lm) {
    if (lm != NULL) {
        carry_parameters_free(&lm->own);
        free(lm->layer);
        free(lm);
    }
}

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

carry_status carry_lm_want_gradients(carry_lm *lm) {
    return carry_parameters_want_gradients(&lm->own);
}

carry_tensor carry_lm_weight(const carry_lm *lm, int64_t parameter) {
    return carry_parameters_view(&lm->own, lm->own.weights, parameter);
}

carry_tensor carry_lm_gradient(const carry_lm *lm, int64_t parameter) {
    return carry_parameters_view(&lm->own, lm->own.gradients, parameter);
}

/* The first parameter of a layer is its attn_norm, which every layer has. */
static int64_t begin_of(const carry_lm *lm, int64_t layer) {
    if (layer < 0) {
        return 0;
    }
    return lm->own.parameter[layer < lm->config.num_hidden_layers ? lm->layer[layer][CARRY_LM_ATTN_NORM] : lm->norm]
        .offset;
}

void carry_lm_range(const carry_lm *lm, int64_t layer, int64_t *first, int64_t *count) {
    *first = begin_of(lm, layer);
    *count = (layer < lm->config.num_hidden_layers ? begin_of(lm, layer + 1) : lm->own.count) - *first;
}
