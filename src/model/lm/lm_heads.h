/* Multi-token heads of a checkpoint (Qwen3.5: mtp.*), which guess the token after the next.

       x = fc [ norm(embedding of token t + 1), norm(hidden state of token t) ]
       y = norm(layer(x)),  logits = lm_head y

   The hidden state is that after the model's last norm; for one more guess it is y. The layer has attention, with keys
   and values of all earlier tokens. Embeddings and lm_head are the model's.

   The heads are a carry_lm with one layer, for pooled passes only (carry_lm_args.before). Its keys and values for token
   t + 1 are stored at position t + 1. Those of the first token are computed from a hidden state of zeros; the original
   leaves them out. This changes guesses slightly; guesses do not decide the text (engine/draft.h). */
#ifndef CARRY_MODEL_LM_HEADS_H
#define CARRY_MODEL_LM_HEADS_H

#include "model/lm/lm.h"

/* Loads the heads from the folder of a model. CARRY_EUNSUPPORTED: the model has no heads, or heads of another kind.
   They use the model and are freed with carry_lm_free before it. */
carry_status carry_lm_heads_open(carry_lm *model, carry_lm **heads);

static inline bool carry_lm_is_heads(const carry_lm *lm) {
    return lm->tables != lm;
}

/* Used by carry_lm_run for any model: checks the shapes of args->normed and args->before. */
carry_status carry_lm_heads_check(const carry_lm_pass *pass, const carry_lm_args *args);
/* Used by carry_lm_run: computes the input of the layer from the ids and args->before. */
carry_status carry_lm_heads_join(carry_lm_pass *pass, const carry_lm_args *args);

#endif
