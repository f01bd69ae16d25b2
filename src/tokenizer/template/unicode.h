/* Code points of UTF-8 texts, with the properties and case mappings of Python's str (Unicode 14). */
#ifndef CARRY_TEMPLATE_UNICODE_H
#define CARRY_TEMPLATE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JINJA_CASED_MOST 3 /* most code points that one can become */

typedef enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_TITLE, JINJA_FOLD } jinja_case;

/* Returns the code point at `at`, and its length in *bytes. The text must be valid UTF-8. */
uint32_t jinja_code_at(const char *at, int *bytes);
/* Returns the code point that ends before `end`; start is the start of the text. */
uint32_t jinja_code_before(const char *start, const char *end, int *bytes);
int jinja_code_put(char to[4], uint32_t code); /* how many bytes */

int jinja_code_case(uint32_t code, jinja_case to, uint32_t cased[JINJA_CASED_MOST]); /* how many code points */
bool jinja_code_is_space(uint32_t code);
bool jinja_code_is_alpha(uint32_t code);
bool jinja_code_is_decimal(uint32_t code);
bool jinja_code_is_digit(uint32_t code);
bool jinja_code_is_numeric(uint32_t code);
bool jinja_code_is_alnum(uint32_t code);
bool jinja_code_is_lower(uint32_t code);
bool jinja_code_is_upper(uint32_t code);
bool jinja_code_is_title(uint32_t code);
bool jinja_code_is_printable(uint32_t code);

#endif
