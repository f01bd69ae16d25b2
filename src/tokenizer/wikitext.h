/* WikiText's wiki.*.tokens files, and perplexity per word as the literature counts it.

   The files are words with spaces between them, rare ones replaced by <unk>; the end of each line counts as a word,
   <eos>. Perplexity per word is exp(nll / words), nll being the sum over the whole file of -ln p of what the model
   predicts, however it cuts words into tokens. wiki.test.tokens of WikiText-103 has 245,569 words so. */
#ifndef CARRY_TOKENIZER_WIKITEXT_H
#define CARRY_TOKENIZER_WIKITEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

/* Is this such a file? By its name (wiki.NAME.tokens), or by headings (" = Name = ") and <unk> in its first 64 KiB. */
carry_status carry_wikitext_is(carry_ctx *ctx, const char *path, bool *is);
/* Words of a file of any size, <eos> for each line included. */
carry_status carry_wikitext_words(carry_ctx *ctx, const char *path, int64_t *words);
double carry_wikitext_perplexity(double nll, int64_t words);

#endif
