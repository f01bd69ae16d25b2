/* YAML as a tree, built from libyaml's events. */
#include "lab/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "core/error.h"

#define MOST_BYTES ((size_t)1 << 20)
#define MOST_LEVELS 64
#define MOST_NODES 100000
#define MOST_KEYS 4096 /* of one mapping: each key is compared with all before it */

typedef struct reader {
    carry_ctx *ctx;
    const char *name, *text;
    yaml_parser_t parser;
    int nodes;
    carry_yaml *root;
    struct {
        carry_yaml *node;
        carry_yaml **end; /* where the next child goes */
        char *key;        /* key of the next child of a mapping */
    } open[MOST_LEVELS];
    int levels;
} reader;

static carry_status fail_at(reader *r, yaml_mark_t mark, const char *what) {
    return carry_fail(r->ctx, CARRY_EFORMAT, "%s:%zu:%zu: %s", r->name, mark.line + 1, mark.column + 1, what);
}

/* libyaml reads ahead: invalid bytes are found before its own mark reaches them, and are reported by their offset. */
static yaml_mark_t mark_of_offset(const char *text, size_t offset) {
    yaml_mark_t mark = {.index = offset};
    for (size_t i = 0; i < offset; i++) {
        mark.column = text[i] == '\n' ? 0 : mark.column + ((text[i] & 0xc0) != 0x80);
        mark.line += text[i] == '\n';
    }
    return mark;
}

static carry_status syntax_error(reader *r) {
    const yaml_parser_t *p = &r->parser;
    yaml_mark_t mark = p->error == YAML_READER_ERROR ? mark_of_offset(r->text, p->problem_offset) : p->problem_mark;
    return carry_fail(r->ctx, CARRY_EFORMAT, "%s:%zu:%zu: this is not YAML: %s%s%s", r->name, mark.line + 1,
                      mark.column + 1, p->problem != NULL ? p->problem : "out of memory",
                      p->context != NULL ? ", " : "", p->context != NULL ? p->context : "");
}

static char *copy_text(const yaml_char_t *text, size_t length) {
    char *copy = malloc(length + 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

/* Adds a new node to the innermost open collection, or as the root. */
static carry_status add(reader *r, carry_yaml **added, carry_yaml_kind kind, yaml_mark_t mark) {
    *added = NULL;
    if (++r->nodes > MOST_NODES) {
        return fail_at(r, mark, "too many nodes (100000 at most)");
    }
    carry_yaml *node = calloc(1, sizeof *node);
    if (node == NULL) {
        return fail_at(r, mark, "out of memory");
    }
    *node = (carry_yaml){.kind = kind, .line = (int)mark.line + 1, .column = (int)mark.column + 1};
    if (r->levels == 0) {
        r->root = node;
    } else {
        node->key = r->open[r->levels - 1].key;
        r->open[r->levels - 1].key = NULL;
        *r->open[r->levels - 1].end = node;
        r->open[r->levels - 1].end = &node->next;
        r->open[r->levels - 1].node->count++;
    }
    *added = node;
    return CARRY_OK;
}

static carry_status take_key(reader *r, const yaml_event_t *event) {
    const carry_yaml *mapping = r->open[r->levels - 1].node;
    if (mapping->count >= MOST_KEYS) {
        return fail_at(r, event->start_mark, "too many keys in one mapping (4096 at most)");
    }
    char *key = copy_text(event->data.scalar.value, event->data.scalar.length);
    if (key == NULL) {
        return fail_at(r, event->start_mark, "out of memory");
    }
    r->open[r->levels - 1].key = key;
    if (strlen(key) != event->data.scalar.length) {
        return fail_at(r, event->start_mark, "a key has a zero byte");
    }
    for (const carry_yaml *other = mapping->first; other != NULL; other = other->next) {
        if (strcmp(other->key, key) == 0) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "%s:%zu:%zu: '%.60s' appears twice", r->name,
                              event->start_mark.line + 1, event->start_mark.column + 1, key);
        }
    }
    return CARRY_OK;
}

static carry_status take_scalar(reader *r, const yaml_event_t *event) {
    bool in_mapping = r->levels > 0 && r->open[r->levels - 1].node->kind == CARRY_YAML_MAPPING;
    if (event->data.scalar.anchor != NULL || event->data.scalar.tag != NULL) {
        return fail_at(r, event->start_mark, "anchors and tags are not supported");
    }
    if (in_mapping && r->open[r->levels - 1].key == NULL) {
        return take_key(r, event);
    }
    carry_yaml *node;
    CARRY_TRY(add(r, &node, CARRY_YAML_SCALAR, event->start_mark));
    node->text = copy_text(event->data.scalar.value, event->data.scalar.length);
    if (node->text == NULL) {
        return fail_at(r, event->start_mark, "out of memory");
    }
    return strlen(node->text) == event->data.scalar.length ? CARRY_OK
                                                           : fail_at(r, event->start_mark, "a value has a zero byte");
}

