/* The config.json of a language model, with the keys and defaults of where its family comes from:
   flash-linear-attention (gated_deltanet, delta_net, gated_deltaproduct) or transformers (qwen3_5_text, olmo_hybrid).

   Keys that change nothing here (which kernel, which cache) are read over; keys that nobody here knows are warned
   about, in one line; a value that cannot be honoured is refused by name, before any weight is read. What a key is
   missing for has the default of its origin, so a folder made there means the same here.

   Which keys a family has is said by tables: config_keys.c has those of the model, and every mixer has its own
   (mixers/mixer.h). */
#ifndef CARRY_MODEL_CONFIG_H
#define CARRY_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/nn.h"
#include "core/json.h"
#include "core/json_write.h"

typedef enum carry_lm_kind {
    CARRY_LM_GATED_DELTANET,
    CARRY_LM_DELTA_NET,
    CARRY_LM_QWEN3_5, /* qwen3_5_text, and the language part of qwen3_5 */
    CARRY_LM_OLMO_HYBRID,
    CARRY_LM_GATED_DELTAPRODUCT,
    CARRY_LM_KINDS
} carry_lm_kind;

/* What attention normalises of q and k. */
typedef enum carry_lm_qk_norm { CARRY_LM_NO_QK_NORM, CARRY_LM_NORM_HEADS, CARRY_LM_NORM_WIDTH } carry_lm_qk_norm;

#define CARRY_LM_MAX_LAYERS 4096

typedef struct carry_lm_config {
    carry_lm_kind kind;
    unsigned char layer[CARRY_LM_MAX_LAYERS]; /* the mixer of each layer: CARRY_LM_MIXER_ of mixers/mixer.h */
    int64_t vocab_size, hidden_size, num_hidden_layers;
    int64_t intermediate_size; /* 0: from hidden_ratio */
    double hidden_ratio;       /* 0: 4 */
    bool tie_word_embeddings;
    double norm_eps, initializer_range;
    int64_t max_position_embeddings;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* -1: none */
    bool is_nested;                                   /* its tensors are under model.language_model. in their files */

    /* Layers with the delta rule. */
    int64_t num_heads;
    int64_t num_v_heads;    /* gated; 0: num_heads */
    int64_t head_dim;       /* gated; of q and k */
    int64_t value_head_dim; /* of v; 0: from expand_v */
    double expand_k;        /* delta_net: all heads of q together have expand_k hidden_size */
    double expand_v;        /* gated_deltanet: a head of v has expand_v head_dim; delta_net: as expand_k */
    int64_t conv_size;
    bool use_gate, use_short_conv, allow_neg_eigval;
    bool use_beta;        /* delta_net; without it beta is 1, or 2 with allow_neg_eigval */
    bool use_output_norm; /* delta_net; kept for the file: o_norm is there either way, as it is there */
    bool use_delta_rule;  /* false: gated linear attention (recurrence/recurrence.h); written only where it is false */
    carry_activation qk_activation; /* delta_net; CARRY_ELU is elu(x) + 1 */
    int64_t num_householder;        /* gated_deltaproduct: steps of the delta rule a token */
    bool use_forget_gate;           /* gated_deltaproduct; without it states do not decay */

    /* Layers with attention. */
    int64_t attn_heads, attn_kv_heads, attn_head_dim; /* 0: attn_heads; hidden_size / attn_heads */
    int64_t attn_window;                              /* keys that a token sees, itself among them; 0: all */
    double rope_theta;                                /* 0: no rotary positions */
    double rotary_factor;                             /* the part of a head that is turned */
    carry_lm_qk_norm qk_norm;
    bool attn_gate;                  /* o sigmoid(gate), the gate beside each head of q */
    int64_t mrope_section[3];        /* kept for the file: positions of text are the same in all sections */
    int64_t full_attention_interval; /* without layer_types, every so many layers one has attention */
    int64_t layers_listed;           /* by layer_types; 0: none */

    /* What follows from them; carry_lm_config_finish. */
    int64_t value_heads;            /* HV */
    int64_t key, value;             /* K and V, of one head */
    int64_t key_width, value_width; /* of all heads: num_heads K, HV V */
    int64_t intermediate;           /* width between up_proj and down_proj */
    int64_t rotary;                 /* elements of an attention head that are turned */
    bool gated;                     /* do the delta rule's states decay? */
    bool norm_plus_one;             /* norms multiply by 1 + w */
    bool has_attention;
    double o_norm_eps;
} carry_lm_config;

