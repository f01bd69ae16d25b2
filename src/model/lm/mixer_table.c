/* The only list of the ways to run a layer's recurrence on one machine, by the names that people give them. */
#include <string.h>

#include "model/lm/mixer.h"

extern const carry_lm_mixer carry_lm_mixer_cyclic, carry_lm_mixer_doubling, carry_lm_mixer_blelloch,
    carry_lm_mixer_sequential;

static const carry_lm_mixer *const table[] = {
    &carry_lm_mixer_chunk,    &carry_lm_mixer_cyclic,     &carry_lm_mixer_doubling,
    &carry_lm_mixer_blelloch, &carry_lm_mixer_sequential,
};

const carry_lm_mixer *carry_lm_mixer_at(int index) {
    return index < 0 || index >= (int)(sizeof table / sizeof table[0]) ? NULL : table[index];
}

const carry_lm_mixer *carry_lm_mixer_named(const char *name) {
    const carry_lm_mixer *mixer;
    for (int i = 0; (mixer = carry_lm_mixer_at(i)) != NULL; i++) {
        if (strcmp(mixer->name, name) == 0) {
            return mixer;
        }
    }
    return NULL;
}
