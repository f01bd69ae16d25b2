/* UTF-8, as RFC 3629 has it: no overlong forms, no surrogates, nothing past U+10FFFF. */
#ifndef CARRY_UTF8_H
#define CARRY_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARRY_UTF8_LONGEST 4

/* Returns the length of a character that starts with this byte; 0 if none can. */
static inline int carry_utf8_length(unsigned char lead) {
    return lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

/* True if `byte` is valid at position `at` (1..3) of a character that starts with `lead`. Only the second byte depends
   on `lead`. */
static inline bool carry_utf8_continues(unsigned char lead, int at, unsigned char byte) {
    unsigned char low = at == 1 && lead == 0xE0 ? 0xA0 : at == 1 && lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = at == 1 && lead == 0xED ? 0x9F : at == 1 && lead == 0xF4 ? 0x8F : 0xBF;
    return byte >= low && byte <= high;
}

/* Returns the length of the character at the start of text, which has `left` bytes, at least one; 0 if it is invalid or
   cut off. */
static inline int carry_utf8_at(const unsigned char *text, size_t left) {
    int length = carry_utf8_length(text[0]);
    if (length == 0 || (size_t)length > left) {
        return 0;
    }
    for (int i = 1; i < length; i++) {
        if (!carry_utf8_continues(text[0], i, text[i])) {
            return 0;
        }
    }
    return length;
}

/* Returns the code point of a complete character of this length. */
static inline uint32_t carry_utf8_code(const unsigned char *text, int length) {
    static const unsigned char mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t code = text[0] & mask[length];
    for (int i = 1; i < length; i++) {
        code = code << 6 | (text[i] & 0x3Fu);
    }
    return code;
}

/* Writes a code point below U+0800, enough for the byte alphabet; returns the number of bytes. */
static inline int carry_utf8_put(char *to, uint32_t code) {
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    to[0] = (char)(0xC0 | code >> 6);
    to[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}

/* The property White_Space, which the GPT-2 pattern calls \s. */
static inline bool carry_utf8_is_space(uint32_t code) {
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

#endif
