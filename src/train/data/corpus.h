/* A corpus: text files of any size, as tokens.

   Text is tokenized when it is needed, one window at a time (about 16 MiB of text, by all threads of the context), and
   the window's tokens are kept, with two bytes each if the vocabulary allows. So training starts at once, and memory
   does not grow with the corpus. Rows are consecutive tokens of a window; the remaining tokens at its end are not used.

   A corpus of one window stays in memory from epoch to epoch. A larger one is shuffled again in each epoch: its blocks
   (tokenizer/text.h, about 1 MiB each) are assigned to windows in an order that depends on seed and epoch. Rows within
   a window are shuffled by their reader (train/data/batches.h). With in_order (for evaluation), nothing is shuffled,
   and each window begins with the last token of the one before, so that every token except the first is a label of
   some row.

   Each file is a document; the tokenizer's end-of-text token, if it has one, follows its last token. */
#ifndef CARRY_TRAIN_CORPUS_H
#define CARRY_TRAIN_CORPUS_H

#include "train/data/source.h"
#include "tokenizer/text.h"
#include "tokenizer/tokenizer.h"

typedef struct carry_corpus_options {
    const carry_tokenizer *tokenizer;  /* must outlive the corpus */
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
/* Identifies a corpus, for checkpoints: depends on text, tokenizer, seed and sizes. */
uint32_t carry_corpus_crc(const carry_corpus *corpus);

/* Makes this window the current one; costs nothing if it already is. CARRY_ERANGE if the epoch has fewer windows. */
carry_status carry_corpus_load(carry_ctx *ctx, carry_corpus *corpus, int64_t epoch, int64_t window);
int64_t carry_corpus_windows(const carry_corpus *corpus); /* of the current epoch */
int64_t carry_corpus_tokens(const carry_corpus *corpus);  /* in the current window */
int64_t carry_corpus_token(const carry_corpus *corpus, int64_t index);
int64_t carry_corpus_window_bytes(const carry_corpus *corpus); /* bytes of text in the current window */

/* The corpus as a source of rows. The corpus must outlive it. */
carry_source carry_corpus_source(carry_corpus *corpus);

#endif
