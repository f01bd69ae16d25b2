/* Characters, escapes and classes of regular expressions. */
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/constraint/regex_parse.h"

static const carry_range digits[] = {{'0', '9'}};
static const carry_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const carry_range spaces[] = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                     {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                     {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const carry_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

carry_status carry_regex_refuse(carry_regex *r, carry_status status, size_t at, const char *why) {
    size_t character = 1;
    for (size_t i = 0; i < at; i++) {
        character += ((unsigned char)r->text[i] & 0xC0) != 0x80;
    }
    return carry_fail(r->ctx, status, "%s, character %zu: %s", r->what, character, why);
}

uint32_t carry_regex_character(carry_regex *r) {
    const unsigned char *p = (const unsigned char *)r->text + r->at;
    const int length = carry_json_utf8_length((const char *)p, r->text + r->length);
    uint32_t c = length == 1 ? p[0] : length == 2 ? p[0] & 0x1Fu : length == 3 ? p[0] & 0x0Fu : p[0] & 0x07u;
    for (int i = 1; i < length; i++) {
        c = c << 6 | (p[i] & 0x3Fu);
    }
    r->at += (size_t)length;
    return c;
}

static bool add_all(carry_characters *set, const carry_range *range, size_t count, bool negates) {
    carry_characters own = {0};
    bool is_whole = true;
    for (size_t i = 0; i < count; i++) {
        is_whole = is_whole && carry_characters_add(&own, range[i].low, range[i].high);
    }
    is_whole = is_whole && (!negates || carry_characters_negate(&own));
    for (size_t i = 0; i < own.count && is_whole; i++) {
        is_whole = carry_characters_add(set, own.range[i].low, own.range[i].high);
    }
    carry_characters_free(&own);
    return is_whole;
}

void carry_regex_dot(carry_characters *set, bool *is_whole) {
    *is_whole = add_all(set, line_ends, sizeof line_ends / sizeof *line_ends, true);
}

/* Reads `count` hexadecimal digits; false if there are fewer. */
static bool read_hex(carry_regex *r, int count, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < count; i++) {
        const char c = r->at < r->length ? r->text[r->at] : '\0';
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
            return false;
        }
        *value = *value << 4 | (uint32_t)digit;
        r->at++;
    }
    return true;
}

/* Reads the digits after \x and \u. */
static carry_status read_code(carry_regex *r, int count, uint32_t *value) {
    const size_t start = r->at;
    uint32_t low;
    if (count == 4 && r->at < r->length && r->text[r->at] == '{') {
        const char *end = memchr(r->text + r->at, '}', r->length - r->at);
        const size_t length = end != NULL ? (size_t)(end - r->text) - r->at - 1 : 0;
        r->at++;
        if (length < 1 || length > 6 || !read_hex(r, (int)length, value) || *value > CARRY_LAST_CHARACTER) {
            return carry_regex_refuse(r, CARRY_EARGUMENT, start, "\\u{...} needs a character's number up to 10FFFF");
        }
        r->at++;
    } else if (!read_hex(r, count, value)) {
        return carry_regex_refuse(r, CARRY_EARGUMENT, start,
                                  count == 2 ? "\\x needs 2 hexadecimal digits" : "\\u needs 4 hexadecimal digits");
    }
    if (*value >= 0xD800 && *value < 0xDC00 && r->length - r->at >= 6 && memcmp(r->text + r->at, "\\u", 2) == 0) {
        r->at += 2;
        if (!read_hex(r, 4, &low) || low < 0xDC00 || low > 0xDFFF) {
            return carry_regex_refuse(r, CARRY_EARGUMENT, start, "half of a surrogate pair");
        }
        *value = 0x10000 + ((*value - 0xD800) << 10) + (low - 0xDC00);
    }
    if (*value >= 0xD800 && *value < 0xE000) {
        return carry_regex_refuse(r, CARRY_EARGUMENT, start, "half of a surrogate pair");
    }
    return CARRY_OK;
}

static carry_status no_memory(carry_regex *r) {
    return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: %s", r->what);
}

static carry_status add_one(carry_regex *r, carry_characters *set, uint32_t c) {
    return carry_characters_add(set, c, c) ? CARRY_OK : no_memory(r);
}

