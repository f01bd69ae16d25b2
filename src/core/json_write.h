/* Writing JSON to a growing text. Running out of memory sets `failed`, so that callers check once, at the end. */
#ifndef CARRY_JSON_WRITE_H
#define CARRY_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "core/json.h"

typedef struct carry_json_text {
    char *bytes; /* with a 0 after the end */
    size_t length, room;
    bool failed;
    bool spaced; /* a space after commas and colons */
} carry_json_text;

void carry_json_text_free(carry_json_text *text);
/* Returns the text, which the caller frees, or NULL if memory ran out. */
char *carry_json_text_take(carry_json_text *text);
/* Begin or end an object or array, given by its bracket, with a comma where one is needed. key is NULL in an array. */
void carry_json_begin(carry_json_text *text, const char *key, char bracket);
void carry_json_end(carry_json_text *text, char bracket);
/* Writes the comma before an element or member if one is needed, and its key unless that is NULL. */
void carry_json_add_key(carry_json_text *text, const char *key);
/* Each adds one element or member. A NULL text, and a number that is not finite, are written as null. add_number writes
   at most 15 significant digits, add_integer all digits. */
void carry_json_add_text(carry_json_text *text, const char *key, const char *value);
void carry_json_add_number(carry_json_text *text, const char *key, double value);
void carry_json_add_integer(carry_json_text *text, const char *key, int64_t value);
void carry_json_add_bool(carry_json_text *text, const char *key, bool value);
/* Adds a copy of a node; NULL is written as null. */
void carry_json_add_node(carry_json_text *text, const char *key, const carry_json *node);

/* Append text without escaping. */
void carry_json_put_raw(carry_json_text *text, const char *format, ...) CARRY_PRINTF(2, 3);
void carry_json_text_append(carry_json_text *text, const char *bytes, size_t length);
/* Writes a string in quotes, escaped where needed. Each byte that is not valid UTF-8 becomes U+FFFD. */
void carry_json_put_string(carry_json_text *text, const char *string);
void carry_json_put_bytes(carry_json_text *text, const char *bytes, size_t length); /* the bytes may contain zeros */
/* The same, followed by a colon. */
void carry_json_put_key(carry_json_text *text, const char *key);
/* Writes the shortest decimal that reads back as the same double, with a point or an exponent as Python does, and
   infinity as Infinity, which carry_json_parse reads inside an array or object; -infinity and NaN as null. */
void carry_json_put_double(carry_json_text *text, double value);

#endif
