/* Reading JSON. A first pass counts what can start a value (brackets and commas outside strings), which bounds the
   number of nodes; the strings of a document are never longer than their source. So one block is enough, and parsing
   allocates nothing more. Containers are linked lists rather than arrays, so that they grow at the end without
   moving. */
#include "core/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"

#define NUMBER_LIMIT 128 /* characters of a number */

typedef struct parser {
    carry_ctx *ctx;
    const char *name;
    const char *at, *end;
    const char *line_start;
    uint32_t line; /* 0: name says it */
    int depth;
    carry_json *node; /* the next free node */
    char *text;       /* the next free byte of strings */
} parser;

static carry_status bad(const parser *p, const char *what) {
    if (p->line == 0) {
        return carry_fail(p->ctx, CARRY_EFORMAT, "%s, column %lld: %s", p->name, (long long)(p->at - p->line_start) + 1,
                          what);
    }
    return carry_fail(p->ctx, CARRY_EFORMAT, "%s, line %u, column %lld: %s", p->name, p->line,
                      (long long)(p->at - p->line_start) + 1, what);
}

static void skip_space(parser *p) {
    for (; p->at < p->end; p->at++) {
        if (*p->at == '\n') {
            p->line++;
            p->line_start = p->at + 1;
        } else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r') {
            return;
        }
    }
}

static bool take(parser *p, char c) {
    skip_space(p);
    if (p->at < p->end && *p->at == c) {
        p->at++;
        return true;
    }
    return false;
}

static bool take_hex(parser *p, unsigned *value) {
    *value = 0;
    if (p->end - p->at < 4) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        char c = *p->at;
        unsigned digit;
        if (c >= '0' && c <= '9') {
            digit = (unsigned)(c - '0');
        } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
            digit = (unsigned)((c | 0x20) - 'a') + 10;
        } else {
            return false;
        }
        *value = *value << 4 | digit;
        p->at++;
    }
    return true;
}

static void put_utf8(parser *p, unsigned code) {
    if (code < 0x80) {
        *p->text++ = (char)code;
    } else if (code < 0x800) {
        *p->text++ = (char)(0xC0 | code >> 6);
        *p->text++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *p->text++ = (char)(0xE0 | code >> 12);
        *p->text++ = (char)(0x80 | (code >> 6 & 0x3F));
        *p->text++ = (char)(0x80 | (code & 0x3F));
    } else {
        *p->text++ = (char)(0xF0 | code >> 18);
        *p->text++ = (char)(0x80 | (code >> 12 & 0x3F));
        *p->text++ = (char)(0x80 | (code >> 6 & 0x3F));
        *p->text++ = (char)(0x80 | (code & 0x3F));
    }
}

/* Reads the digits after \u. A high surrogate must be followed by a low one. */
static carry_status take_unicode(parser *p) {
    unsigned code;
    if (!take_hex(p, &code)) {
        return bad(p, "\\u needs four hexadecimal digits");
    }
    if (code >= 0xD800 && code < 0xDC00) {
        unsigned low = 0;
        if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u') {
            return bad(p, "a high surrogate without a low one");
        }
        p->at += 2;
        if (!take_hex(p, &low) || low < 0xDC00 || low > 0xDFFF) {
            return bad(p, "a high surrogate without a low one");
        }
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
        return bad(p, "a low surrogate without a high one");
    }
    put_utf8(p, code);
    return CARRY_OK;
}

static carry_status take_escape(parser *p) {
    static const char escapes[] = "\"\\/bfnrt";
    static const char meant[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end) {
        return bad(p, "a string does not end");
    }
    char c = *p->at;
    if (c == 'u') {
        p->at++;
        return take_unicode(p);
    }
    const char *found = c != '\0' ? strchr(escapes, c) : NULL;
    if (found == NULL) {
        return bad(p, "an unknown escape");
    }
    *p->text++ = meant[found - escapes];
    p->at++;
    return CARRY_OK;
}

