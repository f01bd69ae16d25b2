/* The only table of families. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

/* Appends the name of a part to a list, and adds the part's limits to the row. */
static void add_part(carry_lm_family_row *row, char *list, size_t size, const carry_lm_part *part) {
    const size_t used = strlen(list);
    (void)snprintf(list + used, size - used, "%s%s", used > 0 ? ", " : "", part->name);
    row->on_cuda = row->on_cuda && !part->cpu_only;
    row->trains = row->trains && part->backward != NULL;
}

carry_lm_family_row carry_lm_family_describe(const carry_lm_family *family) {
    carry_lm_family_row row = {.on_cuda = true, .trains = true};
    for (int i = 0; i < CARRY_LM_MIXERS; i++) {
        if ((family->mixers >> i & 1u) != 0) {
            add_part(&row, row.mixers, sizeof row.mixers, carry_lm_mixer_at(i));
        }
    }
    for (int i = 0; i < CARRY_LM_FEEDFORWARDS; i++) {
        if ((family->feedforwards >> i & 1u) != 0) {
            add_part(&row, row.feedforwards, sizeof row.feedforwards, carry_lm_feedforward_at(i));
        }
    }
    return row;
}
