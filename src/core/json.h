/* JSON (RFC 8259), read as a whole: config.json, model.safetensors.index.json, tokenizer.json, the header of a
   safetensors file. Inside an array or object, Infinity (but not -Infinity) is a number too.

   The text is borrowed while it is read and not needed afterwards. Nodes and strings are in one block, so a document
   is freed at once. Strings are UTF-8 with escapes decoded (surrogates joined) and a 0 after their end. They may
   contain zeros, so use their length. Depth, number of nodes and size are bounded: a hostile text costs at most
   about a hundred bytes of memory per byte of text. */
#ifndef CARRY_JSON_H
#define CARRY_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_JSON_DEPTH 64
#define CARRY_JSON_NODES ((size_t)1 << 24)
#define CARRY_JSON_BYTES ((size_t)256 << 20)

typedef enum carry_json_kind {
    CARRY_JSON_NULL,
    CARRY_JSON_BOOL,
    CARRY_JSON_NUMBER,
    CARRY_JSON_STRING,
    CARRY_JSON_ARRAY,
    CARRY_JSON_OBJECT
} carry_json_kind;

typedef struct carry_json {
    carry_json_kind kind;
    bool truth;    /* of a bool */
    bool whole;    /* a number without decimal point or exponent that fits an int64_t */
    uint32_t line; /* line on which it starts, from 1 */
    uint32_t column;
    const char *key; /* in an object; else NULL */
    size_t key_length;
    union {
        struct {
            double value;
            int64_t integer; /* where whole */
        } number;
        struct {
            const char *bytes;
            size_t length;
        } text;
        struct {
            struct carry_json *first; /* NULL: empty */
            int64_t count;
        } inside;
    } as;
    struct carry_json *next; /* the next node in the same array or object, in the order of the text */
} carry_json;

/* *document is the root, to be freed with carry_json_free. name is used in messages. The message of CARRY_EFORMAT
   has line and column. */
carry_status carry_json_parse(carry_ctx *ctx, carry_json **document, const char *text, size_t length, const char *name);
/* The same, where name says the line (`data.jsonl, line 7`): the message has the column. */
carry_status carry_json_parse_line(carry_ctx *ctx, carry_json **document, const char *text, size_t length,
                                   const char *name);
/* The same from a file of at most limit bytes. */
carry_status carry_json_read(carry_ctx *ctx, carry_json **document, const char *path, size_t limit);
void carry_json_free(carry_json *document);

/* The first member of an object with this key; NULL if the key is missing, or the node is NULL or not an object. */
const carry_json *carry_json_find(const carry_json *object, const char *key);
/* True if the node is a string equal to text. */
bool carry_json_is_text(const carry_json *node, const char *text);
/* Returns the string; NULL if the node is NULL, is not a string, or contains zeros. */
const char *carry_json_string(const carry_json *node);
/* Returns the number; NaN if the node is NULL or not a number. */
double carry_json_number(const carry_json *node);
/* Returns the number of elements or members; 0 if the node is NULL or not a container. */
int64_t carry_json_count(const carry_json *node);
const carry_json *carry_json_first(const carry_json *node); /* NULL if empty */

/* Bytes of the UTF-8 sequence at `at`, 0 if it is not valid: no overlong forms, no surrogates, nothing above 10FFFF. */
int carry_json_utf8_length(const char *at, const char *end);
/* True if the text is valid UTF-8, as JSON requires. */
bool carry_json_is_utf8(const char *text);

/* Writes the node as a person would, cut to fit, for messages. */
#define CARRY_JSON_SHOWN 64
const char *carry_json_show(char shown[CARRY_JSON_SHOWN], const carry_json *node);

#endif
