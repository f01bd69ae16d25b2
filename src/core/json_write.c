/* Making JSON. */
#include "core/json_write.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(carry_json_text *text, size_t more) {
    if (text->failed) {
        return false;
    }
    size_t needed = text->length + more + 1;
    if (needed > text->room) {
        size_t room = needed < 256 ? 512 : 2 * needed;
        char *grown = realloc(text->bytes, room);
        if (grown == NULL) {
            text->failed = true;
            return false;
        }
        text->bytes = grown;
        text->room = room;
    }
    return true;
}

void carry_json_text_free(carry_json_text *text) {
    free(text->bytes);
    *text = (carry_json_text){0};
}

char *carry_json_text_take(carry_json_text *text) {
    char *bytes = text->failed ? NULL : text->bytes;
    if (bytes == NULL) {
        free(text->bytes);
    }
    *text = (carry_json_text){0};
    return bytes;
}

void carry_json_put_raw(carry_json_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || !make_room(text, (size_t)length)) {
        text->failed = true;
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(text->bytes + text->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
}

static void put(carry_json_text *text, const char *bytes, size_t length) {
    if (make_room(text, length)) {
        memcpy(text->bytes + text->length, bytes, length);
        text->length += length;
        text->bytes[text->length] = '\0';
    }
}

void carry_json_text_append(carry_json_text *text, const char *bytes, size_t length) {
    put(text, bytes, length);
}

void carry_json_put_bytes(carry_json_text *text, const char *bytes, size_t length) {
    const char *const end = bytes + length;
    put(text, "\"", 1);
    while (bytes < end) {
        const unsigned char c = (unsigned char)*bytes;
        const int taken = carry_json_utf8_length(bytes, end);
        if (c == '"' || c == '\\') {
            carry_json_put_raw(text, "\\%c", c);
        } else if (c < 0x20) {
            carry_json_put_raw(text, "\\u%04x", c);
        } else {
            put(text, taken > 0 ? bytes : "\xEF\xBF\xBD", taken > 0 ? (size_t)taken : 3);
        }
        bytes += taken > 0 ? taken : 1;
    }
    put(text, "\"", 1);
}

void carry_json_put_string(carry_json_text *text, const char *string) {
    carry_json_put_bytes(text, string, strlen(string));
}

void carry_json_put_key(carry_json_text *text, const char *key) {
    carry_json_put_string(text, key);
    put(text, ":", 1);
}

void carry_json_put_double(carry_json_text *text, double value) {
    char digits[40];
    if (!isfinite(value)) {
        carry_json_put_raw(text, "%s", value > 0.0 ? "Infinity" : "null");
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        (void)snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    carry_json_put_raw(text, "%s%s", digits, strpbrk(digits, ".e") == NULL ? ".0" : "");
}

void carry_json_add_key(carry_json_text *text, const char *key) {
    const char last = text->length > 0 ? text->bytes[text->length - 1] : '[';
    if (!text->failed && strchr("[{: ", last) == NULL) {
        put(text, ", ", text->spaced ? 2 : 1);
    }
    if (key != NULL) {
        carry_json_put_key(text, key);
        if (text->spaced) {
            put(text, " ", 1);
        }
    }
}

void carry_json_begin(carry_json_text *text, const char *key, char bracket) {
    carry_json_add_key(text, key);
    put(text, &bracket, 1);
}

void carry_json_end(carry_json_text *text, char bracket) {
    put(text, &bracket, 1);
}

void carry_json_add_text(carry_json_text *text, const char *key, const char *value) {
    carry_json_add_key(text, key);
    if (value == NULL) {
        carry_json_put_raw(text, "null");
    } else {
        carry_json_put_string(text, value);
    }
}

void carry_json_add_number(carry_json_text *text, const char *key, double value) {
    char digits[40];
    (void)snprintf(digits, sizeof digits, "%.15g", value);
    carry_json_add_key(text, key);
    if (isfinite(value)) {
        carry_json_put_raw(text, "%s%s", digits, strpbrk(digits, ".e") == NULL ? ".0" : "");
    } else {
        carry_json_put_raw(text, "null");
    }
}

/* Without printf: lists have millions of token ids. */
void carry_json_add_integer(carry_json_text *text, const char *key, int64_t value) {
    char digits[20];
    size_t at = sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0) {
        digits[--at] = '-';
    }
    carry_json_add_key(text, key);
    put(text, digits + at, sizeof digits - at);
}

void carry_json_add_bool(carry_json_text *text, const char *key, bool value) {
    carry_json_add_key(text, key);
    carry_json_put_raw(text, "%s", value ? "true" : "false");
}

static void add_inside(carry_json_text *text, const char *key, const carry_json *node) {
    const bool is_object = node->kind == CARRY_JSON_OBJECT;
    carry_json_begin(text, key, is_object ? '{' : '[');
    for (const carry_json *at = node->as.inside.first; at != NULL; at = at->next) {
        carry_json_add_node(text, is_object ? at->key : NULL, at);
    }
    carry_json_end(text, is_object ? '}' : ']');
}

void carry_json_add_node(carry_json_text *text, const char *key, const carry_json *node) {
    switch (node != NULL ? node->kind : CARRY_JSON_NULL) {
    case CARRY_JSON_BOOL:
        carry_json_add_bool(text, key, node->truth);
        break;
    case CARRY_JSON_NUMBER:
        if (node->whole) {
            carry_json_add_integer(text, key, node->as.number.integer);
        } else {
            carry_json_add_key(text, key);
            carry_json_put_double(text, node->as.number.value);
        }
        break;
    case CARRY_JSON_STRING:
        carry_json_add_key(text, key);
        carry_json_put_bytes(text, node->as.text.bytes, node->as.text.length);
        break;
    case CARRY_JSON_ARRAY:
    case CARRY_JSON_OBJECT:
        add_inside(text, key, node);
        break;
    default:
        carry_json_add_text(text, key, NULL);
    }
}
