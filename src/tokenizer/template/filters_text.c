/* Filters on texts and numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/template/run.h"
#include "tokenizer/template/unicode.h"

#define FILTER(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_value *given)

static int64_t whole_of(jinja_run *run, jinja_value value, int64_t otherwise) {
    if (value.kind == JINJA_MISSING) {
        return otherwise;
    }
    if (!jinja_is_whole(value)) {
        jinja_fail(run, "expected an integer, got %s", jinja_kind_name(value));
    }
    return jinja_whole(value);
}

static const jinja_text *text_of(jinja_run *run, jinja_value value) {
    if (value.kind != JINJA_STRING) {
        jinja_fail(run, "expected a string, got %s", jinja_kind_name(value));
    }
    return value.as.text;
}

FILTER(upper) {
    (void)given;
    return jinja_text_case(run, jinja_soft(run, self), JINJA_UPPER);
}

FILTER(lower) {
    (void)given;
    return jinja_text_case(run, jinja_soft(run, self), JINJA_LOWER);
}

static jinja_value by_method(jinja_run *run, jinja_value self, const char *name, const jinja_value *given) {
    jinja_text text = {name, strlen(name), -1};
    return jinja_find_text_method(&text)->bound(run, jinja_soft(run, self), given);
}

FILTER(capitalize) {
    return by_method(run, self, "capitalize", given);
}

/* A word begins after blanks, hyphens and opening brackets. */
FILTER(title) {
    (void)given;
    jinja_value string = jinja_str(run, self);
    const jinja_text *text = string.as.text;
    size_t start = jinja_capture(run);
    bool starts = true;
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t code = jinja_code_at(text->at + i, &bytes);
        jinja_value one = jinja_sub(run, string, text->at + i, (size_t)bytes);
        jinja_print(run, jinja_text_case(run, one, starts ? JINJA_UPPER : JINJA_LOWER));
        starts = jinja_code_is_space(code) || (code < 0x80 && code != 0 && strchr("-({[<", (int)code) != NULL);
        i += (size_t)bytes;
    }
    return jinja_captured(run, start);
}

FILTER(trim) {
    return jinja_strip(run, jinja_soft(run, self), given[0], true, true);
}

FILTER(string) {
    (void)given;
    return jinja_soft(run, self);
}

FILTER(safe) {
    (void)given;
    jinja_value made = jinja_soft(run, self);
    made.marked = true;
    return made;
}

FILTER(escape) {
    (void)given;
    return jinja_escape(run, self);
}

FILTER(forceescape) {
    (void)given;
    return jinja_escape(run, jinja_str(run, self));
}

FILTER(replace) {
    return jinja_replace(run, jinja_str(run, self).as.text, jinja_str(run, given[0]).as.text,
                         jinja_str(run, given[1]).as.text,
                         given[2].kind == JINJA_NONE ? -1 : whole_of(run, given[2], -1));
}

FILTER(center) {
    jinja_value width[2] = {given[0].kind == JINJA_MISSING ? jinja_integer(80) : given[0], {0}};
    return by_method(run, self, "center", width);
}

FILTER(indent) {
    jinja_value by = given[0];
    if (by.kind != JINJA_STRING) {
        by = jinja_binary(run, TOKEN_MULTIPLY, jinja_string(&run->arena, " ", 1),
                          jinja_integer(whole_of(run, given[0], 4)));
    }
    bool first = jinja_truth(run, given[1]), blank = jinja_truth(run, given[2]);
    if (self.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, self);
    }
    (void)text_of(run, self);
    /* Jinja adds a line break before it splits, so an empty last line counts. */
    const jinja_list *lines = jinja_lines(
        run, jinja_concat(run, jinja_str(run, self), jinja_string(&run->arena, "\n", 1)).as.text, false, false);
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < lines->count; i++) {
        bool indents = i == 0 ? first : blank || lines->at[i].as.text->length > 0;
        jinja_write_string(run, i > 0 ? "\n" : "");
        jinja_print(run, indents ? by : jinja_undefined(NULL));
        jinja_print(run, lines->at[i]);
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = self.marked;
    return made;
}

