/* A model with the tokenizer that belongs to it, from a folder.

   The folder is one of Hugging Face's (config.json, weights, tokenizer.json), or one of a training, which holds such
   folders named step-N: then the newest that is whole, and a warning names those that are not. Of a training the
   tokenizer may lie in either.

   Without a tokenizer.json a vocabulary of 256 is the bytes, one of 257 to 384 the bytes and <|endoftext|>. A
   vocabulary may be larger than its tokenizer by what rounding up to a multiple of 128 explains: such numbers are no
   tokens and are never generated. */
#ifndef CARRY_TRAIN_MODEL_FOLDER_H
#define CARRY_TRAIN_MODEL_FOLDER_H

#include "core/file.h"
#include "model/lm/lm.h"
#include "train/tokenizer/tokenizer.h"

typedef struct carry_model {
    int device; /* that it is on */
    carry_lm *lm;
    carry_tokenizer *tokenizer;
    int64_t start;                /* what an empty text is continued from: bos_token_id or the end of text; -1: none */
    int64_t end, other_end;       /* tokens that end a text: end-of-text and eos_token_id; -1: none */
    char folder[CARRY_FILE_PATH]; /* that it was read from */
} carry_model;

/* On failure nothing is held. */
carry_status carry_model_open(carry_ctx *ctx, carry_model *model, const char *folder, int device);
void carry_model_close(carry_model *model);

#endif
