/* Reading and writing config.json by the keys of a family. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/file.h"
#include "file/gguf_model.h"
#include "model/lm/config.h"
#include "model/lm/families/family.h"

#define FILE_LIMIT ((size_t)4 << 20)

static const struct {
    const char *text;
    carry_activation activation;
} activations[] = {{"silu", CARRY_SILU}, {"relu", CARRY_RELU}, {"elu", CARRY_ELU}, {"identity", CARRY_NO_ACTIVATION}};

carry_status carry_lm_config_refuse(const carry_lm_source *s, const carry_json *node, const char *why) {
    char shown[CARRY_JSON_SHOWN];
    return carry_fail(s->ctx, CARRY_EUNSUPPORTED, "%s, line %u: \"%.60s\" is %s: %s", s->name, node->line, node->key,
                      carry_json_show(shown, node), why);
}

/* Fails for a feature that is on but must be off; for quantised weights the message names the method. */
static carry_status refuse_on(const carry_lm_source *s, const carry_json *node) {
    const carry_json *method = node->kind == CARRY_JSON_OBJECT ? carry_json_find(node, "quant_method") : NULL;
    return method != NULL ? carry_lm_config_refuse(s, method, "quantised weights are not supported")
                          : carry_lm_config_refuse(s, node, "this is not supported");
}

static carry_status read_size(const carry_lm_source *s, const carry_json *node, int64_t *to, bool or_null) {
    if (or_null && node->kind == CARRY_JSON_NULL) {
        *to = 0;
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 1) {
        return carry_lm_config_refuse(s, node,
                                      or_null ? "a whole number from 1 on, or null, is expected"
                                              : "a whole number from 1 on is expected");
    }
    *to = node->as.number.integer;
    return CARRY_OK;
}

static carry_status read_count(const carry_lm_source *s, const carry_json *node, int64_t *to) {
    *to = node->kind == CARRY_JSON_NUMBER && node->whole ? node->as.number.integer : 0;
    return node->kind == CARRY_JSON_NULL || (node->kind == CARRY_JSON_NUMBER && node->whole && *to >= 0)
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "a whole number from 0 on, or null, is expected");
}

static carry_status read_number(const carry_lm_source *s, const carry_json *node, double *to, bool or_null) {
    if (or_null && node->kind == CARRY_JSON_NULL) {
        *to = 0.0;
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_NUMBER || !(node->as.number.value > 0.0) || isinf(node->as.number.value)) {
        return carry_lm_config_refuse(
            s, node, or_null ? "a number above 0, or null, is expected" : "a number above 0 is expected");
    }
    *to = node->as.number.value;
    return CARRY_OK;
}

static carry_status read_token(const carry_lm_source *s, const carry_json *node, int64_t *to) {
    const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : node;
    *to = -1;
    if (one == NULL || one->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    if (one->kind != CARRY_JSON_NUMBER || !one->whole) {
        return carry_lm_config_refuse(s, node, "a token's number, or null, is expected");
    }
    *to = one->as.number.integer >= 0 ? one->as.number.integer : -1;
    return CARRY_OK;
}

static carry_status read_activation(const carry_lm_source *s, const carry_json *node, carry_activation *to) {
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (carry_json_is_text(node, activations[i].text)) {
            *to = activations[i].activation;
            return CARRY_OK;
        }
    }
    return carry_lm_config_refuse(s, node, "silu, relu, elu or identity is expected");
}