FILTER(truncate) {
    int64_t length = whole_of(run, given[0], 255),
            leeway = given[3].kind == JINJA_NONE ? 5 : whole_of(run, given[3], 5);
    jinja_value end = given[2].kind != JINJA_MISSING ? given[2] : jinja_string(&run->arena, "...", 3);
    int64_t kept = length - jinja_length(run, end);
    (void)text_of(run, self);
    (void)text_of(run, end);
    if (kept < 0 || leeway < 0) {
        jinja_fail(run, "truncate: expected length >= %lld", (long long)jinja_length(run, end));
    }
    if (jinja_length(run, self) <= length + leeway) {
        return self;
    }
    jinja_value part = jinja_slice(run, self, jinja_none(), jinja_integer(kept), jinja_none());
    if (!jinja_truth(run, given[1])) {
        const char *space = memrchr(part.as.text->at, ' ', part.as.text->length);
        part = space != NULL ? jinja_sub(run, part, part.as.text->at, (size_t)(space - part.as.text->at)) : part;
    }
    return jinja_concat(run, part, end);
}

FILTER(wordcount) {
    (void)given;
    const jinja_text *text = jinja_soft(run, self).as.text;
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t code = jinja_code_at(text->at + i, &bytes);
        bool is_word = code == '_' || jinja_code_is_alnum(code);
        words += is_word && !inside;
        inside = is_word;
        i += (size_t)bytes;
    }
    return jinja_integer(words);
}

/* Removes tags and comments and reduces white space to single blanks. Entities stay, although Python would decode
   them. */
FILTER(striptags) {
    (void)given;
    const jinja_text *text = jinja_str(run, self).as.text;
    const char *at = text->at, *end = at + text->length;
    size_t start = jinja_capture(run);
    for (const char *open; (open = memchr(at, '<', (size_t)(end - at))) != NULL;) {
        bool is_comment = end - open >= 4 && memcmp(open, "<!--", 4) == 0;
        const char *close =
            is_comment ? memmem(open + 4, (size_t)(end - open - 4), "-->", 3) : memchr(open, '>', (size_t)(end - open));
        if (close == NULL) {
            break;
        }
        jinja_write(run, at, (size_t)(open - at));
        at = close + (is_comment ? 3 : 1);
    }
    jinja_write(run, at, (size_t)(end - at));
    jinja_value plain = jinja_captured(run, start);
    if (memchr(plain.as.text->at, '&', plain.as.text->length) != NULL) {
        jinja_fail(run, "striptags: HTML entities are not supported");
    }
    jinja_value none[2] = {{0}};
    const jinja_list *words = by_method(run, plain, "split", none).as.list;
    start = jinja_capture(run);
    for (size_t i = 0; i < words->count; i++) {
        jinja_write_string(run, i > 0 ? " " : "");
        jinja_print(run, words->at[i]);
    }
    return jinja_captured(run, start);
}

static void write_quoted(jinja_run *run, jinja_value value, bool for_query) {
    const jinja_text *text = jinja_soft(run, value).as.text;
    for (size_t i = 0; i < text->length; i++) {
        unsigned char byte = (unsigned char)text->at[i];
        bool plain = (byte >= '0' && byte <= '9') || ((byte | 32) >= 'a' && (byte | 32) <= 'z') ||
                     (byte != 0 && strchr(for_query ? "_.-~" : "_.-~/", byte) != NULL);
        char code[4] = "+";
        if (!plain && !(for_query && byte == ' ')) {
            (void)snprintf(code, sizeof code, "%%%02X", byte);
        }
        jinja_write(run, plain ? text->at + i : code, plain ? 1 : strlen(code));
    }
}

FILTER(urlencode) {
    (void)given;
    size_t start = jinja_capture(run);
    if (self.kind == JINJA_STRING || !jinja_is_iterable(self)) {
        write_quoted(run, self, false);
        return jinja_captured(run, start);
    }
    const jinja_list *items = jinja_items(run, self);
    for (size_t i = 0; i < items->count; i++) {
        const jinja_list *pair = self.kind == JINJA_DICT ? NULL : jinja_items(run, items->at[i]);
        if (pair != NULL && pair->count != 2) {
            jinja_fail(run, "urlencode: expected pairs");
        }
        jinja_write_string(run, i > 0 ? "&" : "");
        write_quoted(run, pair != NULL ? pair->at[0] : items->at[i], true);
        jinja_write_string(run, "=");
        write_quoted(run, pair != NULL ? pair->at[1] : self.as.dict->at[i].value, true);
    }
    return jinja_captured(run, start);
}

