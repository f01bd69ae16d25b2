/* The keys of config.json that are of the model and not of a mixer. */
#include "model/lm/config.h"
#include "model/lm/mixers/mixer.h"

enum {
    FLA = CARRY_LM_IN(GATED_DELTANET) | CARRY_LM_IN(DELTA_NET) | CARRY_LM_IN(GATED_DELTAPRODUCT),
    QWEN = CARRY_LM_IN(QWEN3_5),
    OLMO = CARRY_LM_IN(OLMO_HYBRID),
    HF = QWEN | OLMO,
    ALL = FLA | HF
};

static carry_status read_layer_types(const carry_lm_source *s, const carry_json *node) {
    carry_lm_config *c = s->config;
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    int64_t i = 0;
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next, i++) {
        const bool attention = carry_json_is_text(one, "full_attention");
        if (!attention && !carry_json_is_text(one, "linear_attention")) {
            char shown[CARRY_JSON_SHOWN];
            return carry_fail(s->ctx, CARRY_EUNSUPPORTED,
                              "%s, line %u: layer %lld of \"layer_types\" is %s: expected \"linear_attention\" or "
                              "\"full_attention\"",
                              s->name, one->line, (long long)i, carry_json_show(shown, one));
        }
        if (i < CARRY_LM_MAX_LAYERS) {
            c->layer[i] = attention ? CARRY_LM_MIXER_ATTENTION : CARRY_LM_MIXER_DELTA;
        }
    }
    c->layers_listed = i;
    return i > 0 ? CARRY_OK : carry_lm_config_refuse(s, node, "expected a list of layer types");
}

static void write_layer_types(carry_json_text *text, const carry_lm_config *c) {
    carry_json_put_raw(text, "[");
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        carry_json_put_raw(text, "%s\"%s\"", i > 0 ? ", " : "",
                           c->layer[i] == CARRY_LM_MIXER_ATTENTION ? "full_attention" : "linear_attention");
    }
    carry_json_put_raw(text, "]");
}

#define FIELD CARRY_LM_FIELD
#define WORD CARRY_LM_WORD

const carry_lm_key carry_lm_model_keys[] = {
    FIELD(vocab_size, SIZE, ALL),
    FIELD(hidden_size, SIZE, ALL),
    FIELD(num_hidden_layers, SIZE, ALL),
    FIELD(hidden_ratio, NUMBER_OR_NULL, FLA),
    FIELD(intermediate_size, SIZE_OR_NULL, FLA),
    FIELD(intermediate_size, SIZE, HF),
    FIELD(tie_word_embeddings, TRUTH, ALL),
    FIELD(norm_eps, NUMBER, FLA),
    CARRY_LM_KEY("rms_norm_eps", norm_eps, NUMBER, HF),
    FIELD(initializer_range, NUMBER, ALL),
    FIELD(max_position_embeddings, SIZE, ALL),
    FIELD(bos_token_id, TOKEN, ALL),
    FIELD(eos_token_id, TOKEN, ALL),
    FIELD(pad_token_id, TOKEN, ALL),
    {"layer_types", CARRY_LM_OTHER, HF, 0, read_layer_types, write_layer_types},
    WORD("hidden_act", MUST_BE_SILU, ALL),
    WORD("attnres_block_size", MUST_BE_OFF, FLA),
    WORD("use_l2warp", MUST_BE_OFF, FLA),
    WORD("is_encoder_decoder", MUST_BE_OFF, ALL),
    WORD("quantization_config", MUST_BE_OFF, ALL),
    WORD("elementwise_affine", MUST_BE_ON, FLA),
    WORD("mlp_only_layers", MUST_BE_OFF, QWEN),
    WORD("num_experts", MUST_BE_OFF, QWEN),
    WORD("model_type", READ_OVER, ALL),
    WORD("architectures", READ_OVER, ALL),
    WORD("auto_map", READ_OVER, ALL),
    WORD("use_cache", READ_OVER, ALL),
    WORD("fuse_norm", READ_OVER, FLA),
    WORD("fuse_swiglu", READ_OVER, FLA),
    WORD("fuse_cross_entropy", READ_OVER, FLA),
    WORD("fuse_linear_cross_entropy", READ_OVER, FLA),
    WORD("mtp_num_hidden_layers", READ_OVER, QWEN), /* multi-token heads are ignored */
    WORD("mtp_use_dedicated_embeddings", READ_OVER, QWEN),
    WORD("transformers_version", READ_OVER, ALL),
    WORD("dtype", READ_OVER, ALL),
    WORD("torch_dtype", READ_OVER, ALL),
    WORD("output_hidden_states", READ_OVER, ALL),
    WORD("output_attentions", READ_OVER, ALL),
    WORD("return_dict", READ_OVER, ALL),
    WORD("chunk_size_feed_forward", READ_OVER, ALL),
    WORD("id2label", READ_OVER, ALL),
    WORD("label2id", READ_OVER, ALL),
    WORD("problem_type", READ_OVER, ALL),
    WORD("_name_or_path", READ_OVER, ALL),
    CARRY_LM_LAST_KEY,
};
