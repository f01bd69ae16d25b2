/* The only table of families. */
#include <stddef.h>

#include "model/lm/families/family.h"

static const carry_lm_family *const table[] = {
#define X(name) &carry_lm_family_##name,
    CARRY_LM_FAMILY_LIST(X)
#undef X
};

const carry_lm_family *carry_lm_family_at(int index) {
    return index >= 0 && index < (int)(sizeof table / sizeof table[0]) ? table[index] : NULL;
}

const carry_lm_family *carry_lm_family_of(const carry_json *model_type) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const carry_lm_family *f = table[i];
        if (carry_json_is_text(model_type, f->name) ||
            (f->wrapper != NULL && carry_json_is_text(model_type, f->wrapper))) {
            return f;
        }
    }
    return NULL;
}