/* How the value of a key is read. */
typedef enum carry_lm_form {
    CARRY_LM_SIZE,         /* a whole number */
    CARRY_LM_SIZE_OR_NULL, /* null: 0 */
    CARRY_LM_NUMBER,
    CARRY_LM_NUMBER_OR_NULL, /* null: 0 */
    CARRY_LM_TRUTH,
    CARRY_LM_TOKEN,      /* a whole number, null (-1), or a list of which the first counts */
    CARRY_LM_ACTIVATION, /* of q and k */
    CARRY_LM_OTHER,      /* by functions of its own */
    CARRY_LM_READ_SIZE,  /* as SIZE and NUMBER, but another key is written */
    CARRY_LM_READ_NUMBER,
    CARRY_LM_READ_OVER,   /* changes nothing here */
    CARRY_LM_MUST_BE_OFF, /* null, false, or 0: anything else asks for what is not done here */
    CARRY_LM_MUST_BE_ON,  /* null or true */
    CARRY_LM_MUST_BE_SILU,
    CARRY_LM_MUST_BE_L2,
} carry_lm_form;

/* A config.json that is being read. */
typedef struct carry_lm_source {
    carry_ctx *ctx;
    const char *name; /* what messages call it */
    carry_lm_config *config;
} carry_lm_source;

/* A key of config.json; forms before CARRY_LM_READ_SIZE are written too. */
typedef struct carry_lm_key {
    const char *key;
    carry_lm_form form;
    unsigned kinds; /* CARRY_LM_IN(kind) of the families that have it */
    size_t offset;  /* of its field in carry_lm_config */
    carry_status (*read)(const carry_lm_source *source, const carry_json *node);
    void (*write)(carry_json_text *text, const carry_lm_config *config); /* NULL: not written */
} carry_lm_key;

#define CARRY_LM_IN(kind) (1u << CARRY_LM_##kind)
#define CARRY_LM_KEY(key, field, form, kinds) \
    { key, CARRY_LM_##form, kinds, offsetof(carry_lm_config, field), NULL, NULL }
#define CARRY_LM_FIELD(name, form, kinds) CARRY_LM_KEY(#name, name, form, kinds)
#define CARRY_LM_WORD(key, form, kinds) \
    { key, CARRY_LM_##form, kinds, 0, NULL, NULL }
#define CARRY_LM_LAST_KEY CARRY_LM_WORD(NULL, READ_OVER, 0)

extern const carry_lm_key carry_lm_model_keys[]; /* config_keys.c */

/* CARRY_EUNSUPPORTED with the file, the line, the key and its value; why says what is accepted. */
carry_status carry_lm_config_refuse(const carry_lm_source *s, const carry_json *node, const char *why);
/* One key, as its form says. */
carry_status carry_lm_config_read_key(const carry_lm_source *s, const carry_lm_key *f, const carry_json *node);

/* Is it flash-linear-attention's? Otherwise it is transformers'. */
bool carry_lm_is_fla(carry_lm_kind kind);
const char *carry_lm_kind_name(carry_lm_kind kind);         /* the model_type: "gated_deltanet" */
const char *carry_lm_kind_architecture(carry_lm_kind kind); /* the class: "GatedDeltaNetForCausalLM" */

carry_lm_config carry_lm_config_default(carry_lm_kind kind);
/* Checks every size and fills in what follows. CARRY_EUNSUPPORTED or CARRY_ESIZE name the key and the value. */
carry_status carry_lm_config_finish(carry_ctx *ctx, carry_lm_config *config);

/* name is what messages call it; both finish the config. */
carry_status carry_lm_config_parse(carry_ctx *ctx, carry_lm_config *config, const carry_json *root, const char *name);
carry_status carry_lm_config_read(carry_ctx *ctx, carry_lm_config *config, const char *path);

/* The text of a config.json, with the keys that the family's origin writes; dtype is the type of the weights beside it.
   carry_lm_config_write replaces path with it. */
void carry_lm_config_put(carry_json_text *text, const carry_lm_config *config, carry_dtype dtype);
carry_status carry_lm_config_write(carry_ctx *ctx, const carry_lm_config *config, carry_dtype dtype, const char *path);

#endif
