/* One walk over the expression, which copies or replaces each construct. */
#include "tokenizer/pattern_regex.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/utf8.h"

/* The longest translation of one construct such as \p{L}. The output has room for this much per byte of the
   expression. */
#define GROWTH (sizeof CARRY_REGEX_LETTERS + 4)

typedef struct walk {
    const char *at, *end;
    char *to;
    const char *refused; /* reason for refusing it, or NULL */
} walk;

/* Letters of Unicode 15 and 16 by category, as in CARRY_REGEX_LETTERS; for patterns that distinguish upper case. */
static const char *const young_letters[][2] = {
    {"Lu", "\\x{1C89}\\x{A7CB}-\\x{A7CC}\\x{A7DA}\\x{A7DC}\\x{10D50}-\\x{10D65}"},
    {"Ll", "\\x{1C8A}\\x{A7CD}\\x{A7DB}\\x{10D70}-\\x{10D85}\\x{1DF25}-\\x{1DF2A}"},
    {"Lm", "\\x{10D4E}\\x{10D6F}\\x{16D40}-\\x{16D42}\\x{16D6B}-\\x{16D6C}\\x{1E030}-\\x{1E06D}\\x{1E4EB}"},
    {"Lo", "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D4D}\\x{10D4F}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
           "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
           "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}"
           "\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D43}-\\x{16D6A}\\x{18CFF}\\x{1B132}\\x{1B155}"
           "\\x{1E4D0}-\\x{1E4EA}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
};

static void put(walk *w, const char *text, size_t length) {
    memcpy(w->to, text, length);
    w->to += length;
}

static void put_text(walk *w, const char *text) {
    put(w, text, strlen(text));
}

static bool next_is(const walk *w, const char *text) {
    size_t length = strlen(text);
    return (size_t)(w->end - w->at) >= length && memcmp(w->at, text, length) == 0;
}

static void put_class(walk *w, bool inside, bool negated, const char *members) {
    if (inside && negated) {
        w->refused = "a negated class inside brackets";
        return;
    }
    put_text(w, inside ? "" : negated ? "[^" : "[");
    put_text(w, members);
    put_text(w, inside ? "" : "]");
}

static const char *young_of(const char *category) {
    for (size_t i = 0; i < sizeof young_letters / sizeof young_letters[0]; i++) {
        if (strcmp(young_letters[i][0], category) == 0) {
            return young_letters[i][1];
        }
    }
    return NULL;
}

/* \p{..} and \P{..}: only general categories, which have the same names in Oniguruma and PCRE2. */
static void take_property(walk *w, bool inside) {
    static const char *const categories[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No",
                                             "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc",
                                             "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co"};
    bool negated = w->at[1] == 'P';
    const char *close = memchr(w->at, '}', (size_t)(w->end - w->at));
    if (w->end - w->at < 5 || w->at[2] != '{' || close == NULL) {
        w->refused = "a property without its name in braces";
        return;
    }
    const char *name = w->at + 3;
    size_t length = (size_t)(close - name);
    const char *whole = w->at;
    w->at = close + 1;
    if (length == 1 && (name[0] == 'L' || name[0] == 'N' || name[0] == 'M')) {
        put_class(w, inside, negated,
                  name[0] == 'L'   ? CARRY_REGEX_LETTERS
                  : name[0] == 'N' ? CARRY_REGEX_DIGITS
                                   : CARRY_REGEX_MARKS);
        return;
    }
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
        if (strlen(categories[i]) == length && memcmp(categories[i], name, length) == 0) {
            const char *young = young_of(categories[i]);
            if (young == NULL) {
                put(w, whole, (size_t)(close + 1 - whole));
            } else {
                char members[GROWTH];
                (void)snprintf(members, sizeof members, "\\p{%s}%s", categories[i], young);
                put_class(w, inside, negated, members);
            }
            return;
        }
    }
    w->refused = "a property that is not a general category of Unicode";
}

static void take_escape(walk *w, bool inside) {
    if (w->end - w->at < 2) {
        w->refused = "a backslash at its end";
        return;
    }
    char what = w->at[1];
    if (what == 'p' || what == 'P') {
        take_property(w, inside);
        return;
    }
    if (what == 's' || what == 'S') {
        put_class(w, inside, what == 'S', CARRY_REGEX_SPACE);
    } else if (what == 'd') {
        put_text(w, "\\p{Nd}");
    } else if (strchr("rntf", what) != NULL || (what > 0x20 && what < 0x7f && strchr("_0123456789", what) == NULL &&
                                                !((what >= 'a' && what <= 'z') || (what >= 'A' && what <= 'Z')))) {
        put(w, w->at, 2);
    } else {
        w->refused = "an escape other than \\p, \\P, \\s, \\S, \\d, \\r, \\n, \\t, \\f and those of signs";
    }
    w->at += 2;
}

