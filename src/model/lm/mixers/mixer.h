/* The list of mixers: the parts of layers that move information between tokens. part.h has their interface. */
#ifndef CARRY_MODEL_LM_MIXER_H
#define CARRY_MODEL_LM_MIXER_H

#include "model/lm/part.h"

/* X(NAME, name): CARRY_LM_MIXER_NAME in a configuration, carry_lm_mixer_name here. */
#define CARRY_LM_MIXER_LIST(X) \
    X(DELTA, delta)            \
    X(ATTENTION, attention) X(DELTAPRODUCT, deltaproduct) X(MAMBA, mamba) X(KDA, kda) X(LATENT, latent) X(NONE, none)

#define X(NAME, name) extern const carry_lm_part carry_lm_mixer_##name;
CARRY_LM_MIXER_LIST(X)
#undef X

enum {
#define X(NAME, name) CARRY_LM_MIXER_##NAME,
    CARRY_LM_MIXER_LIST(X)
#undef X
        CARRY_LM_MIXERS
};

/* NULL past the end. */
const carry_lm_part *carry_lm_mixer_at(int index);

#endif
