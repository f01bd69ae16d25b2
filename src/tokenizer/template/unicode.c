/* Looks up characters in the tables written by tools/make-unicode-tables. */
#include "tokenizer/template/unicode.h"

#include "tokenizer/template/unicode_tables.h"
#include "tokenizer/utf8.h"

uint32_t jinja_code_at(const char *at, int *bytes) {
    const unsigned char *text = (const unsigned char *)at;
    *bytes = carry_utf8_length(text[0]);
    return carry_utf8_code(text, *bytes);
}

uint32_t jinja_code_before(const char *start, const char *end, int *bytes) {
    const char *at = end - 1;
    while (at > start && ((unsigned char)*at & 0xC0) == 0x80) {
        at--;
    }
    return jinja_code_at(at, bytes);
}

int jinja_code_put(char to[4], uint32_t code) {
    if (code < 0x800) {
        return carry_utf8_put(to, code);
    }
    int bytes = code < 0x10000 ? 3 : 4;
    to[0] = (char)((bytes == 3 ? 0xE0 : 0xF0) | code >> 6 * (bytes - 1));
    for (int i = 1; i < bytes; i++) {
        to[i] = (char)(0x80 | (code >> 6 * (bytes - 1 - i) & 0x3F));
    }
    return bytes;
}

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static bool is_within(const uint32_t (*range)[2], size_t count, uint32_t code) {
    size_t low = 0;
    while (count > 0) { /* finds the first range that ends at or after code */
        size_t half = count / 2;
        if (range[low + half][1] < code) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return range[low][0] <= code && code <= range[low][1]; /* safe: each table ends with a range above all codes */
}

static uint32_t shifted(const case_range *range, size_t count, uint32_t code) {
    for (size_t i = 0; i < count && range[i].first <= code; i++) {
        if (code <= range[i].last && (code - range[i].first) % range[i].step == 0) {
            return (uint32_t)((int64_t)code + range[i].shift);
        }
    }
    return code;
}

int jinja_code_case(uint32_t code, jinja_case to, uint32_t cased[JINJA_CASED_MOST]) {
    if (code < 0x80) {
        bool is_up = to == JINJA_UPPER || to == JINJA_TITLE;
        cased[0] = is_up && code >= 'a' && code <= 'z'    ? code - 32
                   : !is_up && code >= 'A' && code <= 'Z' ? code + 32
                                                          : code;
        return 1;
    }
    for (size_t i = 0; i < COUNT(case_special); i++) {
        if (case_special[i].code == code && case_special[i].to == to) {
            int count = 0;
            while (count < JINJA_CASED_MOST && case_special[i].cased[count] != 0) {
                cased[count] = case_special[i].cased[count];
                count++;
            }
            return count;
        }
    }
    cased[0] = to == JINJA_UPPER   ? shifted(case_upper, COUNT(case_upper), code)
               : to == JINJA_LOWER ? shifted(case_lower, COUNT(case_lower), code)
               : to == JINJA_TITLE ? shifted(case_title, COUNT(case_title), code)
                                   : shifted(case_fold, COUNT(case_fold), code);
    return 1;
}

bool jinja_code_is_space(uint32_t code) {
    return carry_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

bool jinja_code_is_alpha(uint32_t code) {
    return is_within(code_alpha, COUNT(code_alpha), code);
}

bool jinja_code_is_decimal(uint32_t code) {
    return is_within(code_decimal, COUNT(code_decimal), code);
}

bool jinja_code_is_digit(uint32_t code) {
    return is_within(code_digit, COUNT(code_digit), code);
}

bool jinja_code_is_numeric(uint32_t code) {
    return is_within(code_numeric, COUNT(code_numeric), code);
}

bool jinja_code_is_alnum(uint32_t code) {
    return jinja_code_is_alpha(code) || jinja_code_is_numeric(code) || jinja_code_is_digit(code);
}

bool jinja_code_is_lower(uint32_t code) {
    return is_within(code_lower, COUNT(code_lower), code);
}

bool jinja_code_is_upper(uint32_t code) {
    return is_within(code_upper, COUNT(code_upper), code);
}

bool jinja_code_is_title(uint32_t code) {
    return is_within(code_title, COUNT(code_title), code);
}

bool jinja_code_is_printable(uint32_t code) {
    return !is_within(code_unprintable, COUNT(code_unprintable), code);
}
