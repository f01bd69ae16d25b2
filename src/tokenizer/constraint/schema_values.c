/* Strings, numbers, arrays and constant values of schemas. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/constraint/characters.h"
#include "tokenizer/constraint/regex.h"
#include "tokenizer/constraint/schema_inside.h"

#define DATE                                                                                                       \
    "[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|" \
    "1\\d|2[0-8]))"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

typedef struct format {
    const char *name, *regex;
} format;

static const format formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"ipv4", OCTET "(?:\\." OCTET "){3}"},
    {"hostname", LABEL "(?:\\." LABEL "){0,3}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@(?:" LABEL "\\.){1,3}[A-Za-z]{2,16}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?@!$&'()*+,;=-]+"},
};

uint32_t carry_schema_repeat(carry_schema *s, uint32_t rule, int64_t least, int64_t most, uint32_t next) {
    uint32_t entry = next;
    if (most < 0) {
        entry = carry_grammar_loop(s->g, next);
        carry_grammar_close_loop(s->g, entry, carry_grammar_call(s->g, rule, entry));
    }
    for (int64_t i = least; i < most && s->g->status == CARRY_OK; i++) {
        entry = carry_grammar_split(s->g, carry_grammar_call(s->g, rule, entry), next);
    }
    for (int64_t i = 0; i < least && s->g->status == CARRY_OK; i++) {
        entry = carry_grammar_call(s->g, rule, entry);
    }
    return entry;
}

static uint32_t quote(carry_schema *s, const carry_schema_text *how, uint32_t next) {
    return how->in_json ? carry_grammar_literal(s->g, "\"", 1, next) : next;
}

static carry_status string_of_regex(carry_schema *s, const char *regex, size_t length, const carry_schema_text *how,
                                    bool is_found, uint32_t next, uint32_t *entry) {
    const carry_regex_target target = {.in_json = how->in_json, .is_found = is_found, .other = how->character};
    CARRY_TRY(carry_regex_build(s->ctx, s->g, regex, length, is_found ? "pattern" : "format", &target,
                                quote(s, how, next), entry));
    *entry = quote(s, how, *entry);
    return CARRY_OK;
}

static carry_status formatted(carry_schema *s, const carry_json *name, const carry_schema_text *how, uint32_t next,
                              uint32_t *entry) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (carry_json_is_text(name, formats[i].name)) {
            return string_of_regex(s, formats[i].regex, strlen(formats[i].regex), how, false, next, entry);
        }
    }
    return carry_schema_refuse(s, CARRY_EUNSUPPORTED, name,
                               "expected date, time, date-time, uuid, ipv4, hostname, email or uri");
}

carry_status carry_schema_string(carry_schema *s, const carry_json *schema, uint32_t next, uint32_t *entry) {
    const carry_schema_text how = {.in_json = true, .any = s->rules.string, .character = s->rules.character};
    return carry_schema_text_string(s, schema, &how, next, entry);
}

carry_status carry_schema_text_string(carry_schema *s, const carry_json *schema, const carry_schema_text *how,
                                      uint32_t next, uint32_t *entry) {
    const carry_json *pattern = carry_json_find(schema, "pattern");
    const carry_json *format_name = carry_json_find(schema, "format");
    const carry_json *length =
        carry_json_find(schema, carry_json_find(schema, "minLength") != NULL ? "minLength" : "maxLength");
    int64_t least;
    int64_t most;
    CARRY_TRY(carry_schema_count(s, schema, "minLength", 0, &least));
    CARRY_TRY(carry_schema_count(s, schema, "maxLength", -1, &most));
    if ((pattern != NULL) + (format_name != NULL) + (length != NULL) > 1) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, pattern != NULL ? pattern : format_name,
                                   "pattern, format and lengths are supported alone, not together");
    }
    if (pattern != NULL && pattern->kind != CARRY_JSON_STRING) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, pattern, "expected a regular expression");
    }
    if (pattern != NULL) {
        return string_of_regex(s, pattern->as.text.bytes, pattern->as.text.length, how, true, next, entry);
    }
    if (format_name != NULL) {
        return formatted(s, format_name, how, next, entry);
    }
    if (length == NULL) {
        *entry = carry_grammar_call(s->g, how->any, next);
        return CARRY_OK;
    }
    if (most >= 0 && least > most) {
        *entry = carry_grammar_never(s->g);
        return CARRY_OK;
    }
    *entry = quote(s, how, carry_schema_repeat(s, how->character, least, most, quote(s, how, next)));
    return CARRY_OK;
}

typedef struct limits {
    bool has_low, has_high;
    int64_t low, high;
} limits;

static carry_status read_limit(const carry_schema *s, const carry_json *node, bool is_integer, bool is_low,
                               int64_t *value) {
    const double exact = carry_json_number(node);
    if (node->kind != CARRY_JSON_NUMBER || !(fabs(exact) < 9.0e18)) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, node, "expected a number below 9e18 in magnitude");
    }
    if (!is_integer && exact != floor(exact)) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, node, "limits of numbers must be whole");
    }
    *value = node->whole ? node->as.number.integer : (int64_t)(is_low ? ceil(exact) : floor(exact));
    return CARRY_OK;
}

/* Reads an exclusive limit. For integers it becomes an inclusive limit that is one closer. */
static carry_status read_exclusive(const carry_schema *s, const carry_json *schema, bool is_integer, limits *l) {
    const carry_json *low = carry_json_find(schema, "exclusiveMinimum");
    const carry_json *high = carry_json_find(schema, "exclusiveMaximum");
    int64_t value = 0;
    if (!is_integer && (low != NULL || high != NULL)) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, low != NULL ? low : high, "supported for integers only");
    }
    if (low != NULL) {
        CARRY_TRY(read_limit(s, low, true, false, &value)); /* above 2.5: from 3 */
        l->low = !l->has_low || value + 1 > l->low ? value + 1 : l->low;
        l->has_low = true;
    }
    if (high != NULL) {
        CARRY_TRY(read_limit(s, high, true, true, &value));
        l->high = !l->has_high || value - 1 < l->high ? value - 1 : l->high;
        l->has_high = true;
    }
    return CARRY_OK;
}

