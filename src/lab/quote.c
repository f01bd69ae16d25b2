/* Quotes words for a shell. */
#include "lab/quote.h"

#include <string.h>

size_t carry_quoted_length(const char *text) {
    size_t length = 3;
    for (; *text != '\0'; text++) {
        length += *text == '\'' ? 4 : 1;
    }
    return length;
}

char *carry_append_quoted(char *to, const char *text) {
    *to++ = '\'';
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            memcpy(to, "'\\''", 4);
            to += 4;
        } else {
            *to++ = *text;
        }
    }
    *to++ = '\'';
    *to = '\0';
    return to;
}
