/* Kimi Linear: layers of KDA or of latent attention, without positions, with dense or expert feed-forwards. */
#include "core/error.h"
#include "model/lm/families/kimi.h"

/* Released files have one list of layer numbers for each mixer, counted from 1. Sets the mixer of the layers in one
   list. */
static carry_status read_numbers(const carry_lm_source *s, const carry_json *node, unsigned char mixer) {
    carry_lm_kimi *own = carry_lm_kimi_of(s->config);
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next) {
        const int64_t layer = one->kind == CARRY_JSON_NUMBER && one->whole ? one->as.number.integer : 0;
        if (layer < 1 || layer > CARRY_LM_MAX_LAYERS) {
            return carry_lm_config_refuse(s, node, "expected a list of layers, counted from 1");
        }
        s->config->mixer[layer - 1] = mixer;
        own->mixers_listed = layer > own->mixers_listed ? layer : own->mixers_listed;
    }
    return node->kind == CARRY_JSON_ARRAY ? CARRY_OK : carry_lm_config_refuse(s, node, "expected a list of layers");
}

static carry_status read_full(const carry_lm_source *s, const carry_json *node) {
    return read_numbers(s, node, CARRY_LM_MIXER_LATENT);
}

static carry_status read_kda(const carry_lm_source *s, const carry_json *node) {
    return read_numbers(s, node, CARRY_LM_MIXER_KDA);
}

static carry_status read_linear(const carry_lm_source *s, const carry_json *node) {
    static const carry_lm_key keys[] = {
        {"full_attn_layers", CARRY_LM_OTHER, 0, read_full, NULL, NULL},
        {"kda_layers", CARRY_LM_OTHER, 0, read_kda, NULL, NULL},
        CARRY_LM_KEY("head_dim", kda.head_dim, SIZE),
        CARRY_LM_KEY("num_heads", kda.heads, SIZE),
        CARRY_LM_KEY("short_conv_kernel_size", kda.conv_size, SIZE),
        CARRY_LM_LAST_KEY,
    };
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    return node->kind == CARRY_JSON_OBJECT ? carry_lm_config_read_object(s, keys, node)
                                           : carry_lm_config_refuse(s, node, "an object or null is expected");
}

static const carry_lm_key keys[] = {
    CARRY_LM_SIZE_KEYS,
    CARRY_LM_KEY("intermediate_size", swiglu.width, SIZE),
    {"layer_types", CARRY_LM_OTHER, 0, carry_lm_kimi_read_mixers, carry_lm_kimi_write_mixers, NULL},
    {"linear_attn_config", CARRY_LM_OTHER, 0, read_linear, NULL, NULL},
    {"mlp_layer_types", CARRY_LM_OTHER, 0, carry_lm_kimi_read_feedforwards, carry_lm_kimi_write_feedforwards, NULL},
    CARRY_LM_OWN_KEY("first_k_dense_replace", carry_lm_kimi, dense_layers, READ_SIZE),
    CARRY_LM_KEY("linear_num_heads", kda.heads, SIZE),
    CARRY_LM_KEY("linear_head_dim", kda.head_dim, SIZE),
    CARRY_LM_KEY("linear_conv_kernel_dim", kda.conv_size, SIZE),
    CARRY_LM_KEY("num_attention_heads", latent.heads, SIZE),
    CARRY_LM_OWN_KEY("num_key_value_heads", carry_lm_kimi, kv_heads, SIZE_OR_NULL),
    CARRY_LM_KEY("qk_nope_head_dim", latent.plain, SIZE),
    CARRY_LM_KEY("qk_rope_head_dim", latent.shared, SIZE),
    CARRY_LM_KEY("v_head_dim", latent.value, SIZE),
    CARRY_LM_KEY("kv_lora_rank", latent.rank, SIZE),
    CARRY_LM_KEY("q_lora_rank", latent.query_rank, SIZE_OR_NULL),
    CARRY_LM_KEY("num_experts", experts.count, SIZE),
    CARRY_LM_KEY("num_local_experts", experts.count, READ_SIZE),
    CARRY_LM_KEY("num_experts_per_token", experts.chosen, SIZE),
    CARRY_LM_KEY("num_experts_per_tok", experts.chosen, READ_SIZE),
    CARRY_LM_KEY("moe_intermediate_size", experts.width, SIZE),
    CARRY_LM_OWN_KEY("num_shared_experts", carry_lm_kimi, shared_experts, COUNT),
    CARRY_LM_OWN_KEY("n_shared_experts", carry_lm_kimi, shared_experts, READ_SIZE),
    CARRY_LM_OWN_KEY("routed_scaling_factor", carry_lm_kimi, expert_scale, NUMBER),
    CARRY_LM_KEY("num_expert_group", experts.router.groups, COUNT),
    CARRY_LM_KEY("n_group", experts.router.groups, READ_SIZE),
    CARRY_LM_KEY("topk_group", experts.router.kept_groups, COUNT),
    CARRY_LM_KEY("moe_renormalize", experts.router.normalise, TRUTH),
    CARRY_LM_KEY("norm_topk_prob", experts.router.normalise, TRUTH_IF_FALSE),
    CARRY_LM_KEY("rms_norm_eps", norm_eps, NUMBER),
    CARRY_LM_KEY("tie_word_embeddings", tie_word_embeddings, TRUTH),
    CARRY_LM_TOKEN_KEYS,
    CARRY_LM_WRITTEN("hidden_act", MUST_BE_SILU, "\"silu\""),
    CARRY_LM_KEY("attention_bias", latent.bias, TRUTH),
    CARRY_LM_WORD("attention_dropout", MUST_BE_OFF),
    CARRY_LM_WORD("mla_use_nope", MUST_BE_ON),
    {"moe_layer_freq", CARRY_LM_OTHER, 0, carry_lm_config_read_one, NULL, NULL},
    {"moe_router_activation_func", CARRY_LM_OTHER, 0, carry_lm_config_read_score, NULL, NULL},
    CARRY_LM_WORD("head_dim", READ_OVER), /* transformers does not read it either, nor the keys below */
    CARRY_LM_WORD("qk_head_dim", READ_OVER),
    CARRY_LM_WORD("use_grouped_topk", READ_OVER),
    CARRY_LM_WORD("rope_theta", READ_OVER),
    CARRY_LM_WORD("rope_scaling", READ_OVER),
    CARRY_LM_WORD("rope_parameters", READ_OVER),
    CARRY_LM_WORD("model_max_length", READ_OVER),
    CARRY_LM_WORD("num_nextn_predict_layers", READ_OVER),
    CARRY_LM_WORD("output_router_logits", READ_OVER),
    CARRY_LM_WORD("pretraining_tp", READ_OVER),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

/* Names in released files. */
static const char *const renamed[][2] = {
    {"self_attn.forget_gate.f_a_proj.weight", "self_attn.f_a_proj.weight"},
    {"self_attn.forget_gate.f_b_proj.weight", "self_attn.f_b_proj.weight"},
    {"self_attn.forget_gate.dt_bias", "self_attn.dt_bias"},
    {"self_attn.forget_gate.A_log", "self_attn.A_log"},
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "block_sparse_moe.gate.e_score_correction_bias"},
    {"mlp.gate_proj.weight",
     "block_sparse_moe.gate_proj.weight"}, /* dense layers, in the names that transformers saves */
    {"mlp.up_proj.weight", "block_sparse_moe.up_proj.weight"},
    {"mlp.down_proj.weight", "block_sparse_moe.down_proj.weight"},
    {"mlp.shared_experts.gate_proj.weight", "block_sparse_moe.shared_experts.gate_proj.weight"},
    {"mlp.shared_experts.up_proj.weight", "block_sparse_moe.shared_experts.up_proj.weight"},
    {"mlp.shared_experts.down_proj.weight", "block_sparse_moe.shared_experts.down_proj.weight"},
    {NULL, NULL}};