/* Decimals between two whole limits. Any digits may follow the point, except after the last whole number. */
static uint32_t decimals(carry_grammar *g, const limits *l, uint32_t next) {
    uint32_t digits = next;
    for (int i = 0; i < 16; i++) {
        digits = carry_grammar_bytes(g, '0', '9', i > 0 ? carry_grammar_split(g, digits, next) : next);
    }
    const uint32_t fraction = carry_grammar_split(g, carry_grammar_literal(g, ".", 1, digits), next);
    uint32_t entry = carry_schema_integers(g, l->has_low, l->low, l->has_high, l->high, next);
    if (!l->has_high || l->high > 0) {
        entry = carry_grammar_split(
            g,
            carry_schema_integers(g, true, l->has_low && l->low > 0 ? l->low : 0, l->has_high, l->high - 1, fraction),
            entry);
    }
    if (!l->has_low || l->low < 0) {
        const limits magnitude = {.has_high = l->has_low,
                                  .low = l->has_high && l->high < 0 ? -l->high : 0,
                                  .high = l->has_low ? -(l->low + 1) : 0};
        entry = carry_grammar_split(
            g,
            carry_grammar_literal(
                g, "-", 1, carry_schema_integers(g, true, magnitude.low, magnitude.has_high, magnitude.high, fraction)),
            entry);
    }
    return entry;
}

