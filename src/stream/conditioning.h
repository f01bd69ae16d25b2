/* From the prompts of the controls to the transformer's conditioning.

   The target is the mean of the prompts' vectors (model/text/prompts.h, model/dit/words.h), by weight. When prompts
   change, the next `transition` chunks go from what is shown to the target in equal steps: 1/n of the way, 2/n, ...,
   and the n-th chunk is the target itself; n of 0 or 1 is at once. A change in between starts from the mixture that is
   shown then. The first chunk starts at its target. */
#ifndef CARRY_STREAM_CONDITIONING_H
#define CARRY_STREAM_CONDITIONING_H

#include "carry/tensor.h"
#include "model/text/prompts.h"
#include "stream/controls.h"

typedef struct carry_conditioning carry_conditioning;
/* prompts: the text encoder, borrowed; NULL: every word is a fixed random vector (model/dit/words.h).
   Allocates all it will need: 14 bytes for each of text_len x text_dim. */
carry_status carry_conditioning_new(carry_ctx *ctx, carry_conditioning **made, int64_t text_len, int64_t text_dim,
                                    carry_prompts *prompts);
void carry_conditioning_free(carry_conditioning *conditioning);

/* Of the next chunk: bf16 [rows, text_dim], packed, until the next call; rows is at least 1 and at most text_len, and
   those left out are zeros. *is_new: it differs from that of the chunk before, so that keys and values of the text must
   be made again (reset_cross_cache). Words that do not fit text_len are logged when prompts change. */
carry_status carry_conditioning_next(carry_conditioning *conditioning, const carry_control_state *state,
                                     carry_tensor *rows, bool *is_new);

#endif
