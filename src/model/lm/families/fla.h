/* The families of flash-linear-attention: gated_deltanet, delta_net, gated_deltaproduct. They share most keys, the
   names of tensors, and attention layers, which "attn" lists. */
#ifndef CARRY_MODEL_LM_FLA_H
#define CARRY_MODEL_LM_FLA_H

#include "model/lm/families/family.h"

typedef struct carry_lm_fla {
    int64_t intermediate_size; /* 0: from hidden_ratio */
    double hidden_ratio;       /* 0: 4 */
    int64_t num_v_heads;       /* gated; 0: num_heads */
    int64_t head_dim;          /* gated; of q and k */
    double expand_k;           /* delta_net: the width of all heads of q together is expand_k hidden_size */
    double expand_v;           /* gated families: the width of a head of v is expand_v head_dim; delta_net: like
                                  expand_k */
    bool use_output_norm;      /* delta_net; only kept for writing: o_norm exists either way, as in
                                  flash-linear-attention */
    bool use_forget_gate;      /* gated_deltaproduct: without it states do not decay */
} carry_lm_fla;
_Static_assert(sizeof(carry_lm_fla) <= CARRY_LM_OWN, "a family's own fields");

/* The own fields of a configuration of these families. */
static inline carry_lm_fla *carry_lm_fla_of(carry_lm_config *config) {
    return (carry_lm_fla *)(void *)config->own;
}

/* The defaults that the three share. */
void carry_lm_fla_set_defaults(carry_lm_config *config);
/* finish sets the width of the feed-forward; finish_gated also sets the heads of the two gated families. */
carry_status carry_lm_fla_finish(carry_ctx *ctx, carry_lm_config *config);
carry_status carry_lm_fla_finish_gated(carry_ctx *ctx, carry_lm_config *config);
/* *result = size times factor, rounded down. exact: the product must be whole, within the 1e-5 that
   flash-linear-attention allows. */
carry_status carry_lm_fla_expand(carry_ctx *ctx, int64_t *result, const char *key, double factor, const char *of,
                                 int64_t size, bool exact);

carry_status carry_lm_fla_read_attn(const carry_lm_source *s, const carry_json *node);
void carry_lm_fla_write_attn(carry_json_text *text, const carry_lm_config *config);

extern const char *const carry_lm_fla_attention_names[];

#define CARRY_LM_FLA_KEY(field, form) CARRY_LM_OWN_KEY(#field, carry_lm_fla, field, form)
#define CARRY_LM_FLA_MODEL_KEYS                                                                                      \
    CARRY_LM_WRITTEN("attn_mode", READ_OVER, "\"chunk\""), CARRY_LM_SIZE_KEYS,                                       \
        CARRY_LM_FLA_KEY(hidden_ratio, NUMBER_OR_NULL), CARRY_LM_FLA_KEY(intermediate_size, SIZE_OR_NULL),           \
        CARRY_LM_KEY("tie_word_embeddings", tie_word_embeddings, TRUTH), CARRY_LM_KEY("norm_eps", norm_eps, NUMBER), \
        CARRY_LM_TOKEN_KEYS, CARRY_LM_KEY("num_heads", delta.heads, SIZE)
#define CARRY_LM_FLA_ATTN_KEY \
    { "attn", CARRY_LM_OTHER, 0, carry_lm_fla_read_attn, carry_lm_fla_write_attn, NULL }
#define CARRY_LM_FLA_LAST_KEYS                                                                          \
    CARRY_LM_WRITTEN("hidden_act", MUST_BE_SILU, "\"swish\""), CARRY_LM_WORD("conv_bias", MUST_BE_OFF), \
        CARRY_LM_WORD("attnres_block_size", MUST_BE_OFF), CARRY_LM_WORD("use_l2warp", MUST_BE_OFF),     \
        CARRY_LM_WORD("elementwise_affine", MUST_BE_ON), CARRY_LM_WORD("fuse_norm", READ_OVER),         \
        CARRY_LM_WORD("fuse_swiglu", READ_OVER), CARRY_LM_WORD("fuse_cross_entropy", READ_OVER),        \
        CARRY_LM_WORD("fuse_linear_cross_entropy", READ_OVER), CARRY_LM_IGNORED_KEYS, CARRY_LM_LAST_KEY
#define CARRY_LM_FLA_TENSORS                                                                     \
    .embeddings = "model.embeddings.weight", .norms = {{"attn_norm.weight", "mlp_norm.weight"}}, \
    .mixer = {[CARRY_LM_MIXER_ATTENTION] = carry_lm_fla_attention_names}

#endif
