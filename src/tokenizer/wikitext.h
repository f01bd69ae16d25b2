/* WikiText's wiki.*.tokens files, and perplexity per word as the literature counts it. The files are words separated by
   spaces, with rare words replaced by <unk>; the end of each line counts as a word, <eos>. Perplexity per word is
   exp(nll / words), where nll is the sum of -ln p over all predictions in the file, however the model splits words into
   tokens. Counted this way, wiki.test.tokens of WikiText-103 has 245,569 words. */
#ifndef CARRY_TOKENIZER_WIKITEXT_H
#define CARRY_TOKENIZER_WIKITEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

/* *is: true if this is such a file, by its name (wiki.NAME.tokens), or by headings (" = Name = ") and <unk> in its
   first 64 KiB. */
carry_status carry_wikitext_is(carry_ctx *ctx, const char *path, bool *is);
/* *words: the number of words in a file of any size, including an <eos> for each line. */
carry_status carry_wikitext_words(carry_ctx *ctx, const char *path, int64_t *words);
double carry_wikitext_perplexity(double nll, int64_t words);

#endif