carry_status carry_lm_config_read_key(const carry_lm_source *s, const carry_lm_key *f, const carry_json *node) {
    void *to = (unsigned char *)s->config + f->offset;
    switch (f->form) {
    case CARRY_LM_SIZE:
    case CARRY_LM_SIZE_OR_NULL:
    case CARRY_LM_READ_SIZE:
        return read_size(s, node, to, f->form == CARRY_LM_SIZE_OR_NULL);
    case CARRY_LM_COUNT:
        return read_count(s, node, to);
    case CARRY_LM_NUMBER:
    case CARRY_LM_NUMBER_OR_NULL:
    case CARRY_LM_READ_NUMBER:
        return read_number(s, node, to, f->form == CARRY_LM_NUMBER_OR_NULL);
    case CARRY_LM_TRUTH:
    case CARRY_LM_TRUTH_IF_FALSE:
        if (node->kind != CARRY_JSON_BOOL) {
            return carry_lm_config_refuse(s, node, "true or false is expected");
        }
        *(bool *)to = node->truth;
        return CARRY_OK;
    case CARRY_LM_TOKEN:
        return read_token(s, node, to);
    case CARRY_LM_ACTIVATION:
        return read_activation(s, node, to);
    case CARRY_LM_OTHER:
        return f->read(s, node);
    case CARRY_LM_READ_OVER:
        return CARRY_OK;
    case CARRY_LM_MUST_BE_OFF:
        return carry_lm_config_is_off(node) ? CARRY_OK : refuse_on(s, node);
    case CARRY_LM_MUST_BE_ON:
        return node->kind == CARRY_JSON_NULL || (node->kind == CARRY_JSON_BOOL && node->truth)
                   ? CARRY_OK
                   : carry_lm_config_refuse(s, node, "only true is supported");
    case CARRY_LM_MUST_BE_SILU:
        return carry_json_is_text(node, "swish") || carry_json_is_text(node, "silu")
                   ? CARRY_OK
                   : carry_lm_config_refuse(s, node, "only \"swish\" (\"silu\") is supported");
    case CARRY_LM_MUST_BE_L2:
        return carry_json_is_text(node, "l2") ? CARRY_OK : carry_lm_config_refuse(s, node, "only \"l2\" is supported");
    }
    return CARRY_OK;
}

static const carry_lm_key *find_key(const carry_lm_key *keys, const carry_json *node) {
    for (const carry_lm_key *key = keys; key->key != NULL; key++) {
        if (strlen(key->key) == node->key_length && strcmp(key->key, node->key) == 0) {
            return key;
        }
    }
    return NULL;
}

carry_status carry_lm_config_read_object(const carry_lm_source *s, const carry_lm_key *keys, const carry_json *node) {
    for (const carry_json *one = node->as.inside.first; one != NULL; one = one->next) {
        const carry_lm_key *key = find_key(keys, one);
        if (key == NULL) {
            return carry_lm_config_refuse(s, one, "this key is not known");
        }
        CARRY_TRY(carry_lm_config_read_key(s, key, one));
    }
    return CARRY_OK;
}

carry_status carry_lm_config_read_quantised(const carry_lm_source *s, const carry_json *node) {
    carry_quant_config config;
    return node->kind == CARRY_JSON_NULL ? CARRY_OK : carry_quant_config_parse(s->ctx, &config, node, s->name);
}

/* The language part of a multimodal configuration is in text_config, except for two keys. */
static carry_status enter_wrapper(const carry_lm_source *s, const carry_json *root, const carry_json **keys) {
    const carry_json *text = carry_json_find(root, "text_config");
    const carry_json *tied = carry_json_find(root, "tie_word_embeddings");
    const carry_json *quantised = carry_json_find(root, "quantization_config");
    if (text == NULL || text->kind != CARRY_JSON_OBJECT) {
        return carry_fail(s->ctx, CARRY_EFORMAT, "%s has no \"text_config\", which a %s model has", s->name,
                          s->config->family->wrapper);
    }
    if (quantised != NULL) {
        CARRY_TRY(carry_lm_config_read_quantised(s, quantised));
    }
    s->config->tie_word_embeddings = tied != NULL && tied->kind == CARRY_JSON_BOOL && tied->truth;
    *keys = text;
    return CARRY_OK;
}

/* Finds the family, sets its defaults, and finds the object that has the keys. */
static carry_status read_family(const carry_lm_source *s, const carry_json *root, const carry_json **keys) {
    const carry_json *type = root->kind == CARRY_JSON_OBJECT ? carry_json_find(root, "model_type") : NULL;
    *keys = root;
    if (type == NULL) {
        return carry_fail(s->ctx, CARRY_EFORMAT, "%s has no \"model_type\": it is not a model configuration", s->name);
    }
    const carry_lm_family *family = carry_lm_family_of(type);
    if (family != NULL) {
        *s->config = carry_lm_config_default(family);
        return carry_json_is_text(type, family->name) ? CARRY_OK : enter_wrapper(s, root, keys);
    }
    char all[512] = "expected one of";
    size_t used = strlen(all);
    for (int i = 0; (family = carry_lm_family_at(i)) != NULL; i++) {
        const char *names[] = {family->name, family->wrapper};
        for (int j = 0; j < 2 && names[j] != NULL && used < sizeof all; j++) {
            used += (size_t)snprintf(all + used, sizeof all - used, "%s %s", i > 0 || j > 0 ? "," : "", names[j]);
        }
    }
    return carry_lm_config_refuse(s, type, all);
}

