/* Operators on numbers, strings and lists, and numbers from texts. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tokenizer/template/run.h"
#include "tokenizer/template/unicode.h"

static _Noreturn void too_large(jinja_run *run) {
    jinja_fail(run, "an integer needs more than 64 bits, which is not supported");
}

static const char *operator_name(jinja_token_kind operator) {
    switch (operator) {
    case TOKEN_ADD:
        return "+";
    case TOKEN_SUBTRACT:
        return "-";
    case TOKEN_MULTIPLY:
        return "*";
    case TOKEN_DIVIDE:
        return "/";
    case TOKEN_FLOOR_DIVIDE:
        return "//";
    case TOKEN_MODULO:
        return "%";
    default:
        return "**";
    }
}

static jinja_value whole_power(jinja_run *run, int64_t base, int64_t power) {
    int64_t result = 1;
    while (power > 0) {
        if ((power & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
            too_large(run);
        }
        power >>= 1;
        if (power > 0 && __builtin_mul_overflow(base, base, &base)) {
            too_large(run);
        }
    }
    return jinja_integer(result);
}

static jinja_value on_wholes(jinja_run *run, jinja_token_kind operator, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflows = false;
    if (b == 0 && (operator== TOKEN_DIVIDE || operator== TOKEN_FLOOR_DIVIDE || operator== TOKEN_MODULO)) {
        jinja_fail(run, "division by zero");
    }
    switch (operator) {
    case TOKEN_ADD:
        overflows = __builtin_add_overflow(a, b, &result);
        break;
    case TOKEN_SUBTRACT:
        overflows = __builtin_sub_overflow(a, b, &result);
        break;
    case TOKEN_MULTIPLY:
        overflows = __builtin_mul_overflow(a, b, &result);
        break;
    case TOKEN_DIVIDE:
        return jinja_float((double)a / (double)b);
    case TOKEN_FLOOR_DIVIDE:
        overflows = a == INT64_MIN && b == -1;
        result = overflows ? 0 : a / b - (a % b != 0 && (a % b < 0) != (b < 0));
        break;
    case TOKEN_MODULO:
        result = b == -1 ? 0 : a % b;
        result += result != 0 && (result < 0) != (b < 0) ? b : 0;
        break;
    default:
        return b >= 0 ? whole_power(run, a, b)
                      : jinja_binary(run, TOKEN_POWER, jinja_float((double)a), jinja_float((double)b));
    }
    if (overflows) {
        too_large(run);
    }
    return jinja_integer(result);
}

static jinja_value on_floats(jinja_run *run, jinja_token_kind operator, double a, double b) {
    if (b == 0 && (operator== TOKEN_DIVIDE || operator== TOKEN_FLOOR_DIVIDE || operator== TOKEN_MODULO)) {
        jinja_fail(run, "float division by zero");
    }
    double rest = 0;
    switch (operator) {
    case TOKEN_ADD:
        return jinja_float(a + b);
    case TOKEN_SUBTRACT:
        return jinja_float(a - b);
    case TOKEN_MULTIPLY:
        return jinja_float(a * b);
    case TOKEN_DIVIDE:
        return jinja_float(a / b);
    case TOKEN_FLOOR_DIVIDE:
    case TOKEN_MODULO:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0)) {
            rest += b;
        }
        rest = rest == 0 ? copysign(0, b) : rest;
        if (operator== TOKEN_MODULO) {
            return jinja_float(rest);
        }
        return jinja_float(round((a - rest) / b) == 0 ? copysign(0, a / b) : round((a - rest) / b));
    default:
        if (a == 0 && b < 0) {
            jinja_fail(run, "0.0 cannot be raised to a negative power");
        }
        if (a < 0 && b != floor(b)) {
            jinja_fail(run, "a complex result of ** is not supported");
        }
        return jinja_float(pow(a, b));
    }
}

jinja_value jinja_concat(jinja_run *run, jinja_value a, jinja_value b) {
    if (a.marked != b.marked) { /* as in markupsafe, the unmarked operand is escaped */
        a = jinja_escape(run, a);
        b = jinja_escape(run, b);
    }
    size_t length = a.as.text->length + b.as.text->length;
    if (a.as.text->length == 0 || b.as.text->length == 0) {
        return a.as.text->length == 0 ? b : a;
    }
    jinja_spend(run, length / 64);
    char *bytes = jinja_new(&run->arena, length + 1, 1);
    memcpy(bytes, a.as.text->at, a.as.text->length);
    memcpy(bytes + a.as.text->length, b.as.text->at, b.as.text->length);
    jinja_value made = {
        .kind = JINJA_STRING, .marked = a.marked, .as.text = jinja_text_over(&run->arena, bytes, length)};
    return made;
}

