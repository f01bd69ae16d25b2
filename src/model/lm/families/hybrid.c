/* Shared by the hybrid families of the transformers library. */
#include "model/lm/families/hybrid.h"

#include <inttypes.h>

#include "core/error.h"

const char *const carry_lm_hybrid_delta_names[] = {"linear_attn.in_proj_qkv.weight",
                                                   "linear_attn.in_proj_qkv.weight",
                                                   "linear_attn.in_proj_qkv.weight",
                                                   "linear_attn.in_proj_a.weight",
                                                   "linear_attn.in_proj_b.weight",
                                                   "linear_attn.in_proj_z.weight",
                                                   "linear_attn.A_log",
                                                   "linear_attn.dt_bias",
                                                   "linear_attn.conv1d.weight",
                                                   "linear_attn.conv1d.weight",
                                                   "linear_attn.conv1d.weight",
                                                   "linear_attn.norm.weight",
                                                   "linear_attn.out_proj.weight"};

const char *const carry_lm_hybrid_ignored[][2] = {{"model.visual.", "the vision tower"},
                                                  {"visual.", "the vision tower"},
                                                  {"mtp.", "multi-token heads (loaded for draft mtp only)"},
                                                  {"model.mtp.", "multi-token heads (loaded for draft mtp only)"},
                                                  {NULL, NULL}};

const carry_lm_file_names carry_lm_hybrid_files = {.prefix = "model.language_model.",
                                                   .ignored = carry_lm_hybrid_ignored};

static const char *const single_experts[][2] = {
    {"mlp.experts.gate_up_proj", "mlp.experts.#.gate_proj.weight"},
    {"mlp.experts.gate_up_proj", "mlp.experts.#.up_proj.weight"},
    {"mlp.experts.down_proj", "mlp.experts.#.down_proj.weight"},
    {NULL, NULL},
};

const carry_lm_file_names carry_lm_hybrid_expert_files = {
    .prefix = "model.language_model.", .pieces = single_experts, .ignored = carry_lm_hybrid_ignored};

void carry_lm_hybrid_set_experts(carry_lm_config *c) {
    c->experts = (carry_lm_experts_options){.width = 512,
                                            .shared_width = 512,
                                            .gated = true,
                                            .shared_gate = true,
                                            .router = {.normalise = true, .scale = 1.0f}};
}

void carry_lm_hybrid_set_defaults(carry_lm_config *c) {
    c->norm_eps = 1e-6;
    c->initializer_range = 0.02;
    c->max_position_embeddings = 32768;
    c->bos_token_id = c->eos_token_id = c->pad_token_id = -1;
    c->delta = (carry_lm_delta_options){.conv_size = 4,
                                        .use_gate = true,
                                        .use_short_conv = true,
                                        .use_beta = true,
                                        .use_delta_rule = true,
                                        .gated = true,
                                        .qk_activation = CARRY_SILU};
    carry_lm_hybrid_of(c)->full_attention_interval = 4;
}

void carry_lm_hybrid_set_qwen(carry_lm_config *c) {
    carry_lm_hybrid_set_defaults(c);
    c->norm_plus_one = true;
    c->delta.heads = 16;
    c->delta.value_heads = 32;
    c->delta.key = c->delta.value = 128;
    c->attention = (carry_lm_attention_options){.heads = 16,
                                                .head_dim = 256,
                                                .rope_theta = 10000.0,
                                                .rotary_factor = 0.25,
                                                .qk_norm = CARRY_LM_NORM_HEADS,
                                                .gate = true};
}

carry_status carry_lm_hybrid_finish(carry_ctx *ctx, carry_lm_config *c) {
    const carry_lm_hybrid *own = carry_lm_hybrid_of(c);
    if (own->layers_listed != 0 && own->layers_listed != c->num_hidden_layers) {
        return carry_fail(ctx, CARRY_ESIZE, "layer_types lists %" PRId64 " layers and num_hidden_layers is %" PRId64,
                          own->layers_listed, c->num_hidden_layers);
    }
    if (own->layers_listed == 0) {
        const int64_t interval = own->full_attention_interval;
        CARRY_TRY(carry_lm_check_size(ctx, "full_attention_interval", interval, CARRY_LM_MAX_WIDTH));
        for (int64_t i = 0; i < c->num_hidden_layers; i++) {
            c->mixer[i] = (i + 1) % interval == 0 ? CARRY_LM_MIXER_ATTENTION : CARRY_LM_MIXER_DELTA;
        }
    }
    return CARRY_OK;
}

carry_status carry_lm_hybrid_finish_qwen(carry_ctx *ctx, carry_lm_config *c) {
    c->delta.norm_eps = c->norm_eps;
    return carry_lm_hybrid_finish(ctx, c);
}

carry_status carry_lm_hybrid_check_whole_rope(carry_ctx *ctx, const carry_lm_config *c) {
    return c->attention.rotary_factor == 1.0
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EUNSUPPORTED, "partial_rotary_factor is %g: models of type %s have only 1",
                            c->attention.rotary_factor, c->family->name);
}

