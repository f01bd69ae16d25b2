/* Parses regular expressions. */
#include "tokenizer/constraint/regex_parse.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"

void carry_regex_free(carry_regex *r) {
    free(r->part);
    carry_characters_free(&r->sets);
}

static carry_status no_memory(carry_regex *r) {
    return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: %s", r->what);
}

static carry_status new_part(carry_regex *r, carry_regex_kind kind, int32_t *made) {
    *made = 0;
    if (r->count == r->room) {
        const int32_t room = r->room > 0 ? 2 * r->room : 64;
        carry_regex_part *grown = realloc(r->part, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return no_memory(r);
        }
        r->part = grown;
        r->room = room;
    }
    r->part[r->count] = (carry_regex_part){.kind = kind, .inside = -1, .before = -1, .at = (uint32_t)r->at};
    *made = r->count++;
    return CARRY_OK;
}

static carry_status keep_set(carry_regex *r, carry_characters *set, int32_t *made) {
    CARRY_TRY(new_part(r, CARRY_REGEX_SET, made));
    carry_characters_sort(set);
    r->part[*made].first = r->sets.count;
    r->part[*made].count = set->count;
    for (size_t i = 0; i < set->count; i++) {
        if (!carry_characters_add(&r->sets, set->range[i].low, set->range[i].high)) {
            return no_memory(r);
        }
    }
    return CARRY_OK;
}

static carry_status read_set(carry_regex *r, int32_t *made) {
    carry_characters set = {0};
    const uint32_t c = carry_regex_character(r);
    bool is_class;
    bool is_whole = true;
    carry_status status = CARRY_OK;
    if (c == '.') {
        carry_regex_dot(&set, &is_whole);
    } else if (c == '[') {
        status = carry_regex_class(r, &set);
    } else if (c == '\\') {
        status = carry_regex_escape(r, &set, false, &is_class);
    } else {
        is_whole = carry_characters_add(&set, c, c);
    }
    status = status == CARRY_OK && !is_whole ? no_memory(r) : status;
    status = status == CARRY_OK ? keep_set(r, &set, made) : status;
    carry_characters_free(&set);
    return status;
}

static bool starts_with(const carry_regex *r, const char *text) {
    const size_t length = strlen(text);
    return r->length - r->at >= length && memcmp(r->text + r->at, text, length) == 0;
}

/* After "(": skips the prefix that gives the kind of the group. */
static carry_status open_group(carry_regex *r, size_t start) {
    if (!starts_with(r, "?")) {
        return CARRY_OK;
    }
    if (starts_with(r, "?:")) {
        r->at += 2;
        return CARRY_OK;
    }
    if (starts_with(r, "?=") || starts_with(r, "?!") || starts_with(r, "?<=") || starts_with(r, "?<!")) {
        return carry_regex_refuse(r, CARRY_EUNSUPPORTED, start, "looking ahead or behind is not supported");
    }
    const size_t name = starts_with(r, "?P<") ? 3 : starts_with(r, "?<") ? 2 : 0;
    const char *end = name > 0 ? memchr(r->text + r->at, '>', r->length - r->at) : NULL;
    if (end == NULL) {
        return carry_regex_refuse(r, CARRY_EUNSUPPORTED, start,
                                  "a group of this kind is not supported: expected (...), (?:...) or (?<name>...)");
    }
    r->at = (size_t)(end - r->text) + 1;
    return CARRY_OK;
}

static carry_status read_choice(carry_regex *r, int32_t *made);

static carry_status read_group(carry_regex *r, int32_t *made) {
    const size_t start = r->at++;
    CARRY_TRY(open_group(r, start));
    if (++r->depth > CARRY_REGEX_DEPTH) {
        return carry_fail(r->ctx, CARRY_ESIZE, "%s: groups are nested deeper than %d", r->what, CARRY_REGEX_DEPTH);
    }
    CARRY_TRY(read_choice(r, made));
    r->depth--;
    if (r->at >= r->length) {
        return carry_regex_refuse(r, CARRY_EARGUMENT, start, "( without )");
    }
    r->at++;
    return CARRY_OK;
}

static bool read_number(carry_regex *r, int32_t *value) {
    const size_t start = r->at;
    int64_t number = 0;
    while (r->at < r->length && r->text[r->at] >= '0' && r->text[r->at] <= '9') {
        number = number > CARRY_REGEX_COUNT ? number : 10 * number + (r->text[r->at] - '0');
        r->at++;
    }
    *value = (int32_t)number;
    return r->at > start;
}

/* Reads {m}, {m,}, {,n} or {m,n}. Returns false for anything else, which is then literal text. */
static bool read_counts(carry_regex *r, int32_t *least, int32_t *most) {
    const size_t start = r->at++;
    *least = 0;
    *most = -1;
    const bool has_least = read_number(r, least);
    bool has_most = false;
    if (r->at < r->length && r->text[r->at] == ',') {
        r->at++;
        has_most = read_number(r, most);
        *most = has_most ? *most : -1;
    } else {
        *most = *least;
    }
    if ((!has_least && !has_most) || r->at >= r->length || r->text[r->at] != '}') {
        r->at = start;
        return false;
    }
    r->at++;
    return true;
}