static jinja_value join_lists(jinja_run *run, jinja_value a, jinja_value b) {
    jinja_list *list = jinja_list_new(&run->arena, a.as.list->count + b.as.list->count);
    jinja_spend(run, list->room);
    for (size_t i = 0; i < a.as.list->count + b.as.list->count; i++) {
        bool is_left = i < a.as.list->count;
        jinja_list_add(&run->arena, list, is_left ? a.as.list->at[i] : b.as.list->at[i - a.as.list->count]);
    }
    return jinja_listed(a.kind, list);
}

/* Repeats a string, list or tuple. */
static jinja_value repeat(jinja_run *run, jinja_value value, int64_t times) {
    times = times > 0 ? times : 0;
    size_t count = value.kind == JINJA_STRING ? value.as.text->length : value.as.list->count;
    size_t total;
    if (!carry_size_mul(&total, count, (size_t)times)) {
        jinja_fail(run, "a repetition is too large");
    }
    jinja_spend(run, total / 16);
    if (value.kind == JINJA_STRING) {
        char *bytes = jinja_new(&run->arena, total + 1, 1);
        for (size_t at = 0; count > 0 && at < total; at += count) {
            memcpy(bytes + at, value.as.text->at, count);
        }
        value.as.text = jinja_text_over(&run->arena, bytes, total);
        return value;
    }
    jinja_list *list = jinja_list_new(&run->arena, total);
    for (size_t i = 0; i < total; i++) {
        list->at[i] = value.as.list->at[i % count];
    }
    list->count = total;
    return jinja_listed(value.kind, list);
}

static bool is_repeatable(jinja_value value) {
    return value.kind == JINJA_STRING || value.kind == JINJA_LIST || value.kind == JINJA_TUPLE;
}

jinja_value jinja_binary(jinja_run *run, jinja_token_kind operator, jinja_value a, jinja_value b) {
    if (a.kind == JINJA_UNDEFINED ||
        (b.kind == JINJA_UNDEFINED && !(operator== TOKEN_MODULO && a.kind == JINJA_STRING))) {
        jinja_fail_undefined(run, a.kind == JINJA_UNDEFINED ? a : b);
    }
    if (jinja_is_whole(a) && jinja_is_whole(b)) {
        return on_wholes(run, operator, jinja_whole(a), jinja_whole(b));
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        return on_floats(run, operator, jinja_number(a), jinja_number(b));
    }
    if (operator== TOKEN_ADD && a.kind == b.kind && a.kind == JINJA_STRING) {
        return jinja_concat(run, a, b);
    }
    if (operator== TOKEN_ADD && a.kind == b.kind && is_repeatable(a)) {
        return join_lists(run, a, b);
    }
    if (operator==
        TOKEN_MULTIPLY &&((is_repeatable(a) && jinja_is_whole(b)) || (is_repeatable(b) && jinja_is_whole(a)))) {
        return jinja_is_whole(b) ? repeat(run, a, jinja_whole(b)) : repeat(run, b, jinja_whole(a));
    }
    if (operator== TOKEN_MODULO && a.kind == JINJA_STRING) {
        return jinja_format_percent(run, a, b);
    }
    if (operator== TOKEN_ADD && a.kind == JINJA_STRING) {
        jinja_fail(run, "can only concatenate str (not \"%s\") to str", jinja_kind_name(b));
    }
    jinja_fail(run, "unsupported operand type(s) for %s: '%s' and '%s'", operator_name(operator), jinja_kind_name(a),
               jinja_kind_name(b));
}

