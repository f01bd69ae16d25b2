/* Tool calls as Qwen's newer models write them:

       <function=NAME>
       <parameter=KEY>
       VALUE
       </parameter>
       </function>

   One newline directly before a value and one directly after it are not part of the value. A parameter that may be a
   string by the tool's schema, or is not in it, is emitted as a JSON string while it arrives. Any other parameter is
   held until its end and emitted unchanged if it is valid JSON; Python's True, False and None become JSON, and anything
   else becomes a JSON string. */
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/json_write.h"
#include "serve/parser_inside.h"
#include "tokenizer/constraint/calls.h"

#define FUNCTION "<function="
#define FUNCTION_END "</function>"
#define PARAMETER "<parameter="
#define PARAMETER_END "</parameter>"

static bool is_other(const carry_serve_parser *p) {
    for (const carry_json *tool = carry_json_first(p->request->tools); tool != NULL; tool = tool->next) {
        const carry_json *function = carry_json_find(tool, "function");
        if (carry_json_is_text(carry_json_find(function, "name"), p->name)) {
            return !carry_call_is_text(carry_json_find(function, "parameters"), p->parameter);
        }
    }
    return false;
}

/* Reads the name between a tag and '>'. Returns the length including '>'; 0 if it is not complete. */
static size_t read_name(const char *text, size_t length, size_t tag, char name[CARRY_PARSER_NAME]) {
    const char *end = length > tag ? memchr(text + tag, '>', length - tag) : NULL;
    const size_t bytes = end != NULL ? (size_t)(end - text) - tag : 0;
    const size_t kept = bytes < CARRY_PARSER_NAME ? bytes : CARRY_PARSER_NAME - 1;
    if (end == NULL) {
        return 0;
    }
    memcpy(name, text + tag, kept);
    name[kept] = '\0';
    return tag + bytes + 1;
}

static void put_json(carry_serve_parser *p, const carry_json_text *json, size_t from, size_t less) {
    if (!json->failed && json->length >= from + less) {
        carry_parser_arguments(p, json->bytes + from, json->length - from - less);
    }
}

/* Writes text inside a JSON string. */
static void put_escaped(carry_serve_parser *p, const char *text, size_t length) {
    carry_json_text json = {0};
    carry_json_put_bytes(&json, text, length);
    put_json(p, &json, 1, 1);
    carry_json_text_free(&json);
}

static void begin_parameter(carry_serve_parser *p) {
    carry_json_text json = {0};
    carry_parser_arguments(p, p->has_parameter ? ", " : "{", p->has_parameter ? 2 : 1);
    carry_json_put_bytes(&json, p->parameter, strlen(p->parameter));
    put_json(p, &json, 0, 0);
    carry_json_text_free(&json);
    carry_parser_arguments(p, ": ", 2);
    p->has_parameter = true;
}

static void end_function(carry_serve_parser *p) {
    carry_parser_arguments(p, p->has_parameter ? "}" : "{}", p->has_parameter ? 1 : 2);
    p->mode = CARRY_PARSE_AFTER;
}

/* Skips one line end before a value, if there is one. Returns false if more text is needed to know. */
static bool skip_line_end(carry_serve_parser *p, bool is_end) {
    if (p->at == p->length) {
        return is_end;
    }
    p->at += p->held[p->at] == '\n';
    return true;
}

static bool open_parameter(carry_serve_parser *p, size_t taken, bool is_end) {
    const size_t before = p->at;
    p->at += taken;
    if (!skip_line_end(p, is_end)) {
        p->at = before;
        return false;
    }
    begin_parameter(p);
    p->mode = is_other(p) ? CARRY_PARSE_OTHER : CARRY_PARSE_STRING;
    if (p->mode == CARRY_PARSE_STRING) {
        carry_parser_arguments(p, "\"", 1);
    }
    return true;
}

