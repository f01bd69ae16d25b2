/* Tool calls as JSON: {"name": NAME, "arguments": {...}}. Arguments are emitted as they come. */
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "serve/parser_inside.h"

static size_t skip_space(const char *text, size_t length, size_t at) {
    while (at < length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) {
        at++;
    }
    return at;
}

/* Returns the end of the value that starts at `at`, or 0 if it is not complete. Looks only at brackets and strings. */
static size_t value_end(const char *text, size_t length, size_t at) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = at; i < length; i++) {
        const char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (depth == 0 && (c == ',' || c == '}' || c == ']')) {
            return i;
        }
        if (depth == 0 && !in_string && (c == '"' || c == '}' || c == ']') && i > at) {
            return i + 1;
        }
    }
    return 0;
}

/* Decodes a JSON string: removes quotes and escapes. The caller frees *text. */
static bool decode_string(const char *json, size_t length, char **text, size_t *text_length) {
    carry_ctx *ctx;
    carry_json *node = NULL;
    *text = NULL;
    if (carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        return false;
    }
    if (carry_json_parse(ctx, &node, json, length, "a call") == CARRY_OK && node->kind == CARRY_JSON_STRING) {
        *text = malloc(node->as.text.length + 1);
        if (*text != NULL) {
            memcpy(*text, node->as.text.bytes, node->as.text.length + 1);
            *text_length = node->as.text.length;
        }
    }
    carry_json_free(node);
    carry_ctx_free(ctx);
    return *text != NULL;
}

static bool copy_name(carry_serve_parser *p, const char *json, size_t length) {
    char *text;
    size_t text_length;
    if (!decode_string(json, length, &text, &text_length)) {
        return false;
    }
    const bool fits = text_length > 0 && text_length < sizeof p->name && memchr(text, '\0', text_length) == NULL;
    if (fits) {
        memcpy(p->name, text, text_length + 1);
    }
    free(text);
    return fits;
}

typedef struct head {
    size_t arguments, arguments_end; /* 0: not found; not complete */
    size_t end;                      /* end of the object, if is_whole */
    bool has_name, is_whole, is_wrong;
} head;

static bool is_key(const char *text, size_t start, size_t end, const char *key) {
    return end - start == strlen(key) + 2 && memcmp(text + start + 1, key, strlen(key)) == 0;
}

/* Reads the members of the object, as far as the text goes. */
static head scan(carry_serve_parser *p, const char *text, size_t length) {
    head h = {0};
    size_t at = skip_space(text, length, 1);
    while (at < length) {
        if (text[at] == '}') {
            h.is_whole = true;
            h.end = at;
            return h;
        }
        const size_t key_end = text[at] == '"' ? value_end(text, length, at) : 0;
        if (key_end == 0) {
            h.is_wrong = text[at] != '"';
            return h;
        }
        const size_t colon = skip_space(text, length, key_end);
        const size_t value = skip_space(text, length, colon + 1);
        if (value >= length || text[colon] != ':') {
            h.is_wrong = colon < length && text[colon] != ':';
            return h;
        }
        const size_t end = value_end(text, length, value);
        if (is_key(text, at, key_end, "arguments") || is_key(text, at, key_end, "parameters")) {
            h.arguments = value;
            h.arguments_end = end;
            if (h.has_name) {
                return h;
            }
        } else if (is_key(text, at, key_end, "name") && end > 0) {
            h.has_name = copy_name(p, text + value, end - value);
            h.is_wrong = !h.has_name;
        }
        if (end == 0 || h.is_wrong) {
            return h;
        }
        at = skip_space(text, length, end);
        at = at < length && text[at] == ',' ? skip_space(text, length, at + 1) : at;
    }
    return h;
}

/* Emits complete arguments: an object, or a string that contains an object; nothing otherwise. */
static void emit_whole(carry_serve_parser *p, const char *json, size_t length) {
    char *text;
    size_t text_length;
    if (length > 0 && json[0] == '"' && decode_string(json, length, &text, &text_length)) {
        carry_parser_arguments(p, text, text_length);
        free(text);
    } else if (length > 0 && json[0] == '{') {
        carry_parser_arguments(p, json, length);
    } else {
        carry_parser_arguments(p, "{}", 2);
    }
}

bool carry_parser_json(carry_serve_parser *p, bool is_end) {
    size_t length;
    const char *rest = carry_parser_rest(p, &length);
    const head h = scan(p, rest, length);
    const bool is_stream = h.has_name && h.arguments > 0 && rest[h.arguments] == '{';
    const bool is_ready = h.has_name && (h.is_whole || (h.arguments > 0 && h.arguments_end > 0));
    if (is_stream || is_ready) {
        carry_parser_begin_call(p, p->name);
        p->mode = is_stream ? CARRY_PARSE_VALUE : CARRY_PARSE_AFTER;
        if (is_stream) {
            p->at += h.arguments;
            p->depth = 0;
            p->in_string = p->is_escaped = false;
        } else {
            emit_whole(p, rest + h.arguments, h.arguments > 0 ? h.arguments_end - h.arguments : 0);
            p->at += h.arguments > 0 ? h.arguments_end : h.end;
        }
        return true;
    }
    if (h.is_wrong || h.is_whole || is_end || length > CARRY_PARSER_HELD) {
        p->mode = CARRY_PARSE_RAW;
        return true;
    }
    return false;
}

/* Escapes control characters inside a string, since models write them unescaped. */
static void emit_control(carry_serve_parser *p, unsigned char c) {
    static const char digits[] = "0123456789abcdef";
    const char text[6] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
    const char *known = c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : NULL;
    carry_parser_arguments(p, known != NULL ? known : text, known != NULL ? 2 : sizeof text);
}

bool carry_parser_value(carry_serve_parser *p, bool is_end) {
    (void)is_end; /* an object that is cut off stays incomplete */
    size_t length;
    size_t from = 0;
    size_t i = 0;
    const char *rest = carry_parser_rest(p, &length);
    bool is_whole = false;
    for (; i < length && !is_whole; i++) {
        const char c = rest[i];
        if (p->in_string && (unsigned char)c < 0x20) {
            carry_parser_arguments(p, rest + from, i - from);
            emit_control(p, (unsigned char)c);
            from = i + 1;
        } else if (p->in_string) {
            p->in_string = p->is_escaped || c != '"';
            p->is_escaped = !p->is_escaped && c == '\\';
        } else {
            p->in_string = c == '"';
            p->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            is_whole = p->depth == 0;
        }
    }
    carry_parser_arguments(p, rest + from, i - from);
    p->at += i;
    p->mode = is_whole ? CARRY_PARSE_AFTER : p->mode;
    return is_whole;
}
