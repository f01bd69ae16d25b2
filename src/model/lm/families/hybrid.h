/* Families of transformers whose layers have the delta rule or attention: qwen3_5, olmo_hybrid and others. They share
   the keys of attention and of layer types, and the names of most tensors. */
#ifndef CARRY_MODEL_LM_HYBRID_H
#define CARRY_MODEL_LM_HYBRID_H

#include "model/lm/families/family.h"

/* A family with more fields of its own has this struct as its first member. */
typedef struct carry_lm_hybrid {
    int64_t full_attention_interval; /* without layer_types: one layer in this many has attention */
    int64_t layers_listed;           /* by layer_types; 0: none */
    int64_t mrope_section[3];        /* only kept for writing: text has the same positions in all sections */
} carry_lm_hybrid;
_Static_assert(sizeof(carry_lm_hybrid) <= CARRY_LM_OWN, "a family's own fields");

/* The own fields of a configuration of these families. */
static inline carry_lm_hybrid *carry_lm_hybrid_of(carry_lm_config *config) {
    return (carry_lm_hybrid *)(void *)config->own;
}

/* Sets the defaults of all these families; and those of the Qwen families, except the sizes in which they differ. */
void carry_lm_hybrid_set_defaults(carry_lm_config *config);
void carry_lm_hybrid_set_qwen(carry_lm_config *config);
/* Sets the defaults of Qwen's experts, except their sizes. */
void carry_lm_hybrid_set_experts(carry_lm_config *config);
/* Sets the mixer of each layer: as listed, or by full_attention_interval. */
carry_status carry_lm_hybrid_finish(carry_ctx *ctx, carry_lm_config *config);
/* The same; also sets the epsilon of the delta rule's norms to the model's. */
carry_status carry_lm_hybrid_finish_qwen(carry_ctx *ctx, carry_lm_config *config);

/* For a family that rotates whole heads: fails for another partial_rotary_factor, which transformers ignores. */
carry_status carry_lm_hybrid_check_whole_rope(carry_ctx *ctx, const carry_lm_config *config);

/* One layer of attention. */
void carry_lm_hybrid_set_heads(carry_lm_config *config);

carry_status carry_lm_hybrid_read_layer_types(const carry_lm_source *s, const carry_json *node);
void carry_lm_hybrid_write_layer_types(carry_json_text *text, const carry_lm_config *config);
carry_status carry_lm_hybrid_read_rope(const carry_lm_source *s, const carry_json *node);
/* Write the keys of rotary positions, with the fraction of a head that gets them, or without. */
void carry_lm_hybrid_write_rope(carry_json_text *text, const carry_lm_config *config);
void carry_lm_hybrid_write_whole_rope(carry_json_text *text, const carry_lm_config *config);

extern const char *const carry_lm_hybrid_delta_names[]; /* of Qwen3.5: slots of mixers/delta.h */
extern const char *const carry_lm_hybrid_ignored[][2];  /* vision towers, multi-token heads */
extern const carry_lm_file_names carry_lm_hybrid_files;
extern const carry_lm_file_names carry_lm_hybrid_expert_files; /* the same, and single experts */

#define CARRY_LM_HYBRID_MODEL_KEYS \
    CARRY_LM_SIZE_KEYS, CARRY_LM_KEY("intermediate_size", swiglu.width, SIZE), CARRY_LM_HYBRID_OTHER_KEYS
#define CARRY_LM_HYBRID_OTHER_KEYS                                                                                   \
    CARRY_LM_KEY("tie_word_embeddings", tie_word_embeddings, TRUTH), CARRY_LM_KEY("rms_norm_eps", norm_eps, NUMBER), \
        CARRY_LM_TOKEN_KEYS, {                                                                                       \
        "layer_types", CARRY_LM_OTHER, 0, carry_lm_hybrid_read_layer_types, carry_lm_hybrid_write_layer_types, NULL  \
    }
/* Keys of experts in the Qwen families. */
#define CARRY_LM_HYBRID_EXPERT_KEYS                                                          \
    CARRY_LM_KEY("num_experts_per_tok", experts.chosen, SIZE),                               \
        CARRY_LM_KEY("moe_intermediate_size", experts.width, SIZE),                          \
        CARRY_LM_KEY("shared_expert_intermediate_size", experts.shared_width, SIZE_OR_NULL), \
        CARRY_LM_WORD("output_router_logits", READ_OVER), CARRY_LM_WORD("router_aux_loss_coef", READ_OVER)
#define CARRY_LM_HYBRID_ATTENTION_KEYS(write_rope)                                                    \
    CARRY_LM_KEY("num_attention_heads", attention.heads, SIZE),                                       \
        CARRY_LM_KEY("num_key_value_heads", attention.kv_heads, SIZE_OR_NULL),                        \
        CARRY_LM_KEY("head_dim", attention.head_dim, SIZE_OR_NULL),                                   \
        {"rope_parameters", CARRY_LM_OTHER, 0, carry_lm_hybrid_read_rope, write_rope, NULL},          \
        {"rope_scaling", CARRY_LM_OTHER, 0, carry_lm_hybrid_read_rope, NULL, NULL}, /* older names */ \
        CARRY_LM_KEY("rope_theta", attention.rope_theta, READ_NUMBER),                                \
        CARRY_LM_KEY("partial_rotary_factor", attention.rotary_factor, READ_NUMBER),                  \
        CARRY_LM_WRITTEN("hidden_act", MUST_BE_SILU, "\"silu\""),                                     \
        CARRY_LM_KEY("attention_bias", attention.bias, TRUTH), CARRY_LM_WORD("attention_dropout", MUST_BE_OFF)
/* Keys of the delta rule and attention in the Qwen families; and those of Qwen3.5, with the keys that are ignored. */
#define CARRY_LM_HYBRID_QWEN_MIXER_KEYS                                  \
    CARRY_LM_KEY("linear_num_key_heads", delta.heads, SIZE),             \
        CARRY_LM_KEY("linear_num_value_heads", delta.value_heads, SIZE), \
        CARRY_LM_KEY("linear_key_head_dim", delta.key, SIZE),            \
        CARRY_LM_KEY("linear_value_head_dim", delta.value, SIZE),        \
        CARRY_LM_KEY("linear_conv_kernel_dim", delta.conv_size, SIZE),   \
        CARRY_LM_HYBRID_ATTENTION_KEYS(carry_lm_hybrid_write_rope),      \
        CARRY_LM_OWN_KEY("full_attention_interval", carry_lm_hybrid, full_attention_interval, READ_SIZE)
#define CARRY_LM_HYBRID_QWEN3_5_KEYS                                                                \
    CARRY_LM_HYBRID_QWEN_MIXER_KEYS, CARRY_LM_WORD("attn_output_gate", MUST_BE_ON),                 \
        CARRY_LM_WORD("mlp_only_layers", MUST_BE_OFF), CARRY_LM_WORD("mamba_ssm_dtype", READ_OVER), \
        CARRY_LM_WORD("mtp_num_hidden_layers", READ_OVER), CARRY_LM_WORD("mtp_use_dedicated_embeddings", READ_OVER)

#endif
