/* Making JSON. */
#include "model/json_write.h"

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

void carry_json_put_string(carry_json_text *text, const char *string) {
    carry_json_put_raw(text, "\"");
    for (; *string != '\0'; string++) {
        unsigned char c = (unsigned char)*string;
        if (c == '"' || c == '\\') {
            carry_json_put_raw(text, "\\%c", c);
        } else if (c < 0x20) {
            carry_json_put_raw(text, "\\u%04x", c);
        } else {
            carry_json_put_raw(text, "%c", c);
        }
    }
    carry_json_put_raw(text, "\"");
}

void carry_json_put_key(carry_json_text *text, const char *key) {
    carry_json_put_string(text, key);
    carry_json_put_raw(text, ":");
}

void carry_json_put_double(carry_json_text *text, double value) {
    char digits[40];
    for (int precision = 1; precision <= 17; precision++) {
        (void)snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    carry_json_put_raw(text, "%s%s", digits, strpbrk(digits, ".e") == NULL ? ".0" : "");
}
