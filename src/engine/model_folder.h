/* A model and its tokenizer, from a folder or a .gguf file.

   A folder is in the format of Hugging Face (config.json, weights, tokenizer.json), or is that of a training run and
   contains such folders named step-N: then the newest complete one is used, and warnings name newer ones that are
   incomplete or damaged. The tokenizer of a run may be in step-N or in the run's folder.

   Without a tokenizer.json, a vocabulary of 256 means bytes, and one of 257 to 384 bytes and <|endoftext|>. A
   vocabulary may be larger than its tokenizer (published ones are padded by hundreds): the extra numbers are not
   tokens and are never generated. */
#ifndef CARRY_ENGINE_MODEL_FOLDER_H
#define CARRY_ENGINE_MODEL_FOLDER_H

#include "core/file.h"
#include "model/lm/lm.h"
#include "tokenizer/tokenizer.h"

#define CARRY_MODEL_ENDS 16

typedef struct carry_model {
    int device; /* device of the weights */
    carry_lm *lm;
    carry_tokenizer *tokenizer; /* NULL: opened without a tokenizer */
    int64_t start;              /* the first token of an empty text: bos_token_id or end-of-text; -1: no such token */
    int64_t end, other_end;     /* tokens that end a text: end-of-text and eos_token_id; -1: none */
    int64_t ends[CARRY_MODEL_ENDS]; /* more end tokens: from generation_config.json, and eos_token of
                                       tokenizer_config.json */
    int end_count;
    char folder[CARRY_FILE_PATH]; /* the folder it was read from */
} carry_model;

/* On failure nothing is left open. */
carry_status carry_model_open(carry_ctx *ctx, carry_model *model, const char *folder, int device);
/* The same without a tokenizer: prompts and texts are token ids. */
carry_status carry_model_open_bare(carry_ctx *ctx, carry_model *model, const char *folder, int device);
/* The same with a tokenizer, if there is one that this build can read; otherwise a warning says why not. */
carry_status carry_model_open_with_text(carry_ctx *ctx, carry_model *model, const char *folder, int device);
/* Makes a model from loaded weights, which the caller keeps: set lm to NULL before carry_model_close. */
void carry_model_borrow(carry_ctx *ctx, carry_model *model, carry_lm *lm);
/* Merges an adapter in PEFT's format into the weights of a model that was just opened. Does nothing if it is NULL. */
carry_status carry_model_adapt(carry_model *model, const char *adapter);
void carry_model_close(carry_model *model);

/* The default type to compute in: bf16 if most weights are stored as bf16 and the device has fast products in it, else
   f32. `why` gets the reason. */
#define CARRY_MODEL_WHY 128
carry_dtype carry_model_dtype(carry_ctx *ctx, const carry_model *model, char why[CARRY_MODEL_WHY]);

/* Sets the start token and the end tokens of a model, from its configuration, its tokenizer if it has one, and
   generation_config.json of its folder. */
void carry_model_find_ends(carry_ctx *ctx, carry_model *model);
bool carry_model_ends_with(const carry_model *model, int64_t token);
void carry_model_add_end(carry_model *model, int64_t token); /* ignored if it is not in the vocabulary */

#endif