static void take_character(walk *w) {
    int length = carry_utf8_at((const unsigned char *)w->at, (size_t)(w->end - w->at));
    if (length == 0 || *w->at == '\0') {
        w->refused = "bytes that are not UTF-8, or a 0";
        return;
    }
    put(w, w->at, (size_t)length);
    w->at += length;
}

static void take_brackets(walk *w) {
    put(w, w->at++, 1);
    if (next_is(w, "^")) {
        put(w, w->at++, 1);
    }
    if (next_is(w, "]")) {
        w->refused = "brackets with nothing in them";
    }
    while (w->refused == NULL && w->at < w->end && *w->at != ']') {
        if (*w->at == '[' || next_is(w, "&&")) {
            w->refused = "brackets inside brackets";
        } else if (*w->at == '\\') {
            take_escape(w, true);
        } else {
            take_character(w);
        }
    }
    if (w->refused == NULL && w->at == w->end) {
        w->refused = "brackets that are not closed";
    }
    if (w->refused == NULL) {
        put(w, w->at++, 1);
    }
}

/* {m}, {m,} or {m,n}. A following + or ? has different meanings in Oniguruma and PCRE2, so it is refused. */
static void take_braces(walk *w) {
    const char *at = w->at + 1;
    const char *digits = at;
    while (at < w->end && ((*at >= '0' && *at <= '9') || (*at == ',' && at > digits))) {
        at++;
    }
    bool has_end = at > digits && at < w->end && *at == '}' && at - digits < 8;
    if (!has_end || (at + 1 < w->end && (at[1] == '+' || at[1] == '?'))) {
        w->refused = "braces that are not a plain count";
        return;
    }
    put(w, w->at, (size_t)(at + 1 - w->at));
    w->at = at + 1;
}

static void take_group(walk *w) {
    static const char *const kinds[] = {"(?i:", "(?:", "(?!", "(?=", "(?>"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (next_is(w, kinds[i])) {
            put_text(w, kinds[i]);
            w->at += strlen(kinds[i]);
            return;
        }
    }
    if (next_is(w, "(?") || next_is(w, "(*")) {
        w->refused = "a group other than (, (?:, (?i:, (?=, (?! and (?>";
        return;
    }
    put_text(w, "(?:"); /* captures are not used */
    w->at++;
}

/* A repeated group may take time exponential in the length of the text, so it is refused: no published pattern has
   one. */
static void take_group_end(walk *w) {
    put(w, w->at++, 1);
    if (w->at < w->end && (*w->at == '*' || *w->at == '+' || *w->at == '{')) {
        w->refused = "a group that is repeated";
    }
}

static void take_one(walk *w) {
    switch (*w->at) {
    case '\\':
        take_escape(w, false);
        break;
    case '[':
        take_brackets(w);
        break;
    case '{':
        take_braces(w);
        break;
    case ')':
        take_group_end(w);
        break;
    case '(':
        take_group(w);
        break;
    case '.':
        put_text(w, "[^\\n]");
        w->at++;
        break;
    case '^':
    case '$':
        w->refused = "an anchor";
        break;
    default:
        take_character(w);
    }
}

carry_status carry_regex_translate(carry_ctx *ctx, char **translated, const char *regex, size_t length,
                                   const char *name) {
    *translated = NULL;
    if (length == 0 || length > CARRY_REGEX_BYTES) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: a Split by a regular expression of %zu bytes: 1 to %d are read",
                          name, length, CARRY_REGEX_BYTES);
    }
    char *made = malloc(length * GROWTH);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the pattern of %s", name);
    }
    walk w = {.at = regex, .end = regex + length, .to = made};
    while (w.at < w.end && w.refused == NULL) {
        take_one(&w);
    }
    if (w.refused != NULL) {
        free(made);
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "%s: the regular expression of a Split has %s, at byte %zu: not read", name, w.refused,
                          (size_t)(w.at - regex));
    }
    *w.to = '\0';
    *translated = made;
    return CARRY_OK;
}