jinja_value jinja_negate(jinja_run *run, jinja_value value) {
    if (value.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(run, value);
    }
    if (value.kind == JINJA_FLOAT) {
        return jinja_float(-value.as.number);
    }
    if (!jinja_is_whole(value)) {
        jinja_fail(run, "bad operand type for unary -: '%s'", jinja_kind_name(value));
    }
    return on_wholes(run, TOKEN_SUBTRACT, 0, jinja_whole(value));
}

/* Copies a number and ends it with a NUL; drops blanks around it and single underscores between digits. Returns false
   if it is malformed. */
static bool copy_number(const jinja_text *text, char *to, size_t room) {
    const char *at = text->at, *end = at + text->length;
    int bytes;
    while (at < end && jinja_code_is_space(jinja_code_at(at, &bytes))) {
        at += bytes;
    }
    while (end > at && jinja_code_is_space(jinja_code_before(at, end, &bytes))) {
        end -= bytes;
    }
    size_t count = 0;
    for (const char *one = at; one < end; one++) {
        bool is_between =
            one > at && one + 1 < end && one[-1] != '_' && one[1] != '_' && one[1] > ' ' && one[-1] >= '0';
        if ((*one == '_' && !is_between) || count + 1 == room || *one == '\0' || (unsigned char)*one >= 0x80) {
            return false;
        }
        if (*one != '_') {
            to[count++] = *one;
        }
    }
    to[count] = '\0';
    return count > 0;
}

bool jinja_parse_integer(jinja_run *run, const jinja_text *text, int base, int64_t *integer) {
    char digits[128];
    if (!copy_number(text, digits, sizeof digits)) {
        return false;
    }
    const char *at = digits + (digits[0] == '-' || digits[0] == '+');
    if (at[0] == '0' && at[1] != '\0') { /* skips 0x, 0o or 0b if the base allows it */
        int given = strchr("xX", at[1]) != NULL   ? 16
                    : strchr("oO", at[1]) != NULL ? 8
                    : strchr("bB", at[1]) != NULL ? 2
                                                  : 0;
        if (given != 0 && (base == given || base == 0)) {
            at += 2;
            base = given;
        } else if (base == 0 && strspn(at, "0") != strlen(at)) {
            return false;
        }
    }
    base = base == 0 ? 10 : base;
    char *end;
    bool is_digit = (*at >= '0' && *at <= '9') || (base > 10 && ((*at | 32) >= 'a' && (*at | 32) <= 'z'));
    errno = 0;
    long long value = is_digit ? strtoll(at, &end, base) : 0;
    if (!is_digit || *end != '\0') {
        return false;
    }
    if (errno == ERANGE) {
        too_large(run);
    }
    *integer = digits[0] == '-' ? -value : value;
    return true;
}

bool jinja_parse_float(const jinja_text *text, double *number) {
    static const char *const words[] = {"inf", "infinity", "nan", NULL};
    char digits[512];
    if (!copy_number(text, digits, sizeof digits)) {
        return false;
    }
    const char *at = digits + (digits[0] == '-' || digits[0] == '+');
    bool is_word = false;
    for (int i = 0; words[i] != NULL; i++) {
        is_word = is_word || strcasecmp(at, words[i]) == 0;
    }
    char *end;
    *number = strtod(digits, &end);
    return *end == '\0' && (is_word || strspn(at, "0123456789.eE+-") == strlen(at));
}
