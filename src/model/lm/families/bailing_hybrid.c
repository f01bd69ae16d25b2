/* Ling: layers of KDA, with full-rank gates and bounded decays, or of latent attention with positions and a gate for
   each head; dense or expert feed-forwards. */
#include "core/error.h"
#include "model/lm/families/kimi.h"

static carry_status read_rope_type(const carry_lm_source *s, const carry_json *node) {
    return node->kind == CARRY_JSON_NULL || carry_json_is_text(node, "default")
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "only default positions are supported");
}

static carry_status read_rope(const carry_lm_source *s, const carry_json *node) {
    static const carry_lm_key keys[] = {
        CARRY_LM_OWN_KEY("rope_theta", carry_lm_kimi, theta, NUMBER),
        {"rope_type", CARRY_LM_OTHER, 0, read_rope_type, NULL, NULL},
        CARRY_LM_LAST_KEY,
    };
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    return node->kind == CARRY_JSON_OBJECT ? carry_lm_config_read_object(s, keys, node)
                                           : carry_lm_config_refuse(s, node, "an object or null is expected");
}

static void write_rope(carry_json_text *text, const carry_lm_config *c) {
    carry_json_put_raw(text, "{\"rope_type\": \"default\", \"rope_theta\": ");
    carry_json_put_double(text, c->latent.rope_theta);
    carry_json_put_raw(text, "}");
}

static carry_status read_bound(const carry_lm_source *s, const carry_json *node) {
    const double bound = carry_json_number(node);
    if (!(bound < 0.0 && bound >= -1e3)) {
        return carry_lm_config_refuse(s, node, "a number below 0 is expected");
    }
    carry_lm_kimi_of(s->config)->lower_bound = bound;
    return CARRY_OK;
}

static void write_bound(carry_json_text *text, const carry_lm_config *c) {
    carry_json_put_double(text, ((const carry_lm_kimi *)(const void *)c->own)->lower_bound);
}

