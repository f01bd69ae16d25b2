/* The output buffer, and printing values as Python's str() and repr() do. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/template/run.h"
#include "tokenizer/template/unicode.h"

void jinja_write(jinja_run *run, const char *bytes, size_t length) {
    if (length > run->out_most - run->out_count) {
        jinja_fail(run, "the output is larger than %zu bytes", run->out_most);
    }
    if (run->out_count + length + 1 > run->out_room) {
        size_t room = 2 * (run->out_count + length) + 1024;
        char *grown = realloc(run->out, room);
        if (grown == NULL) {
            jinja_fail(run, "out of memory: %zu bytes of output", room);
        }
        run->out = grown;
        run->out_room = room;
    }
    if (length > 0) {
        memcpy(run->out + run->out_count, bytes, length);
    }
    run->out_count += length;
    jinja_spend(run, length / 64);
}

void jinja_write_string(jinja_run *run, const char *text) {
    jinja_write(run, text, strlen(text));
}

void jinja_write_code(jinja_run *run, uint32_t code) {
    char bytes[4];
    jinja_write(run, bytes, (size_t)jinja_code_put(bytes, code));
}

size_t jinja_capture(const jinja_run *run) {
    return run->out_count;
}

jinja_value jinja_captured(jinja_run *run, size_t start) {
    jinja_value value = jinja_string(&run->arena, run->out != NULL ? run->out + start : "", run->out_count - start);
    run->out_count = start;
    return value;
}

void jinja_print_float(jinja_run *run, double number) {
    if (isnan(number) || isinf(number)) {
        jinja_write_string(run, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
        return;
    }
    char digits[40] = "";
    int precision = 1;
    do {
        (void)snprintf(digits, sizeof digits, "%.*e", precision - 1, number);
    } while (strtod(digits, NULL) != number && precision++ < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        (void)snprintf(digits, sizeof digits, "%.*f", precision - 1 > exponent ? precision - 1 - exponent : 0, number);
    } else {
        (void)snprintf(digits, sizeof digits, "%.*e", precision - 1, number);
    }
    jinja_write_string(run, digits);
    if (strpbrk(digits, ".e") == NULL) {
        jinja_write_string(run, ".0");
    }
}

static void print_text_quoted(jinja_run *run, const jinja_text *text) {
    bool has_single = memchr(text->at, '\'', text->length) != NULL;
    bool has_double = memchr(text->at, '"', text->length) != NULL;
    char quote = has_single && !has_double ? '"' : '\'';
    jinja_write(run, &quote, 1);
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t code = jinja_code_at(text->at + i, &bytes);
        char escape[16] = "";
        if (code == '\n' || code == '\r' || code == '\t') {
            (void)snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        } else if (code == '\\' || code == (uint32_t)quote) {
            (void)snprintf(escape, sizeof escape, "\\%c", (char)code);
        } else if (!jinja_code_is_printable(code)) {
            (void)snprintf(escape, sizeof escape,
                           code < 0x100     ? "\\x%02x"
                           : code < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                           code);
        }
        if (escape[0] != '\0') {
            jinja_write_string(run, escape);
        } else {
            jinja_write(run, text->at + i, (size_t)bytes);
        }
        i += (size_t)bytes;
    }
    jinja_write(run, &quote, 1);
}

static void print_items(jinja_run *run, const jinja_list *list, const char *open, const char *close) {
    jinja_write_string(run, open);
    for (size_t i = 0; i < list->count; i++) {
        jinja_write_string(run, i > 0 ? ", " : "");
        jinja_print_quoted(run, list->at[i]);
    }
    jinja_write_string(run, close);
}

static void print_dict(jinja_run *run, const jinja_dict *dict) {
    jinja_write_string(run, "{");
    for (size_t i = 0; i < dict->count; i++) {
        jinja_write_string(run, i > 0 ? ", " : "");
        jinja_print_quoted(run, dict->at[i].key);
        jinja_write_string(run, ": ");
        jinja_print_quoted(run, dict->at[i].value);
    }
    jinja_write_string(run, "}");
}

static void print_other(jinja_run *run, jinja_value value) {
    char text[160];
    switch (value.kind) {
    case JINJA_RANGE: {
        const jinja_range *range = value.as.range;
        (void)snprintf(text, sizeof text,
                       range->step == 1 ? "range(%" PRId64 ", %" PRId64 ")"
                                        : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                       range->start, range->stop, range->step);
        break;
    }
    case JINJA_LOOP:
        (void)snprintf(text, sizeof text, "<LoopContext %zu/%zu>", value.as.loop->index + 1,
                       value.as.loop->items->count);
        break;
    case JINJA_MACRO:
        (void)snprintf(text, sizeof text, "<Macro '%.*s'>", (int)value.as.macro->node->name->length,
                       value.as.macro->node->name->at);
        break;
    case JINJA_SELF:
        (void)snprintf(text, sizeof text, "<TemplateReference None>");
        break;
    default: /* Python prints an address here */
        (void)snprintf(text, sizeof text, "<%s object>", jinja_kind_name(value));
    }
    jinja_write_string(run, text);
}

