/* Unigram tokenizers as trained by SentencePiece, which text encoders of the T5 family use: spiece.model, or
   tokenizer.json with a model of type Unigram.

   A text is normalized: the character map of the file is applied, and each run of spaces becomes one U+2581, with one
   before the first word too; spaces at the end are dropped. It is then cut into the pieces with the highest total
   score. A character without a piece becomes its bytes, or <unk>. Pieces that do not represent text, such as </s>, are
   never found in a text. */
#ifndef CARRY_UNIGRAM_H
#define CARRY_UNIGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

typedef struct carry_unigram carry_unigram;

/* Opens a folder with tokenizer.json or spiece.model; tokenizer.json is preferred. CARRY_ENOTFOUND: it has neither. */
carry_status carry_unigram_open(carry_ctx *ctx, carry_unigram **made, const char *folder);
void carry_unigram_free(carry_unigram *unigram);
int64_t carry_unigram_size(const carry_unigram *unigram); /* pieces */

/* Writes the ids of a text followed by </s>: *count ids, at most `most`, which must be 1 or more. Ids that do not fit
   are left out before </s>; *left_out, unless NULL, receives their number. Each byte that is not UTF-8 is read as
   U+FFFD. */
carry_status carry_unigram_encode(carry_unigram *unigram, int64_t *ids, int64_t most, int64_t *count, int64_t *left_out,
                                  const char *text, size_t length);

#endif