static carry_status take_start(reader *r, const yaml_event_t *event, carry_yaml_kind kind, bool marked) {
    if (marked) {
        return fail_at(r, event->start_mark, "anchors and tags are not supported");
    }
    if (r->levels > 0 && r->open[r->levels - 1].node->kind == CARRY_YAML_MAPPING &&
        r->open[r->levels - 1].key == NULL) {
        return fail_at(r, event->start_mark, "a key must be a plain word");
    }
    if (r->levels == MOST_LEVELS) {
        return fail_at(r, event->start_mark, "nested too deeply (64 levels at most)");
    }
    carry_yaml *node;
    CARRY_TRY(add(r, &node, kind, event->start_mark));
    r->open[r->levels].node = node;
    r->open[r->levels].end = &node->first;
    r->open[r->levels].key = NULL;
    r->levels++;
    return CARRY_OK;
}

static carry_status take(reader *r, const yaml_event_t *event) {
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return take_scalar(r, event);
    case YAML_SEQUENCE_START_EVENT:
        return take_start(r, event, CARRY_YAML_SEQUENCE,
                          event->data.sequence_start.anchor != NULL || event->data.sequence_start.tag != NULL);
    case YAML_MAPPING_START_EVENT:
        return take_start(r, event, CARRY_YAML_MAPPING,
                          event->data.mapping_start.anchor != NULL || event->data.mapping_start.tag != NULL);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        r->levels--;
        return CARRY_OK;
    case YAML_ALIAS_EVENT:
        return fail_at(r, event->start_mark, "aliases are not supported");
    case YAML_DOCUMENT_START_EVENT:
        return r->root == NULL ? CARRY_OK : fail_at(r, event->start_mark, "a second document is not supported");
    default:
        return CARRY_OK;
    }
}

carry_status carry_yaml_parse(carry_ctx *ctx, carry_yaml **root, const char *text, size_t length, const char *name) {
    reader *r = calloc(1, sizeof *r);
    *root = NULL;
    if (r == NULL || !yaml_parser_initialize(&r->parser)) {
        free(r);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", name);
    }
    r->ctx = ctx;
    r->name = name;
    r->text = text;
    carry_status status = CARRY_OK;
    if (length > MOST_BYTES) {
        status = carry_fail(ctx, CARRY_ESIZE, "%s has %zu bytes, more than the 1 MiB that is read", name, length);
    }
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, length);
    for (bool more = true; status == CARRY_OK && more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&r->parser, &event)) {
            status = syntax_error(r);
            break;
        }
        more = event.type != YAML_STREAM_END_EVENT;
        status = take(r, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&r->parser);
    for (int i = 0; i < r->levels; i++) {
        free(r->open[i].key);
    }
    if (status == CARRY_OK && r->root == NULL) {
        status = carry_fail(ctx, CARRY_EFORMAT, "%s:1:1: there is nothing in it", name);
    }
    if (status != CARRY_OK) {
        carry_yaml_free(r->root);
        r->root = NULL;
    }
    *root = r->root;
    free(r);
    return status;
}

/* Recursion is limited to MOST_LEVELS. */
void carry_yaml_free(carry_yaml *root) {
    while (root != NULL) {
        carry_yaml *next = root->next;
        carry_yaml_free(root->first);
        free(root->text);
        free(root->key);
        free(root);
        root = next;
    }
}

carry_yaml *carry_yaml_get(carry_yaml *mapping, const char *key) {
    if (mapping == NULL || mapping->kind != CARRY_YAML_MAPPING) {
        return NULL;
    }
    for (carry_yaml *node = mapping->first; node != NULL; node = node->next) {
        if (strcmp(node->key, key) == 0) {
            node->seen = true;
            return node;
        }
    }
    return NULL;
}

carry_status carry_yaml_fail(carry_ctx *ctx, const carry_yaml *node, const char *name, const char *format, ...) {
    char message[400];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return carry_fail(ctx, CARRY_EARGUMENT, "%s:%d:%d: %s", name, node->line, node->column, message);
}

carry_status carry_yaml_finish(carry_ctx *ctx, const carry_yaml *mapping, const char *name, const char *known) {
    for (const carry_yaml *node = mapping->first; node != NULL; node = node->next) {
        if (!node->seen) {
            return carry_yaml_fail(ctx, node, name, "unknown key '%.60s': expected %s", node->key, known);
        }
    }
    return CARRY_OK;
}

carry_status carry_yaml_text(carry_ctx *ctx, const char **text, const carry_yaml *node, const char *name) {
    if (node->kind != CARRY_YAML_SCALAR) {
        return carry_yaml_fail(ctx, node, name, "'%.60s' must be a text", node->key != NULL ? node->key : "this");
    }
    *text = node->text;
    return CARRY_OK;
}

carry_status carry_yaml_number(carry_ctx *ctx, double *number, const carry_yaml *node, const char *name) {
    char *end = NULL;
    if (node->kind == CARRY_YAML_SCALAR) {
        errno = 0;
        *number = strtod(node->text, &end);
    }
    if (end == NULL || end == node->text || *end != '\0' || errno != 0 || !isfinite(*number)) {
        return carry_yaml_fail(ctx, node, name, "'%.60s' must be a number", node->key != NULL ? node->key : "this");
    }
    return CARRY_OK;
}