static void print_view(jinja_run *run, jinja_value value) {
    static const char *const open[] = {"dict_keys([", "dict_values([", "dict_items(["};
    print_items(run, jinja_items(run, value), open[value.as.view->part], "])");
}

void jinja_print_quoted(jinja_run *run, jinja_value value) {
    jinja_deeper(run);
    switch (value.kind) {
    case JINJA_UNDEFINED:
        jinja_write_string(run, "Undefined");
        break;
    case JINJA_NONE:
        jinja_write_string(run, "None");
        break;
    case JINJA_BOOL:
        jinja_write_string(run, value.as.truth ? "True" : "False");
        break;
    case JINJA_INTEGER: {
        char digits[24];
        (void)snprintf(digits, sizeof digits, "%" PRId64, value.as.integer);
        jinja_write_string(run, digits);
        break;
    }
    case JINJA_FLOAT:
        jinja_print_float(run, value.as.number);
        break;
    case JINJA_STRING:
        jinja_write_string(run, value.marked ? "Markup(" : "");
        print_text_quoted(run, value.as.text);
        jinja_write_string(run, value.marked ? ")" : "");
        break;
    case JINJA_LIST:
        print_items(run, value.as.list, "[", "]");
        break;
    case JINJA_TUPLE:
        print_items(run, value.as.list, "(", value.as.list->count == 1 ? ",)" : ")");
        break;
    case JINJA_DICT:
        print_dict(run, value.as.dict);
        break;
    case JINJA_NAMESPACE:
        jinja_write_string(run, "<Namespace ");
        print_dict(run, value.as.dict);
        jinja_write_string(run, ">");
        break;
    case JINJA_VIEW:
        print_view(run, value);
        break;
    default:
        print_other(run, value);
    }
    run->depth--;
}

void jinja_print(jinja_run *run, jinja_value value) {
    if (value.kind == JINJA_STRING) {
        jinja_write(run, value.as.text->at, value.as.text->length);
    } else if (value.kind != JINJA_UNDEFINED) {
        jinja_print_quoted(run, value);
    }
}

jinja_value jinja_soft(jinja_run *run, jinja_value value) {
    if (value.kind == JINJA_STRING) {
        return value;
    }
    size_t start = jinja_capture(run);
    jinja_print(run, value);
    return jinja_captured(run, start);
}

jinja_value jinja_str(jinja_run *run, jinja_value value) {
    jinja_value text = jinja_soft(run, value);
    text.marked = false;
    return text;
}

jinja_value jinja_escape(jinja_run *run, jinja_value value) {
    if (value.kind == JINJA_STRING && value.marked) {
        return value;
    }
    jinja_value text = jinja_soft(run, value);
    size_t start = jinja_capture(run);
    for (size_t i = 0; i < text.as.text->length; i++) {
        const char *at = text.as.text->at + i;
        switch (*at) {
        case '&':
            jinja_write_string(run, "&amp;");
            break;
        case '<':
            jinja_write_string(run, "&lt;");
            break;
        case '>':
            jinja_write_string(run, "&gt;");
            break;
        case '\'':
            jinja_write_string(run, "&#39;");
            break;
        case '"':
            jinja_write_string(run, "&#34;");
            break;
        default:
            jinja_write(run, at, 1);
        }
    }
    jinja_value made = jinja_captured(run, start);
    made.marked = true;
    return made;
}
