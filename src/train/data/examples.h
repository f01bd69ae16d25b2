/* Examples for fine-tuning from JSON lines files (example_text.h), packed into rows.

   All examples are tokenized when the files are opened. In every epoch they are taken in an order that depends on seed
   and epoch, or in the order of the files, and put into rows one after the other. A row ends where the next example
   does not fit or where it has CARRY_EXAMPLES_OF_A_ROW - 1 examples, and is filled up with tokens that are not learned.
   An example of n tokens takes n - 1 positions, since no token follows its last one. Each example is a separate
   sequence: neither states nor attention cross from one to the next (carry_source.cuts). */
#ifndef CARRY_TRAIN_EXAMPLES_H
#define CARRY_TRAIN_EXAMPLES_H

#include "tokenizer/tokenizer.h"
#include "train/data/source.h"

#define CARRY_EXAMPLES_OF_A_ROW 64 /* maximum number, including the padding at the end of the row */

typedef struct carry_examples_options {
    const carry_tokenizer *tokenizer; /* must outlive the examples */
    int64_t length;                   /* of a row */
    bool cuts;                        /* cut examples that are longer than a row; false: they are refused */
    bool in_order;
    uint64_t seed;
} carry_examples_options;

typedef struct carry_examples carry_examples;

/* True if a path is that of a JSON lines file (.jsonl). */
bool carry_examples_are(const char *path);

carry_status carry_examples_open(carry_ctx *ctx, carry_examples **examples, const char *const *paths, int count,
                                 const carry_examples_options *options);
void carry_examples_free(carry_examples *examples);

int64_t carry_examples_count(const carry_examples *examples);
int64_t carry_examples_cut(const carry_examples *examples);     /* number of examples that were cut to the length of a
                                                                   row */
int64_t carry_examples_learned(const carry_examples *examples); /* number of learned tokens in all examples */
/* Identifies the examples, for checkpoints: depends on files, tokenizer, seed, order and row length. */
uint32_t carry_examples_crc(const carry_examples *examples);
/* The examples as a source of rows. They must outlive it. */
carry_source carry_examples_source(carry_examples *examples);

#endif
