/* Guesses of the next tokens of a text (speculative decoding).

   A step of a text reads its last token and the guesses after it, and samples a token after each of them. The random
   number of a position does not depend on the guesses. A guess is accepted if it equals the token that was sampled for
   its position; the first wrong guess and those after it are dropped, with the tokens sampled after them. So the text
   is the same as without guesses, greedy or sampled, except for the last bits of logits, which may depend on the number
   of rows of a product (not with same_bits). The state after every guess is in its own slot, so that nothing has to be
   undone: the text continues with the slot of the last accepted guess. */
#ifndef CARRY_ENGINE_DRAFT_H
#define CARRY_ENGINE_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/engine.h"

#define CARRY_DRAFT_MOST 16 /* guesses of a step */

/* Writes at most `most` guesses of the tokens after ids[0..count-1] to `to`; returns their number. */
typedef int64_t (*carry_draft_function)(void *user, const int32_t *ids, int64_t count, int32_t *to, int64_t most);

/* The settings for guesses, shared by a scheduler and its runner. */
typedef struct carry_draft_plan {
    carry_draft_function function; /* NULL: none, or by_heads */
    bool by_heads;                 /* the runner guesses with the checkpoint's multi-token heads */
    int64_t tokens;                /* guesses of a text in a step */
    int64_t runs; /* runs of a step that are reserved for guesses; they need the same number of slots */
} carry_draft_plan;
/* draft and draft_tokens are as in carry_engine_options; texts: the number of texts at once. */
carry_status carry_draft_choose(carry_ctx *ctx, carry_draft_plan *plan, const carry_engine_options *options,
                                int64_t texts);

#define CARRY_DRAFT_DEFAULT 4 /* guesses of a step */
#define CARRY_DRAFT_HEADS 2   /* the same for multi-token heads, whose second and later guesses are less often right */
#define CARRY_DRAFT_TEXTS 8   /* texts with guesses in a step, at most: more texts fill a step */

/* Finds the longest suffix of the text, of 2 to 8 tokens, that also occurs earlier, within the last 32,768 tokens.
   Writes the `most` tokens that followed its last earlier occurrence; if fewer tokens follow it, repeats them. Returns
   `most`, or 0 if no suffix occurs earlier. user is not used. */
int64_t carry_draft_ngram(void *user, const int32_t *ids, int64_t count, int32_t *to, int64_t most);

#endif
