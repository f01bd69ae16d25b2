/* Patterns cut a text into pieces before bytes are merged. No merge crosses the end of a piece. The first such
   pattern was GPT-2's:

       's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

   PCRE2 matches them, with its just-in-time compiler if available. Text that a pattern does not match is a piece too,
   unless the pattern drops such gaps. A run of bytes that are not UTF-8 is a piece of its own, and the text before it
   is matched as if the text ended there.

   Character classes equal those of the `tokenizers` library 0.23 for every character of Unicode 16, whatever Unicode
   version PCRE2 has (14 or later): \s is the property White_Space, to which PCRE2's own \s would add U+180E, and
   letters and digits that are newer than PCRE2 are listed explicitly. */
#ifndef CARRY_PATTERN_H
#define CARRY_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

typedef struct carry_pattern carry_pattern; /* may be shared by threads */
typedef struct carry_cutter carry_cutter;   /* one per thread */

carry_status carry_pattern_new(carry_ctx *ctx, carry_pattern **pattern); /* the pattern of GPT-2 */
/* A regular expression of tokenizer.json (pattern_regex.h); name is the file, for messages. */
carry_status carry_pattern_parse(carry_ctx *ctx, carry_pattern **pattern, const char *regex, size_t length,
                                 bool drops_gaps, const char *name);
carry_status carry_pattern_digits(carry_ctx *ctx, carry_pattern **pattern, bool each); /* or runs of digits */
void carry_pattern_free(carry_pattern *pattern);
bool carry_pattern_is_compiled(const carry_pattern *pattern); /* true if compiled to machine code */

/* Returns NULL when out of memory. The pattern must outlive the cutter. */
carry_cutter *carry_cutter_new(const carry_pattern *pattern);
void carry_cutter_free(carry_cutter *cutter);

/* Starts cutting a text, which must stay valid until its last piece. */
void carry_cutter_start(carry_cutter *cutter, const void *text, size_t length);
/* Returns the length of the next piece in bytes, 0 at the end; *piece points into the text. */
size_t carry_cutter_next(carry_cutter *cutter, const unsigned char **piece);

/* Where a text can be split so that the pieces of both parts equal those of the whole: before a character of the named
   kinds that does not follow white space. */
typedef enum carry_cut_rule {
    CARRY_CUT_NOWHERE,
    CARRY_CUT_SPACES, /* U+0020 only */
    CARRY_CUT_BLANKS, /* spaces, tabs and vertical tabs */
    CARRY_CUT_BLANKS_AND_LINES,
} carry_cut_rule;
carry_cut_rule carry_pattern_rule(const carry_pattern *pattern);
/* Returns the last such position in text[0..length], or 0 if not found. */
size_t carry_cut_last(carry_cut_rule rule, const void *text, size_t length);
/* Finds the last cut for the GPT-2 pattern. */
size_t carry_pattern_last_cut(const void *text, size_t length);

#endif
