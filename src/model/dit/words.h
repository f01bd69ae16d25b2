/* Prompts as conditioning, without a trained text encoder: every word is a fixed random vector.

   A prompt is cut into words (letters and digits of ASCII in lower case, any other bytes that are no space together),
   and word w becomes a vector of text_dim numbers N(0, 1) that depends on its bytes alone; a second, smaller part
   depends on its place. Rows past the last word are absent, and the transformer fills them with zeros. A model that was
   trained on such vectors knows its words; others are noise to it, and it says so nowhere: a word has no wrong spelling
   here. (word:1.5) weighs a word, (two words:0.5) both; a weight is digits, up to four before a point and four after
   it, and brackets without one are bytes like others, as are "\(" and "\)" in any case. Any bytes of any length are a
   prompt: what does not fit text_len rows is left out, and the caller is told how many. */
#ifndef CARRY_MODEL_WORDS_H
#define CARRY_MODEL_WORDS_H

#include "carry/tensor.h"

/* conditioning: [text_len, text_dim] f32, all of it written (zeros after the last word). *rows: words there; *left_out:
   words that did not fit. Either may be NULL. */
carry_status carry_words_encode(carry_ctx *ctx, carry_tensor conditioning, int64_t *rows, int64_t *left_out,
                                const char *prompt, size_t length);

#endif
