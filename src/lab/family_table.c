/* The only list of problem families. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "lab/family.h"

extern const carry_family carry_family_scan, carry_family_delta, carry_family_matmul, carry_family_allscan;

static const carry_family *const table[] = {&carry_family_scan, &carry_family_delta, &carry_family_matmul,
                                            &carry_family_allscan};

const carry_family *carry_family_at(int index) {
    return index >= 0 && index < (int)(sizeof table / sizeof table[0]) ? table[index] : NULL;
}

carry_status carry_family_find(carry_ctx *ctx, const carry_family **family, const char *name) {
    char all[128] = "";
    size_t used = 0;
    for (int i = 0; (*family = carry_family_at(i)) != NULL; i++) {
        if (strcmp((*family)->name, name) == 0) {
            return CARRY_OK;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", (*family)->name);
    }
    return carry_fail(ctx, CARRY_ENOTFOUND, "there is no problem family '%s': this build has %s", name, all);
}

carry_status carry_family_of(carry_ctx *ctx, const carry_family **family, carry_problem *problem) {
    CARRY_TRY(carry_family_find(ctx, family, problem->family));
    if ((*family)->over_ranks != NULL && carry_problem_size(problem, "p", 0) > 0) {
        *family = (*family)->over_ranks;
    }
    return CARRY_OK;
}
