/* Formatting: 'text %s' % values, and 'text {}'.format(values). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/template/run.h"
#include "tokenizer/template/unicode.h"

#define WIDTH_MOST 100000

typedef struct spec {
    uint32_t fill;
    char align; /* '<' '>' '^' '=' or 0 */
    char sign;  /* '+' '-' ' ' */
    bool alternative, zero;
    int64_t width, precision; /* precision -1: none */
    char grouping;            /* ',' '_' or 0 */
    char type;                /* 0: none */
} spec;

static int64_t read_count(jinja_run *run, const char **at, const char *end) {
    int64_t count = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        count = 10 * count + (**at - '0');
        if (count > WIDTH_MOST) {
            jinja_fail(run, "a width or precision of a format is larger than %d", WIDTH_MOST);
        }
    }
    return count;
}

static void write_padding(jinja_run *run, uint32_t fill, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        jinja_write_code(run, fill);
    }
}

/* Pads the text written since `start` to the width. Its first `sign` bytes are a sign. */
static void pad(jinja_run *run, size_t start, const spec *how, char default_align, size_t sign) {
    jinja_value made = jinja_captured(run, start);
    int64_t missing = how->width - jinja_points(made.as.text);
    char align = how->align != 0 ? how->align : default_align;
    missing = missing > 0 ? missing : 0;
    int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    write_padding(run, how->fill, left);
    if (align == '=') {
        jinja_write(run, made.as.text->at, sign);
        write_padding(run, how->fill, missing);
        jinja_write(run, made.as.text->at + sign, made.as.text->length - sign);
        return;
    }
    jinja_print(run, made);
    write_padding(run, how->fill, missing - left);
}

/* Writes digits with a separator between groups of `every` digits before the point. */
static void write_grouped(jinja_run *run, const char *digits, char separator, int every) {
    size_t whole = strspn(digits, "0123456789abcdefABCDEF");
    whole = every == 3 ? strspn(digits, "0123456789") : whole;
    for (size_t i = 0; i < whole; i++) {
        if (separator != 0 && i > 0 && (whole - i) % (size_t)every == 0) {
            jinja_write(run, &separator, 1);
        }
        jinja_write(run, digits + i, 1);
    }
    jinja_write_string(run, digits + whole);
}

static size_t write_sign(jinja_run *run, const spec *how, bool is_negative) {
    char sign = is_negative ? '-' : how->sign == '-' ? 0 : how->sign;
    if (sign != 0) {
        jinja_write(run, &sign, 1);
    }
    return sign != 0;
}

static void format_float(jinja_run *run, double number, const spec *how) {
    char digits[512];
    size_t start = jinja_capture(run);
    size_t sign = write_sign(run, how, signbit(number) && !isnan(number));
    char type = how->type;
    double size = fabs(type == '%' ? number * 100 : number);
    int precision = how->precision < 0 ? 6 : (int)(how->precision < 300 ? how->precision : 300);
    if (!isfinite(number)) {
        (void)snprintf(digits, sizeof digits, "%s", isnan(number) ? "nan" : "inf");
    } else if (type == 0 && how->precision < 0) {
        size_t mark = jinja_capture(run);
        jinja_print_float(run, size);
        jinja_value text = jinja_captured(run, mark);
        (void)snprintf(digits, sizeof digits, "%.*s", (int)text.as.text->length, text.as.text->at);
    } else {
        char pattern[16];
        char letter = type == 0 ? 'g' : type == '%' ? 'f' : type == 'n' ? 'g' : type;
        precision = (letter == 'g' || letter == 'G') && precision == 0 ? 1 : precision;
        (void)snprintf(pattern, sizeof pattern, how->alternative ? "%%#.*%c" : "%%.*%c", letter);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(digits, sizeof digits - 3, pattern, precision, size);
#pragma GCC diagnostic pop
        if (type == 0 && strpbrk(digits, ".e") == NULL) {
            memcpy(digits + strlen(digits), ".0", sizeof ".0");
        }
    }
    write_grouped(run, digits, how->grouping, 3);
    jinja_write_string(run, type == '%' ? "%" : "");
    pad(run, start, how, '>', sign);
}

