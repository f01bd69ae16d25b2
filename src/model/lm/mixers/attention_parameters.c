/* Attention layers: keys of config.json, parameters and state. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "model/lm/mixers/attention.h"

enum {
    FLA = CARRY_LM_IN(GATED_DELTANET) | CARRY_LM_IN(DELTA_NET) | CARRY_LM_IN(GATED_DELTAPRODUCT),
    QWEN = CARRY_LM_IN(QWEN3_5),
    OLMO = CARRY_LM_IN(OLMO_HYBRID),
    HF = QWEN | OLMO
};

#define FIELD CARRY_LM_FIELD
#define KEY CARRY_LM_KEY
#define WORD CARRY_LM_WORD

static carry_status read_layers(const carry_lm_source *s, const carry_json *node) {
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next) {
        const int64_t layer = one->kind == CARRY_JSON_NUMBER && one->whole ? one->as.number.integer : -1;
        if (layer < 0 || layer >= CARRY_LM_MAX_LAYERS) {
            return carry_lm_config_refuse(s, node, "a list of the numbers of layers is expected");
        }
        s->config->layer[layer] = CARRY_LM_MIXER_ATTENTION;
    }
    return node->kind == CARRY_JSON_ARRAY ? CARRY_OK : carry_lm_config_refuse(s, node, "a list of layers is expected");
}

/* The value of an object: each of its keys as one of a table. */
static carry_status read_object(const carry_lm_source *s, const carry_json *node, const carry_lm_key *keys) {
    for (const carry_json *one = node->as.inside.first; one != NULL; one = one->next) {
        const carry_lm_key *key = keys;
        while (key->key != NULL && strcmp(key->key, one->key) != 0) {
            key++;
        }
        if (key->key == NULL) {
            return carry_lm_config_refuse(s, one, "this key is not known");
        }
        CARRY_TRY(carry_lm_config_read_key(s, key, one));
    }
    return CARRY_OK;
}

/* "attn" of flash-linear-attention: which layers have attention instead of the delta rule. */
static carry_status read_attn(const carry_lm_source *s, const carry_json *node) {
    static const carry_lm_key keys[] = {
        {"layers", CARRY_LM_OTHER, FLA, 0, read_layers, NULL},
        KEY("num_heads", attn_heads, SIZE, FLA),
        KEY("num_kv_heads", attn_kv_heads, SIZE_OR_NULL, FLA),
        KEY("window_size", attn_window, SIZE_OR_NULL, FLA),
        KEY("rope_theta", rope_theta, NUMBER, FLA),
        WORD("qkv_bias", MUST_BE_OFF, FLA),
        WORD("qk_norm", MUST_BE_OFF, FLA),
        CARRY_LM_LAST_KEY,
    };
    if (node->kind == CARRY_JSON_NULL || (node->kind == CARRY_JSON_BOOL && !node->truth)) {
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_OBJECT || carry_json_find(node, "layers") == NULL ||
        carry_json_find(node, "num_heads") == NULL) {
        return carry_lm_config_refuse(s, node, "an object with \"layers\" and \"num_heads\", or null, is expected");
    }
    return read_object(s, node, keys);
}

static void write_attn(carry_json_text *text, const carry_lm_config *c) {
    if (!c->has_attention) {
        carry_json_put_raw(text, "null");
        return;
    }
    carry_json_put_raw(text, "{\"layers\": [");
    const char *comma = "";
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        if (c->layer[i] == CARRY_LM_MIXER_ATTENTION) {
            carry_json_put_raw(text, "%s%" PRId64, comma, i);
            comma = ", ";
        }
    }
    carry_json_put_raw(text, "], \"num_heads\": %" PRId64 ", \"num_kv_heads\": %" PRId64 ", \"qkv_bias\": false, ",
                       c->attn_heads, c->attn_kv_heads);
    carry_json_put_raw(text, c->attn_window > 0 ? "\"window_size\": %" PRId64 ", " : "\"window_size\": null, ",
                       c->attn_window);
    carry_json_put_raw(text, "\"rope_theta\": ");
    carry_json_put_double(text, c->rope_theta);
    carry_json_put_raw(text, "}");
}

static carry_status read_rope_type(const carry_lm_source *s, const carry_json *node) {
    return node->kind == CARRY_JSON_NULL || carry_json_is_text(node, "default")
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "the only rotary positions supported are \"default\"");
}

/* Kept for the file: positions of text are the same in all three sections. */
static carry_status read_sections(const carry_lm_source *s, const carry_json *node) {
    int count = 0;
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next, count++) {
        if (count >= 3 || one->kind != CARRY_JSON_NUMBER || !one->whole || one->as.number.integer < 0) {
            return carry_lm_config_refuse(s, node, "three whole numbers are expected");
        }
        s->config->mrope_section[count] = one->as.number.integer;
    }
    return count == 3 ? CARRY_OK : carry_lm_config_refuse(s, node, "three whole numbers are expected");
}

