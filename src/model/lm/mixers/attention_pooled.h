/* Attention of sequences whose keys and values are in the pages of a pool. */
#ifndef CARRY_MODEL_LM_ATTENTION_POOLED_H
#define CARRY_MODEL_LM_ATTENTION_POOLED_H

#include "model/lm/mixers/attention.h"

/* Computes o from the layer's q, k and v, and stores k and v in the pages. */
carry_status carry_lm_attend_pooled(const carry_lm_call *call);
/* True if the device has a kernel for steps, so that a call with only single tokens can be recorded. */
bool carry_lm_attention_pooled_records(const carry_lm_pass *pass);
/* Bytes of workspace for any call of a pooled pass. */
size_t carry_lm_attention_pooled_workspace(const carry_lm_pass *pass);

#endif
