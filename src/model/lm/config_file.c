/* config.json: a table of keys. A key is read into a field, read over, or may only have a value that asks for nothing.
 */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/file.h"
#include "model/lm/config.h"
#include "model/json_write.h"

#define FILE_LIMIT ((size_t)4 << 20)

typedef enum form {
    SIZE,         /* a whole number */
    SIZE_OR_NULL, /* null: 0 */
    NUMBER,
    NUMBER_OR_NULL, /* null: 0 */
    TRUTH,
    TOKEN,       /* a whole number, null (-1), or a list of which the first counts */
    ACTIVATION,  /* of q and k */
    READ_OVER,   /* changes nothing here */
    MUST_BE_OFF, /* null, false, or 0: anything else asks for what is not done here */
    MUST_BE_ON,  /* null or true */
    MUST_BE_SILU,
    MUST_BE_L2,
} form;

enum { GATED = 1, DELTA = 2, BOTH = 3 };

typedef struct field {
    const char *key;
    form form;
    int kinds;
    size_t offset;
} field;

#define FIELD(key, form, kinds) \
    { #key, form, kinds, offsetof(carry_lm_config, key) }
#define WORD(key, form) \
    { key, form, BOTH, 0 }

static const field fields[] = {
    FIELD(vocab_size, SIZE, BOTH),
    FIELD(hidden_size, SIZE, BOTH),
    FIELD(num_hidden_layers, SIZE, BOTH),
    FIELD(num_heads, SIZE, BOTH),
    FIELD(num_v_heads, SIZE_OR_NULL, GATED),
    FIELD(head_dim, SIZE, GATED),
    FIELD(expand_k, NUMBER, DELTA),
    FIELD(expand_v, NUMBER, BOTH),
    FIELD(hidden_ratio, NUMBER_OR_NULL, BOTH),
    FIELD(intermediate_size, SIZE_OR_NULL, BOTH),
    FIELD(conv_size, SIZE, BOTH),
    FIELD(use_gate, TRUTH, BOTH),
    FIELD(use_short_conv, TRUTH, BOTH),
    FIELD(allow_neg_eigval, TRUTH, BOTH),
    FIELD(tie_word_embeddings, TRUTH, BOTH),
    FIELD(use_beta, TRUTH, DELTA),
    FIELD(use_output_norm, TRUTH, DELTA),
    FIELD(use_delta_rule, TRUTH, BOTH),
    FIELD(qk_activation, ACTIVATION, DELTA),
    FIELD(norm_eps, NUMBER, BOTH),
    FIELD(initializer_range, NUMBER, BOTH),
    FIELD(max_position_embeddings, SIZE, BOTH),
    FIELD(bos_token_id, TOKEN, BOTH),
    FIELD(eos_token_id, TOKEN, BOTH),
    FIELD(pad_token_id, TOKEN, BOTH),
    {"qk_norm", MUST_BE_L2, DELTA, 0},
    WORD("hidden_act", MUST_BE_SILU),
    {"output_gate_activation", MUST_BE_SILU, GATED, 0},
    WORD("attn", MUST_BE_OFF),
    WORD("attnres_block_size", MUST_BE_OFF),
    WORD("conv_bias", MUST_BE_OFF),
    WORD("use_l2warp", MUST_BE_OFF),
    WORD("is_encoder_decoder", MUST_BE_OFF),
    WORD("elementwise_affine", MUST_BE_ON),
    WORD("model_type", READ_OVER),
    WORD("architectures", READ_OVER),
    WORD("attn_mode", READ_OVER),
    WORD("auto_map", READ_OVER),
    WORD("use_cache", READ_OVER),
    WORD("fuse_norm", READ_OVER),
    WORD("fuse_swiglu", READ_OVER),
    WORD("fuse_cross_entropy", READ_OVER),
    WORD("fuse_linear_cross_entropy", READ_OVER),
    WORD("transformers_version", READ_OVER),
    WORD("dtype", READ_OVER),
    WORD("torch_dtype", READ_OVER),
    WORD("output_hidden_states", READ_OVER),
    WORD("output_attentions", READ_OVER),
    WORD("return_dict", READ_OVER),
    WORD("chunk_size_feed_forward", READ_OVER),
    WORD("id2label", READ_OVER),
    WORD("label2id", READ_OVER),
    WORD("problem_type", READ_OVER),
    WORD("_name_or_path", READ_OVER),
};

static const struct {
    const char *text;
    carry_activation activation;
} activations[] = {{"silu", CARRY_SILU}, {"relu", CARRY_RELU}, {"elu", CARRY_ELU}, {"identity", CARRY_NO_ACTIVATION}};

typedef struct source {
    carry_ctx *ctx;
    const char *name;
    carry_lm_config *config;
} source;

static carry_status refuse(const source *s, const carry_json *node, const char *why) {
    char shown[CARRY_JSON_SHOWN];
    return carry_fail(s->ctx, CARRY_EUNSUPPORTED, "%s, line %u: \"%.60s\" is %s: %s", s->name, node->line, node->key,
                      carry_json_show(shown, node), why);
}

static carry_status read_size(const source *s, const carry_json *node, int64_t *to, bool or_null) {
    if (or_null && node->kind == CARRY_JSON_NULL) {
        *to = 0;
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 1) {
        return refuse(s, node,
                      or_null ? "a whole number from 1 on, or null, is expected"
                              : "a whole number from 1 on is expected");
    }
    *to = node->as.number.integer;
    return CARRY_OK;
}

static carry_status read_number(const source *s, const carry_json *node, double *to, bool or_null) {
    if (or_null && node->kind == CARRY_JSON_NULL) {
        *to = 0.0;
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_NUMBER || !(node->as.number.value > 0.0) || isinf(node->as.number.value)) {
        return refuse(s, node, or_null ? "a number above 0, or null, is expected" : "a number above 0 is expected");
    }
    *to = node->as.number.value;
    return CARRY_OK;
}

static carry_status read_token(const source *s, const carry_json *node, int64_t *to) {
    const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : node;
    *to = -1;
    if (one == NULL || one->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    if (one->kind != CARRY_JSON_NUMBER || !one->whole) {
        return refuse(s, node, "a token's number, or null, is expected");
    }
    *to = one->as.number.integer >= 0 ? one->as.number.integer : -1;
    return CARRY_OK;
}

static carry_status read_activation(const source *s, const carry_json *node, carry_activation *to) {
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (carry_json_is_text(node, activations[i].text)) {
            *to = activations[i].activation;
            return CARRY_OK;
        }
    }
    return refuse(s, node, "silu, relu, elu or identity is expected");
}

static bool asks_for_nothing(const carry_json *node) {
    return node->kind == CARRY_JSON_NULL || (node->kind == CARRY_JSON_BOOL && !node->truth) ||
           (node->kind == CARRY_JSON_NUMBER && node->as.number.value == 0.0);
}

static carry_status read_field(const source *s, const field *f, const carry_json *node) {
    void *to = (unsigned char *)s->config + f->offset;
    switch (f->form) {
    case SIZE:
    case SIZE_OR_NULL:
        return read_size(s, node, to, f->form == SIZE_OR_NULL);
    case NUMBER:
    case NUMBER_OR_NULL:
        return read_number(s, node, to, f->form == NUMBER_OR_NULL);
    case TRUTH:
        if (node->kind != CARRY_JSON_BOOL) {
            return refuse(s, node, "true or false is expected");
        }
        *(bool *)to = node->truth;
        return CARRY_OK;
    case TOKEN:
        return read_token(s, node, to);
    case ACTIVATION:
        return read_activation(s, node, to);
    case READ_OVER:
        return CARRY_OK;
    case MUST_BE_OFF:
        return asks_for_nothing(node) ? CARRY_OK : refuse(s, node, "this is not done here");
    case MUST_BE_ON:
        return node->kind == CARRY_JSON_NULL || (node->kind == CARRY_JSON_BOOL && node->truth)
                   ? CARRY_OK
                   : refuse(s, node, "only true is done here");
    case MUST_BE_SILU:
        return carry_json_is_text(node, "swish") || carry_json_is_text(node, "silu")
                   ? CARRY_OK
                   : refuse(s, node, "only \"swish\" (\"silu\") is done here");
    case MUST_BE_L2:
        return carry_json_is_text(node, "l2") ? CARRY_OK : refuse(s, node, "only \"l2\" is done here");
    }
    return CARRY_OK;
}

static const field *find_field(const carry_json *node, carry_lm_kind kind) {
    int wanted = kind == CARRY_LM_DELTA_NET ? DELTA : GATED;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if ((fields[i].kinds & wanted) != 0 && strlen(fields[i].key) == node->key_length &&
            strcmp(fields[i].key, node->key) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

static carry_status read_kind(const source *s, const carry_json *root) {
    const carry_json *type = carry_json_find(root, "model_type");
    if (root->kind != CARRY_JSON_OBJECT || type == NULL) {
        return carry_fail(s->ctx, CARRY_EFORMAT, "%s has no \"model_type\": it is no model's configuration", s->name);
    }
    for (carry_lm_kind kind = CARRY_LM_GATED_DELTANET; kind <= CARRY_LM_DELTA_NET; kind++) {
        if (carry_json_is_text(type, carry_lm_kind_name(kind))) {
            *s->config = carry_lm_config_default(kind);
            return CARRY_OK;
        }
    }
    return refuse(s, type, "gated_deltanet or delta_net is expected");
}

carry_status carry_lm_config_parse(carry_ctx *ctx, carry_lm_config *config, const carry_json *root, const char *name) {
    const source s = {.ctx = ctx, .name = name, .config = config};
    CARRY_TRY(read_kind(&s, root));
    bool seen[sizeof fields / sizeof fields[0]] = {false};
    char unknown[256] = "";
    size_t used = 0;
    for (const carry_json *node = root->as.inside.first; node != NULL; node = node->next) {
        const field *f = find_field(node, config->kind);
        if (f != NULL) {
            if (seen[f - fields]) {
                return refuse(&s, node, "the key stands there twice");
            }
            seen[f - fields] = true;
            CARRY_TRY(read_field(&s, f, node));
        } else if (used < sizeof unknown) {
            int more = snprintf(unknown + used, sizeof unknown - used, "%s%.40s", used > 0 ? ", " : "", node->key);
            used += (size_t)(more > 0 ? more : 0);
        }
    }
    if (unknown[0] != '\0') {
        carry_log(ctx, CARRY_LOG_WARNING, "%s: not known here and not heeded: %s%s", name, unknown,
                  used >= sizeof unknown ? "..." : "");
    }
    return carry_lm_config_finish(ctx, config);
}

carry_status carry_lm_config_read(carry_ctx *ctx, carry_lm_config *config, const char *path) {
    carry_json *root;
    CARRY_TRY(carry_json_read(ctx, &root, path, FILE_LIMIT));
    carry_status status = carry_lm_config_parse(ctx, config, root, path);
    carry_json_free(root);
    return status;
}

static void put_field(carry_json_text *text, const carry_lm_config *config, const field *f) {
    const void *from = (const unsigned char *)config + f->offset;
    carry_json_put_raw(text, ",\n  ");
    carry_json_put_string(text, f->key);
    carry_json_put_raw(text, ": ");
    if (f->form == TRUTH) {
        carry_json_put_raw(text, "%s", *(const bool *)from ? "true" : "false");
    } else if (f->form == ACTIVATION) {
        for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
            if (activations[i].activation == *(const carry_activation *)from) {
                carry_json_put_string(text, activations[i].text);
            }
        }
    } else if (f->form == NUMBER || f->form == NUMBER_OR_NULL) {
        double value = *(const double *)from;
        if (f->form == NUMBER_OR_NULL && value == 0.0) {
            carry_json_put_raw(text, "null");
        } else if (f->form == NUMBER_OR_NULL && value == floor(value)) {
            carry_json_put_raw(text, "%.0f", value); /* hidden_ratio is an int there */
        } else {
            carry_json_put_double(text, value);
        }
    } else {
        int64_t value = *(const int64_t *)from;
        bool none = f->form == TOKEN ? value < 0 : f->form == SIZE_OR_NULL && value == 0;
        if (none) {
            carry_json_put_raw(text, "null");
        } else {
            carry_json_put_raw(text, "%" PRId64, value);
        }
    }
}

carry_status carry_lm_config_write(carry_ctx *ctx, const carry_lm_config *config, carry_dtype dtype, const char *path) {
    bool delta = config->kind == CARRY_LM_DELTA_NET;
    carry_json_text text = {0};
    carry_json_put_raw(&text,
                       "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"attn_mode\": \"chunk\"",
                       delta ? "DeltaNetForCausalLM" : "GatedDeltaNetForCausalLM", carry_lm_kind_name(config->kind));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        /* A key that is not known there appears only where it means something. */
        bool untold = config->use_delta_rule && fields[i].offset == offsetof(carry_lm_config, use_delta_rule);
        if ((fields[i].kinds & (delta ? DELTA : GATED)) != 0 && fields[i].form < READ_OVER && !untold) {
            put_field(&text, config, &fields[i]);
        }
    }
    carry_json_put_raw(&text, "%s,\n  \"hidden_act\": \"swish\",\n  \"attn\": null,\n  \"dtype\": \"%s\"\n}\n",
                       delta ? ",\n  \"qk_norm\": \"l2\"" : "",
                       dtype == CARRY_BF16  ? "bfloat16"
                       : dtype == CARRY_F16 ? "float16"
                                            : "float32");
    carry_status status;
    if (text.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "no memory to write %s", path);
    } else {
        status = carry_file_replace(ctx, path, text.bytes, text.length);
    }
    carry_json_text_free(&text);
    return status;
}