static carry_status read_rope(const carry_lm_source *s, const carry_json *node) {
    static const carry_lm_key keys[] = {
        {"rope_type", CARRY_LM_OTHER, HF, 0, read_rope_type, NULL},
        {"type", CARRY_LM_OTHER, HF, 0, read_rope_type, NULL},
        KEY("rope_theta", rope_theta, NUMBER_OR_NULL, HF),
        KEY("partial_rotary_factor", rotary_factor, NUMBER, HF),
        {"mrope_section", CARRY_LM_OTHER, HF, 0, read_sections, NULL},
        WORD("mrope_interleaved", READ_OVER, HF),
        CARRY_LM_LAST_KEY,
    };
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    return node->kind == CARRY_JSON_OBJECT ? read_object(s, node, keys)
                                           : carry_lm_config_refuse(s, node, "an object or null is expected");
}

static void write_rope(carry_json_text *text, const carry_lm_config *c) {
    if (c->rope_theta == 0.0) {
        carry_json_put_raw(text, "null");
        return;
    }
    carry_json_put_raw(text, "{\"rope_type\": \"default\", \"rope_theta\": ");
    carry_json_put_double(text, c->rope_theta);
    if (c->kind == CARRY_LM_QWEN3_5) {
        carry_json_put_raw(text, ", \"partial_rotary_factor\": ");
        carry_json_put_double(text, c->rotary_factor);
        const int64_t *section = c->mrope_section;
        if (section[0] + section[1] + section[2] > 0) {
            carry_json_put_raw(
                text, ", \"mrope_interleaved\": true, \"mrope_section\": [%" PRId64 ", %" PRId64 ", %" PRId64 "]",
                section[0], section[1], section[2]);
        }
    }
    carry_json_put_raw(text, "}");
}

const carry_lm_key carry_lm_attention_keys[] = {
    {"attn", CARRY_LM_OTHER, FLA, 0, read_attn, write_attn},
    KEY("num_attention_heads", attn_heads, SIZE, HF),
    KEY("num_key_value_heads", attn_kv_heads, SIZE_OR_NULL, HF),
    KEY("head_dim", attn_head_dim, SIZE_OR_NULL, HF),
    {"rope_parameters", CARRY_LM_OTHER, HF, 0, read_rope, write_rope},
    {"rope_scaling", CARRY_LM_OTHER, HF, 0, read_rope, NULL}, /* older names */
    {"rope_theta", CARRY_LM_READ_NUMBER, HF, offsetof(carry_lm_config, rope_theta), NULL, NULL},
    {"partial_rotary_factor", CARRY_LM_READ_NUMBER, HF, offsetof(carry_lm_config, rotary_factor), NULL, NULL},
    {"full_attention_interval", CARRY_LM_READ_SIZE, QWEN, offsetof(carry_lm_config, full_attention_interval), NULL,
     NULL},
    WORD("attention_bias", MUST_BE_OFF, HF),
    WORD("attention_dropout", MUST_BE_OFF, HF),
    WORD("attn_output_gate", MUST_BE_ON, QWEN),
    CARRY_LM_LAST_KEY,
};

const char *carry_lm_attention_key(const carry_lm_config *c, int slot) {
    static const char *const fla[] = {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight",
                                      "attn.q_norm.weight", "attn.k_norm.weight", "attn.o_proj.weight"};
    static const char *const hf[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                     "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.o_proj.weight"};
    return (carry_lm_is_fla(c->kind) ? fla : hf)[slot];
}

carry_lm_parameter carry_lm_attention_describe(const carry_lm_config *c, int slot) {
    const int64_t width = c->attn_heads * c->attn_head_dim;
    const int64_t key_width = c->attn_kv_heads * c->attn_head_dim;
    carry_lm_parameter norm = {.rank = c->qk_norm != CARRY_LM_NO_QK_NORM ? 1 : 0,
                               .shape = {c->attn_head_dim},
                               .decays = true,
                               .start = c->norm_plus_one ? CARRY_LM_ZEROS : CARRY_LM_ONES};
    switch ((carry_lm_attention_slot)slot) {
    case CARRY_LM_ATTENTION_Q:
        return carry_lm_matrix(c->attn_gate ? 2 * width : width, c->hidden_size);
    case CARRY_LM_ATTENTION_K:
    case CARRY_LM_ATTENTION_V:
        return carry_lm_matrix(key_width, c->hidden_size);
    case CARRY_LM_ATTENTION_Q_NORM:
    case CARRY_LM_ATTENTION_K_NORM:
        if (c->qk_norm == CARRY_LM_NORM_WIDTH) {
            norm.shape[0] = slot == CARRY_LM_ATTENTION_Q_NORM ? width : key_width;
        }
        return norm;
    case CARRY_LM_ATTENTION_O:
        return carry_lm_matrix(c->hidden_size, width);
    case CARRY_LM_ATTENTION_SLOTS:
        break;
    }
    return (carry_lm_parameter){0};
}

int carry_lm_attention_state(const carry_lm_config *c, carry_lm_state_part *parts) {
    parts[0] = parts[1] =
        (carry_lm_state_part){.rank = 3, .shape = {0, c->attn_kv_heads, c->attn_head_dim}, .slices = 1, .grows = true};
    return 2;
}
