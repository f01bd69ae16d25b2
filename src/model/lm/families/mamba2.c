/* Mamba-2 of the transformers library: layers have a mixer and no feed-forward. */
#include <math.h>
#include <string.h>

#include "model/lm/families/mamba.h"

typedef struct mamba2 {
    int64_t expand;
} mamba2;

static const carry_lm_key keys[] = {
    CARRY_LM_SIZE_KEYS,
    CARRY_LM_KEY("num_heads", mamba.heads, SIZE),
    CARRY_LM_KEY("head_dim", mamba.head_dim, SIZE),
    CARRY_LM_KEY("state_size", mamba.state, SIZE),
    CARRY_LM_OWN_KEY("expand", mamba2, expand, SIZE),
    CARRY_LM_KEY("conv_kernel", mamba.conv_size, SIZE),
    CARRY_LM_KEY("n_groups", mamba.groups, SIZE),
    CARRY_LM_KEY("use_bias", mamba.proj_bias, TRUTH),
    CARRY_LM_KEY("use_conv_bias", mamba.conv_bias, TRUTH),
    CARRY_LM_WRITTEN("hidden_act", MUST_BE_SILU, "\"silu\""),
    CARRY_LM_KEY("layer_norm_epsilon", norm_eps, NUMBER),
    {"time_step_limit", CARRY_LM_OTHER, 0, carry_lm_mamba_read_limits, carry_lm_mamba_write_limits, NULL},
    CARRY_LM_KEY("tie_word_embeddings", tie_word_embeddings, TRUTH),
    CARRY_LM_TOKEN_KEYS,
    CARRY_LM_WORD("chunk_size", READ_OVER),
    CARRY_LM_WORD("time_step_min", READ_OVER), /* only for initial values */
    CARRY_LM_WORD("time_step_max", READ_OVER),
    CARRY_LM_WORD("time_step_floor", READ_OVER),
    CARRY_LM_WORD("time_step_rank", READ_OVER),
    CARRY_LM_WORD("rescale_prenorm_residual", READ_OVER),
    CARRY_LM_WORD("residual_in_fp32", READ_OVER),
    CARRY_LM_WORD("rms_norm", MUST_BE_ON),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static void set_defaults(carry_lm_config *c) {
    c->vocab_size = 32768;
    c->hidden_size = 4096;
    c->num_hidden_layers = 64;
    c->norm_eps = 1e-5;
    c->initializer_range = 0.1;
    c->max_position_embeddings = 32768;
    c->bos_token_id = c->eos_token_id = c->pad_token_id = -1;
    c->mamba = (carry_lm_mamba_options){.heads = 128,
                                        .head_dim = 64,
                                        .groups = 8,
                                        .state = 128,
                                        .conv_size = 4,
                                        .conv_bias = true,
                                        .step_max = INFINITY};
    ((mamba2 *)(void *)c->own)->expand = 2;
    memset(c->mixer, CARRY_LM_MIXER_MAMBA, sizeof c->mixer);
    memset(c->feedforward, CARRY_LM_FEEDFORWARD_NONE, sizeof c->feedforward);
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    c->mamba.norm_eps = c->norm_eps;
    return carry_lm_mamba_check_expand(ctx, c, ((const mamba2 *)(const void *)c->own)->expand);
}

static const char *const renamed[][2] = {{"backbone.embeddings.weight", "backbone.embedding.weight"}, {NULL, NULL}};

static const carry_lm_file_names files = {.prefix = "model.", .renamed = renamed};

const carry_lm_family carry_lm_family_mamba2 = {
    .name = "mamba2",
    .about = "Mamba-2, Codestral Mamba",
    .mixers = CARRY_LM_HAS(MIXER_MAMBA),
    .architecture = "Mamba2ForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    .prefix = "backbone.",
    .embeddings = "backbone.embeddings.weight",
    .norm = "backbone.norm_f.weight",
    .norms = {{"norm.weight", "norm.weight"}},
    .files = &files,
};
