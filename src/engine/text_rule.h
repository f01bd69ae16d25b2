/* A regular expression or a JSON schema that a text must match: the constraint of a sequence. */
#ifndef CARRY_ENGINE_TEXT_RULE_H
#define CARRY_ENGINE_TEXT_RULE_H

#include "tokenizer/constraint/constraint.h"

typedef struct carry_text_rule {
    carry_cursor *cursor; /* NULL: no rule */
    int32_t *ends;        /* tokens that end the text */
    int64_t end_count;
    int64_t words; /* words of a mask */
} carry_text_rule;

/* At most one of regex and json_schema may be given. tokenizer may be NULL only if both are NULL; the cursor is then
   NULL. After a failure the rule must be closed too. */
carry_status carry_text_rule_open(carry_ctx *ctx, carry_text_rule *rule, const carry_tokenizer *tokenizer,
                                  const char *regex, const char *json_schema, int64_t vocabulary);
/* Copies the tokens that end the text. */
carry_status carry_text_rule_set_ends(carry_ctx *ctx, carry_text_rule *rule, const int32_t *ends, int64_t count);
void carry_text_rule_close(carry_text_rule *rule);
/* A function for `constrain` of carry_sequence_options. Earlier tokens must have been given to carry_text_rule_take. */
bool carry_text_rule_allow(void *rule, int64_t last, uint32_t *allowed);
/* Adds a token of the text. Returns true if the text is complete: no token may follow. */
bool carry_text_rule_take(carry_text_rule *rule, int64_t token);

#endif
