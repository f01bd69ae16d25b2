/* The only list of problem families. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/nearest.h"
#include "bench/family/family.h"

extern const carry_family carry_family_scan, carry_family_delta, carry_family_matmul, carry_family_allscan,
    carry_family_attention, carry_family_block, carry_family_allreduce, carry_family_allgather, carry_family_cluster,
    carry_family_reducescatter, carry_family_broadcast, carry_family_sendrecv;

static const carry_family *const table[] = {
    &carry_family_scan,          &carry_family_delta,     &carry_family_matmul,    &carry_family_allscan,
    &carry_family_attention,     &carry_family_block,     &carry_family_allreduce, &carry_family_allgather,
    &carry_family_reducescatter, &carry_family_broadcast, &carry_family_sendrecv,  &carry_family_cluster};

#define TABLE ((int)(sizeof table / sizeof table[0]))

static const carry_family *registered[CARRY_FAMILIES + 1];

void carry_family_register(const carry_family *family) {
    for (int i = 0; i < CARRY_FAMILIES; i++) {
        if (registered[i] == NULL || registered[i] == family) {
            registered[i] = family;
            return;
        }
    }
}

const carry_family *carry_family_at(int index) {
    if (index < 0 || index >= TABLE + CARRY_FAMILIES) {
        return NULL;
    }
    return index < TABLE ? table[index] : registered[index - TABLE];
}

carry_status carry_family_find(carry_ctx *ctx, const carry_family **family, const char *name) {
    char all[256] = "";
    char hint[CARRY_NEAREST_HINT];
    size_t used = 0;
    carry_nearest near = carry_nearest_to(name);
    for (int i = 0; (*family = carry_family_at(i)) != NULL; i++) {
        if (strcmp((*family)->name, name) == 0) {
            return CARRY_OK;
        }
        carry_nearest_offer(&near, (*family)->name);
        used += used >= sizeof all
                    ? 0
                    : (size_t)snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", (*family)->name);
    }
    return carry_fail(ctx, CARRY_ENOTFOUND, "there is no problem family '%s'%s This build has %s", name,
                      near.best[0] != '\0' ? carry_nearest_hint(hint, &near, "") : ".", all);
}

carry_status carry_family_of(carry_ctx *ctx, const carry_family **family, carry_problem *problem) {
    CARRY_TRY(carry_family_find(ctx, family, problem->family));
    if ((*family)->over_ranks != NULL && carry_problem_size(problem, "p", 0) > 0) {
        *family = (*family)->over_ranks;
    }
    return (*family)->takes != NULL ? carry_problem_check(ctx, problem, (*family)->takes) : CARRY_OK;
}

carry_status carry_family_plan_only(const carry_family *family, carry_ctx *ctx, void **instance,
                                    carry_problem *problem) {
    CARRY_TRY(family->open(ctx, instance, problem, 0, 0));
    const carry_status status = family->choose(*instance, family->only(*instance));
    if (status != CARRY_OK) {
        family->close(*instance);
        *instance = NULL;
    }
    return status;
}
