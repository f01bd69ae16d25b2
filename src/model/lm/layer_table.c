/* The only list of mixers. */
#include "model/lm/layer_mixer.h"

#include <stddef.h>

static const carry_lm_layer_mixer *const table[] = {
#define X(NAME, name) &carry_lm_layer_##name,
    CARRY_LM_LAYER_LIST(X)
#undef X
};

const carry_lm_layer_mixer *carry_lm_layer_mixer_at(int index) {
    return index >= 0 && index < CARRY_LM_LAYER_MIXERS ? table[index] : NULL;
}
