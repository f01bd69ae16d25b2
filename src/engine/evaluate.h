/* How well a model predicts a text.

   Every file is a document, and is counted as Hugging Face's models count a text with labels: its tokens, with those
   that the tokenizer puts before a text (<s> of Llama's; most have none), each predicted from those before it. So the
   first token of a text without such a start is not predicted, and neither it nor its bytes count; no end is predicted
   after the last. With from_start the model's start token (bos_token_id, or end-of-text) is put before a text that has
   none, and all of the file is counted: what a model trained here has seen before its documents.

   The state is carried along the whole document, so that every token is predicted from all before it, at the cost of
   one pass; or the text is cut into windows of `length` tokens that know nothing of each other, as models without a
   state are measured. The first token of a window is predicted from the last one before it, where windows of Hugging
   Face's leave it out.

   Up to 16 files are read at once, by the engine's runner. Host memory does not grow with the text; keys and values of
   attention layers have room for the longest file. */
#ifndef CARRY_ENGINE_EVALUATE_H
#define CARRY_ENGINE_EVALUATE_H

#include "engine/model_folder.h"

typedef struct carry_evaluation {
    double nll;            /* the sum of -ln p over predicted tokens */
    int64_t tokens, bytes; /* that were predicted */
    int64_t files;         /* that were read to their end */
    int64_t words;         /* where all files are WikiText's (train/wikitext.h); else 0 */
    double seconds;
} carry_evaluation;

typedef struct carry_evaluate_options {
    int64_t length;    /* of windows; 0: none, the state is carried along */
    carry_dtype dtype; /* to compute in */
    bool take_binary;
    bool from_start; /* the first token is predicted too, from the start token where there is one */
    int64_t at_once; /* tokens of a call; 0: 1,024 on the CPU, 16,384 on a GPU */
    /* Called at intervals, with bytes; false stops: CARRY_EINTERRUPTED, and the result is of what was read. May be
       NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
} carry_evaluate_options;

/* path: a file, or a folder of them (train/text.h). */
carry_status carry_evaluate(carry_ctx *ctx, const carry_model *model, const char *path,
                            const carry_evaluate_options *options, carry_evaluation *result);

double carry_evaluation_loss(const carry_evaluation *evaluation);          /* nats a token */
double carry_evaluation_bits_per_byte(const carry_evaluation *evaluation); /* NaN where nothing was predicted */

#endif
