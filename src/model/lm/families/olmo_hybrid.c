/* OLMo Hybrid: in layers with attention, norms come after the mixer and the feed-forward; in other layers before
   them. */
#include "model/lm/families/hybrid.h"

static const carry_lm_key keys[] = {
    CARRY_LM_HYBRID_MODEL_KEYS,
    CARRY_LM_KEY("linear_num_key_heads", delta.heads, SIZE_OR_NULL),
    CARRY_LM_KEY("linear_num_value_heads", delta.value_heads, SIZE_OR_NULL),
    CARRY_LM_KEY("linear_key_head_dim", delta.key, SIZE_OR_NULL),
    CARRY_LM_KEY("linear_value_head_dim", delta.value, SIZE_OR_NULL),
    CARRY_LM_KEY("linear_conv_kernel_dim", delta.conv_size, SIZE),
    CARRY_LM_KEY("linear_allow_neg_eigval", delta.allow_neg_eigval, TRUTH),
    CARRY_LM_HYBRID_ATTENTION_KEYS(carry_lm_hybrid_write_whole_rope),
    CARRY_LM_WORD("linear_use_gate", MUST_BE_ON),
    CARRY_LM_WORD("linear_a_log_min", READ_OVER), /* only for initial values in transformers */
    CARRY_LM_WORD("linear_a_log_max", READ_OVER),
    CARRY_LM_WORD("linear_dt_min", READ_OVER),
    CARRY_LM_WORD("linear_dt_max", READ_OVER),
    CARRY_LM_WORD("linear_dt_init_floor", READ_OVER),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static const char *const delta_names[] = {
    "linear_attn.q_proj.weight", "linear_attn.k_proj.weight", "linear_attn.v_proj.weight", "linear_attn.a_proj.weight",
    "linear_attn.b_proj.weight", "linear_attn.g_proj.weight", "linear_attn.A_log",         "linear_attn.dt_bias",
    "linear_attn.conv1d.weight", "linear_attn.conv1d.weight", "linear_attn.conv1d.weight", "linear_attn.o_norm.weight",
    "linear_attn.o_proj.weight"};

static const char *const renamed[][2] = {
    {"input_layernorm.weight", "attention_layer_norm.weight"},
    {"post_attention_layernorm.weight", "feedforward_layer_norm.weight"},
    {NULL, NULL},
};
static const char *const pieces[][2] = {
    {"linear_attn.conv1d.weight", "linear_attn.q_conv1d.weight"},
    {"linear_attn.conv1d.weight", "linear_attn.k_conv1d.weight"},
    {"linear_attn.conv1d.weight", "linear_attn.v_conv1d.weight"},
    {NULL, NULL},
};
static const carry_lm_file_names files = {
    .prefix = "model.language_model.", .renamed = renamed, .pieces = pieces, .ignored = carry_lm_hybrid_ignored};

static void set_defaults(carry_lm_config *c) {
    carry_lm_hybrid_set_defaults(c);
    c->vocab_size = 100352;
    c->hidden_size = 3840;
    c->num_hidden_layers = 32;
    c->max_position_embeddings = 65536;
    c->pad_token_id = 100277;
    c->eos_token_id = 100257;
    c->swiglu.width = 11008;
    c->delta.allow_neg_eigval = true;
    c->attention = (carry_lm_attention_options){.heads = 30, .rotary_factor = 1.0, .qk_norm = CARRY_LM_NORM_WIDTH};
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    carry_lm_delta_options *d = &c->delta;
    const int64_t interval = carry_lm_hybrid_of(c)->full_attention_interval;
    d->heads = d->heads != 0 ? d->heads : c->attention.heads;
    d->value_heads = d->value_heads != 0 ? d->value_heads : c->attention.heads;
    if (d->key == 0 && d->heads > 0) {
        d->key = (int64_t)(0.75 * (double)c->hidden_size / (double)d->heads);
    }
    d->value = d->value != 0 ? d->value : 2 * d->key;
    d->norm_eps = 1e-5; /* a constant in its class in transformers */
    CARRY_TRY(carry_lm_hybrid_check_whole_rope(ctx, c));
    CARRY_TRY(carry_lm_hybrid_finish(ctx, c));
    if (carry_lm_hybrid_of(c)->layers_listed == 0 && c->num_hidden_layers < interval) {
        c->mixer[c->num_hidden_layers - 1] = CARRY_LM_MIXER_ATTENTION;
    }
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        c->norms_after[i] = c->mixer[i] == CARRY_LM_MIXER_ATTENTION;
    }
    return CARRY_OK;
}

const carry_lm_family carry_lm_family_olmo_hybrid = {
    .name = "olmo_hybrid",
    .about = "Olmo Hybrid",
    .mixers = CARRY_LM_HAS(MIXER_DELTA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "OlmoHybridForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"},
              {"post_attention_layernorm.weight", "post_feedforward_layernorm.weight"}},
    .mixer = {[CARRY_LM_MIXER_DELTA] = delta_names},
    .files = &files,
};
