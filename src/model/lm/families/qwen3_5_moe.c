/* Qwen3.5 with experts in every layer: text models (qwen3_5_moe_text), and the language part of multimodal ones
   (qwen3_5_moe). Mixers are those of qwen3_5. */
#include <string.h>

#include "model/lm/families/hybrid.h"

static const carry_lm_key keys[] = {
    CARRY_LM_SIZE_KEYS,
    CARRY_LM_HYBRID_OTHER_KEYS,
    CARRY_LM_HYBRID_QWEN3_5_KEYS,
    CARRY_LM_KEY("num_experts", experts.count, SIZE),
    CARRY_LM_HYBRID_EXPERT_KEYS,
    CARRY_LM_WORD("norm_topk_prob", READ_OVER),      /* weights are always normalised */
    CARRY_LM_WORD("decoder_sparse_step", READ_OVER), /* every layer has experts */
    CARRY_LM_WORD("intermediate_size", READ_OVER),   /* no layer is dense */
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static void set_defaults(carry_lm_config *c) {
    carry_lm_hybrid_set_qwen(c);
    c->vocab_size = 248320;
    c->hidden_size = 2048;
    c->num_hidden_layers = 40;
    c->attention.kv_heads = 2;
    carry_lm_hybrid_set_experts(c);
    c->experts.count = 256;
    c->experts.chosen = 8;
    memset(c->feedforward, CARRY_LM_FEEDFORWARD_EXPERTS, sizeof c->feedforward);
}

const carry_lm_family carry_lm_family_qwen3_5_moe = {
    .name = "qwen3_5_moe_text",
    .about = "Qwen3.5 and Qwen3.6 with experts (35B-A3B and larger)",
    .mixers = CARRY_LM_HAS(MIXER_DELTA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_EXPERTS),
    .architecture = "Qwen3_5MoeForCausalLM",
    .wrapper = "qwen3_5_moe",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = carry_lm_hybrid_finish_qwen,
    .set_heads = carry_lm_hybrid_set_heads,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"}},
    .mixer = {[CARRY_LM_MIXER_DELTA] = carry_lm_hybrid_delta_names},
    .files = &carry_lm_hybrid_expert_files,
};
