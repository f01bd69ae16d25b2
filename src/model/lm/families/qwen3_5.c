/* Qwen3.5: text models (qwen3_5_text), and the language part of multimodal ones (qwen3_5). */
#include "model/lm/families/hybrid.h"

static const carry_lm_key keys[] = {
    CARRY_LM_HYBRID_MODEL_KEYS,
    CARRY_LM_HYBRID_QWEN3_5_KEYS,
    CARRY_LM_WORD("num_experts", MUST_BE_OFF),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static void set_defaults(carry_lm_config *c) {
    carry_lm_hybrid_set_qwen(c);
    c->vocab_size = 248320;
    c->hidden_size = 4096;
    c->num_hidden_layers = 32;
    c->attention.kv_heads = 4;
    c->swiglu.width = 12288;
}

const carry_lm_family carry_lm_family_qwen3_5 = {
    .name = "qwen3_5_text",
    .about = "Qwen3.5, dense; the text part of multimodal models",
    .mixers = CARRY_LM_HAS(MIXER_DELTA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "Qwen3_5ForCausalLM",
    .wrapper = "qwen3_5",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = carry_lm_hybrid_finish_qwen,
    .set_heads = carry_lm_hybrid_set_heads,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"}},
    .mixer = {[CARRY_LM_MIXER_DELTA] = carry_lm_hybrid_delta_names},
    .files = &carry_lm_hybrid_files,
};
