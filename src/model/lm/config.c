/* The configuration of a language model: defaults and checks. config_file.c reads and writes it. */
#include "model/lm/config.h"

#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"
#include "model/lm/families/family.h"

#define MAX_VOCABULARY ((int64_t)1 << 28)

carry_status carry_lm_check_size(carry_ctx *ctx, const char *key, int64_t size, int64_t most) {
    if (size < 1 || size > most) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is %" PRId64 " and must be 1 to %" PRId64, key, size, most);
    }
    return CARRY_OK;
}

carry_status carry_lm_check_number(carry_ctx *ctx, const char *key, double number, double most) {
    if (!(number > 0.0 && number <= most)) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is %g and must be above 0 and at most %g", key, number, most);
    }
    return CARRY_OK;
}

carry_lm_config carry_lm_config_default(const carry_lm_family *family) {
    carry_lm_config c = {.family = family};
    family->set_defaults(&c);
    return c;
}

/* Checks the options of every part that a layer has, each once. */
static carry_status check_parts(carry_ctx *ctx, carry_lm_config *c) {
    bool checked[CARRY_LM_MIXERS + CARRY_LM_FEEDFORWARDS] = {false};
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const int kinds[] = {c->mixer[i], CARRY_LM_MIXERS + c->feedforward[i]};
        const carry_lm_part *parts[] = {carry_lm_mixer_at(c->mixer[i]), carry_lm_feedforward_at(c->feedforward[i])};
        for (int j = 0; j < 2; j++) {
            if (!checked[kinds[j]]) {
                CARRY_TRY(parts[j]->check(ctx, c));
                checked[kinds[j]] = true;
            }
        }
    }
    return CARRY_OK;
}

/* Adds the bytes of a parameter in f32; false if the sum overflows. */
static bool add_parameter(size_t *bytes, const carry_lm_parameter *p) {
    size_t more = 0;
    return p->rank == 0 ||
           (carry_size_product(&more, p->shape, p->rank, sizeof(float)) && carry_size_add(bytes, *bytes, more));
}

static bool add_part(size_t *bytes, const carry_lm_config *c, const carry_lm_part *part) {
    bool fits = true;
    for (int slot = 0; fits && slot < part->slots; slot++) {
        const carry_lm_parameter p = part->describe(c, slot);
        fits = add_parameter(bytes, &p);
    }
    return fits;
}

/* Checks that four times the size of the whole model in f32 (weights, gradients and an optimizer's state) is at most
   INT64_MAX bytes. */
static carry_status check_whole(carry_ctx *ctx, const carry_lm_config *c) {
    const carry_lm_parameter table = {.rank = 2, .shape = {c->vocab_size, c->hidden_size}};
    const carry_lm_parameter norm = {.rank = 1, .shape = {c->hidden_size}};
    size_t bytes = 0;
    bool fits = add_parameter(&bytes, &norm);
    for (int i = 0; fits && i < 2; i++) { /* embeddings and head */
        fits = add_parameter(&bytes, &table);
    }
    for (int64_t i = 0; fits && i < c->num_hidden_layers; i++) {
        fits = add_part(&bytes, c, carry_lm_mixer_at(c->mixer[i])) && add_parameter(&bytes, &norm) &&
               add_part(&bytes, c, carry_lm_feedforward_at(c->feedforward[i])) && add_parameter(&bytes, &norm);
    }
    return fits && bytes <= INT64_MAX / 4
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ESIZE, "the model has more parameters than memory could hold");
}

carry_status carry_lm_config_finish(carry_ctx *ctx, carry_lm_config *c) {
    CARRY_TRY(carry_lm_check_size(ctx, "vocab_size", c->vocab_size, MAX_VOCABULARY));
    CARRY_TRY(carry_lm_check_size(ctx, "hidden_size", c->hidden_size, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "num_hidden_layers", c->num_hidden_layers, CARRY_LM_MAX_LAYERS));
    CARRY_TRY(carry_lm_check_number(ctx, "norm_eps", c->norm_eps, 1.0));
    CARRY_TRY(carry_lm_check_number(ctx, "initializer_range", c->initializer_range, 1e3));
    CARRY_TRY(c->family->finish(ctx, c));
    CARRY_TRY(check_parts(ctx, c));
    c->has_attention = false;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        carry_lm_state_part parts[CARRY_LM_STATE_PARTS];
        const int count = carry_lm_mixer_at(c->mixer[i])->state(c, parts);
        for (int j = 0; j < count; j++) {
            c->has_attention = c->has_attention || parts[j].grows;
        }
    }
    return check_whole(ctx, c);
}
