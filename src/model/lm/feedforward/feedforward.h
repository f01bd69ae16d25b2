/* The list of feed-forwards: the parts of layers that work on each token alone. part.h has their interface. */
#ifndef CARRY_MODEL_LM_FEEDFORWARD_H
#define CARRY_MODEL_LM_FEEDFORWARD_H

#include "model/lm/part.h"

/* X(NAME, name): CARRY_LM_FEEDFORWARD_NAME in a configuration, carry_lm_feedforward_name here. */
#define CARRY_LM_FEEDFORWARD_LIST(X) X(SWIGLU, swiglu) X(EXPERTS, experts) X(SQUARED, squared) X(NONE, none)

#define X(NAME, name) extern const carry_lm_part carry_lm_feedforward_##name;
CARRY_LM_FEEDFORWARD_LIST(X)
#undef X

enum {
#define X(NAME, name) CARRY_LM_FEEDFORWARD_##NAME,
    CARRY_LM_FEEDFORWARD_LIST(X)
#undef X
        CARRY_LM_FEEDFORWARDS
};

/* Slots of SwiGLU. */
enum { CARRY_LM_SWIGLU_GATE, CARRY_LM_SWIGLU_UP, CARRY_LM_SWIGLU_DOWN, CARRY_LM_SWIGLU_SLOTS };

/* NULL past the end. */
const carry_lm_part *carry_lm_feedforward_at(int index);

#endif
