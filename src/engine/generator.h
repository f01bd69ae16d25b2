/* Prompts and steps of one model for a fixed number of sequences. */
#ifndef CARRY_ENGINE_GENERATOR_H
#define CARRY_ENGINE_GENERATOR_H

#include "model/lm/lm.h"

/* Generates for `batch` sequences at once. A prompt continues the state of its sequence and is read in pieces of
   bounded size; then every step reads one token of each sequence. logits are f32: [vocab] for the token after the
   prompt, [batch, vocab] after a step. After the first two steps, which set up buffers and recordings, steps allocate
   memory only when the texts outgrow the caches of attention layers or the tables of their pages. */
typedef struct carry_lm_generator carry_lm_generator;
carry_status carry_lm_generator_new(carry_lm *lm, carry_lm_generator **made, int64_t batch, carry_dtype dtype);
void carry_lm_generator_free(carry_lm_generator *g);
carry_status carry_lm_generator_prompt(carry_lm_generator *g, int64_t sequence, const int64_t *ids, int64_t count,
                                       float *logits);
int64_t carry_lm_generator_piece(const carry_lm_generator *g); /* maximum number of tokens of a prompt that are read at
                                                                  once */
carry_status carry_lm_generator_step(carry_lm_generator *g, const int64_t *ids, float *logits);
carry_lm_state *carry_lm_generator_state(carry_lm_generator *g);

#endif
