/* How well a model predicts a text.

   Every file is a document and is scored as Hugging Face's models score a text with labels: each of its tokens,
   including those that the tokenizer adds before a text (<s> for Llama; most add none), is predicted from those before
   it. So the first token of a text without such a start token is not predicted, and neither it nor its bytes count; no
   end token is predicted after the last. With from_start, the model's start token (bos_token_id, or end-of-text) is put
   before a text without one, and the whole file is counted: models trained with this library saw their documents like
   this.

   The state is carried along the whole document, so that every token is predicted from all tokens before it, at the
   cost of one pass; or the text is cut into independent windows of `length` tokens, as models without a state are
   measured. The first token of a window is predicted from the last one before it; Hugging Face's windows leave it out.

   The engine's runner reads up to 16 files at once. Host memory does not grow with the text; the caches of attention
   layers are large enough for the longest file. */
#ifndef CARRY_ENGINE_EVALUATE_H
#define CARRY_ENGINE_EVALUATE_H

#include "engine/model_folder.h"

typedef struct carry_evaluation {
    double nll;            /* the sum of -ln p over predicted tokens */
    int64_t tokens, bytes; /* number of predicted tokens, and their bytes */
    int64_t files;         /* number of files that were read to their end */
    int64_t words;         /* number of words if all files are WikiText's (tokenizer/wikitext.h), else 0 */
    double seconds;
} carry_evaluation;

typedef struct carry_evaluate_options {
    int64_t length;                   /* tokens of a window; 0: no windows, the state is carried along */
    carry_dtype dtype;                /* type to compute in */
    const char *kv_type, *state_type; /* types of states, as in carry/engine.h; NULL: defaults */
    bool take_binary;
    bool from_start; /* predict the first token too, from the start token if there is one */
    int64_t at_once; /* tokens of a call; 0: 1,024 on the CPU, 16,384 on a GPU */
    /* Called at intervals, with numbers of bytes. Returning false stops the evaluation with CARRY_EINTERRUPTED, and the
       result covers the part that was read. May be NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
} carry_evaluate_options;

/* path: a file, or a folder of them (tokenizer/text.h). */
carry_status carry_evaluate(carry_ctx *ctx, const carry_model *model, const char *path,
                            const carry_evaluate_options *options, carry_evaluation *result);

double carry_evaluation_loss(const carry_evaluation *evaluation);          /* nats per token */
double carry_evaluation_bits_per_byte(const carry_evaluation *evaluation); /* NaN if nothing was predicted */

#endif
