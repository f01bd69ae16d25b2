/* Prompts as conditioning without a trained text encoder: every word is a fixed random vector.

   A prompt is split into words (ASCII letters and digits in lower case; any other bytes that are not spaces form words
   too). A word becomes the sum of two vectors of text_dim numbers: one of N(0, 1), which depends only on its bytes, and
   a smaller one, which depends on its position. Rows after the last word are zeros. A model that was trained on these
   vectors knows its words; other words are noise to it, and no error is reported, since there is no wrong spelling.
   (word:1.5) multiplies the first vector of a word by a weight, (two words:0.5) those of both words; a weight is
   digits, one to four before a point and up to four after it. Parentheses without a weight are ordinary bytes, and so
   are "\(" and "\)". Any bytes of any length are a valid prompt: words that do not fit into text_len rows are dropped,
   and the caller gets their number. */
#ifndef CARRY_MODEL_WORDS_H
#define CARRY_MODEL_WORDS_H

#include "carry/tensor.h"

/* conditioning: [text_len, text_dim] f32; all of it is written, with zeros after the last word. *rows: the number of
   words written; *left_out: the number of words that did not fit. Either pointer may be NULL. */
carry_status carry_words_encode(carry_ctx *ctx, carry_tensor conditioning, int64_t *rows, int64_t *left_out,
                                const char *prompt, size_t length);

#endif
