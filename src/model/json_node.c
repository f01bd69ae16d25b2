/* Asking a JSON document. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/json.h"

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
