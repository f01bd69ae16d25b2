/* Nemotron-H: every layer has one part, Mamba-2 (M), attention without positions (*), a feed-forward (-) or experts
   (E). */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "model/lm/families/mamba.h"

typedef struct nemotron {
    int64_t layers_listed;
    double expert_scale;
} nemotron;
_Static_assert(sizeof(nemotron) <= CARRY_LM_OWN, "a family's own fields");

static nemotron *own_of(carry_lm_config *c) {
    return (nemotron *)(void *)c->own;
}

/* The parts of a kind of layer. */
static const struct {
    char sign;
    const char *names[2]; /* the name that is written; another that is read */
    unsigned char mixer, feedforward;
} kinds[] = {
    {'M', {"linear_attention", "mamba"}, CARRY_LM_MIXER_MAMBA, CARRY_LM_FEEDFORWARD_NONE},
    {'E', {"moe", "moe"}, CARRY_LM_MIXER_NONE, CARRY_LM_FEEDFORWARD_EXPERTS},
    {'*', {"full_attention", "attention"}, CARRY_LM_MIXER_ATTENTION, CARRY_LM_FEEDFORWARD_NONE},
    {'-', {"mlp", "mlp"}, CARRY_LM_MIXER_NONE, CARRY_LM_FEEDFORWARD_SQUARED},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void set_kind(carry_lm_config *c, int64_t layer, int kind) {
    if (layer < CARRY_LM_MAX_LAYERS) {
        c->mixer[layer] = kinds[kind].mixer;
        c->feedforward[layer] = kinds[kind].feedforward;
    }
}

static carry_status take_layers(const carry_lm_source *s, const carry_json *node, int64_t count) {
    if (count < 1 || count > CARRY_LM_MAX_LAYERS) {
        return carry_lm_config_refuse(s, node, "1 to 4096 layers are expected");
    }
    own_of(s->config)->layers_listed = s->config->num_hidden_layers = count;
    return CARRY_OK;
}

static carry_status read_types(const carry_lm_source *s, const carry_json *node) {
    int64_t count = 0;
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next, count++) {
        int kind = 0;
        while (kind < KINDS && !carry_json_is_text(one, kinds[kind].names[0]) &&
               !carry_json_is_text(one, kinds[kind].names[1])) {
            kind++;
        }
        if (kind == KINDS) {
            return carry_lm_config_refuse(s, node,
                                          "a list of \"mamba\", \"attention\", \"mlp\" and \"moe\" is expected");
        }
        set_kind(s->config, count, kind);
    }
    return take_layers(s, node, count);
}

static carry_status read_pattern(const carry_lm_source *s, const carry_json *node) {
    int64_t count = 0;
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_STRING) {
        return carry_lm_config_refuse(s, node, "a text of M, *, - and E is expected");
    }
    for (const char *at = node->as.text.bytes; *at != '\0'; at++, count++) {
        int kind = 0;
        while (kind < KINDS && kinds[kind].sign != *at) {
            kind++;
        }
        if (kind == KINDS) {
            return carry_lm_config_refuse(s, node, "a text of M, *, - and E is expected");
        }
        set_kind(s->config, count, kind);
    }
    return take_layers(s, node, count);
}

static void write_types(carry_json_text *text, const carry_lm_config *c) {
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        int kind = 0;
        while (kind < KINDS - 1 && (kinds[kind].mixer != c->mixer[i] || kinds[kind].feedforward != c->feedforward[i])) {
            kind++;
        }
        carry_json_put_raw(text, "%s\"%s\"", i > 0 ? ", " : "[", kinds[kind].names[0]);
    }
    carry_json_put_raw(text, "]");
}

static carry_status read_squared(const carry_lm_source *s, const carry_json *node) {
    return carry_json_is_text(node, "relu2") ? CARRY_OK
                                             : carry_lm_config_refuse(s, node, "only \"relu2\" is supported");
}

static void write_squared(carry_json_text *text, const carry_lm_config *c) {
    (void)c;
    carry_json_put_raw(text, "\"relu2\"");
}

