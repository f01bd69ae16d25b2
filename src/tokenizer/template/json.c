/* The filter tojson: Python's json.dumps. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/template/run.h"
#include "tokenizer/template/unicode.h"

static void write_text(jinja_run *run, const jinja_text *text, bool ascii) {
    static const char letters[] = "\"\\\n\r\t\f\b";
    static const char names[] = "\"\\nrtfb";
    jinja_write_string(run, "\"");
    for (size_t i = 0; i < text->length;) {
        int bytes;
        uint32_t code = jinja_code_at(text->at + i, &bytes);
        const char *letter = code != 0 && code < 0x80 ? strchr(letters, (int)code) : NULL;
        char escape[16] = "";
        if (letter != NULL) {
            (void)snprintf(escape, sizeof escape, "\\%c", names[letter - letters]);
        } else if (code < 0x20 || (ascii && code >= 0x7F && code < 0x10000)) {
            (void)snprintf(escape, sizeof escape, "\\u%04x", code);
        } else if (ascii && code >= 0x10000) {
            (void)snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                           0xDC00 + ((code - 0x10000) & 0x3FF));
        }
        if (escape[0] != '\0') {
            jinja_write_string(run, escape);
        } else {
            jinja_write(run, text->at + i, (size_t)bytes);
        }
        i += (size_t)bytes;
    }
    jinja_write_string(run, "\"");
}

static void new_line(jinja_run *run, const jinja_json_options *options, int level) {
    if (!options->indents) {
        return;
    }
    jinja_write_string(run, "\n");
    for (int i = 0; i < level; i++) {
        if (options->indent.kind == JINJA_STRING) {
            jinja_print(run, options->indent);
            continue;
        }
        for (int64_t space = 0; space < jinja_whole(options->indent); space++) {
            jinja_write_string(run, " ");
        }
    }
}

static void write_float(jinja_run *run, double number) {
    if (isfinite(number)) {
        jinja_print_float(run, number);
    } else {
        jinja_write_string(run, isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity");
    }
}

/* Writes a key: a string, or a number, bool or none in quotes. */
static void write_key(jinja_run *run, jinja_value key, bool ascii) {
    if (key.kind == JINJA_STRING) {
        write_text(run, key.as.text, ascii);
        return;
    }
    if (!jinja_is_number(key) && key.kind != JINJA_NONE) {
        jinja_fail(run, "tojson: a key is a %s: expected a string, number, boolean or none", jinja_kind_name(key));
    }
    jinja_write_string(run, "\"");
    if (key.kind == JINJA_FLOAT) {
        write_float(run, key.as.number);
    } else if (key.kind == JINJA_INTEGER) {
        jinja_print(run, key);
    } else {
        jinja_write_string(run, key.kind == JINJA_NONE ? "null" : key.as.truth ? "true" : "false");
    }
    jinja_write_string(run, "\"");
}

static void write_value(jinja_run *run, jinja_value value, const jinja_json_options *options, int level);

static void write_dict(jinja_run *run, const jinja_dict *dict, const jinja_json_options *options, int level) {
    jinja_value *keys = jinja_new(&run->arena, dict->count, sizeof *keys);
    jinja_value *values = jinja_new(&run->arena, dict->count, sizeof *values);
    for (size_t i = 0; i < dict->count; i++) {
        keys[i] = dict->at[i].key;
        values[i] = jinja_pair_of(&run->arena, dict->at[i].key, dict->at[i].value);
    }
    if (options->sorted) {
        jinja_sort(run, values, keys, dict->count, false);
    }
    jinja_write_string(run, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i > 0) {
            jinja_write(run, options->item_separator->at, options->item_separator->length);
        }
        new_line(run, options, level + 1);
        write_key(run, values[i].as.list->at[0], options->ascii);
        jinja_write(run, options->key_separator->at, options->key_separator->length);
        write_value(run, values[i].as.list->at[1], options, level + 1);
    }
    if (dict->count > 0) {
        new_line(run, options, level);
    }
    jinja_write_string(run, "}");
}

static void write_list(jinja_run *run, const jinja_list *list, const jinja_json_options *options, int level) {
    jinja_write_string(run, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0) {
            jinja_write(run, options->item_separator->at, options->item_separator->length);
        }
        new_line(run, options, level + 1);
        write_value(run, list->at[i], options, level + 1);
    }
    if (list->count > 0) {
        new_line(run, options, level);
    }
    jinja_write_string(run, "]");
}

static void write_value(jinja_run *run, jinja_value value, const jinja_json_options *options, int level) {
    jinja_deeper(run);
    switch (value.kind) {
    case JINJA_NONE:
        jinja_write_string(run, "null");
        break;
    case JINJA_BOOL:
        jinja_write_string(run, value.as.truth ? "true" : "false");
        break;
    case JINJA_INTEGER:
        jinja_print(run, value);
        break;
    case JINJA_FLOAT:
        write_float(run, value.as.number);
        break;
    case JINJA_STRING:
        write_text(run, value.as.text, options->ascii);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        write_list(run, value.as.list, options, level);
        break;
    case JINJA_DICT:
        write_dict(run, value.as.dict, options, level);
        break;
    default:
        jinja_fail(run, "tojson: %s is not JSON serializable", jinja_kind_name(value));
    }
    run->depth--;
}

void jinja_write_json(jinja_run *run, jinja_value value, const jinja_json_options *options) {
    write_value(run, value, options, 0);
}
