/* Layer types of Kimi Linear and Ling. */
#include "model/lm/families/kimi.h"

#include <inttypes.h>

#include "core/error.h"

carry_lm_kimi *carry_lm_kimi_of(carry_lm_config *c) {
    return (carry_lm_kimi *)(void *)c->own;
}

/* Reads a list that has one of two words for each layer; *listed is its length. */
static carry_status read_words(const carry_lm_source *s, const carry_json *node, const char *const words[2],
                               const unsigned char parts[2], unsigned char *to, int64_t *listed) {
    int64_t count = 0;
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next, count++) {
        const bool second = carry_json_is_text(one, words[1]);
        if ((!second && !carry_json_is_text(one, words[0])) || count >= CARRY_LM_MAX_LAYERS) {
            return carry_lm_config_refuse(s, node, "unknown type of layer");
        }
        to[count] = parts[second ? 1 : 0];
    }
    *listed = count;
    return count > 0 ? CARRY_OK : carry_lm_config_refuse(s, node, "expected a list of layer types, or null");
}

static void write_words(carry_json_text *text, const carry_lm_config *c, const char *const words[2],
                        unsigned char second, const unsigned char *from) {
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        carry_json_put_raw(text, "%s\"%s\"", i > 0 ? ", " : "[", words[from[i] == second ? 1 : 0]);
    }
    carry_json_put_raw(text, "]");
}

static const char *const mixer_words[] = {"linear_attention", "full_attention"};
static const char *const feedforward_words[] = {"dense", "sparse"};
static const unsigned char mixer_parts[] = {CARRY_LM_MIXER_KDA, CARRY_LM_MIXER_LATENT};
static const unsigned char feedforward_parts[] = {CARRY_LM_FEEDFORWARD_SWIGLU, CARRY_LM_FEEDFORWARD_EXPERTS};

carry_status carry_lm_kimi_read_mixers(const carry_lm_source *s, const carry_json *node) {
    return read_words(s, node, mixer_words, mixer_parts, s->config->mixer, &carry_lm_kimi_of(s->config)->mixers_listed);
}

void carry_lm_kimi_write_mixers(carry_json_text *text, const carry_lm_config *c) {
    write_words(text, c, mixer_words, CARRY_LM_MIXER_LATENT, c->mixer);
}

carry_status carry_lm_kimi_read_feedforwards(const carry_lm_source *s, const carry_json *node) {
    return read_words(s, node, feedforward_words, feedforward_parts, s->config->feedforward,
                      &carry_lm_kimi_of(s->config)->feedforwards_listed);
}

void carry_lm_kimi_write_feedforwards(carry_json_text *text, const carry_lm_config *c) {
    write_words(text, c, feedforward_words, CARRY_LM_FEEDFORWARD_EXPERTS, c->feedforward);
}

const char *const carry_lm_kimi_expert_names[] = {"mlp.gate.weight",
                                                  "mlp.gate.e_score_correction_bias",
                                                  "mlp.experts.gate_up_proj",
                                                  "mlp.experts.down_proj",
                                                  "mlp.shared_experts.gate_proj.weight",
                                                  "mlp.shared_experts.up_proj.weight",
                                                  "mlp.shared_experts.down_proj.weight",
                                                  "mlp.shared_experts.scale",
                                                  "mlp.fc1_latent_proj.weight",
                                                  "mlp.fc2_latent_proj.weight",
                                                  "mlp.shared_experts.up_proj.bias",
                                                  "mlp.shared_experts.down_proj.bias",
                                                  "mlp.fc1_latent_proj.bias",
                                                  "mlp.fc2_latent_proj.bias"};

carry_status carry_lm_kimi_finish(carry_ctx *ctx, carry_lm_config *c) {
    const carry_lm_kimi *own = carry_lm_kimi_of(c);
    const int64_t listed[] = {own->mixers_listed, own->feedforwards_listed};
    for (int i = 0; i < 2; i++) {
        if (listed[i] != 0 && listed[i] != c->num_hidden_layers) {
            return carry_fail(ctx, CARRY_ESIZE, "%s lists %" PRId64 " layers and num_hidden_layers is %" PRId64,
                              i == 0 ? "layer_types" : "mlp_layer_types", listed[i], c->num_hidden_layers);
        }
    }
    if (own->kv_heads != 0 && own->kv_heads != c->latent.heads) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "num_key_value_heads is %" PRId64 ": expected num_attention_heads, %" PRId64, own->kv_heads,
                          c->latent.heads);
    }
    for (int64_t i = 0; own->feedforwards_listed == 0 && i < c->num_hidden_layers; i++) {
        c->feedforward[i] = feedforward_parts[i < own->dense_layers ? 0 : 1];
    }
    c->kda.norm_eps = c->norm_eps;
    c->experts.shared_width = own->shared_experts * c->experts.width;
    c->experts.router.scale = (float)own->expert_scale;
    return CARRY_OK;
}