static const carry_lm_key keys[] = {
    CARRY_LM_SIZE_KEYS,
    CARRY_LM_KEY("intermediate_size", swiglu.width, SIZE),
    {"layer_types", CARRY_LM_OTHER, 0, carry_lm_kimi_read_mixers, carry_lm_kimi_write_mixers, NULL},
    {"mlp_layer_types", CARRY_LM_OTHER, 0, carry_lm_kimi_read_feedforwards, carry_lm_kimi_write_feedforwards, NULL},
    CARRY_LM_OWN_KEY("first_k_dense_replace", carry_lm_kimi, dense_layers, COUNT),
    CARRY_LM_OWN_KEY("layer_group_size", carry_lm_kimi, group_size, SIZE),
    CARRY_LM_OWN_KEY("head_dim", carry_lm_kimi, head_dim, SIZE),
    CARRY_LM_OWN_KEY("linear_head_dim", carry_lm_kimi, kda_head_dim, SIZE),
    CARRY_LM_KEY("short_conv_kernel_size", kda.conv_size, SIZE),
    CARRY_LM_OWN_KEY("kda_safe_gate", carry_lm_kimi, safe_gate, TRUTH),
    {"kda_lower_bound", CARRY_LM_OTHER, 0, read_bound, write_bound, NULL},
    CARRY_LM_KEY("num_attention_heads", latent.heads, SIZE),
    CARRY_LM_OWN_KEY("num_key_value_heads", carry_lm_kimi, kv_heads, SIZE_OR_NULL),
    CARRY_LM_KEY("qk_nope_head_dim", latent.plain, SIZE),
    CARRY_LM_KEY("qk_rope_head_dim", latent.shared, SIZE),
    CARRY_LM_KEY("v_head_dim", latent.value, SIZE),
    CARRY_LM_KEY("kv_lora_rank", latent.rank, SIZE),
    CARRY_LM_OWN_KEY("rope_theta", carry_lm_kimi, theta, NUMBER),
    {"rope_parameters", CARRY_LM_OTHER, 0, read_rope, write_rope, NULL},
    {"rope_scaling", CARRY_LM_OTHER, 0, read_rope, NULL, NULL}, /* older name */
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
    CARRY_LM_WORD("linear_num_heads", READ_OVER), /* that of attention heads */
    CARRY_LM_WORD("linear_conv_kernel_dim", READ_OVER),
    CARRY_LM_WORD("qk_head_dim", READ_OVER),
    CARRY_LM_WORD("model_max_length", READ_OVER),
    CARRY_LM_WORD("num_nextn_predict_layers", READ_OVER),
    CARRY_LM_WORD("num_mtp_layers", READ_OVER),
    CARRY_LM_WORD("mtp_loss_scaling_factor", READ_OVER),
    CARRY_LM_WORD("output_router_logits", READ_OVER),
    CARRY_LM_WORD("pretraining_tp", READ_OVER),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static const char *const kda_names[] = {"self_attn.q_proj.weight",
                                        "self_attn.k_proj.weight",
                                        "self_attn.v_proj.weight",
                                        "self_attn.forget_gate.f_a_proj.weight",
                                        "self_attn.forget_gate.f_proj.weight",
                                        "self_attn.b_proj.weight",
                                        "self_attn.g_a_proj.weight",
                                        "self_attn.g_proj.weight",
                                        "self_attn.forget_gate.A_log",
                                        "self_attn.forget_gate.dt_bias",
                                        "self_attn.conv1d.weight",
                                        "self_attn.conv1d.weight",
                                        "self_attn.conv1d.weight",
                                        "self_attn.o_norm.weight",
                                        "self_attn.o_proj.weight"};

/* Names in released files. */
static const char *const renamed[][2] = {{"self_attn.q_proj.weight", "attention.q_proj.weight"},
                                         {"self_attn.k_proj.weight", "attention.k_proj.weight"},
                                         {"self_attn.v_proj.weight", "attention.v_proj.weight"},
                                         {"self_attn.forget_gate.f_proj.weight", "attention.f_proj.weight"},
                                         {"self_attn.forget_gate.dt_bias", "attention.dt_bias"},
                                         {"self_attn.forget_gate.A_log", "attention.A_log"},
                                         {"self_attn.b_proj.weight", "attention.b_proj.weight"},
                                         {"self_attn.g_proj.weight", "attention.g_proj.weight"},
                                         {"self_attn.o_norm.weight", "attention.o_norm.weight"},
                                         {"self_attn.o_proj.weight", "attention.dense.weight"},
                                         {"self_attn.kv_a_proj_with_mqa.weight", "attention.kv_a_proj_with_mqa.weight"},
                                         {"self_attn.kv_a_layernorm.weight", "attention.kv_a_layernorm.weight"},
                                         {"self_attn.kv_b_proj.weight", "attention.kv_b_proj.weight"},
                                         {"mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"},
                                         {"embed_tokens.weight", "word_embeddings.weight"},
                                         {NULL, NULL}};

static const char *const pieces[][2] = {{"self_attn.conv1d.weight", "attention.q_conv1d.weight"},
                                        {"self_attn.conv1d.weight", "attention.k_conv1d.weight"},
                                        {"self_attn.conv1d.weight", "attention.v_conv1d.weight"},
                                        {"mlp.experts.gate_up_proj", "mlp.experts.#.gate_proj.weight"},
                                        {"mlp.experts.gate_up_proj", "mlp.experts.#.up_proj.weight"},
                                        {"mlp.experts.down_proj", "mlp.experts.#.down_proj.weight"},
                                        {NULL, NULL}};

static const char *const ignored[][2] = {{"mtp.", "multi-token heads"}, {NULL, NULL}};

static const carry_lm_file_names files = {.prefix = "model.", .renamed = renamed, .pieces = pieces, .ignored = ignored};

static void set_defaults(carry_lm_config *c) {
    c->vocab_size = 157184;
    c->hidden_size = 2560;
    c->num_hidden_layers = 42;
    c->norm_eps = 1e-6;
    c->initializer_range = 0.02;
    c->max_position_embeddings = 262144;
    c->bos_token_id = c->eos_token_id = c->pad_token_id = -1;
    c->swiglu.width = 6144;
    c->kda = (carry_lm_kda_options){.conv_size = 4, .whole_gates = true};
    c->latent = (carry_lm_latent_options){
        .heads = 32, .plain = 128, .shared = 64, .value = 128, .rank = 512, .head_gate = true};
    c->experts = (carry_lm_experts_options){
        .count = 512,
        .chosen = 8,
        .width = 768,
        .gated = true,
        .bias = true,
        .router = {.score = CARRY_ROUTER_SIGMOID, .groups = 8, .kept_groups = 4, .normalise = true, .scale = 1.0f}};
    *carry_lm_kimi_of(c) = (carry_lm_kimi){.dense_layers = 2,
                                           .shared_experts = 1,
                                           .expert_scale = 2.5,
                                           .group_size = 6,
                                           .head_dim = 128,
                                           .safe_gate = true,
                                           .lower_bound = -5.0,
                                           .theta = 6e6};
}

/* The transformers library writes the width of the rotary elements as head_dim, and the head width of KDA, which is
   head_dim in published files, as linear_head_dim. */
static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    carry_lm_kimi *own = carry_lm_kimi_of(c);
    CARRY_TRY(carry_lm_kimi_finish(ctx, c));
    for (int64_t i = 0; own->mixers_listed == 0 && i < c->num_hidden_layers; i++) {
        c->mixer[i] = (i + 1) % own->group_size == 0 ? CARRY_LM_MIXER_LATENT : CARRY_LM_MIXER_KDA;
    }
    c->kda.heads = c->latent.heads;
    own->kda_head_dim = own->kda_head_dim > 0 ? own->kda_head_dim : own->head_dim;
    c->kda.head_dim = own->kda_head_dim;
    c->kda.bound = own->safe_gate ? own->lower_bound : 0.0;
    c->latent.rope_theta = own->theta;
    return CARRY_OK;
}

const carry_lm_family carry_lm_family_bailing_hybrid = {
    .name = "bailing_hybrid",
    .about = "Ling 3.0",
    .mixers = CARRY_LM_HAS(MIXER_KDA) | CARRY_LM_HAS(MIXER_LATENT),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_EXPERTS) | CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "BailingHybridForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"}},
    .mixer = {[CARRY_LM_MIXER_KDA] = kda_names},
    .feedforward = {[CARRY_LM_FEEDFORWARD_EXPERTS] = carry_lm_kimi_expert_names},
    .files = &files,
};