static jinja_value format(jinja_run *run, jinja_value self, const jinja_arguments *arguments) {
    if (arguments->count > 0 && arguments->keywords > 0) {
        jinja_fail(run, "format: cannot handle positional and keyword arguments at the same time");
    }
    jinja_list *list = jinja_list_new(&run->arena, arguments->count);
    for (size_t i = 0; i < arguments->count; i++) {
        jinja_list_add(&run->arena, list, arguments->at[i]);
    }
    jinja_value values = jinja_listed(JINJA_TUPLE, list);
    if (arguments->keywords > 0) {
        jinja_arguments named = {.keyword = arguments->keyword, .keywords = arguments->keywords};
        values = jinja_dict_of(run, jinja_make_dict(run, &named));
    }
    return jinja_format_percent(run, jinja_soft(run, self), values);
}

FILTER(to_int) {
    jinja_value otherwise = given[0].kind != JINJA_MISSING ? given[0] : jinja_integer(0);
    int64_t base = whole_of(run, given[1], 10), integer;
    double number;
    if (self.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, self);
    }
    if (jinja_is_whole(self)) {
        return jinja_integer(jinja_whole(self));
    }
    if (self.kind == JINJA_STRING && base >= 0 && base <= 36 && base != 1 &&
        jinja_parse_integer(run, self.as.text, (int)base, &integer)) {
        return jinja_integer(integer);
    }
    bool is_number =
        self.kind == JINJA_FLOAT || (self.kind == JINJA_STRING && jinja_parse_float(self.as.text, &number));
    number = self.kind == JINJA_FLOAT ? self.as.number : is_number ? number : 0;
    if (!is_number || isnan(number)) {
        return otherwise;
    }
    if (isinf(number)) { /* Python raises OverflowError for a float; for a string the filter returns its default */
        if (self.kind == JINJA_FLOAT) {
            jinja_fail(run, "cannot convert float infinity to integer");
        }
        return otherwise;
    }
    if (fabs(number) >= 0x1p63) {
        jinja_fail(run, "an integer needs more than 64 bits, which is not supported");
    }
    return jinja_integer((int64_t)number);
}

FILTER(to_float) {
    double number;
    if (self.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, self);
    }
    if (jinja_is_number(self)) {
        return jinja_float(jinja_number(self));
    }
    if (self.kind == JINJA_STRING && jinja_parse_float(self.as.text, &number)) {
        return jinja_float(number);
    }
    return given[0].kind != JINJA_MISSING ? given[0] : jinja_float(0);
}

FILTER(absolute) {
    (void)given;
    if (self.kind == JINJA_FLOAT) {
        return jinja_float(fabs(self.as.number));
    }
    if (!jinja_is_whole(self)) {
        jinja_fail(run, "bad operand type for abs(): '%s'", jinja_kind_name(self));
    }
    return jinja_whole(self) < 0 ? jinja_negate(run, self) : jinja_integer(jinja_whole(self));
}

FILTER(rounded) {
    int64_t precision = whole_of(run, given[0], 0);
    const bool ceils = given[1].kind == JINJA_STRING && jinja_text_is(given[1].as.text, "ceil");
    const bool floors = given[1].kind == JINJA_STRING && jinja_text_is(given[1].as.text, "floor");
    const bool common =
        given[1].kind == JINJA_MISSING || (given[1].kind == JINJA_STRING && jinja_text_is(given[1].as.text, "common"));
    if (self.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, self);
    }
    if (!jinja_is_number(self) || precision > 300 || precision < -18 || (!ceils && !floors && !common)) {
        jinja_fail(run, "round: expected a number, and a method common, ceil or floor");
    }
    if (!common) {
        double unit = pow(10, (double)precision), value = jinja_number(self) * unit;
        return jinja_float((ceils ? ceil(value) : floor(value)) / unit);
    }
    if (self.kind != JINJA_FLOAT && precision >= 0) {
        return jinja_integer(jinja_whole(self));
    }
    if (precision < 0) {
        double unit = pow(10, -(double)precision), value = nearbyint(jinja_number(self) / unit) * unit;
        return self.kind == JINJA_FLOAT ? jinja_float(value) : jinja_integer((int64_t)value);
    }
    char digits[700];
    if (!isfinite(self.as.number)) {
        return self;
    }
    (void)snprintf(digits, sizeof digits, "%.*f", (int)precision, self.as.number);
    return jinja_float(strtod(digits, NULL));
}

