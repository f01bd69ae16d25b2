/* Granite 4: Mamba-2 or attention, then a shared feed-forward, with or without experts. Embeddings, the outputs that
   layers add to h, attention scores and logits are multiplied by factors. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "model/lm/families/hybrid.h"
#include "model/lm/families/mamba.h"

typedef struct granite {
    carry_lm_hybrid hybrid;
    int64_t expand, head_dim; /* head_dim 0: "auto" */
    double rope_theta;
    bool rotates, is_seen; /* position_embedding_type is "rope"; rope_theta was read */
} granite;
_Static_assert(sizeof(granite) <= CARRY_LM_OWN, "a family's own fields");

static granite *own_of(carry_lm_config *c) {
    return (granite *)(void *)c->own;
}

static carry_status read_layers(const carry_lm_source *s, const carry_json *node) {
    int64_t i = 0;
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next, i++) {
        const bool attention = carry_json_is_text(one, "full_attention") || carry_json_is_text(one, "attention");
        if (!attention && !carry_json_is_text(one, "linear_attention") && !carry_json_is_text(one, "mamba")) {
            return carry_lm_config_refuse(s, node, "a list of \"mamba\" and \"attention\" is expected");
        }
        if (i < CARRY_LM_MAX_LAYERS) {
            s->config->mixer[i] = attention ? CARRY_LM_MIXER_ATTENTION : CARRY_LM_MIXER_MAMBA;
        }
    }
    own_of(s->config)->hybrid.layers_listed = i;
    return i > 0 ? CARRY_OK : carry_lm_config_refuse(s, node, "a list of \"mamba\" and \"attention\" is expected");
}

static carry_status read_head_dim(const carry_lm_source *s, const carry_json *node) {
    const bool is_auto = carry_json_is_text(node, "auto") || node->kind == CARRY_JSON_NULL;
    const bool is_size = node->kind == CARRY_JSON_NUMBER && node->whole && node->as.number.integer > 0;
    own_of(s->config)->head_dim = is_size ? node->as.number.integer : 0;
    return is_auto || is_size ? CARRY_OK
                              : carry_lm_config_refuse(s, node, "a whole number from 1 on, or \"auto\", is expected");
}

static void write_head_dim(carry_json_text *text, const carry_lm_config *c) {
    carry_json_put_raw(text, "%lld", (long long)c->mamba.head_dim);
}

static carry_status read_positions(const carry_lm_source *s, const carry_json *node) {
    own_of(s->config)->rotates = carry_json_is_text(node, "rope");
    return node->kind == CARRY_JSON_NULL || carry_json_is_text(node, "rope") || carry_json_is_text(node, "nope")
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "\"rope\", \"nope\" or null is expected");
}

static void write_positions(carry_json_text *text, const carry_lm_config *c) {
    carry_json_put_raw(text, ((const granite *)(const void *)c->own)->rotates ? "\"rope\"" : "null");
}

static carry_status read_norm(const carry_lm_source *s, const carry_json *node) {
    return node->kind == CARRY_JSON_NULL || carry_json_is_text(node, "rmsnorm")
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "only \"rmsnorm\" is supported");
}

