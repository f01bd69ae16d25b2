/* The runner of a language model on a device (engine/runner.h).

   Single tokens and pieces of prompts of a step are one pass through the model: a weight is read once for all of them.
   The states are those of a pool, one slot and some pages of which are the runner's own: `wanted` counts the others.
   Single tokens alone are padded to a few numbers of sequences on a GPU, and recorded once for each.

   same_bits: the results of a sequence do not depend on the sequences beside it, nor on how its tokens were cut into
   steps: products then have one order of sums for any number of rows, attention and the delta rule go token by token.
   On a GPU all tokens, those of prompts too, go one by one through the chain of kernels (engine/chain.h), for the
   models that it supports; guesses go through it together with the token that they follow. */
#ifndef CARRY_ENGINE_MODEL_RUNNER_H
#define CARRY_ENGINE_MODEL_RUNNER_H

#include "engine/runner.h"
#include "model/lm/lm.h"

typedef struct carry_model_runner_options {
    bool same_bits;
    bool scores; /* all runs have targets, and none wants a token: for evaluation (model_runner_score.c) */
} carry_model_runner_options;

/* `wanted` has slots, pages, sequences, tokens and context; the runner's own sizes have the rest too. dtype: of
   activations, keys and values. The runner uses lm and is closed before it. */
carry_status carry_model_runner_new(carry_lm *lm, carry_runner **made, const carry_runner_sizes *wanted,
                                    carry_dtype dtype);
carry_status carry_model_runner_new_with(carry_lm *lm, carry_runner **made, const carry_runner_sizes *wanted,
                                         carry_dtype dtype, const carry_model_runner_options *options);

/* Bytes of a slot and of a page, from which the numbers of both are chosen. */
void carry_model_runner_measure(const carry_lm *lm, carry_dtype dtype, size_t *slot, size_t *page);

#endif
