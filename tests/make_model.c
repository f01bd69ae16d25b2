/* Not a test: makes a small model for the tests of whole verbs, with weights so large that its output depends on the
   prompt.
   Usage: make_model FOLDER VOCABULARY [nan|huge|bf16]; make_model FOLDER SHAPE: a shape of carry generate --random, in
   bf16. huge: the embedding of token 255 exceeds f16, in which texts with it have NaN logits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_random.h"
#include "model/lm/families/fla.h"
#include "model/lm/lm.h"

static carry_status make(carry_ctx *ctx, const char *folder, int64_t vocabulary, const char *option) {
    carry_lm_config config = carry_lm_config_default(&carry_lm_family_gated_deltanet);
    config.vocab_size = vocabulary;
    config.hidden_size = 24;
    config.num_hidden_layers = 2;
    config.delta.heads = 2;
    carry_lm_fla_of(&config)->head_dim = 8;
    carry_lm_fla_of(&config)->intermediate_size = 32;
    config.norm_eps = 1e-2;
    carry_lm *lm;
    carry_status status = carry_lm_new(ctx, &lm, &config, 0);
    status = status == CARRY_OK ? carry_lm_init(lm, 5) : status;
    for (int64_t i = 0; status == CARRY_OK && i < lm->own.parameters; i++) {
        const carry_lm_parameter *p = &lm->own.parameter[i];
        for (int64_t j = 0; p->start == CARRY_LM_NORMAL && j < p->count; j++) {
            lm->own.weights[p->offset + j] *= 20.0f;
        }
    }
    if (status == CARRY_OK && strcmp(option, "nan") == 0) {
        lm->own.weights[lm->own.parameter[lm->norm].offset] = NAN;
    }
    if (status == CARRY_OK && strcmp(option, "huge") == 0 && vocabulary > 255 && lm->head != lm->embeddings) {
        lm->own.weights[lm->own.parameter[lm->embeddings].offset + 255 * config.hidden_size] = 1e8f;
    }
    status =
        status == CARRY_OK ? carry_lm_save(lm, folder, strcmp(option, "bf16") == 0 ? CARRY_BF16 : CARRY_F32) : status;
    carry_lm_free(lm);
    return status;
}

static carry_status make_shape(carry_ctx *ctx, const char *folder, const char *name) {
    carry_lm *lm;
    carry_status status = carry_model_random(ctx, &lm, name, 0, CARRY_F32, 1);
    if (status == CARRY_OK) {
        status = carry_lm_save(lm, folder, CARRY_BF16);
        carry_lm_free(lm);
    }
    return status;
}

int main(int count, char **arguments) {
    carry_ctx *ctx;
    if (count < 3 ||
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        return 2;
    }
    char *rest;
    const int64_t vocabulary = strtoll(arguments[2], &rest, 10);
    const carry_status status = *rest == '\0' ? make(ctx, arguments[1], vocabulary, count > 3 ? arguments[3] : "")
                                              : make_shape(ctx, arguments[1], arguments[2]);
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "make_model: %s\n", carry_ctx_error(ctx));
    }
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 2;
}
