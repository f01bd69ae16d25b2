/* The runner of a language model on a device (engine/runner.h).

   The single tokens and pieces of prompts of a step are one pass through the model: each weight is read once for all of
   them. The states are in a pool. One slot and one page of it belong to the runner, in addition to the numbers in
   `wanted`. On a GPU, steps that have only single tokens are padded to one of a few numbers of sequences, and recorded
   once for each.

   same_bits: the results of a sequence do not depend on the other sequences of a step, nor on how its tokens were split
   into steps. Products then have one order of sums for any number of rows, and attention and the delta rule go token by
   token. On a GPU all tokens, including those of prompts, go one by one through the chain of kernels (engine/chain.h);
   guesses go through it together with the token that they follow. Models that the chain does not support are then
   refused with CARRY_EUNSUPPORTED. */
#ifndef CARRY_ENGINE_MODEL_RUNNER_H
#define CARRY_ENGINE_MODEL_RUNNER_H

#include "engine/runner.h"
#include "engine/state_types.h"
#include "model/lm/lm.h"

typedef struct carry_model_runner_options {
    bool same_bits;
    bool scores;     /* all runs have targets, and none wants a token: for evaluation (model_runner_score.c) */
    carry_lm *heads; /* multi-token heads of the model, for ops->draft; NULL: none. The runner uses them */
    const carry_state_types *types; /* NULL: keys and values in the type of activations, states in f32 */
    /* Steps of this many sequences or more, padding included, write the states of the delta rule once in 16 tokens
       (model/lm/mixers/rings.h), if nothing above forbids it. 0: on GPUs as many as were measured to gain; < 0: no
       rings. */
    int64_t rings;
} carry_model_runner_options;

/* Of `wanted`, only slots, pages, sequences, tokens and context are read; the runner sets the other sizes itself.
   dtype: the type of activations. The runner uses lm and must be closed before it. */
carry_status carry_model_runner_new(carry_lm *lm, carry_runner **made, const carry_runner_sizes *wanted,
                                    carry_dtype dtype);
carry_status carry_model_runner_new_with(carry_lm *lm, carry_runner **made, const carry_runner_sizes *wanted,
                                         carry_dtype dtype, const carry_model_runner_options *options);

/* The sizes in bytes of a slot and of a page, for choosing their numbers. heads: NULL or multi-token heads; types: NULL
   as above. */
void carry_model_runner_measure(const carry_lm *lm, const carry_lm *heads, carry_dtype dtype,
                                const carry_state_types *types, size_t *slot, size_t *page);
/* The bytes of a slot's rings, in addition to the above, in a runner with steps of `sequences`; 0 without rings. */
size_t carry_model_runner_ring_bytes(const carry_lm *lm, const carry_model_runner_options *options, int64_t sequences);

#endif