static void format_integer(jinja_run *run, int64_t integer, const spec *how) {
    char type = how->type != 0 ? how->type : 'd';
    if (strchr("eEfFgG%", type) != NULL) {
        format_float(run, (double)integer, how);
        return;
    }
    size_t start = jinja_capture(run);
    uint64_t size = integer < 0 ? 0 - (uint64_t)integer : (uint64_t)integer;
    char digits[80];
    if (type == 'c') {
        if (integer < 0 || integer > 0x10FFFF || (integer >= 0xD800 && integer < 0xE000)) {
            jinja_fail(run, "%%c: %" PRId64 " is not a character", integer);
        }
        jinja_write_code(run, (uint32_t)integer);
        pad(run, start, how, '<', 0);
        return;
    }
    size_t sign = write_sign(run, how, integer < 0);
    if (how->alternative && strchr("xXob", type) != NULL) {
        char prefix[3] = {'0', type, 0};
        jinja_write_string(run, prefix);
        sign += 2;
    }
    if (type == 'b') {
        int at = 0;
        for (int bit = 63; bit >= 0; bit--) {
            if (at > 0 || bit == 0 || (size >> bit & 1) != 0) {
                digits[at++] = (char)('0' + (size >> bit & 1));
            }
        }
        digits[at] = '\0';
    } else if (type == 'd' || type == 'n' || type == 'i' || type == 'u') {
        (void)snprintf(digits, sizeof digits, "%" PRIu64, size);
    } else if (type == 'x' || type == 'X' || type == 'o') {
        (void)snprintf(digits, sizeof digits, type == 'x' ? "%" PRIx64 : type == 'X' ? "%" PRIX64 : "%" PRIo64, size);
    } else {
        jinja_fail(run, "unknown format code '%c' for an integer", type);
    }
    write_grouped(run, digits, how->grouping, type == 'd' ? 3 : 4);
    pad(run, start, how, '>', sign);
}

static void format_string(jinja_run *run, jinja_value string, const spec *how) {
    size_t start = jinja_capture(run);
    if (how->precision >= 0) {
        string = jinja_slice(run, string, jinja_none(), jinja_integer(how->precision), jinja_none());
    }
    jinja_print(run, string);
    pad(run, start, how, '<', 0);
}

/* Formats one value for '...'.format by a format specification. */
static void format_value(jinja_run *run, jinja_value value, const char *at, const char *end) {
    spec how = {.fill = ' ', .precision = -1};
    if (at == end) {
        jinja_print(run, value);
        return;
    }
    int bytes;
    uint32_t first = jinja_code_at(at, &bytes);
    if (at + bytes < end && strchr("<>^=", at[bytes]) != NULL) {
        how.fill = first;
        how.align = at[bytes];
        at += bytes + 1;
    } else if (strchr("<>^=", *at) != NULL) {
        how.align = *at++;
    }
    how.sign = at < end && strchr("+- ", *at) != NULL ? *at++ : 0;
    how.alternative = at < end && *at == '#' ? at++, true : false;
    if (at < end && *at == '0') {
        at++;
        how.fill = how.align == 0 ? '0' : how.fill;
        how.align = how.align == 0 && value.kind != JINJA_STRING ? '=' : how.align;
    }
    how.width = read_count(run, &at, end);
    how.grouping = at < end && (*at == ',' || *at == '_') ? *at++ : 0;
    if (at < end && *at == '.') {
        at++;
        how.precision = read_count(run, &at, end);
    }
    how.type = at < end ? *at++ : 0;
    bool fits = at == end && (value.kind == JINJA_STRING  ? how.type == 0 || how.type == 's'
                              : value.kind == JINJA_FLOAT ? how.type == 0 || strchr("eEfFgGn%", how.type) != NULL
                                                          : jinja_is_whole(value));
    if (!fits) {
        jinja_fail(run, "invalid format specification for '%s'", jinja_kind_name(value));
    }
    if (value.kind == JINJA_STRING) {
        format_string(run, value, &how);
    } else if (value.kind == JINJA_FLOAT) {
        format_float(run, value.as.number, &how);
    } else {
        format_integer(run, jinja_whole(value), &how);
    }
}

