/* Constraints of sequences. */
#include "engine/text_rule.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

carry_status carry_text_rule_open(carry_ctx *ctx, carry_text_rule *rule, const carry_tokenizer *tokenizer,
                                  const char *regex, const char *json_schema, int64_t vocabulary) {
    *rule = (carry_text_rule){.words = (vocabulary + 31) / 32};
    if (regex == NULL && json_schema == NULL) {
        return CARRY_OK;
    }
    if (regex != NULL && json_schema != NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a regular expression and a JSON schema: expected one of both");
    }
    if (tokenizer == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a regular expression or a JSON schema needs a tokenizer");
    }
    const char *text = regex != NULL ? regex : json_schema;
    return carry_cursor_new(ctx, &rule->cursor, tokenizer,
                            regex != NULL ? CARRY_CONSTRAINT_REGEX : CARRY_CONSTRAINT_SCHEMA, text, strlen(text));
}

carry_status carry_text_rule_set_ends(carry_ctx *ctx, carry_text_rule *rule, const int32_t *ends, int64_t count) {
    rule->ends = malloc(((size_t)count + 1) * sizeof *rule->ends);
    if (rule->ends == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a request");
    }
    if (count > 0) {
        memcpy(rule->ends, ends, (size_t)count * sizeof *ends);
    }
    rule->end_count = count;
    return CARRY_OK;
}

void carry_text_rule_close(carry_text_rule *rule) {
    carry_cursor_free(rule->cursor);
    free(rule->ends);
    *rule = (carry_text_rule){0};
}

bool carry_text_rule_allow(void *user, int64_t last, uint32_t *allowed) {
    const carry_text_rule *rule = user;
    (void)last;
    return carry_cursor_allow(rule->cursor, rule->ends, rule->end_count, allowed, rule->words);
}

bool carry_text_rule_take(carry_text_rule *rule, int64_t token) {
    return rule->cursor != NULL && carry_cursor_take(rule->cursor, token) && carry_cursor_is_finished(rule->cursor);
}
