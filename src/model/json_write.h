/* Making JSON: a text that grows. Memory that runs out is remembered in `failed`, so that callers look once, at the
   end. */
#ifndef CARRY_MODEL_JSON_WRITE_H
#define CARRY_MODEL_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/error.h"

typedef struct carry_json_text {
    char *bytes; /* with a 0 after the end */
    size_t length, room;
    bool failed;
} carry_json_text;

void carry_json_text_free(carry_json_text *text);
/* As it stands. */
void carry_json_put_raw(carry_json_text *text, const char *format, ...) CARRY_PRINTF(2, 3);
/* In quotes, with what needs it escaped. Bytes from 0x80 on are left alone: the string is UTF-8. */
void carry_json_put_string(carry_json_text *text, const char *string);
/* The same with a colon after it. */
void carry_json_put_key(carry_json_text *text, const char *key);
/* The shortest decimal that reads back as the same double, with a point or an exponent as Python writes floats. */
void carry_json_put_double(carry_json_text *text, double value);

#endif