static const char *const pieces[][2] = {{"self_attn.conv1d.weight", "self_attn.q_conv1d.weight"},
                                        {"self_attn.conv1d.weight", "self_attn.k_conv1d.weight"},
                                        {"self_attn.conv1d.weight", "self_attn.v_conv1d.weight"},
                                        {"mlp.experts.gate_up_proj", "block_sparse_moe.experts.#.w1.weight"},
                                        {"mlp.experts.gate_up_proj", "block_sparse_moe.experts.#.w3.weight"},
                                        {"mlp.experts.down_proj", "block_sparse_moe.experts.#.w2.weight"},
                                        {NULL, NULL}};

static const char *const ignored[][2] = {{"mtp.", "multi-token heads"}, {NULL, NULL}};

static const carry_lm_file_names files = {.prefix = "model.", .renamed = renamed, .pieces = pieces, .ignored = ignored};

static void set_defaults(carry_lm_config *c) {
    c->vocab_size = 163840;
    c->hidden_size = 2304;
    c->num_hidden_layers = 27;
    c->norm_eps = 1e-5;
    c->initializer_range = 0.02;
    c->max_position_embeddings = 4096;
    c->bos_token_id = c->eos_token_id = c->pad_token_id = -1;
    c->swiglu.width = 9216;
    c->kda = (carry_lm_kda_options){.heads = 32, .head_dim = 128, .conv_size = 4};
    c->latent = (carry_lm_latent_options){.heads = 32, .plain = 128, .shared = 64, .value = 128, .rank = 512};
    c->experts = (carry_lm_experts_options){
        .count = 256,
        .chosen = 8,
        .width = 1024,
        .gated = true,
        .bias = true,
        .router = {.score = CARRY_ROUTER_SIGMOID, .groups = 1, .kept_groups = 1, .normalise = true, .scale = 1.0f}};
    *carry_lm_kimi_of(c) = (carry_lm_kimi){.dense_layers = 1, .shared_experts = 1, .expert_scale = 2.446};
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    CARRY_TRY(carry_lm_kimi_finish(ctx, c));
    c->tie_word_embeddings = false; /* transformers' class ignores it: files always have a head */
    for (int64_t i = 0; carry_lm_kimi_of(c)->mixers_listed == 0 && i < c->num_hidden_layers; i++) {
        c->mixer[i] = i > 0 && i % 4 == 0 ? CARRY_LM_MIXER_LATENT : CARRY_LM_MIXER_KDA;
    }
    return CARRY_OK;
}

const carry_lm_family carry_lm_family_kimi_linear = {
    .name = "kimi_linear",
    .about = "Kimi Linear",
    .mixers = CARRY_LM_HAS(MIXER_KDA) | CARRY_LM_HAS(MIXER_LATENT),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_EXPERTS) | CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "KimiLinearForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"}},
    .feedforward = {[CARRY_LM_FEEDFORWARD_EXPERTS] = carry_lm_kimi_expert_names},
    .files = &files,
};
