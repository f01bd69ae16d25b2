/* Regular expressions in the syntax of ECMA-262 and of Python's re with re.ASCII: literals, `.`, classes, \d \w \s and
   their complements, groups, alternatives, * + ? {m,n}. ^ and $ are allowed at the ends of alternatives.
   Backreferences, lookaround, word boundaries, flags and Unicode properties are refused with an error that names
   them. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_REGEX_H
#define CARRY_TOKENIZER_CONSTRAINT_REGEX_H

#include "tokenizer/constraint/characters.h"

#define CARRY_REGEX_BYTES ((size_t)1 << 16)
#define CARRY_REGEX_DEPTH 100    /* limit of nested groups */
#define CARRY_REGEX_COUNT 100000 /* {m,n} */

typedef struct carry_regex_target {
    bool in_json;   /* the text is inside a JSON string */
    bool is_found;  /* the expression matches a part of the text, unless anchored; else it matches the whole text */
    uint32_t other; /* with is_found: a rule that reads any one character */
} carry_regex_target;

/* Builds the graph of matching texts, followed by next. CARRY_EARGUMENT and CARRY_EUNSUPPORTED name the character.
   what: the name of the expression, for messages. carry_grammar_finish reports errors of the grammar. */
carry_status carry_regex_build(carry_ctx *ctx, carry_grammar *g, const char *text, size_t length, const char *what,
                               const carry_regex_target *target, uint32_t next, uint32_t *entry);

#endif
