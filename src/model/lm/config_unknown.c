/* Keys of config.json that a family does not list, and words of which one value is supported. An unknown key is ignored
   with a warning, unless it changes what a model computes. */
#include <stdio.h>
#include <string.h>

#include "model/lm/config.h"
#include "model/lm/families/family.h"

/* Keys of other models' configurations that change what a model computes, and that no tensor reveals, or only one that
   may be missing. */
static const char *const mathematical[] = {
    "alibi",
    "attention_bias",
    "attention_chunk_size",
    "attention_multiplier",
    "attention_sinks",
    "attn_logit_softcapping",
    "attn_temperature_tuning",
    "clip_qkv",
    "embedding_multiplier",
    "final_logit_softcapping",
    "logit_scale",
    "lm_head_multiplier",
    "logits_scaling",
    "mlp_bias",
    "num_sink_tokens",
    "parallel_attn",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "scale_depth",
    "scale_emb",
    "sliding_window",
    "swiglu_limit",
    "use_alibi",
    "use_sliding_window",
    "use_parallel_residual",
};

/* Names of the key that selects the scores of a router. */
static const char *const scores[] = {"moe_router_activation_func", "score_function", "scoring_func"};

bool carry_lm_config_is_off(const carry_json *node) {
    return node->kind == CARRY_JSON_NULL || (node->kind == CARRY_JSON_BOOL && !node->truth) ||
           (node->kind == CARRY_JSON_NUMBER && node->as.number.value == 0.0) ||
           (node->kind == CARRY_JSON_ARRAY && node->as.inside.first == NULL);
}

static bool is_one(const carry_json *node) {
    return node->kind == CARRY_JSON_NUMBER && node->as.number.value == 1.0;
}

static bool is_in(const char *const *list, size_t count, const char *key) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i], key) == 0) {
            return true;
        }
    }
    return false;
}

carry_status carry_lm_config_read_score(const carry_lm_source *s, const carry_json *node) {
    const bool sigmoid = s->config->experts.router.score == CARRY_ROUTER_SIGMOID;
    return node->kind == CARRY_JSON_NULL || carry_json_is_text(node, sigmoid ? "sigmoid" : "softmax")
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, sigmoid ? "expected \"sigmoid\"" : "expected \"softmax\"");
}

carry_status carry_lm_config_read_one(const carry_lm_source *s, const carry_json *node) {
    return node->kind == CARRY_JSON_NULL || is_one(node) ? CARRY_OK
                                                         : carry_lm_config_refuse(s, node, "only 1 is supported");
}

carry_status carry_lm_config_check_unknown(const carry_lm_source *s, const carry_json *object, const carry_json *node) {
    const carry_json *windows = carry_json_find(object, "use_sliding_window");
    if ((s->config->family->feedforwards & CARRY_LM_HAS(FEEDFORWARD_EXPERTS)) != 0 &&
        is_in(scores, sizeof scores / sizeof *scores, node->key)) {
        return carry_lm_config_read_score(s, node);
    }
    if (strcmp(node->key, "is_causal") == 0 && node->kind == CARRY_JSON_BOOL && !node->truth) {
        return carry_lm_config_refuse(s, node, "tokens attend to earlier ones only");
    }
    if (carry_lm_config_is_off(node) || is_one(node) ||
        (strcmp(node->key, "sliding_window") == 0 && windows != NULL && carry_lm_config_is_off(windows)) ||
        !is_in(mathematical, sizeof mathematical / sizeof *mathematical, node->key)) {
        return CARRY_OK;
    }
    char why[160];
    (void)snprintf(why, sizeof why, "it changes what a model computes, and models of type %s do not have it here",
                   s->config->family->name);
    return carry_lm_config_refuse(s, node, why);
}