FILTER(filesizeformat) {
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    bool is_binary = jinja_truth(run, given[0]);
    double bytes = jinja_is_number(self) ? jinja_number(self) : 0, base = is_binary ? 1024 : 1000;
    if (!jinja_is_number(self) && !(self.kind == JINJA_STRING && jinja_parse_float(self.as.text, &bytes))) {
        jinja_fail(run, "filesizeformat: expected a number");
    }
    char text[64];
    if (bytes == 1) {
        return jinja_string(&run->arena, "1 Byte", 6);
    }
    int at = 0;
    if (bytes < base) {
        (void)snprintf(text, sizeof text, "%lld Bytes", (long long)bytes);
    } else {
        double unit = base * base;
        for (; bytes >= unit && at < 7; at++) {
            unit *= base;
        }
        (void)snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, is_binary ? binary[at] : decimal[at]);
    }
    return jinja_string(&run->arena, text, strlen(text));
}

FILTER(tojson) {
    jinja_json_options options = {.ascii = jinja_truth(run, given[0]), .sorted = jinja_truth(run, given[3])};
    options.indents = given[1].kind > JINJA_NONE;
    options.indent = given[1];
    options.item_separator = jinja_text_new(&run->arena, options.indents ? "," : ", ", options.indents ? 1 : 2);
    options.key_separator = jinja_text_new(&run->arena, ": ", 2);
    if (options.indents && !jinja_is_whole(given[1]) && given[1].kind != JINJA_STRING) {
        jinja_fail(run, "tojson: indent: expected an integer or a string");
    }
    if (given[2].kind > JINJA_NONE) {
        const jinja_list *pair = jinja_items(run, given[2]);
        if (pair->count != 2 || pair->at[0].kind != JINJA_STRING || pair->at[1].kind != JINJA_STRING) {
            jinja_fail(run, "tojson: separators: expected two strings");
        }
        options.item_separator = pair->at[0].as.text;
        options.key_separator = pair->at[1].as.text;
    }
    size_t start = jinja_capture(run);
    jinja_write_json(run, self, &options);
    return jinja_captured(run, start);
}

const jinja_function jinja_text_filters[] = {
    {"upper", "", 0, upper, NULL},
    {"lower", "", 0, lower, NULL},
    {"capitalize", "", 0, capitalize, NULL},
    {"title", "", 0, title, NULL},
    {"trim", "chars", 0, trim, NULL},
    {"string", "", 0, string, NULL},
    {"safe", "", 0, safe, NULL},
    {"escape", "", 0, escape, NULL},
    {"e", "", 0, escape, NULL},
    {"forceescape", "", 0, forceescape, NULL},
    {"replace", "old new count", 2, replace, NULL},
    {"center", "width", 0, center, NULL},
    {"indent", "width first blank", 0, indent, NULL},
    {"truncate", "length killwords end leeway", 0, truncate, NULL},
    {"wordcount", "", 0, wordcount, NULL},
    {"striptags", "", 0, striptags, NULL},
    {"urlencode", "", 0, urlencode, NULL},
    {"format", NULL, 0, NULL, format},
    {"int", "default base", 0, to_int, NULL},
    {"float", "default", 0, to_float, NULL},
    {"abs", "", 0, absolute, NULL},
    {"round", "precision method", 0, rounded, NULL},
    {"filesizeformat", "binary", 0, filesizeformat, NULL},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, tojson, NULL},
};
const size_t jinja_text_filter_count = sizeof jinja_text_filters / sizeof jinja_text_filters[0];
