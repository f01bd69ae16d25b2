/* Guesses of the next tokens of a text.

   A step of a text then reads its last token and the guesses after it, and samples a token after each of them, with the
   random number that the token at that place has anyway. A guess is accepted if it is the token that was sampled before
   it; the first one that is not ends the step. So the text is the one without guesses, greedy or sampled, apart from
   the last bits of logits, which may depend on the number of rows of a product (not with same_bits). The state after
   every guess is in a slot of its own, so that nothing needs to be taken back: the slot of the last accepted one goes
   on. */
#ifndef CARRY_ENGINE_DRAFT_H
#define CARRY_ENGINE_DRAFT_H

#include <stdint.h>

#include "carry/engine.h"

#define CARRY_DRAFT_MOST 16 /* guesses of a step */

/* Writes at most `most` guesses of the tokens after ids[0..count-1] to `to`; returns their number. */
typedef int64_t (*carry_draft_function)(void *user, const int32_t *ids, int64_t count, int32_t *to, int64_t most);

/* Guesses as a scheduler and its runner are set up for them. */
typedef struct carry_draft_plan {
    carry_draft_function function; /* NULL: none */
    int64_t tokens;                /* of a text in a step */
    int64_t runs;                  /* of a step, for guesses: as many slots serve them */
} carry_draft_plan;
/* draft and draft_tokens as in carry_engine_options; texts: at once. */
carry_status carry_draft_choose(carry_ctx *ctx, carry_draft_plan *plan, const carry_engine_options *options,
                                int64_t texts);

#define CARRY_DRAFT_DEFAULT 4 /* guesses of a step */
#define CARRY_DRAFT_TEXTS 8   /* texts with guesses in a step, at most: more texts fill a step without them */

/* The tokens that came after the last occurrence of the longest end of the text that occurred before, of 2 to 8 tokens;
   0 if no such end occurred. Looks back 32,768 tokens. user is not used. */
int64_t carry_draft_ngram(void *user, const int32_t *ids, int64_t count, int32_t *to, int64_t most);

#endif