static jinja_value find_keyword(jinja_run *run, const jinja_arguments *arguments, const jinja_text *name) {
    for (size_t i = 0; i < arguments->keywords; i++) {
        if (jinja_text_equal(arguments->keyword[i].name, name)) {
            return arguments->keyword[i].value;
        }
    }
    jinja_fail(run, "format: no argument '%.*s'", (int)(name->length < 40 ? name->length : 40), name->at);
}

/* Finds the value of a field: `0`, `name`, or nothing for the next argument; then .name and [key]. */
static jinja_value find_field(jinja_run *run, const jinja_arguments *arguments, const char *at, const char *end,
                              size_t *next) {
    const char *first = at;
    while (at < end && *at != '.' && *at != '[') {
        at++;
    }
    jinja_text *name = jinja_text_over(&run->arena, first, (size_t)(at - first));
    int64_t index = (int64_t)*next;
    bool is_index =
        name->length == 0 || (name->at[0] >= '0' && name->at[0] <= '9' && jinja_parse_integer(run, name, 10, &index));
    *next += name->length == 0;
    if (is_index && (index < 0 || (size_t)index >= arguments->count)) {
        jinja_fail(run, "format: argument %" PRId64 " was not given", index);
    }
    jinja_value value = is_index ? arguments->at[index] : find_keyword(run, arguments, name);
    while (at < end) {
        bool is_item = *at == '[';
        const char *start = ++at;
        while (at < end && (is_item ? *at != ']' : *at != '.' && *at != '[')) {
            at++;
        }
        jinja_text *part = jinja_text_over(&run->arena, start, (size_t)(at - start));
        int64_t number;
        value = !is_item ? jinja_attribute(run, value, part)
                : jinja_parse_integer(run, part, 10, &number)
                    ? jinja_item(run, value, jinja_integer(number))
                    : jinja_item(run, value, (jinja_value){.kind = JINJA_STRING, .as.text = part});
        at += is_item && at < end;
    }
    return value;
}

static void write_field(jinja_run *run, const jinja_arguments *arguments, const char *at, const char *end, size_t *next,
                        bool escapes) {
    const char *name_end = at;
    while (name_end < end && *name_end != ':' && *name_end != '!') {
        name_end++;
    }
    jinja_value value = find_field(run, arguments, at, name_end, next);
    at = name_end;
    if (at < end && *at == '!') {
        size_t start = jinja_capture(run);
        char kind = at + 1 < end ? at[1] : 0;
        if (kind != 'r' && kind != 's') {
            jinja_fail(run, "format: unknown conversion: expected !r or !s");
        }
        if (kind == 'r') {
            jinja_print_quoted(run, value);
        } else {
            jinja_print(run, value);
        }
        value = jinja_captured(run, start);
        at += 2;
    }
    at += at < end && *at == ':';
    if (memchr(at, '{', (size_t)(end - at)) != NULL) {
        jinja_fail(run, "format: fields inside of a format specification are not supported");
    }
    size_t start = jinja_capture(run);
    bool marked = value.kind == JINJA_STRING && value.marked;
    format_value(run, value, at, end);
    if (escapes) {
        jinja_value text = jinja_captured(run, start);
        text.marked = marked;
        jinja_print(run, jinja_escape(run, text));
    }
}