static carry_status refuse_escape(carry_regex *r, size_t at, uint32_t c) {
    if (c >= '1' && c <= '9') {
        return carry_regex_refuse(r, CARRY_EUNSUPPORTED, at, "references to groups are not supported");
    }
    if (c == 'b' || c == 'B') {
        return carry_regex_refuse(r, CARRY_EUNSUPPORTED, at, "word boundaries are not supported");
    }
    if (c == 'p' || c == 'P') {
        return carry_regex_refuse(r, CARRY_EUNSUPPORTED, at, "properties of Unicode are not supported");
    }
    return carry_regex_refuse(r, CARRY_EUNSUPPORTED, at, "an escape that is not supported");
}

carry_status carry_regex_escape(carry_regex *r, carry_characters *set, bool in_class, bool *is_class) {
    static const char letters[] = "tnrfv0";
    static const char meant[] = "\t\n\r\f\v\0";
    const size_t start = r->at - 1;
    *is_class = false;
    if (r->at >= r->length) {
        return carry_regex_refuse(r, CARRY_EARGUMENT, start, "a backslash at the end");
    }
    const uint32_t c = carry_regex_character(r);
    const bool negates = c == 'D' || c == 'W' || c == 'S';
    const uint32_t kind = negates ? c + ('a' - 'A') : c;
    if (kind == 'd' || kind == 'w' || kind == 's') {
        const carry_range *range = kind == 'd' ? digits : kind == 'w' ? words : spaces;
        /* \s generates ASCII white space only and \S excludes all Unicode white space, so that a text matches under
           either meaning of \s. */
        const size_t space_count = negates != r->is_complement ? sizeof spaces / sizeof *spaces : 2;
        const size_t count = kind == 'd'   ? sizeof digits / sizeof *digits
                             : kind == 'w' ? sizeof words / sizeof *words
                                           : space_count;
        *is_class = true;
        return add_all(set, range, count, negates) ? CARRY_OK : no_memory(r);
    }
    const char *found = c < 0x80 && c != 0 ? strchr(letters, (int)c) : NULL;
    if (found != NULL) {
        return add_one(r, set, (unsigned char)meant[found - letters]);
    }
    if (c == 'b' && in_class) {
        return add_one(r, set, '\b');
    }
    if (c == 'x' || c == 'u') {
        uint32_t value;
        CARRY_TRY(read_code(r, c == 'x' ? 2 : 4, &value));
        return add_one(r, set, value);
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        return refuse_escape(r, start, c);
    }
    return add_one(r, set, c);
}

/* Reads one item of a class: a character, or a class such as \d. */
static carry_status read_item(carry_regex *r, carry_characters *set, bool *is_class) {
    const uint32_t c = carry_regex_character(r);
    *is_class = false;
    return c == '\\' ? carry_regex_escape(r, set, true, is_class) : add_one(r, set, c);
}

carry_status carry_regex_class(carry_regex *r, carry_characters *set) {
    const size_t start = r->at - 1;
    const bool negates = r->at < r->length && r->text[r->at] == '^';
    r->at += negates;
    r->is_complement = negates;
    for (bool is_first = true; r->at < r->length && (is_first || r->text[r->at] != ']'); is_first = false) {
        const size_t at = r->at;
        bool is_class;
        bool is_other_class;
        CARRY_TRY(read_item(r, set, &is_class));
        if (r->length - r->at < 2 || r->text[r->at] != '-' || r->text[r->at + 1] == ']') {
            continue;
        }
        r->at++;
        CARRY_TRY(read_item(r, set, &is_other_class));
        if (is_class || is_other_class) {
            return carry_regex_refuse(r, CARRY_EARGUMENT, at, "a class cannot be the end of a range");
        }
        carry_range *one = &set->range[set->count - 2];
        one->high = set->range[--set->count].high;
        if (one->low > one->high) {
            return carry_regex_refuse(r, CARRY_EARGUMENT, at, "a range whose start is after its end");
        }
    }
    if (r->at >= r->length) {
        return carry_regex_refuse(r, CARRY_EARGUMENT, start, "[ without ]");
    }
    r->at++;
    r->is_complement = false;
    return !negates || carry_characters_negate(set) ? CARRY_OK : no_memory(r);
}
