/* Decoding steps of one token for each of up to CARRY_CHAIN_SEQUENCES sequences, by a chain of kernels (chain_ops.h).

   It supports the models that carry_decode_supports (decode_model.h) accepts, quantised ones included, with activations
   in bf16, on a Hopper or newer GPU, with states in the slots and pages of a pool. Other models and devices use the
   passes of model/lm. */
#ifndef CARRY_ENGINE_CHAIN_H
#define CARRY_ENGINE_CHAIN_H

#include "engine/chain_ops.h"
#include "model/lm/lm.h"

typedef struct carry_chain carry_chain;

typedef struct carry_chain_options {
    carry_chain_lists lists;
    bool same_bits; /* logits also have the same bits for any number of sequences */
} carry_chain_options;

/* lists: the lists of sequences of every step; lists->sequences is the maximum number of sequences in a step. *made is
   NULL if the kernels do not support the model, or if it has quantised matrices and same_bits is set. */
carry_status carry_chain_open(carry_chain **made, carry_lm *lm, carry_lm_state *pool,
                              const carry_chain_options *options);
void carry_chain_close(carry_chain *chain);
/* The maximum number of sequences of a step. */
int64_t carry_chain_sequences(const carry_chain *chain);
/* Enqueues a step of the first `sequences` of the lists. logits: bf16 [sequences, vocabulary]. waves > 1: entries
   wave[i] to wave[i + 1] - 1 of the lists are the tokens that follow those of wave i - 1 (model/lm/places.h). Products
   process all waves together, the delta rule and attention wave by wave. */
carry_status carry_chain_run(carry_chain *chain, carry_tensor logits, int64_t sequences, const int64_t *wave,
                             int64_t waves);

#endif
