/* Prompts through a text encoder: tokenizer, encoder, and a cache of encoded prompts.

   A model's folder has text_encoder (model/text/umt5.h) and tokenizer (tokenizer/unigram.h) in the layout of diffusers;
   a folder of transformers has both in one. The last prompts are kept, so that each is encoded once. As in Wan's own
   pipeline, runs of white space become one space, and white space at the ends is dropped. */
#ifndef CARRY_MODEL_TEXT_PROMPTS_H
#define CARRY_MODEL_TEXT_PROMPTS_H

#include "carry/tensor.h"

#define CARRY_PROMPTS_KEPT 16

typedef struct carry_prompts carry_prompts;

typedef struct carry_prompts_options {
    const char *folder; /* folder of the encoder; the tokenizer is in it, or in the folder `tokenizer` next to it */
    int64_t text_len, text_dim;
    /* 0: the CPU. A GPU is used, in bf16, if the encoder fits into its free memory with `spare` bytes left for others;
       otherwise the CPU is used, with a warning. If the GPU's memory runs out while a prompt is encoded, the encoder
       moves to the CPU. */
    int device;
    size_t spare;
} carry_prompts_options;

/* CARRY_ESHAPE if the encoder's width is not text_dim. */
carry_status carry_prompts_open(carry_ctx *ctx, carry_prompts **made, const carry_prompts_options *options);
void carry_prompts_free(carry_prompts *prompts);

/* Like carry_words_encode (model/dit/words.h): writes all of conditioning, [text_len, text_dim] f32 on the CPU; *rows:
   the number of tokens written, including the end token; *left_out: the number of tokens that did not fit. Neither
   pointer may be NULL. */
carry_status carry_prompts_encode(carry_prompts *prompts, carry_tensor conditioning, int64_t *rows, int64_t *left_out,
                                  const char *prompt, size_t length);

#endif
