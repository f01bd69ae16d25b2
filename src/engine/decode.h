/* A step of a generator by the decoding kernel (decode_ops.h): one launch for a token of every sequence.

   For models in bf16 whose layers have the delta rule with heads of 128, or attention over all tokens, a SwiGLU, and
   norms before both; for up to 8 sequences on a Hopper GPU. Other models and devices take the passes of model/lm. */
#ifndef CARRY_ENGINE_DECODE_H
#define CARRY_ENGINE_DECODE_H

#include "model/lm/lm.h"

typedef struct carry_decode carry_decode;

/* ids: [batch, 1], i64, and logits: [batch, vocabulary], f32, on the model's device. *made is NULL where the kernel
   does not support the model. */
carry_status carry_decode_open(carry_decode **made, carry_lm *lm, carry_lm_state *state, carry_tensor ids,
                               carry_tensor logits);
void carry_decode_close(carry_decode *decode);
/* Reads a token of every sequence and advances the state; logits are those of the next. Work is put into the stream. */
carry_status carry_decode_step(carry_decode *decode);

#endif
