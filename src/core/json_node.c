/* Queries of JSON nodes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"

void carry_json_free(carry_json *document) {
    free(document);
}

const carry_json *carry_json_find(const carry_json *object, const char *key) {
    if (object == NULL || object->kind != CARRY_JSON_OBJECT) {
        return NULL;
    }
    size_t length = strlen(key);
    for (const carry_json *node = object->as.inside.first; node != NULL; node = node->next) {
        if (node->key_length == length && memcmp(node->key, key, length) == 0) {
            return node;
        }
    }
    return NULL;
}

bool carry_json_is_text(const carry_json *node, const char *text) {
    return node != NULL && node->kind == CARRY_JSON_STRING && node->as.text.length == strlen(text) &&
           memcmp(node->as.text.bytes, text, node->as.text.length) == 0;
}

const char *carry_json_show(char shown[CARRY_JSON_SHOWN], const carry_json *node) {
    switch (node->kind) {
    case CARRY_JSON_NULL:
        (void)snprintf(shown, CARRY_JSON_SHOWN, "null");
        break;
    case CARRY_JSON_BOOL:
        (void)snprintf(shown, CARRY_JSON_SHOWN, "%s", node->truth ? "true" : "false");
        break;
    case CARRY_JSON_NUMBER:
        (void)snprintf(shown, CARRY_JSON_SHOWN, "%.10g", node->as.number.value);
        break;
    case CARRY_JSON_STRING:
        (void)snprintf(shown, CARRY_JSON_SHOWN, "\"%.40s\"", node->as.text.bytes);
        break;
    case CARRY_JSON_ARRAY:
        (void)snprintf(shown, CARRY_JSON_SHOWN, "[%s]", node->as.inside.count > 0 ? "..." : "");
        break;
    case CARRY_JSON_OBJECT:
        (void)snprintf(shown, CARRY_JSON_SHOWN, "{%s}", node->as.inside.count > 0 ? "..." : "");
        break;
    }
    return shown;
}

const char *carry_json_string(const carry_json *node) {
    const bool is =
        node != NULL && node->kind == CARRY_JSON_STRING && strlen(node->as.text.bytes) == node->as.text.length;
    return is ? node->as.text.bytes : NULL;
}

double carry_json_number(const carry_json *node) {
    return node != NULL && node->kind == CARRY_JSON_NUMBER ? node->as.number.value : (double)NAN;
}

int64_t carry_json_count(const carry_json *node) {
    const bool is = node != NULL && (node->kind == CARRY_JSON_ARRAY || node->kind == CARRY_JSON_OBJECT);
    return is ? node->as.inside.count : 0;
}

const carry_json *carry_json_first(const carry_json *node) {
    return carry_json_count(node) > 0 ? node->as.inside.first : NULL;
}

int carry_json_utf8_length(const char *at, const char *end) {
    const unsigned char *b = (const unsigned char *)at;
    long left = (long)(end - at);
    int length = b[0] < 0x80 ? 1 : b[0] >= 0xC2 && b[0] < 0xE0 ? 2 : b[0] >= 0xE0 && b[0] < 0xF0 ? 3 : 4;
    if (length == 1) {
        return 1;
    }
    if ((length == 4 && (b[0] < 0xF0 || b[0] > 0xF4)) || left < length) {
        return 0;
    }
    for (int i = 1; i < length; i++) {
        if ((b[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool odd = (b[0] == 0xE0 && b[1] < 0xA0) || (b[0] == 0xED && b[1] >= 0xA0) || (b[0] == 0xF0 && b[1] < 0x90) ||
               (b[0] == 0xF4 && b[1] >= 0x90);
    return odd ? 0 : length;
}

bool carry_json_is_utf8(const char *text) {
    const char *const end = text + strlen(text);
    while (text < end) {
        const int length = carry_json_utf8_length(text, end);
        if (length == 0) {
            return false;
        }
        text += length;
    }
    return true;
}
