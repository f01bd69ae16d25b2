/* Attention of sequences whose keys and values are in the pages of a pool. */
#ifndef CARRY_MODEL_LM_ATTENTION_POOLED_H
#define CARRY_MODEL_LM_ATTENTION_POOLED_H

#include "model/lm/mixers/attention.h"

/* o of the layer's rows from its q, k and v; k and v go into the pages. */
carry_status carry_lm_attend_pooled(const carry_lm_call *call);
/* True if the device has a kernel for steps, so that a call of single tokens alone can be recorded. */
bool carry_lm_attention_pooled_records(const carry_lm_pass *pass);
/* Bytes of workspace for any call of a pooled pass. */
size_t carry_lm_attention_pooled_workspace(const carry_lm_pass *pass);

#endif