jinja_value jinja_format_braces(jinja_run *run, jinja_value format, const jinja_arguments *arguments) {
    const char *at = format.as.text->at, *end = at + format.as.text->length;
    size_t start = jinja_capture(run), next = 0;
    while (at < end) {
        if ((*at == '{' || *at == '}') && at + 1 < end && at[1] == *at) {
            jinja_write(run, at, 1);
            at += 2;
        } else if (*at == '{') {
            const char *close = at;
            int depth = 0;
            do {
                depth += *close == '{' ? 1 : *close == '}' ? -1 : 0;
                close++;
            } while (close < end && depth > 0);
            if (depth != 0) {
                jinja_fail(run, "format: '{' without '}'");
            }
            write_field(run, arguments, at + 1, close - 1, &next, format.marked);
            at = close;
        } else if (*at == '}') {
            jinja_fail(run, "format: single '}'");
        } else {
            jinja_write(run, at++, 1);
        }
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = format.marked;
    return made;
}

typedef struct percent_values {
    jinja_value all;
    const jinja_list *list; /* a tuple, or one value */
    size_t next;
} percent_values;

static jinja_value next_value(jinja_run *run, percent_values *values) {
    if (values->next >= values->list->count) {
        jinja_fail(run, "not enough arguments for format string");
    }
    return values->list->at[values->next++];
}

static void write_percent(jinja_run *run, jinja_value value, spec *how, bool escapes) {
    char type = how->type;
    if (type == 's' || type == 'r' || type == 'a') {
        size_t start = jinja_capture(run);
        if (type == 's') {
            jinja_print(run, escapes ? jinja_escape(run, value) : value);
        } else {
            jinja_print_quoted(run, value);
        }
        how->align = how->align != 0 ? how->align : '>';
        format_string(run, jinja_captured(run, start), how);
        return;
    }
    how->align = how->align == '<' ? '<' : how->zero ? '=' : '>';
    how->fill = how->align == '=' ? '0' : ' ';
    if (type == 'c' && value.kind == JINJA_STRING && jinja_points(value.as.text) == 1) {
        format_string(run, value, how);
    } else if (strchr("dixXouc", type) != NULL && jinja_is_number(value)) {
        double number = jinja_number(value);
        if (value.kind == JINJA_FLOAT && !(fabs(number) < 0x1p62)) {
            jinja_fail(run, "%%%c: a float is too large", type);
        }
        how->type = type == 'i' || type == 'u' ? 'd' : type;
        how->precision = -1;
        format_integer(run, value.kind == JINJA_FLOAT ? (int64_t)number : jinja_whole(value), how);
    } else if (strchr("eEfFgG", type) != NULL && jinja_is_number(value)) {
        format_float(run, jinja_number(value), how);
    } else {
        jinja_fail(run, "%%%c: a value of type '%s' does not fit", type, jinja_kind_name(value));
    }
}

/* Formats one conversion after its %. Returns the position after it. */
static const char *percent_field(jinja_run *run, const char *at, const char *end, percent_values *values, bool escapes,
                                 bool *uses_names) {
    spec how = {.fill = ' ', .precision = -1};
    jinja_value named = {0};
    if (at < end && *at == '(') {
        const char *close = memchr(at, ')', (size_t)(end - at));
        if (close != NULL && values->all.kind == JINJA_DICT) {
            named = jinja_item(run, values->all, jinja_string(&run->arena, at + 1, (size_t)(close - at - 1)));
            *uses_names = true;
            at = close + 1;
        } else {
            jinja_fail(run, "format requires a mapping");
        }
    }
    for (; at < end && strchr("-+ #0", *at) != NULL; at++) {
        how.align = *at == '-' ? '<' : how.align;
        how.sign = *at == '+' || (*at == ' ' && how.sign == 0) ? *at : how.sign;
        how.alternative = how.alternative || *at == '#';
        how.zero = how.zero || *at == '0';
    }
    how.width = read_count(run, &at, end);
    if (at < end && *at == '.') {
        at++;
        how.precision = read_count(run, &at, end);
    }
    if (at >= end || *at == '*') {
        jinja_fail(run, at >= end ? "incomplete format" : "'*' in a format is not supported");
    }
    how.type = *at++;
    if (how.type == '%') {
        jinja_write_string(run, "%");
    } else {
        write_percent(run, named.kind != JINJA_MISSING ? named : next_value(run, values), &how, escapes);
    }
    return at;
}

jinja_value jinja_format_percent(jinja_run *run, jinja_value format, jinja_value arguments) {
    const char *at = format.as.text->at, *end = at + format.as.text->length;
    jinja_list *one = jinja_list_new(&run->arena, 1);
    jinja_list_add(&run->arena, one, arguments);
    percent_values values = {arguments, arguments.kind == JINJA_TUPLE ? arguments.as.list : one, 0};
    bool uses_names = arguments.kind == JINJA_DICT || arguments.kind == JINJA_LIST;
    size_t start = jinja_capture(run);
    while (at < end) {
        if (*at == '%') {
            at = percent_field(run, at + 1, end, &values, format.marked, &uses_names);
        } else {
            jinja_write(run, at++, 1);
        }
    }
    if (values.next < values.list->count && !uses_names) {
        jinja_fail(run, "not all arguments converted during string formatting");
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = format.marked;
    return made;
}