static bool stands_before(const carry_json *first, const carry_json *node) {
    for (const carry_json *other = first; other != node; other = other->next) {
        if (other->key_length == node->key_length && memcmp(other->key, node->key, node->key_length) == 0) {
            return true;
        }
    }
    return false;
}

/* The bytes of a key's field if its value is plain; 0: the key has no field, or a function of its own. */
static size_t field_bytes(const carry_lm_key *key) {
    switch (key->form) {
    case CARRY_LM_SIZE:
    case CARRY_LM_SIZE_OR_NULL:
    case CARRY_LM_READ_SIZE:
    case CARRY_LM_COUNT:
        return sizeof(int64_t);
    case CARRY_LM_NUMBER:
    case CARRY_LM_NUMBER_OR_NULL:
    case CARRY_LM_READ_NUMBER:
        return sizeof(double);
    case CARRY_LM_TRUTH:
    case CARRY_LM_TRUTH_IF_FALSE:
        return sizeof(bool);
    default:
        return 0;
    }
}

/* Reads a key. Some fields have two keys, such as n_group and num_expert_group: other libraries read one or the other,
   so a file in which both are present with different values is refused. */
static carry_status read_once(const carry_lm_source *s, const carry_lm_key *key, const carry_json *first,
                              const carry_json *node) {
    unsigned char before[sizeof(double)];
    const unsigned char *field = (const unsigned char *)s->config + key->offset;
    const size_t bytes = field_bytes(key);
    memcpy(before, field, bytes);
    CARRY_TRY(carry_lm_config_read_key(s, key, node));
    if (bytes == 0 || memcmp(before, field, bytes) == 0) {
        return CARRY_OK;
    }
    for (const carry_json *other = first; other != node; other = other->next) {
        const carry_lm_key *same = find_key(s->config->family->keys, other);
        if (same != NULL && same->offset == key->offset && field_bytes(same) == bytes) {
            char why[128];
            (void)snprintf(why, sizeof why, "\"%.40s\" has the same meaning and another value", other->key);
            return carry_lm_config_refuse(s, node, why);
        }
    }
    return CARRY_OK;
}

/* True for keys that are read after the others, since their values take precedence, as in transformers: the objects of
   rotary positions over rope_theta and partial_rotary_factor beside them. */
static bool comes_last(const carry_json *node) {
    return strcmp(node->key, "rope_parameters") == 0 || strcmp(node->key, "rope_scaling") == 0;
}

/* Reads the known keys that come last, or the others. */
static carry_status read_keys(const carry_lm_source *s, const carry_json *first, bool last) {
    for (const carry_json *node = first; node != NULL; node = node->next) {
        const carry_lm_key *key = find_key(s->config->family->keys, node);
        if (key == NULL || comes_last(node) != last) {
            continue;
        }
        if (stands_before(first, node)) {
            return carry_lm_config_refuse(s, node, "duplicate key");
        }
        CARRY_TRY(read_once(s, key, first, node));
    }
    return CARRY_OK;
}