static carry_status take_string(parser *p, const char **bytes, size_t *length) {
    if (!take(p, '"')) {
        return bad(p, "a string is expected");
    }
    *bytes = p->text;
    while (p->at < p->end && *p->at != '"') {
        if (*p->at == '\\') {
            p->at++;
            CARRY_TRY(take_escape(p));
            continue;
        }
        if ((unsigned char)*p->at < 0x20) {
            return bad(p, "a control character inside a string");
        }
        int count = carry_json_utf8_length(p->at, p->end);
        if (count == 0) {
            return bad(p, "bytes that are not UTF-8");
        }
        memcpy(p->text, p->at, (size_t)count);
        p->text += count;
        p->at += count;
    }
    if (p->at == p->end) {
        return bad(p, "a string does not end");
    }
    p->at++;
    *length = (size_t)(p->text - *bytes);
    *p->text++ = '\0'; /* overwrites a quote */
    return CARRY_OK;
}

static size_t count_digits(const parser *p, const char *at) {
    size_t count = 0;
    while (at + count < p->end && at[count] >= '0' && at[count] <= '9') {
        count++;
    }
    return count;
}

static carry_status take_number(parser *p, carry_json *node) {
    const char *at = p->at;
    at += at < p->end && *at == '-';
    size_t digits = count_digits(p, at);
    if (digits == 0 || (digits > 1 && *at == '0')) {
        return bad(p, "a value is expected");
    }
    at += digits;
    node->whole = true;
    if (at < p->end && *at == '.') {
        digits = count_digits(p, at + 1);
        if (digits == 0) {
            return bad(p, "digits are expected after the point of a number");
        }
        at += 1 + digits;
        node->whole = false;
    }
    if (at < p->end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < p->end && (*at == '+' || *at == '-');
        digits = count_digits(p, at);
        if (digits == 0) {
            return bad(p, "digits are expected in the exponent of a number");
        }
        at += digits;
        node->whole = false;
    }
    char copy[NUMBER_LIMIT];
    size_t length = (size_t)(at - p->at);
    if (length >= sizeof copy) {
        return bad(p, "a number is too long");
    }
    memcpy(copy, p->at, length);
    copy[length] = '\0';
    node->kind = CARRY_JSON_NUMBER;
    node->as.number.value = strtod(copy, NULL);
    int64_t integer = 0;
    bool negative = copy[0] == '-';
    for (const char *digit = copy + negative; node->whole && *digit != '\0'; digit++) {
        int step = negative ? -(*digit - '0') : *digit - '0';
        node->whole =
            !__builtin_mul_overflow(integer, 10, &integer) && !__builtin_add_overflow(integer, step, &integer);
    }
    node->as.number.integer = node->whole ? integer : 0;
    p->at = at;
    return CARRY_OK;
}

static bool take_word(parser *p, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0) {
        return false;
    }
    p->at += length;
    return true;
}

static carry_status take_scalar(parser *p, carry_json *node) {
    if (p->at < p->end && *p->at == '"') {
        node->kind = CARRY_JSON_STRING;
        return take_string(p, &node->as.text.bytes, &node->as.text.length);
    }
    if (take_word(p, "null")) {
        node->kind = CARRY_JSON_NULL;
        return CARRY_OK;
    }
    bool truth = take_word(p, "true");
    if (truth || take_word(p, "false")) {
        node->kind = CARRY_JSON_BOOL;
        node->truth = truth;
        return CARRY_OK;
    }
    if (p->depth > 0 && take_word(p, "Infinity")) { /* Python writes it so, in config.json of Mamba models */
        node->kind = CARRY_JSON_NUMBER;
        node->as.number.value = INFINITY;
        return CARRY_OK;
    }
    return take_number(p, node);
}

static carry_json *new_node(parser *p) {
    skip_space(p);
    carry_json *node = p->node++;
    *node = (carry_json){.line = p->line, .column = (uint32_t)(p->at - p->line_start) + 1};
    return node;
}

/* Containers are walked with an explicit stack, so that nesting does not use the machine's stack. */
typedef struct level {
    carry_json *container, *last;
} level;

