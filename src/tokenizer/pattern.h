/* Patterns: how a text is cut into pieces before bytes are merged. No merge crosses a piece's end. The first was that
   of GPT-2:

       's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

   They are matched by PCRE2, with its just-in-time compiler where there is one. What a pattern does not match is a
   piece too, unless it drops such gaps. A run of bytes that are not UTF-8 is a piece of its own, and the text before it
   ends there as a text does.

   Classes of characters are those of the `tokenizers` library 0.23 for every character that Unicode 16 has, whatever
   edition PCRE2 knows, from 14 on: \s is the property White_Space, where PCRE2's own would add U+180E, and letters and
   digits younger than PCRE2 are spelt out. */
#ifndef CARRY_PATTERN_H
#define CARRY_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

typedef struct carry_pattern carry_pattern; /* may be shared by threads */
typedef struct carry_cutter carry_cutter;   /* one per thread */

carry_status carry_pattern_new(carry_ctx *ctx, carry_pattern **pattern); /* that of GPT-2 */
/* A regular expression of tokenizer.json (pattern_regex.h); name is the file, for messages. */
carry_status carry_pattern_parse(carry_ctx *ctx, carry_pattern **pattern, const char *regex, size_t length,
                                 bool drops_gaps, const char *name);
carry_status carry_pattern_digits(carry_ctx *ctx, carry_pattern **pattern, bool each); /* or runs of digits */
void carry_pattern_free(carry_pattern *pattern);
bool carry_pattern_is_compiled(const carry_pattern *pattern); /* to machine code */

/* Returns NULL when out of memory. The pattern must outlive the cutter. */
carry_cutter *carry_cutter_new(const carry_pattern *pattern);
void carry_cutter_free(carry_cutter *cutter);

/* Starts cutting a text, which must stay valid until its last piece. */
void carry_cutter_start(carry_cutter *cutter, const void *text, size_t length);
/* Returns the length of the next piece in bytes, 0 at the end; *piece points into the text. */
size_t carry_cutter_next(carry_cutter *cutter, const unsigned char **piece);

/* Rules for splitting a text so that the pieces of both parts equal those of the whole: before one of these characters,
   if the character before it is not white space. */
typedef enum carry_cut_rule {
    CARRY_CUT_NOWHERE,
    CARRY_CUT_SPACES, /* U+0020 alone */
    CARRY_CUT_BLANKS, /* and tabs */
    CARRY_CUT_BLANKS_AND_LINES,
} carry_cut_rule;
carry_cut_rule carry_pattern_rule(const carry_pattern *pattern);
/* Returns the last such position in text[0..length], or 0 if there is none. */
size_t carry_cut_last(carry_cut_rule rule, const void *text, size_t length);
/* For the GPT-2 pattern. */
size_t carry_pattern_last_cut(const void *text, size_t length);

#endif