carry_status carry_lm_config_parse(carry_ctx *ctx, carry_lm_config *config, const carry_json *root, const char *name) {
    const carry_lm_source s = {.ctx = ctx, .name = name, .config = config};
    const carry_json *keys;
    CARRY_TRY(read_family(&s, root, &keys));
    char unknown[256] = "";
    size_t used = 0;
    CARRY_TRY(read_keys(&s, keys->as.inside.first, false));
    CARRY_TRY(read_keys(&s, keys->as.inside.first, true));
    for (const carry_json *node = keys->as.inside.first; node != NULL; node = node->next) {
        if (find_key(config->family->keys, node) != NULL) {
            continue;
        }
        CARRY_TRY(carry_lm_config_check_unknown(&s, keys, node));
        if (used < sizeof unknown) {
            int more = snprintf(unknown + used, sizeof unknown - used, "%s%.40s", used > 0 ? ", " : "", node->key);
            used += (size_t)(more > 0 ? more : 0);
        }
    }
    if (unknown[0] != '\0') {
        carry_log(ctx, CARRY_LOG_WARNING, "%s: unknown keys are ignored: %s%s", name, unknown,
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

carry_status carry_lm_config_read_model(carry_ctx *ctx, carry_lm_config *config, const char *model) {
    carry_json *root;
    char *text;
    size_t length;
    char path[CARRY_FILE_PATH];
    if (!carry_gguf_is_file(model)) {
        CARRY_TRY(carry_file_in(ctx, path, model, "config.json"));
        return carry_lm_config_read(ctx, config, path);
    }
    CARRY_TRY(carry_gguf_text_of(ctx, model, "config.json", &text, &length));
    carry_status status = carry_json_parse(ctx, &root, text, length, model);
    free(text);
    if (status == CARRY_OK) {
        status = carry_lm_config_parse(ctx, config, root, model);
        carry_json_free(root);
    }
    return status;
}

static void put_key(carry_json_text *text, const carry_lm_config *config, const carry_lm_key *f) {
    const void *from = (const unsigned char *)config + f->offset;
    carry_json_put_raw(text, ",\n  ");
    carry_json_put_string(text, f->key);
    carry_json_put_raw(text, ": ");
    if (f->text != NULL) {
        carry_json_put_raw(text, "%s", f->text);
    } else if (f->form == CARRY_LM_OTHER) {
        f->write(text, config);
    } else if (f->form == CARRY_LM_TRUTH || f->form == CARRY_LM_TRUTH_IF_FALSE) {
        carry_json_put_raw(text, "%s", *(const bool *)from ? "true" : "false");
    } else if (f->form == CARRY_LM_ACTIVATION) {
        for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
            if (activations[i].activation == *(const carry_activation *)from) {
                carry_json_put_string(text, activations[i].text);
            }
        }
    } else if (f->form == CARRY_LM_NUMBER || f->form == CARRY_LM_NUMBER_OR_NULL) {
        double value = *(const double *)from;
        if (f->form == CARRY_LM_NUMBER_OR_NULL && value == 0.0) {
            carry_json_put_raw(text, "null");
        } else if (f->form == CARRY_LM_NUMBER_OR_NULL && value == floor(value)) {
            carry_json_put_raw(text, "%.0f", value); /* hidden_ratio is an int there */
        } else {
            carry_json_put_double(text, value);
        }
    } else {
        int64_t value = *(const int64_t *)from;
        bool none = f->form == CARRY_LM_TOKEN ? value < 0 : f->form == CARRY_LM_SIZE_OR_NULL && value == 0;
        if (none) {
            carry_json_put_raw(text, "null");
        } else {
            carry_json_put_raw(text, "%" PRId64, value);
        }
    }
}

static bool is_written(const carry_lm_config *config, const carry_lm_key *key) {
    if (key->form == CARRY_LM_TRUTH_IF_FALSE) {
        return !*(const bool *)((const unsigned char *)config + key->offset);
    }
    return key->text != NULL || (key->form < CARRY_LM_READ_SIZE && (key->form != CARRY_LM_OTHER || key->write != NULL));
}

void carry_lm_config_put(carry_json_text *text, const carry_lm_config *config, carry_dtype dtype) {
    carry_json_put_raw(text, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"",
                       config->family->architecture, config->family->name);
    for (const carry_lm_key *key = config->family->keys; key->key != NULL; key++) {
        if (is_written(config, key)) {
            put_key(text, config, key);
        }
    }
    carry_json_put_raw(text, ",\n  \"dtype\": \"%s\"\n}\n",
                       dtype == CARRY_BF16  ? "bfloat16"
                       : dtype == CARRY_F16 ? "float16"
                                            : "float32");
}

carry_status carry_lm_config_write(carry_ctx *ctx, const carry_lm_config *config, carry_dtype dtype, const char *path) {
    carry_json_text text = {0};
    carry_status status;
    carry_lm_config_put(&text, config, dtype);
    if (text.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    } else {
        status = carry_file_replace(ctx, path, text.bytes, text.length);
    }
    carry_json_text_free(&text);
    return status;
}
