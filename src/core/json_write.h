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
/* The text, which the caller frees; NULL when memory ran out. */
char *carry_json_text_take(carry_json_text *text);
/* Objects and arrays: begin and end by their brackets, with a comma where one is needed; key NULL in an array. */
void carry_json_begin(carry_json_text *text, const char *key, char bracket);
void carry_json_end(carry_json_text *text, char bracket);
/* The comma before an element or member where one is needed, and its key unless that is NULL. */
void carry_json_add_key(carry_json_text *text, const char *key);
/* One element or member each. A text that is NULL, or a number that is not finite, is null. Numbers have 15 digits at
   most. */
void carry_json_add_text(carry_json_text *text, const char *key, const char *value);
void carry_json_add_number(carry_json_text *text, const char *key, double value);
void carry_json_add_integer(carry_json_text *text, const char *key, int64_t value);
void carry_json_add_bool(carry_json_text *text, const char *key, bool value);
/* A node of a document as it is; NULL: null. */
void carry_json_add_node(carry_json_text *text, const char *key, const carry_json *node);

/* As it stands. */
void carry_json_put_raw(carry_json_text *text, const char *format, ...) CARRY_PRINTF(2, 3);
void carry_json_text_append(carry_json_text *text, const char *bytes, size_t length);
/* In quotes, escaped where needed. Bytes that are not UTF-8 become U+FFFD, each. */
void carry_json_put_string(carry_json_text *text, const char *string);
void carry_json_put_bytes(carry_json_text *text, const char *bytes, size_t length); /* zeros among them */
/* The same with a colon after it. */
void carry_json_put_key(carry_json_text *text, const char *key);
/* The shortest decimal that reads back as the same double, with a point or an exponent as Python writes floats. */
void carry_json_put_double(carry_json_text *text, double value);

#endif
