/* The only list of the methods for a layer's recurrence on one machine, by the names that users give. */
#include <string.h>

#include "model/lm/recurrence/recurrence.h"

extern const carry_lm_recurrence carry_lm_recurrence_cyclic, carry_lm_recurrence_doubling, carry_lm_recurrence_blelloch,
    carry_lm_recurrence_sequential;

static const carry_lm_recurrence *const table[] = {
    &carry_lm_recurrence_chunk,    &carry_lm_recurrence_cyclic,     &carry_lm_recurrence_doubling,
    &carry_lm_recurrence_blelloch, &carry_lm_recurrence_sequential,
};

const carry_lm_recurrence *carry_lm_recurrence_at(int index) {
    return index < 0 || index >= (int)(sizeof table / sizeof table[0]) ? NULL : table[index];
}

const carry_lm_recurrence *carry_lm_recurrence_named(const char *name) {
    const carry_lm_recurrence *recurrence;
    for (int i = 0; (recurrence = carry_lm_recurrence_at(i)) != NULL; i++) {
        if (strcmp(recurrence->name, name) == 0) {
            return recurrence;
        }
    }
    return NULL;
}
