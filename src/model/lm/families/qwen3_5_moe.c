/* Qwen3.5 with experts in every layer: text models (qwen3_5_moe_text), and the language part of multimodal ones
   (qwen3_5_moe). Mixers are those of qwen3_5. */
#include <string.h>

#include "model/lm/families/hybrid.h"

static const carry_lm_key keys[] = {
    CARRY_LM_SIZE_KEYS,
    CARRY_LM_HYBRID_OTHER_KEYS,
    CARRY_LM_KEY("linear_num_key_heads", delta.heads, SIZE),
    CARRY_LM_KEY("linear_num_value_heads", delta.value_heads, SIZE),
    CARRY_LM_KEY("linear_key_head_dim", delta.key, SIZE),
    CARRY_LM_KEY("linear_value_head_dim", delta.value, SIZE),
    CARRY_LM_KEY("linear_conv_kernel_dim", delta.conv_size, SIZE),
    CARRY_LM_HYBRID_ATTENTION_KEYS(carry_lm_hybrid_write_rope),
    CARRY_LM_OWN_KEY("full_attention_interval", carry_lm_hybrid, full_attention_interval, READ_SIZE),
    CARRY_LM_WORD("attn_output_gate", MUST_BE_ON),
    CARRY_LM_WORD("mlp_only_layers", MUST_BE_OFF),
    CARRY_LM_KEY("num_experts", experts.count, SIZE),
    CARRY_LM_HYBRID_EXPERT_KEYS,
    CARRY_LM_WORD("norm_topk_prob", READ_OVER),      /* weights are always normalised */
    CARRY_LM_WORD("decoder_sparse_step", READ_OVER), /* every layer has experts */
    CARRY_LM_WORD("intermediate_size", READ_OVER),   /* no layer is dense */
    CARRY_LM_WORD("mamba_ssm_dtype", READ_OVER),
    CARRY_LM_WORD("mtp_num_hidden_layers", READ_OVER), /* multi-token heads are ignored */
    CARRY_LM_WORD("mtp_use_dedicated_embeddings", READ_OVER),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static const char *const delta_names[] = {"linear_attn.in_proj_qkv.weight",
                                          "linear_attn.in_proj_qkv.weight",
                                          "linear_attn.in_proj_qkv.weight",
                                          "linear_attn.in_proj_a.weight",
                                          "linear_attn.in_proj_b.weight",
                                          "linear_attn.in_proj_z.weight",
                                          "linear_attn.A_log",
                                          "linear_attn.dt_bias",
                                          "linear_attn.conv1d.weight",
                                          "linear_attn.conv1d.weight",
                                          "linear_attn.conv1d.weight",
                                          "linear_attn.norm.weight",
                                          "linear_attn.out_proj.weight"};

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
    .architecture = "Qwen3_5MoeForCausalLM",
    .wrapper = "qwen3_5_moe",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = carry_lm_hybrid_finish_qwen,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"}},
    .mixer = {[CARRY_LM_MIXER_DELTA] = delta_names},
    .files = &carry_lm_hybrid_expert_files,
};