static const carry_lm_key keys[] = {
    CARRY_LM_SIZE_KEYS,
    CARRY_LM_KEY("intermediate_size", experts.width, SIZE),
    CARRY_LM_KEY("tie_word_embeddings", tie_word_embeddings, TRUTH),
    CARRY_LM_KEY("rms_norm_eps", norm_eps, NUMBER),
    CARRY_LM_TOKEN_KEYS,
    {"layer_types", CARRY_LM_OTHER, 0, read_layers, carry_lm_hybrid_write_layer_types, NULL},
    {"layers_block_type", CARRY_LM_OTHER, 0, read_layers, NULL, NULL},
    CARRY_LM_HYBRID_ATTENTION_KEYS(carry_lm_hybrid_write_whole_rope),
    {"position_embedding_type", CARRY_LM_OTHER, 0, read_positions, write_positions, NULL},
    CARRY_LM_KEY("attention_multiplier", attention.scale, NUMBER),
    CARRY_LM_KEY("embedding_multiplier", embedding_factor, NUMBER),
    CARRY_LM_KEY("residual_multiplier", residual_factor, NUMBER),
    CARRY_LM_KEY("logits_scaling", logits_divisor, NUMBER),
    CARRY_LM_KEY("num_local_experts", experts.count, COUNT),
    CARRY_LM_KEY("num_experts_per_tok", experts.chosen, COUNT),
    CARRY_LM_KEY("shared_intermediate_size", experts.shared_width, SIZE),
    CARRY_LM_KEY("mamba_n_heads", mamba.heads, SIZE),
    CARRY_LM_KEY("mamba_n_groups", mamba.groups, SIZE),
    CARRY_LM_KEY("mamba_d_state", mamba.state, SIZE),
    {"mamba_d_head", CARRY_LM_OTHER, 0, read_head_dim, write_head_dim, NULL},
    CARRY_LM_KEY("mamba_d_conv", mamba.conv_size, SIZE),
    CARRY_LM_OWN_KEY("mamba_expand", granite, expand, SIZE),
    CARRY_LM_KEY("mamba_conv_bias", mamba.conv_bias, TRUTH),
    CARRY_LM_KEY("mamba_proj_bias", mamba.proj_bias, TRUTH),
    {"time_step_limit", CARRY_LM_OTHER, 0, carry_lm_mamba_read_limits, carry_lm_mamba_write_limits, NULL},
    CARRY_LM_WORD("mamba_chunk_size", READ_OVER),
    CARRY_LM_WORD("time_step_min", READ_OVER), /* only for initial values */
    CARRY_LM_WORD("time_step_max", READ_OVER),
    CARRY_LM_WORD("time_step_floor", READ_OVER),
    CARRY_LM_WORD("init_method", READ_OVER),
    {"normalization_function", CARRY_LM_OTHER, 0, read_norm, NULL, NULL},
    CARRY_LM_WORD("output_router_logits", READ_OVER),
    CARRY_LM_WORD("router_aux_loss_coef", READ_OVER),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static const char *const mamba_names[] = {"mamba.in_proj.weight",
                                          "mamba.in_proj.weight",
                                          "mamba.in_proj.weight",
                                          "mamba.in_proj.bias",
                                          "mamba.in_proj.bias",
                                          "mamba.in_proj.bias",
                                          "mamba.conv1d.weight",
                                          "mamba.conv1d.bias",
                                          "mamba.dt_bias",
                                          "mamba.A_log",
                                          "mamba.D",
                                          "mamba.norm.weight",
                                          "mamba.out_proj.weight",
                                          "mamba.out_proj.bias"};

static const char *const expert_names[] = {"block_sparse_moe.router.weight",
                                           "block_sparse_moe.bias",
                                           "block_sparse_moe.experts.gate_up_proj",
                                           "block_sparse_moe.experts.down_proj",
                                           "shared_mlp.input_linear.weight",
                                           "shared_mlp.input_linear.weight",
                                           "shared_mlp.output_linear.weight",
                                           "shared_mlp.scale",
                                           "block_sparse_moe.latent_in",
                                           "block_sparse_moe.latent_out",
                                           "shared_mlp.up_bias",
                                           "shared_mlp.down_bias",
                                           "block_sparse_moe.latent_in_bias",
                                           "block_sparse_moe.latent_out_bias"};

static const char *const swiglu_names[] = {"shared_mlp.input_linear.weight", "shared_mlp.input_linear.weight",
                                           "shared_mlp.output_linear.weight"};

static const char *const renamed[][2] = {
    {"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"},
    {"block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"},
    {"block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight"},
    {NULL, NULL},
};

static const carry_lm_file_names files = {.prefix = "model.language_model.", .renamed = renamed};

static void set_defaults(carry_lm_config *c) {
    carry_lm_hybrid_set_defaults(c);
    c->vocab_size = 32000;
    c->hidden_size = 4096;
    c->num_hidden_layers = 32;
    c->embedding_factor = c->residual_factor = c->logits_divisor = 1.0;
    c->attention = (carry_lm_attention_options){.heads = 32, .rope_theta = 10000.0, .rotary_factor = 1.0, .scale = 1.0};
    c->mamba = (carry_lm_mamba_options){
        .heads = 128, .groups = 1, .state = 256, .conv_size = 4, .conv_bias = true, .step_max = INFINITY};
    c->experts = (carry_lm_experts_options){.count = 8,
                                            .chosen = 2,
                                            .width = 11008,
                                            .shared_width = 1024,
                                            .gated = true,
                                            .router = {.normalise = true, .scale = 1.0f}};
    own_of(c)->expand = 2;
    memset(c->mixer, CARRY_LM_MIXER_MAMBA, sizeof c->mixer);
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    granite *own = own_of(c);
    own->rope_theta = own->is_seen ? own->rope_theta : c->attention.rope_theta;
    own->is_seen = true;
    c->attention.rope_theta = own->rotates ? own->rope_theta : 0.0;
    c->mamba.norm_eps = c->norm_eps;
    c->mamba.head_dim = own->head_dim != 0   ? own->head_dim
                        : c->mamba.heads > 0 ? own->expand * c->hidden_size / c->mamba.heads
                                             : 0;
    c->swiglu.width = c->experts.shared_width;
    memset(c->feedforward, c->experts.count > 0 ? CARRY_LM_FEEDFORWARD_EXPERTS : CARRY_LM_FEEDFORWARD_SWIGLU,
           sizeof c->feedforward);
    if (own->hybrid.layers_listed != 0 && own->hybrid.layers_listed != c->num_hidden_layers) {
        return carry_fail(ctx, CARRY_ESIZE, "layer_types lists %lld layers and num_hidden_layers is %lld",
                          (long long)own->hybrid.layers_listed, (long long)c->num_hidden_layers);
    }
    CARRY_TRY(carry_lm_hybrid_check_whole_rope(ctx, c));
    return carry_lm_mamba_check_expand(ctx, c, own->expand);
}

const carry_lm_family carry_lm_family_granitemoehybrid = {
    .name = "granitemoehybrid",
    .about = "Granite 4",
    .mixers = CARRY_LM_HAS(MIXER_MAMBA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_EXPERTS) | CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "GraniteMoeHybridForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"}},
    .mixer = {[CARRY_LM_MIXER_MAMBA] = mamba_names},
    .feedforward = {[CARRY_LM_FEEDFORWARD_EXPERTS] = expert_names, [CARRY_LM_FEEDFORWARD_SWIGLU] = swiglu_names},
    .files = &files,
};
