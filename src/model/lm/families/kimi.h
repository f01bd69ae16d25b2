/* Shared by families of KDA and latent attention (Kimi Linear, Ling): lists of layer types and the fields that follow
   from them. */
#ifndef CARRY_MODEL_LM_KIMI_H
#define CARRY_MODEL_LM_KIMI_H

#include "model/lm/families/family.h"

typedef struct carry_lm_kimi {
    int64_t mixers_listed, feedforwards_listed; /* number of layers in layer_types and in mlp_layer_types; 0: the key is
                                                   missing */
    int64_t dense_layers;                       /* without mlp_layer_types: this many first layers have no experts */
    int64_t shared_experts;
    int64_t kv_heads; /* 0: equal to the number of heads */
    double expert_scale;
    int64_t group_size;   /* Ling, without layer_types: the last layer of each group has attention */
    int64_t kda_head_dim; /* Ling: 0: use head_dim, as in published files */
    int64_t head_dim;
    bool safe_gate;
    double lower_bound, theta;
} carry_lm_kimi;
_Static_assert(sizeof(carry_lm_kimi) <= CARRY_LM_OWN, "a family's own fields");

carry_lm_kimi *carry_lm_kimi_of(carry_lm_config *c);

carry_status carry_lm_kimi_read_mixers(const carry_lm_source *s, const carry_json *node);
void carry_lm_kimi_write_mixers(carry_json_text *text, const carry_lm_config *c);
carry_status carry_lm_kimi_read_feedforwards(const carry_lm_source *s, const carry_json *node);
void carry_lm_kimi_write_feedforwards(carry_json_text *text, const carry_lm_config *c);
/* Compares the lists with the number of layers, and sets the feed-forwards that are not listed, and the experts. */
carry_status carry_lm_kimi_finish(carry_ctx *ctx, carry_lm_config *c);
/* Names of an expert layer's slots. */
extern const char *const carry_lm_kimi_expert_names[];

#endif