static bool read_quantifier(carry_regex *r, int32_t *least, int32_t *most) {
    const char c = r->at < r->length ? r->text[r->at] : '\0';
    if (c == '{') {
        return read_counts(r, least, most);
    }
    *least = c == '+';
    *most = c == '?' ? 1 : -1;
    const bool is_one = c == '*' || c == '+' || c == '?';
    r->at += is_one;
    return is_one;
}

/* Applies a repetition to the part that was just read. */
static carry_status repeat(carry_regex *r, int32_t *made) {
    int32_t least;
    int32_t most;
    int32_t other = 0;
    const size_t start = r->at;
    if (!read_quantifier(r, &least, &most)) {
        return CARRY_OK;
    }
    const carry_regex_kind kind = r->part[*made].kind;
    if (kind == CARRY_REGEX_START || kind == CARRY_REGEX_STOP) {
        return carry_regex_refuse(r, CARRY_EARGUMENT, start, "^ and $ cannot be repeated");
    }
    if (least > CARRY_REGEX_COUNT || most > CARRY_REGEX_COUNT || (most >= 0 && most < least)) {
        return carry_regex_refuse(r, CARRY_EARGUMENT, start,
                                  "{m,n} needs m up to n, and n up to 100000"); /* CARRY_REGEX_COUNT */
    }
    r->at += r->at < r->length && r->text[r->at] == '?'; /* a lazy repetition matches the same texts */
    if (r->at < r->length && (r->text[r->at] == '+' || r->text[r->at] == '*')) {
        return carry_regex_refuse(r, CARRY_EUNSUPPORTED, r->at, "a repetition of a repetition needs a group");
    }
    CARRY_TRY(new_part(r, CARRY_REGEX_REPEAT, &other));
    r->part[other].inside = *made;
    r->part[other].least = least;
    r->part[other].most = most;
    *made = other;
    return CARRY_OK;
}

static carry_status read_part(carry_regex *r, int32_t *made) {
    const char c = r->text[r->at];
    const bool is_anchor_escape = starts_with(r, "\\A") || starts_with(r, "\\Z") || starts_with(r, "\\z");
    if (c == '(') {
        return read_group(r, made);
    }
    if (c == '*' || c == '+' || c == '?') {
        return carry_regex_refuse(r, CARRY_EARGUMENT, r->at, "nothing to repeat");
    }
    if (c == '^' || c == '$' || is_anchor_escape) {
        CARRY_TRY(new_part(r, c == '^' || starts_with(r, "\\A") ? CARRY_REGEX_START : CARRY_REGEX_STOP, made));
        r->at += is_anchor_escape ? 2 : 1;
        return CARRY_OK;
    }
    return read_set(r, made);
}

static carry_status read_sequence(carry_regex *r, int32_t *made) {
    CARRY_TRY(new_part(r, CARRY_REGEX_SEQUENCE, made));
    while (r->at < r->length && r->text[r->at] != '|' && r->text[r->at] != ')') {
        int32_t part = 0;
        CARRY_TRY(read_part(r, &part));
        CARRY_TRY(repeat(r, &part));
        r->part[part].before = r->part[*made].inside;
        r->part[*made].inside = part;
    }
    return CARRY_OK;
}

static carry_status read_choice(carry_regex *r, int32_t *made) {
    CARRY_TRY(new_part(r, CARRY_REGEX_CHOICE, made));
    for (bool is_first = true; is_first || (r->at < r->length && r->text[r->at] == '|'); is_first = false) {
        int32_t part = 0;
        r->at += !is_first;
        CARRY_TRY(read_sequence(r, &part));
        r->part[part].before = r->part[*made].inside;
        r->part[*made].inside = part;
    }
    return CARRY_OK;
}

static bool is_utf8(const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        const int bytes = carry_json_utf8_length(text + i, text + length);
        if (bytes == 0) {
            return false;
        }
        i += (size_t)bytes;
    }
    return true;
}

carry_status carry_regex_parse(carry_regex *r, int32_t *root) {
    if (r->length > CARRY_REGEX_BYTES) {
        return carry_fail(r->ctx, CARRY_ESIZE, "%s has %zu bytes: at most %zu", r->what, r->length, CARRY_REGEX_BYTES);
    }
    if (!is_utf8(r->text, r->length)) {
        return carry_fail(r->ctx, CARRY_EARGUMENT, "%s is not UTF-8", r->what);
    }
    CARRY_TRY(read_choice(r, root));
    return r->at == r->length ? CARRY_OK : carry_regex_refuse(r, CARRY_EARGUMENT, r->at, ") without (");
}