carry_status carry_schema_number(carry_schema *s, const carry_json *schema, bool is_integer, uint32_t next,
                                 uint32_t *entry) {
    const carry_json *low = carry_json_find(schema, "minimum");
    const carry_json *high = carry_json_find(schema, "maximum");
    limits l = {.has_low = low != NULL, .has_high = high != NULL};
    if (l.has_low) {
        CARRY_TRY(read_limit(s, low, is_integer, true, &l.low));
    }
    if (l.has_high) {
        CARRY_TRY(read_limit(s, high, is_integer, false, &l.high));
    }
    CARRY_TRY(read_exclusive(s, schema, is_integer, &l));
    if (!l.has_low && !l.has_high) {
        *entry = carry_grammar_call(s->g, is_integer ? s->rules.integer : s->rules.number, next);
    } else if (l.has_low && l.has_high && l.low > l.high) {
        *entry = carry_grammar_never(s->g);
    } else {
        *entry = is_integer ? carry_schema_integers(s->g, l.has_low, l.low, l.has_high, l.high, next)
                            : decimals(s->g, &l, next);
    }
    return CARRY_OK;
}

uint32_t carry_schema_quoted(carry_schema *s, const char *text, size_t length, uint32_t next) {
    next = carry_grammar_literal(s->g, "\"", 1, next);
    for (size_t i = length; i-- > 0;) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == '"' || c == '\\') {
            const carry_range one = {c, c};
            next = carry_characters_json(s->g, &one, 1, next);
        } else {
            next = carry_grammar_bytes(s->g, c, c, next);
        }
    }
    return carry_grammar_literal(s->g, "\"", 1, next);
}

static uint32_t literal_list(carry_schema *s, const carry_json *value, uint32_t next) {
    const bool is_object = value->kind == CARRY_JSON_OBJECT;
    const int64_t count = carry_json_count(value);
    uint32_t entry = carry_grammar_literal(s->g, is_object ? "}" : "]", 1, next);
    const carry_json **items = malloc(((size_t)count + 1) * sizeof(const carry_json *)); /* lists lead forward only */
    if (items == NULL) {
        s->g->status = s->g->status == CARRY_OK ? CARRY_EMEMORY : s->g->status;
        return entry;
    }
    items[0] = carry_json_first(value);
    for (int64_t i = 1; i < count; i++) {
        items[i] = items[i - 1]->next;
    }
    entry = carry_grammar_call(s->g, s->rules.space, entry);
    for (int64_t i = count; i > 0 && s->g->status == CARRY_OK; i--) {
        const carry_json *item = items[i - 1];
        entry = carry_schema_literal(s, item, entry);
        if (is_object) {
            entry = carry_grammar_literal(s->g, ":", 1, carry_grammar_call(s->g, s->rules.space, entry));
            entry = carry_schema_quoted(s, item->key, item->key_length, entry);
        }
        entry = carry_grammar_call(s->g, s->rules.space, entry);
        entry = i > 1 ? carry_grammar_call(s->g, s->rules.space, carry_grammar_literal(s->g, ",", 1, entry)) : entry;
    }
    free(items);
    return carry_grammar_literal(s->g, is_object ? "{" : "[", 1, entry);
}

uint32_t carry_schema_literal(carry_schema *s, const carry_json *value, uint32_t next) {
    char text[40];
    switch (value->kind) {
    case CARRY_JSON_NULL:
        return carry_grammar_literal(s->g, "null", 4, next);
    case CARRY_JSON_BOOL:
        return carry_grammar_literal(s->g, value->truth ? "true" : "false", value->truth ? 4 : 5, next);
    case CARRY_JSON_NUMBER:
        if (value->whole) {
            (void)snprintf(text, sizeof text, "%" PRId64, value->as.number.integer);
        } else {
            (void)snprintf(text, sizeof text, "%.17g", value->as.number.value);
        }
        return isfinite(value->as.number.value) ? carry_grammar_literal(s->g, text, strlen(text), next)
                                                : carry_grammar_never(s->g);
    case CARRY_JSON_STRING:
        return carry_schema_quoted(s, value->as.text.bytes, value->as.text.length, next);
    case CARRY_JSON_ARRAY:
    case CARRY_JSON_OBJECT:
        break;
    }
    return literal_list(s, value, next);
}
