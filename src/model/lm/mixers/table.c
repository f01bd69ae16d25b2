/* The only list of mixers. */
#include "model/lm/mixers/mixer.h"

#include <stddef.h>

static const carry_lm_part *const table[] = {
#define X(NAME, name) &carry_lm_mixer_##name,
    CARRY_LM_MIXER_LIST(X)
#undef X
};

const carry_lm_part *carry_lm_mixer_at(int index) {
    return index >= 0 && index < CARRY_LM_MIXERS ? table[index] : NULL;
}
