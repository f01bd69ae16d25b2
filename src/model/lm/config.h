/* The config.json of a language model: flash-linear-attention's keys and defaults (GatedDeltaNetConfig,
   DeltaNetConfig).

   Keys that change nothing here (which kernel, which cache) are read over; keys that nobody here knows are warned
   about, in one line; a value that cannot be honoured is refused by name. What a key is missing for has the default of
   flash-linear-attention, so a folder made there means the same here. */
#ifndef CARRY_MODEL_CONFIG_H
#define CARRY_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/nn.h"
#include "model/json.h"

typedef enum carry_lm_kind { CARRY_LM_GATED_DELTANET, CARRY_LM_DELTA_NET } carry_lm_kind;

typedef struct carry_lm_config {
    carry_lm_kind kind;
    int64_t vocab_size, hidden_size, num_hidden_layers, num_heads;
    int64_t num_v_heads;       /* gated_deltanet; 0: num_heads */
    int64_t head_dim;          /* gated_deltanet; of q and k */
    double expand_k;           /* delta_net: all heads of q together have expand_k hidden_size */
    double expand_v;           /* gated_deltanet: a head of v has expand_v head_dim; delta_net: as expand_k */
    double hidden_ratio;       /* 0: 4 */
    int64_t intermediate_size; /* 0: from hidden_ratio */
    int64_t conv_size;
    bool use_gate, use_short_conv, allow_neg_eigval, tie_word_embeddings;
    bool use_beta;                  /* delta_net; without it beta is 1, or 2 with allow_neg_eigval */
    bool use_output_norm;           /* delta_net; kept for the file: o_norm is there either way, as it is there */
    bool use_delta_rule;            /* false: gated linear attention (mixer.h); written only where it is false */
    carry_activation qk_activation; /* delta_net; CARRY_ELU is elu(x) + 1 */
    double norm_eps, initializer_range;
    int64_t max_position_embeddings;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* -1: none */

    /* What follows from them; carry_lm_config_finish. */
    int64_t value_heads;            /* HV */
    int64_t key, value;             /* K and V, of one head */
    int64_t key_width, value_width; /* of all heads: num_heads K, HV V */
    int64_t intermediate;           /* width between up_proj and down_proj */
} carry_lm_config;

const char *carry_lm_kind_name(carry_lm_kind kind); /* the model_type: "gated_deltanet" */

carry_lm_config carry_lm_config_default(carry_lm_kind kind);
/* Checks every size and fills in what follows. CARRY_EUNSUPPORTED or CARRY_ESIZE name the key and the value. */
carry_status carry_lm_config_finish(carry_ctx *ctx, carry_lm_config *config);

/* name is what messages call it; both finish the config. */
carry_status carry_lm_config_parse(carry_ctx *ctx, carry_lm_config *config, const carry_json *root, const char *name);
carry_status carry_lm_config_read(carry_ctx *ctx, carry_lm_config *config, const char *path);

/* Replaces path, with the keys that flash-linear-attention writes; dtype is what the weights beside it are stored as.
 */
carry_status carry_lm_config_write(carry_ctx *ctx, const carry_lm_config *config, carry_dtype dtype, const char *path);

#endif