static carry_status take_value(parser *p, level *stack, carry_json *node) {
    bool object = take(p, '{');
    if (!object && !take(p, '[')) {
        return take_scalar(p, node);
    }
    if (p->depth == CARRY_JSON_DEPTH) {
        return bad(p, "values are nested too deeply");
    }
    node->kind = object ? CARRY_JSON_OBJECT : CARRY_JSON_ARRAY;
    stack[p->depth++] = (level){.container = node};
    return CARRY_OK;
}

/* Reads one more member of the innermost container, or its end. */
static carry_status take_member(parser *p, level *stack) {
    level *inner = &stack[p->depth - 1];
    carry_json *container = inner->container;
    bool object = container->kind == CARRY_JSON_OBJECT;
    if (take(p, object ? '}' : ']')) {
        p->depth--;
        return CARRY_OK;
    }
    if (inner->last != NULL && !take(p, ',')) {
        return bad(p, object ? "a comma or } is expected" : "a comma or ] is expected");
    }
    carry_json *node = new_node(p);
    if (object) {
        CARRY_TRY(take_string(p, &node->key, &node->key_length));
        if (!take(p, ':')) {
            return bad(p, "a colon is expected");
        }
        skip_space(p);
    }
    if (inner->last != NULL) {
        inner->last->next = node;
    } else {
        container->as.inside.first = node;
    }
    inner->last = node;
    container->as.inside.count++;
    return take_value(p, stack, node);
}

static carry_status take_document(parser *p) {
    level stack[CARRY_JSON_DEPTH];
    CARRY_TRY(take_value(p, stack, new_node(p)));
    while (p->depth > 0) {
        CARRY_TRY(take_member(p, stack));
    }
    skip_space(p);
    return p->at == p->end ? CARRY_OK : bad(p, "something follows the value");
}

/* An upper bound on the number of nodes: every value other than the root comes after a comma or an opening bracket. */
static size_t count_nodes(const char *text, size_t length) {
    size_t count = 1;
    bool inside = false;
    for (size_t i = 0; i < length; i++) {
        if (!inside) {
            inside = text[i] == '"';
            count += text[i] == ',' || text[i] == '[' || text[i] == '{';
        } else if (text[i] == '\\') {
            i++; /* skips the escaped character, which may be a quote */
        } else {
            inside = text[i] != '"';
        }
    }
    return count;
}

static carry_status parse(carry_ctx *ctx, carry_json **document, const char *text, size_t length, const char *name,
                          uint32_t line) {
    *document = NULL;
    size_t nodes = length <= CARRY_JSON_BYTES ? count_nodes(text, length) : 0;
    if (length > CARRY_JSON_BYTES || nodes > CARRY_JSON_NODES) {
        return carry_fail(ctx, CARRY_ESIZE, "%s has %zu bytes and %zu values: at most %zu and %zu are read", name,
                          length, nodes, CARRY_JSON_BYTES, CARRY_JSON_NODES);
    }
    carry_json *block = malloc(nodes * sizeof *block + length + 1);
    if (block == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the %zu values of %s", nodes, name);
    }
    parser p = {.ctx = ctx,
                .name = name,
                .at = text,
                .end = text + length,
                .line_start = text,
                .line = line,
                .node = block,
                .text = (char *)(block + nodes)};
    carry_status status = take_document(&p);
    if (status != CARRY_OK) {
        free(block);
        return status;
    }
    *document = block;
    return CARRY_OK;
}

carry_status carry_json_parse(carry_ctx *ctx, carry_json **document, const char *text, size_t length,
                              const char *name) {
    return parse(ctx, document, text, length, name, 1);
}

carry_status carry_json_parse_line(carry_ctx *ctx, carry_json **document, const char *text, size_t length,
                                   const char *name) {
    return parse(ctx, document, text, length, name, 0);
}

carry_status carry_json_read(carry_ctx *ctx, carry_json **document, const char *path, size_t limit) {
    char *text;
    size_t length;
    *document = NULL;
    CARRY_TRY(carry_file_read(ctx, &text, &length, path, limit));
    carry_status status = carry_json_parse(ctx, document, text, length, path);
    free(text);
    return status;
}
