/* Constrained sampling: decides which tokens may follow, so that a text matches a regular expression or a JSON schema,
   or is a call of given tools.

       carry_cursor_new(ctx, &cursor, tokenizer, CARRY_CONSTRAINT_REGEX, "[0-9]+", 6)
       before each token:  carry_cursor_allow(cursor, ends, end_count, mask, words)
       after it:           carry_cursor_take(cursor, token)

   The expression or schema becomes a grammar (grammar.h), and the grammar an automaton over bytes (automaton.h). The
   mask of a state is computed by a walk through the tokens of the tokenizer (vocabulary.h). A tokenizer keeps the most
   recently used constraints with their states and masks, so that requests with the same constraint share them. Tokens
   that end a text are allowed where the text may end. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_H
#define CARRY_TOKENIZER_CONSTRAINT_H

#include "tokenizer/tokenizer.h"

#define CARRY_CONSTRAINTS 16                          /* at most this many are kept by a tokenizer */
#define CARRY_CONSTRAINT_MASK_BYTES ((size_t)8 << 20) /* limit for the masks of one constraint */
#define CARRY_CONSTRAINT_WORK ((int64_t)1 << 24)      /* at most this many positions are visited for one mask */

typedef enum carry_constraint_kind {
    CARRY_CONSTRAINT_REGEX,
    CARRY_CONSTRAINT_SCHEMA,
    CARRY_CONSTRAINT_CALLS, /* tool calls, described as JSON (calls.h) */
} carry_constraint_kind;

typedef struct carry_cursor carry_cursor; /* a position in one text */

/* CARRY_EARGUMENT: the expression or schema is wrong. CARRY_EUNSUPPORTED: it uses an unsupported feature. CARRY_ESIZE:
   it exceeds a limit. May be called from any thread, but only one thread at a time may use a cursor. The tokenizer must
   outlive the cursor. */
carry_status carry_cursor_new(carry_ctx *ctx, carry_cursor **made, const carry_tokenizer *tokenizer,
                              carry_constraint_kind kind, const char *text, size_t length);
void carry_cursor_free(carry_cursor *cursor);

/* Clears the bits of tokens that may not follow; bit i % 32 of word i / 32 is token i. Returns false if this took more
   work than CARRY_CONSTRAINT_WORK, or memory ran out; the cursor cannot be used after that. */
bool carry_cursor_allow(carry_cursor *cursor, const int32_t *ends, int64_t end_count, uint32_t *mask, int64_t words);
/* Advances the cursor by a token; special tokens are ignored. Returns false as above, or if the token was not
   allowed; the cursor cannot be used after that. */
bool carry_cursor_take(carry_cursor *cursor, int64_t token);
bool carry_cursor_is_whole(const carry_cursor *cursor);    /* the text may end here */
bool carry_cursor_is_finished(const carry_cursor *cursor); /* the text may end here and may not continue */

/* The cache of constraints of a tokenizer, made together with it. It does its own locking. */
typedef struct carry_constraint_cache carry_constraint_cache;
carry_constraint_cache *carry_constraint_cache_new(void); /* NULL when out of memory */
void carry_constraint_cache_free(carry_constraint_cache *cache);

#endif
