/* Examples of fine-tuning from JSON lines files (example_text.h), packed into rows.

   All examples are tokenized when the files are opened. In every epoch they are taken in an order that is a function of
   seed and epoch, or in the order of the files, and put into rows one after the other; a row ends where the next
   example does not fit, and is completed with tokens that are not learned. An example of n tokens takes n - 1 places:
   nothing follows its last one. Each example is a sequence of its own: neither states nor attention cross from one to
   the next (carry_source.cuts). */
#ifndef CARRY_TRAIN_EXAMPLES_H
#define CARRY_TRAIN_EXAMPLES_H

#include "tokenizer/tokenizer.h"
#include "train/data/source.h"

#define CARRY_EXAMPLES_OF_A_ROW 64 /* at most, with the rest that completes the row */

typedef struct carry_examples_options {
    const carry_tokenizer *tokenizer; /* lives as long as the examples */
    int64_t length;                   /* of a row */
    bool cuts;                        /* cut examples that are longer than a row; else they are refused */
    bool in_order;
    uint64_t seed;
} carry_examples_options;

typedef struct carry_examples carry_examples;

/* Is a path one of a JSON lines file (.jsonl)? */
bool carry_examples_are(const char *path);

carry_status carry_examples_open(carry_ctx *ctx, carry_examples **examples, const char *const *paths, int count,
                                 const carry_examples_options *options);
void carry_examples_free(carry_examples *examples);

int64_t carry_examples_count(const carry_examples *examples);
int64_t carry_examples_cut(const carry_examples *examples);     /* of them, cut to the length of a row */
int64_t carry_examples_learned(const carry_examples *examples); /* tokens that are learned, of all examples */
/* Identifies the examples for checkpoints: files, tokenizer, seed, order and row length. */
uint32_t carry_examples_crc(const carry_examples *examples);
/* The examples as a source of rows; borrowed. */
carry_source carry_examples_source(carry_examples *examples);

#endif