static const carry_lm_key keys[] = {
    CARRY_LM_SIZE_KEYS,
    {"layers_block_type", CARRY_LM_OTHER, 0, read_types, write_types, NULL},
    {"layer_types", CARRY_LM_OTHER, 0, read_types, NULL, NULL},
    {"hybrid_override_pattern", CARRY_LM_OTHER, 0, read_pattern, NULL, NULL},
    CARRY_LM_KEY("intermediate_size", squared.width, SIZE),
    {"mlp_hidden_act", CARRY_LM_OTHER, 0, read_squared, write_squared, NULL},
    CARRY_LM_KEY("mlp_bias", squared.bias, TRUTH),
    CARRY_LM_KEY("num_attention_heads", attention.heads, SIZE),
    CARRY_LM_KEY("num_key_value_heads", attention.kv_heads, SIZE_OR_NULL),
    CARRY_LM_KEY("head_dim", attention.head_dim, SIZE_OR_NULL),
    CARRY_LM_KEY("attention_head_dim", attention.head_dim, READ_SIZE),
    CARRY_LM_KEY("mamba_num_heads", mamba.heads, SIZE),
    CARRY_LM_KEY("mamba_head_dim", mamba.head_dim, SIZE),
    CARRY_LM_WRITTEN("mamba_hidden_act", MUST_BE_SILU, "\"silu\""),
    CARRY_LM_KEY("ssm_state_size", mamba.state, SIZE),
    CARRY_LM_KEY("n_groups", mamba.groups, SIZE),
    CARRY_LM_KEY("mamba_n_groups", mamba.groups, READ_SIZE),
    CARRY_LM_KEY("conv_kernel", mamba.conv_size, SIZE),
    CARRY_LM_KEY("mamba_d_conv", mamba.conv_size, READ_SIZE),
    CARRY_LM_KEY("use_conv_bias", mamba.conv_bias, TRUTH),
    CARRY_LM_KEY("mamba_conv_bias", mamba.conv_bias, TRUTH_IF_FALSE),
    CARRY_LM_KEY("use_bias", mamba.proj_bias, TRUTH),
    CARRY_LM_KEY("time_step_min", mamba.step_min, NUMBER),
    CARRY_LM_KEY("mamba_dt_min", mamba.step_min, READ_NUMBER),
    CARRY_LM_KEY("n_routed_experts", experts.count, COUNT),
    CARRY_LM_KEY("num_local_experts", experts.count, READ_SIZE),
    CARRY_LM_KEY("num_experts_per_tok", experts.chosen, COUNT),
    CARRY_LM_KEY("moe_intermediate_size", experts.width, SIZE),
    CARRY_LM_KEY("moe_shared_expert_intermediate_size", experts.shared_width, SIZE),
    CARRY_LM_KEY("moe_latent_size", experts.latent, SIZE_OR_NULL),
    CARRY_LM_OWN_KEY("routed_scaling_factor", nemotron, expert_scale, NUMBER),
    CARRY_LM_KEY("n_group", experts.router.groups, COUNT),
    CARRY_LM_KEY("topk_group", experts.router.kept_groups, COUNT),
    CARRY_LM_KEY("norm_topk_prob", experts.router.normalise, TRUTH),
    CARRY_LM_KEY("layer_norm_epsilon", norm_eps, NUMBER),
    CARRY_LM_KEY("tie_word_embeddings", tie_word_embeddings, TRUTH),
    CARRY_LM_TOKEN_KEYS,
    CARRY_LM_WORD("attention_bias", READ_OVER), /* transformers does not read it either */
    CARRY_LM_WORD("attention_dropout", MUST_BE_OFF),
    CARRY_LM_WORD("hidden_dropout", MUST_BE_OFF),
    CARRY_LM_WORD("sliding_window", READ_OVER),
    CARRY_LM_WORD("expand", READ_OVER),
    CARRY_LM_WORD("chunk_size", READ_OVER),
    CARRY_LM_WORD("mamba_proj_bias", READ_OVER),
    CARRY_LM_WORD("mamba_ssm_cache_dtype", READ_OVER),
    CARRY_LM_WORD("time_step_limit", READ_OVER),
    CARRY_LM_WORD("time_step_max", READ_OVER),
    CARRY_LM_WORD("time_step_floor", READ_OVER),
    CARRY_LM_WORD("time_step_rank", READ_OVER),
    CARRY_LM_WORD("n_shared_experts", READ_OVER),
    CARRY_LM_WORD("moe_shared_expert_overlap", READ_OVER),
    CARRY_LM_WORD("mtp_layers_block_type", READ_OVER), /* multi-token heads are ignored */
    CARRY_LM_WORD("num_nextn_predict_layers", READ_OVER),
    CARRY_LM_WORD("num_logits_to_keep", READ_OVER),
    CARRY_LM_WORD("output_router_logits", READ_OVER),
    CARRY_LM_WORD("rescale_prenorm_residual", READ_OVER),
    CARRY_LM_WORD("residual_in_fp32", READ_OVER),
    CARRY_LM_WORD("use_mamba_kernels", READ_OVER),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static const char *const attention_names[] = {
    "mixer.q_proj.weight", "mixer.k_proj.weight", "mixer.v_proj.weight", "mixer.q_norm.weight", "mixer.k_norm.weight",
    "mixer.o_proj.weight", "mixer.q_proj.bias",   "mixer.k_proj.bias",   "mixer.v_proj.bias",   "mixer.o_proj.bias"};

static const char *const squared_names[] = {"mixer.up_proj.weight", "mixer.up_proj.bias", "mixer.down_proj.weight",
                                            "mixer.down_proj.bias"};

static const char *const expert_names[] = {"mixer.gate.weight",
                                           "mixer.gate.e_score_correction_bias",
                                           "mixer.experts.up_proj",
                                           "mixer.experts.down_proj",
                                           "mixer.shared_experts.gate_proj.weight",
                                           "mixer.shared_experts.up_proj.weight",
                                           "mixer.shared_experts.down_proj.weight",
                                           "mixer.shared_experts.scale",
                                           "mixer.fc1_latent_proj.weight",
                                           "mixer.fc2_latent_proj.weight",
                                           "mixer.shared_experts.up_proj.bias",
                                           "mixer.shared_experts.down_proj.bias",
                                           "mixer.fc1_latent_proj.bias",
                                           "mixer.fc2_latent_proj.bias"};

static const char *const single_experts[][2] = {{"mixer.experts.up_proj", "mixer.experts.#.up_proj.weight"},
                                                {"mixer.experts.down_proj", "mixer.experts.#.down_proj.weight"},
                                                {NULL, NULL}};

static const char *const ignored[][2] = {{"mtp.", "multi-token heads"},
                                         {"model.mtp.", "multi-token heads"},
                                         {"backbone.mtp.", "multi-token heads"},
                                         {NULL, NULL}};

static const carry_lm_file_names files = {.prefix = "backbone.", .pieces = single_experts, .ignored = ignored};

static void set_defaults(carry_lm_config *c) {
    c->vocab_size = 131072;
    c->hidden_size = 4096;
    c->num_hidden_layers = KINDS;
    c->norm_eps = 1e-5;
    c->initializer_range = 0.02;
    c->max_position_embeddings = 4096;
    c->bos_token_id = c->eos_token_id = c->pad_token_id = -1;
    c->squared.width = 21504;
    c->attention = (carry_lm_attention_options){.heads = 32, .kv_heads = 8, .head_dim = 128};
    c->mamba = (carry_lm_mamba_options){.heads = 128,
                                        .head_dim = 64,
                                        .groups = 8,
                                        .state = 128,
                                        .conv_size = 4,
                                        .conv_bias = true,
                                        .step_min = 0.001,
                                        .step_max = INFINITY};
    c->experts = (carry_lm_experts_options){
        .count = 8,
        .chosen = 2,
        .width = 7688,
        .shared_width = 7688,
        .bias = true,
        .router = {.score = CARRY_ROUTER_SIGMOID, .groups = 1, .kept_groups = 1, .normalise = true, .scale = 1.0f}};
    own_of(c)->expert_scale = 1.0;
    for (int i = 0; i < KINDS; i++) {
        set_kind(c, i, i);
    }
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    const nemotron *own = own_of(c);
    const int64_t layers = own->layers_listed != 0 ? own->layers_listed : KINDS;
    if (layers != c->num_hidden_layers) {
        return carry_fail(ctx, CARRY_ESIZE, "layers_block_type lists %lld layers and num_hidden_layers is %lld",
                          (long long)layers, (long long)c->num_hidden_layers);
    }
    c->experts.map_bias = c->squared.bias;
    c->tie_word_embeddings = false; /* transformers' class ignores it: files always have a head */
    c->mamba.norm_eps = c->norm_eps;
    c->experts.router.scale = (float)own->expert_scale;
    return CARRY_OK;
}

const carry_lm_family carry_lm_family_nemotron_h = {
    .name = "nemotron_h",
    .about = "Nemotron-H, Nemotron 3",
    .mixers = CARRY_LM_HAS(MIXER_MAMBA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_EXPERTS) | CARRY_LM_HAS(FEEDFORWARD_SQUARED),
    .architecture = "NemotronHForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    .embeddings = "model.embeddings.weight",
    .norm = "model.norm_f.weight",
    .norms = {{"norm.weight", "norm.weight"}},
    .mixer = {[CARRY_LM_MIXER_ATTENTION] = attention_names},
    .feedforward = {[CARRY_LM_FEEDFORWARD_EXPERTS] = expert_names, [CARRY_LM_FEEDFORWARD_SQUARED] = squared_names},
    .files = &files,
};
