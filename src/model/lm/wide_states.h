/* States of recurrences that a pool stores in bf16: a layer computes with copies in f32, which are rounded when they
   are stored, to the nearest, ties to even. For a pool in f32 these functions only pass on its states. */
#ifndef CARRY_MODEL_LM_WIDE_STATES_H
#define CARRY_MODEL_LM_WIDE_STATES_H

#include "model/lm/places.h"

/* Gets the arguments of a recurrence for a group (carry_lm_pooled), with its states in f32. The states of one group at
   a time can be in use. Call carry_lm_put_wide after the recurrence. */
carry_status carry_lm_take_wide(const carry_lm_call *call, const carry_lm_group *group, int part,
                                carry_lm_pooled_call *pooled);
carry_status carry_lm_put_wide(const carry_lm_call *call, const carry_lm_group *group, int part);

/* Calls `run` for the group. With same_bits and states in bf16, calls it for each token of a piece, since results must
   not depend on where a prompt is cut: the state is then rounded after every token. */
carry_status carry_lm_run_group(const carry_lm_call *call, const carry_lm_group *group,
                                carry_status (*run)(const carry_lm_call *call, const carry_lm_group *group));

#endif
