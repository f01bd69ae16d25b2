/* Converts the prompts of the controls to the transformer's conditioning.

   The target is the weighted mean of the prompts' vectors (model/text/prompts.h, model/dit/words.h). When prompts
   change, the next n = `transition` chunks move from the current conditioning to the target in equal steps: the
   first goes 1/n of the way, and the n-th uses the target itself. With n = 0 or 1 the change is immediate. A change
   during a transition starts from the current mixture. The first chunk of a stream uses its target. */
#ifndef CARRY_STREAM_CONDITIONING_H
#define CARRY_STREAM_CONDITIONING_H

#include "carry/tensor.h"
#include "model/text/prompts.h"
#include "stream/controls.h"

typedef struct carry_conditioning carry_conditioning;
/* prompts: the text encoder, borrowed. If it is NULL, every word is a fixed random vector (model/dit/words.h).
   Allocates the memory of the object: 14 bytes for each element of [text_len, text_dim]. The text encoder may allocate
   more when it encodes a prompt. */
carry_status carry_conditioning_new(carry_ctx *ctx, carry_conditioning **made, int64_t text_len, int64_t text_dim,
                                    carry_prompts *prompts);
void carry_conditioning_free(carry_conditioning *conditioning);

/* Computes the conditioning of the next chunk: *rows is bf16 [rows, text_dim], packed, valid until the next call,
   with 1 to text_len rows; the rows from there to text_len count as zero. *is_new is true if it differs from that of
   the previous call, and then the keys and values of the text must be computed again (reset_cross_cache). When prompts
   change, a prompt with more words or tokens than text_len causes a warning in the log. */
carry_status carry_conditioning_next(carry_conditioning *conditioning, const carry_control_state *state,
                                     carry_tensor *rows, bool *is_new);

#endif