bool carry_parser_xml(carry_serve_parser *p, bool is_end) {
    size_t length;
    while (p->at < p->length && strchr(" \n\t\r", p->held[p->at]) != NULL) {
        p->at++;
    }
    const char *rest = carry_parser_rest(p, &length);
    const bool is_function = p->name[0] == '\0';
    size_t taken = 0;
    if (carry_parser_starts(rest, length, is_function ? FUNCTION : PARAMETER)) {
        taken = is_function ? read_name(rest, length, strlen(FUNCTION), p->name)
                            : read_name(rest, length, strlen(PARAMETER), p->parameter);
    } else if (!is_function && carry_parser_starts(rest, length, FUNCTION_END)) {
        p->at += strlen(FUNCTION_END);
        end_function(p);
        return true;
    } else if (!is_function && length > 0 && carry_parser_partial(rest, length, PARAMETER) != length &&
               carry_parser_partial(rest, length, FUNCTION_END) != length) {
        p->at++; /* neither a parameter nor the end of the function */
        return true;
    }
    if (taken > 0 && is_function && p->name[0] != '\0') {
        p->at += taken;
        carry_parser_begin_call(p, p->name);
        return true;
    }
    if (taken > 0 && !is_function && open_parameter(p, taken, is_end)) {
        return true;
    }
    if (is_function && (taken > 0 || is_end)) { /* a function without a name */
        p->mode = CARRY_PARSE_RAW;
        return true;
    }
    if (is_end) {
        p->at = p->length;
        end_function(p);
        return true;
    }
    return false;
}

bool carry_parser_string(carry_serve_parser *p, bool is_end) {
    static const char end_tag[] = "\n" PARAMETER_END;
    size_t length;
    const char *rest = carry_parser_rest(p, &length);
    const char *found = memmem(rest, length, PARAMETER_END, strlen(PARAMETER_END));
    size_t end = found != NULL ? (size_t)(found - rest) : length;
    if (found == NULL && !is_end) {
        const size_t one = carry_parser_partial(rest, length, end_tag);
        const size_t other = carry_parser_partial(rest, length, PARAMETER_END);
        end -= one > other ? one : other;
        put_escaped(p, rest, end);
        p->at += end;
        return false;
    }
    const size_t shown = end - (found != NULL && end > 0 && rest[end - 1] == '\n');
    put_escaped(p, rest, shown);
    carry_parser_arguments(p, "\"", 1);
    p->at += end + (found != NULL ? strlen(PARAMETER_END) : 0);
    p->mode = CARRY_PARSE_XML;
    return true;
}

/* Writes JSON unchanged, Python's constants as JSON, and anything else as a JSON string. */
static void put_other(carry_serve_parser *p, const char *text, size_t length) {
    static const char *const python[] = {"True", "False", "None"};
    static const char *const json[] = {"true", "false", "null"};
    carry_ctx *ctx = NULL;
    carry_json *node = NULL;
    for (int i = 0; i < 3; i++) {
        if (length == strlen(python[i]) && memcmp(text, python[i], length) == 0) {
            carry_parser_arguments(p, json[i], strlen(json[i]));
            return;
        }
    }
    const bool is_json =
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) == CARRY_OK &&
        carry_json_parse(ctx, &node, text, length, "a parameter") == CARRY_OK;
    if (is_json) {
        carry_parser_arguments(p, text, length);
    } else {
        carry_parser_arguments(p, "\"", 1);
        put_escaped(p, text, length);
        carry_parser_arguments(p, "\"", 1);
    }
    carry_json_free(node);
    carry_ctx_free(ctx);
}

bool carry_parser_other(carry_serve_parser *p, bool is_end) {
    size_t length;
    const char *rest = carry_parser_rest(p, &length);
    const char *found = memmem(rest, length, PARAMETER_END, strlen(PARAMETER_END));
    if (found == NULL && !is_end) {
        return false;
    }
    const size_t end = found != NULL ? (size_t)(found - rest) : length;
    put_other(p, rest, end - (found != NULL && end > 0 && rest[end - 1] == '\n'));
    p->at += end + (found != NULL ? strlen(PARAMETER_END) : 0);
    p->mode = CARRY_PARSE_XML;
    return true;
}