void carry_lm_hybrid_set_heads(carry_lm_config *c) {
    c->num_hidden_layers = 1;
    c->mixer[0] = CARRY_LM_MIXER_ATTENTION;
    carry_lm_hybrid_of(c)->layers_listed = 1;
}

carry_status carry_lm_hybrid_read_layer_types(const carry_lm_source *s, const carry_json *node) {
    carry_lm_config *c = s->config;
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    int64_t i = 0;
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next, i++) {
        const bool attention = carry_json_is_text(one, "full_attention");
        if (!attention && !carry_json_is_text(one, "linear_attention")) {
            char shown[CARRY_JSON_SHOWN];
            return carry_fail(s->ctx, CARRY_EUNSUPPORTED,
                              "%s, line %u: layer %lld of \"layer_types\" is %s: expected \"linear_attention\" or "
                              "\"full_attention\"",
                              s->name, one->line, (long long)i, carry_json_show(shown, one));
        }
        if (i < CARRY_LM_MAX_LAYERS) {
            c->mixer[i] = attention ? CARRY_LM_MIXER_ATTENTION : CARRY_LM_MIXER_DELTA;
        }
    }
    carry_lm_hybrid_of(c)->layers_listed = i;
    return i > 0 ? CARRY_OK : carry_lm_config_refuse(s, node, "expected a list of layer types");
}

void carry_lm_hybrid_write_layer_types(carry_json_text *text, const carry_lm_config *c) {
    carry_json_put_raw(text, "[");
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        carry_json_put_raw(text, "%s\"%s\"", i > 0 ? ", " : "",
                           c->mixer[i] == CARRY_LM_MIXER_ATTENTION ? "full_attention" : "linear_attention");
    }
    carry_json_put_raw(text, "]");
}

static carry_status read_rope_type(const carry_lm_source *s, const carry_json *node) {
    return node->kind == CARRY_JSON_NULL || carry_json_is_text(node, "default")
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "the only rotary positions supported are \"default\"");
}

static carry_status read_sections(const carry_lm_source *s, const carry_json *node) {
    int count = 0;
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next, count++) {
        if (count >= 3 || one->kind != CARRY_JSON_NUMBER || !one->whole || one->as.number.integer < 0) {
            return carry_lm_config_refuse(s, node, "three whole numbers are expected");
        }
        carry_lm_hybrid_of(s->config)->mrope_section[count] = one->as.number.integer;
    }
    return count == 3 ? CARRY_OK : carry_lm_config_refuse(s, node, "three whole numbers are expected");
}

carry_status carry_lm_hybrid_read_rope(const carry_lm_source *s, const carry_json *node) {
    static const carry_lm_key keys[] = {
        {"rope_type", CARRY_LM_OTHER, 0, read_rope_type, NULL, NULL},
        {"type", CARRY_LM_OTHER, 0, read_rope_type, NULL, NULL},
        CARRY_LM_KEY("rope_theta", attention.rope_theta, NUMBER_OR_NULL),
        CARRY_LM_KEY("partial_rotary_factor", attention.rotary_factor, NUMBER),
        {"mrope_section", CARRY_LM_OTHER, 0, read_sections, NULL, NULL},
        CARRY_LM_WORD("mrope_interleaved", READ_OVER),
        CARRY_LM_LAST_KEY,
    };
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    return node->kind == CARRY_JSON_OBJECT ? carry_lm_config_read_object(s, keys, node)
                                           : carry_lm_config_refuse(s, node, "an object or null is expected");
}

/* Begins the object of rotary positions; returns false if the model does not use them. */
static bool open_rope(carry_json_text *text, const carry_lm_config *c) {
    if (c->attention.rope_theta == 0.0) {
        carry_json_put_raw(text, "null");
        return false;
    }
    carry_json_put_raw(text, "{\"rope_type\": \"default\", \"rope_theta\": ");
    carry_json_put_double(text, c->attention.rope_theta);
    return true;
}

void carry_lm_hybrid_write_whole_rope(carry_json_text *text, const carry_lm_config *c) {
    if (open_rope(text, c)) {
        carry_json_put_raw(text, "}");
    }
}

void carry_lm_hybrid_write_rope(carry_json_text *text, const carry_lm_config *c) {
    const int64_t *section = ((const carry_lm_hybrid *)(const void *)c->own)->mrope_section;
    if (!open_rope(text, c)) {
        return;
    }
    carry_json_put_raw(text, ", \"partial_rotary_factor\": ");
    carry_json_put_double(text, c->attention.rotary_factor);
    if (section[0] + section[1] + section[2] > 0) {
        carry_json_put_raw(text,
                           ", \"mrope_interleaved\": true, \"mrope_section\": [%" PRId64 ", %" PRId64 ", %" PRId64 "]",
                           section[0], section[1], section[2]);
    }
    carry_json_put_raw(text, "}");
}
