/* The only table of feed-forwards. */
#include <stddef.h>

#include "model/lm/feedforward/feedforward.h"

static const carry_lm_part *const table[] = {
#define X(NAME, name) &carry_lm_feedforward_##name,
    CARRY_LM_FEEDFORWARD_LIST(X)
#undef X
};

const carry_lm_part *carry_lm_feedforward_at(int index) {
    return index >= 0 && index < CARRY_LM_FEEDFORWARDS ? table[index] : NULL;
}
