/* Prompts through a text encoder: tokenizer, encoder, and a cache of encoded prompts.

   A model's folder has text_encoder (model/text/umt5.h) and tokenizer (tokenizer/unigram.h) as diffusers lays them
   out; a folder of transformers has both in one. A prompt is encoded once: the last ones are kept. Runs of spaces are
   one and those at the ends are dropped, as Wan's own pipeline has it. */
#ifndef CARRY_MODEL_TEXT_PROMPTS_H
#define CARRY_MODEL_TEXT_PROMPTS_H

#include "carry/tensor.h"

#define CARRY_PROMPTS_KEPT 16

typedef struct carry_prompts carry_prompts;

typedef struct carry_prompts_options {
    const char *folder; /* of the encoder; its tokenizer is in it, or in the folder tokenizer beside it */
    int64_t text_len, text_dim;
    /* A GPU in bf16, if the encoder fits into the free memory, with `spare` bytes left for others; otherwise, with
       a warning, and for 0 the CPU. If the GPU's memory runs out while a prompt is encoded, the encoder moves to the
       CPU. */
    int device;
    size_t spare;
} carry_prompts_options;

/* CARRY_ESHAPE where the encoder's width is not text_dim. */
carry_status carry_prompts_open(carry_ctx *ctx, carry_prompts **made, const carry_prompts_options *options);
void carry_prompts_free(carry_prompts *prompts);

/* As carry_words_encode (model/dit/words.h): all of conditioning is written, [text_len, text_dim] f32 on the CPU;
 *rows: tokens there, </s> among them; *left_out: tokens that did not fit. */
carry_status carry_prompts_encode(carry_prompts *prompts, carry_tensor conditioning, int64_t *rows, int64_t *left_out,
                                  const char *prompt, size_t length);

#endif
