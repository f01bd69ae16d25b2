/* Keys that families with layers of Mamba-2 share. */
#ifndef CARRY_MODEL_LM_FAMILIES_MAMBA_H
#define CARRY_MODEL_LM_FAMILIES_MAMBA_H

#include "model/lm/families/family.h"

/* time_step_limit has two numbers; the second may be Infinity or {"__float__": "Infinity"}. */
carry_status carry_lm_mamba_read_limits(const carry_lm_source *s, const carry_json *node);
void carry_lm_mamba_write_limits(carry_json_text *text, const carry_lm_config *config);
/* CARRY_ESIZE unless the heads of Mamba layers together are `expand` times as wide as h. */
carry_status carry_lm_mamba_check_expand(carry_ctx *ctx, const carry_lm_config *config, int64_t expand);

#endif
