/* A corpus: text files as tokens, of any size.

   Text is tokenized as it is needed, a window at a time (about 16 MiB of text, by all threads of the context), and the
   window's tokens are kept, two bytes each where the vocabulary allows. So training starts at once, and memory does not
   grow with the corpus. Rows are consecutive tokens of a window; what is left at its end is no row.

   A corpus of one window stays in memory from epoch to epoch. A larger one is shuffled anew in each epoch: its blocks
   (train/text.h, about 1 MiB each) are dealt to windows in an order that is a function of seed and epoch. Rows within a
   window are shuffled where they are taken (train/batches.h). In order (for evaluation) nothing is shuffled, and each
   window begins with the last token of the one before, so that every token but the first is some row's label.

   Each file is a document; after its last token comes the tokenizer's end-of-text token, where it has one. */
#ifndef CARRY_TRAIN_CORPUS_H
#define CARRY_TRAIN_CORPUS_H

#include "train/data/source.h"
#include "tokenizer/text.h"
#include "tokenizer/tokenizer.h"

typedef struct carry_corpus_options {
    const carry_tokenizer *tokenizer;  /* lives as long as the corpus */
    int64_t window_bytes, block_bytes; /* 0: 16 MiB and 1 MiB */
    bool take_binary;
    bool in_order;
    uint64_t seed;
} carry_corpus_options;

typedef struct carry_corpus carry_corpus;

carry_status carry_corpus_open(carry_ctx *ctx, carry_corpus **corpus, const char *const *paths, int count,
                               const carry_corpus_options *options);
void carry_corpus_free(carry_corpus *corpus);

const carry_text *carry_corpus_text(const carry_corpus *corpus);
/* Tells corpora apart, for checkpoints: text, tokenizer, seed and sizes. */
uint32_t carry_corpus_crc(const carry_corpus *corpus);

/* Makes this window the one at hand; of no cost when it is. CARRY_ERANGE when the epoch has fewer. */
carry_status carry_corpus_load(carry_ctx *ctx, carry_corpus *corpus, int64_t epoch, int64_t window);
int64_t carry_corpus_windows(const carry_corpus *corpus); /* of the epoch at hand */
int64_t carry_corpus_tokens(const carry_corpus *corpus);  /* of the window at hand */
int64_t carry_corpus_token(const carry_corpus *corpus, int64_t index);
int64_t carry_corpus_window_bytes(const carry_corpus *corpus); /* of text, in the window at hand */

/* The corpus as a source of rows; borrowed. */
carry_source carry_corpus_source(carry_corpus *corpus);

#endif
