/* The products of a video transformer's blocks in 8-bit floats (carry stream --fp8).

   Weights are rounded once, with a scale for each output; activations before each product, with a scale for each token
   (ops/fp8_rows.h). Attention, norms, embeddings, the head, and the products with the text stay in bf16. */
#ifndef CARRY_MODEL_DIT_FP8_H
#define CARRY_MODEL_DIT_FP8_H

#include "model/dit/dit_block.h"
#include "ops/fp8_rows.h"

/* Rounds the weights, in memory of their own beside those in bf16, before any cache is made. Caches use them if their
   type is bf16. Fails if a width is not a multiple of 16. */
carry_status carry_dit_fp8_open(carry_dit *dit);
/* Rounds the weights again, after they have changed. Does nothing for a model without 8-bit products. */
carry_status carry_dit_fp8_refresh(carry_dit *dit);
/* After every cache has been freed. */
void carry_dit_fp8_close(carry_dit *dit);

/* Memory for the activations of one product of `most` tokens; absent without 8-bit products. */
carry_fp8_rows carry_dit_fp8_take(const carry_dit *dit, carry_arena *arena, int64_t most);

/* y = f(W x + b), or y += W x + b, as carry_affine, with W of one slot or of three that follow each other (Q, K, V).
 *done is false, and nothing is done, if this call has no 8-bit products. */
carry_status carry_dit_fp8_affine(const carry_dit_call *call, int64_t block, carry_dit_slot slot, int slots,
                                  carry_tensor y, carry_tensor x, carry_tensor b, carry_activation activation,
                                  bool accumulate, bool *done);

#endif
