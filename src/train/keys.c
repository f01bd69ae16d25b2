/* Tables of keys. */
#include "train/keys.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

const carry_train_key *carry_keys_find(const carry_train_key *keys, const char *name) {
    for (const carry_train_key *key = keys; key->name != NULL; key++) {
        if (strcmp(key->name, name) == 0) {
            return key;
        }
    }
    return NULL;
}

static carry_status set_text(carry_ctx *ctx, char *field, const carry_train_key *key, const char *value) {
    if (*value == '\0' || strlen(value) >= key->size) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s needs 1 to %zu bytes, and got %zu", key->name, key->size - 1,
                          strlen(value));
    }
    (void)snprintf(field, key->size, "%s", value);
    return CARRY_OK;
}

static carry_status set_flag(carry_ctx *ctx, bool *field, const carry_train_key *key, const char *value) {
    *field = strcmp(value, "true") == 0;
    if (!*field && strcmp(value, "false") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s is true or false, not '%.40s'", key->name, value);
    }
    return CARRY_OK;
}

static carry_status set_number(carry_ctx *ctx, void *field, const carry_train_key *key, const char *value) {
    char *end;
    errno = 0;
    const double real = strtod(value, &end);
    const bool is_whole = key->kind == CARRY_TRAIN_WHOLE;
    if (end == value || *end != '\0' || !isfinite(real) || (is_whole && real != floor(real))) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s needs a %s number, not '%.40s'", key->name,
                          is_whole ? "whole" : "finite", value);
    }
    if (real < key->least || real > key->most) {
        if (key->most > 1e12) {
            return carry_fail(ctx, CARRY_ERANGE, "%s is %.40s: expected %.10g or more", key->name, value, key->least);
        }
        return carry_fail(ctx, CARRY_ERANGE, "%s is %.40s: expected %.10g to %.10g", key->name, value, key->least,
                          key->most);
    }
    if (is_whole) {
        *(int64_t *)field = (int64_t)real;
    } else {
        *(double *)field = real;
    }
    return CARRY_OK;
}

carry_status carry_keys_set(carry_ctx *ctx, const carry_train_key *keys, void *options, const char *name,
                            const char *value) {
    const carry_train_key *key = carry_keys_find(keys, name);
    if (key == NULL) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no key '%.40s'", name);
    }
    void *field = (char *)options + key->offset;
    switch (key->kind) {
    case CARRY_TRAIN_TEXT:
        return set_text(ctx, field, key, value);
    case CARRY_TRAIN_FLAG:
        return set_flag(ctx, field, key, value);
    case CARRY_TRAIN_WHOLE:
    case CARRY_TRAIN_REAL:
        break;
    }
    return set_number(ctx, field, key, value);
}

void carry_keys_write(carry_json_text *text, const carry_train_key *keys, const void *options) {
    const char *before = "{";
    for (const carry_train_key *key = keys; key->name != NULL; key++) {
        const void *field = (const char *)options + key->offset;
        char number[64];
        const char *value = number;
        if (key->kind == CARRY_TRAIN_WHOLE) {
            (void)snprintf(number, sizeof number, "%lld", (long long)*(const int64_t *)field);
        } else if (key->kind == CARRY_TRAIN_REAL) {
            (void)snprintf(number, sizeof number, "%.17g", *(const double *)field);
        } else if (key->kind == CARRY_TRAIN_FLAG) {
            (void)snprintf(number, sizeof number, "%s", *(const bool *)field ? "true" : "false");
        } else {
            value = field;
        }
        carry_json_put_raw(text, "%s\n    ", before);
        carry_json_put_key(text, key->name);
        carry_json_put_raw(text, " ");
        carry_json_put_string(text, value);
        before = ",";
    }
    carry_json_put_raw(text, "\n  }");
}

/* True if the value means "not given": 0, -1 or "". */
static bool is_unsaid(const carry_train_key *key, const char *value) {
    return *value == '\0' || strcmp(value, "-1") == 0 || (key->least > 0.0 && strcmp(value, "0") == 0);
}

carry_status carry_keys_read(carry_ctx *ctx, const carry_train_key *keys, void *options, const carry_json *object) {
    for (const carry_train_key *key = keys; key->name != NULL; key++) {
        const carry_json *node = carry_json_find(object, key->name);
        if (node == NULL || node->kind != CARRY_JSON_STRING || is_unsaid(key, node->as.text.bytes)) {
            continue;
        }
        CARRY_TRY(carry_keys_set(ctx, keys, options, key->name, node->as.text.bytes));
    }
    return CARRY_OK;
}
