/* Qwen3-Next: the layers of Qwen3.5, with other projections for the delta rule. The rows of in_proj_qkvz and in_proj_ba
   are grouped by key head. Every decoder_sparse_step-th layer has experts, except those in mlp_only_layers. */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "model/lm/families/hybrid.h"
#include "model/lm/mixers/delta.h"

#define UNLISTED 255 /* a layer that is not in mlp_only_layers */

typedef struct qwen3_next {
    carry_lm_hybrid hybrid;
    int64_t decoder_sparse_step;
} qwen3_next;
_Static_assert(sizeof(qwen3_next) <= CARRY_LM_OWN, "a family's own fields");

static qwen3_next *own_of(carry_lm_config *c) {
    return (qwen3_next *)(void *)c->own;
}

static carry_status read_mlp_only(const carry_lm_source *s, const carry_json *node) {
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next) {
        const int64_t layer = one->kind == CARRY_JSON_NUMBER && one->whole ? one->as.number.integer : -1;
        if (layer < 0 || layer >= CARRY_LM_MAX_LAYERS) {
            return carry_lm_config_refuse(s, node, "expected a list of layers, from 0");
        }
        s->config->feedforward[layer] = CARRY_LM_FEEDFORWARD_SWIGLU;
    }
    return node->kind == CARRY_JSON_ARRAY || node->kind == CARRY_JSON_NULL
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "expected a list of layers, or null");
}

static void write_mlp_only(carry_json_text *text, const carry_lm_config *c) {
    bool first = true;
    carry_json_put_raw(text, "[");
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        if (c->feedforward[i] == CARRY_LM_FEEDFORWARD_SWIGLU) {
            carry_json_put_raw(text, "%s%" PRId64, first ? "" : ", ", i);
            first = false;
        }
    }
    carry_json_put_raw(text, "]");
}

static const carry_lm_key keys[] = {
    CARRY_LM_HYBRID_MODEL_KEYS,
    CARRY_LM_HYBRID_QWEN_MIXER_KEYS,
    CARRY_LM_KEY("num_experts", experts.count, COUNT),
    CARRY_LM_OWN_KEY("decoder_sparse_step", qwen3_next, decoder_sparse_step, SIZE),
    {"mlp_only_layers", CARRY_LM_OTHER, 0, read_mlp_only, write_mlp_only, NULL},
    CARRY_LM_HYBRID_EXPERT_KEYS,
    CARRY_LM_KEY("norm_topk_prob", experts.router.normalise, TRUTH),
    CARRY_LM_IGNORED_KEYS,
    CARRY_LM_LAST_KEY,
};

static const char *const delta_names[] = {"linear_attn.in_proj_qkvz.weight",
                                          "linear_attn.in_proj_qkvz.weight",
                                          "linear_attn.in_proj_qkvz.weight",
                                          "linear_attn.in_proj_ba.weight",
                                          "linear_attn.in_proj_ba.weight",
                                          "linear_attn.in_proj_qkvz.weight",
                                          "linear_attn.A_log",
                                          "linear_attn.dt_bias",
                                          "linear_attn.conv1d.weight",
                                          "linear_attn.conv1d.weight",
                                          "linear_attn.conv1d.weight",
                                          "linear_attn.norm.weight",
                                          "linear_attn.out_proj.weight"};

static const carry_lm_grouped grouped[] = {
    {"linear_attn.in_proj_qkvz.weight", {CARRY_LM_Q_PROJ, CARRY_LM_K_PROJ, CARRY_LM_V_PROJ, CARRY_LM_G_PROJ}, 4},
    {"linear_attn.in_proj_ba.weight", {CARRY_LM_B_PROJ, CARRY_LM_A_PROJ}, 2},
    {NULL, {0}, 0},
};

static void set_defaults(carry_lm_config *c) {
    carry_lm_hybrid_set_qwen(c);
    memset(c->feedforward, UNLISTED, sizeof c->feedforward);
    carry_lm_hybrid_set_experts(c);
    c->experts.count = 512;
    c->experts.chosen = 10;
    own_of(c)->decoder_sparse_step = 1;
    c->vocab_size = 151936;
    c->hidden_size = 2048;
    c->num_hidden_layers = 48;
    c->attention.kv_heads = 2;
    c->swiglu.width = 5632;
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    const qwen3_next *own = own_of(c);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        if (c->feedforward[i] != CARRY_LM_FEEDFORWARD_SWIGLU) {
            const bool sparse = c->experts.count > 0 && (i + 1) % own->decoder_sparse_step == 0;
            c->feedforward[i] = sparse ? CARRY_LM_FEEDFORWARD_EXPERTS : CARRY_LM_FEEDFORWARD_SWIGLU;
        }
    }
    return carry_lm_hybrid_finish_qwen(ctx, c);
}

const carry_lm_family carry_lm_family_qwen3_next = {
    .name = "qwen3_next",
    .about = "Qwen3-Next and Qwen3-Coder-Next",
    .mixers = CARRY_LM_HAS(MIXER_DELTA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_EXPERTS) | CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "Qwen3NextForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    .set_heads = carry_lm_hybrid_set_heads,
    .embeddings = "model.embed_tokens.weight",
    .norms = {{"input_layernorm.weight", "post_attention_layernorm.weight"}},
    .mixer = {[CARRY_LM_MIXER_DELTA] = delta_names},
    .grouped = grouped,
    .files = &carry_lm_hybrid_expert_files,
};
