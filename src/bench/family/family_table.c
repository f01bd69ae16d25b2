/* The only list of problem families; opens, plans and closes their instances. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "core/nearest.h"
#include "bench/family/family.h"
#include "bench/timer.h"

extern const carry_family carry_family_scan, carry_family_delta, carry_family_matmul, carry_family_allscan,
    carry_family_attention, carry_family_block, carry_family_allreduce, carry_family_allgather, carry_family_cluster,
    carry_family_reducescatter, carry_family_broadcast, carry_family_sendrecv, carry_family_generate,
    carry_family_streamcluster;

static const carry_family *const table[] = {
    &carry_family_scan,          &carry_family_delta,        &carry_family_matmul,    &carry_family_allscan,
    &carry_family_attention,     &carry_family_block,        &carry_family_allreduce, &carry_family_allgather,
    &carry_family_reducescatter, &carry_family_broadcast,    &carry_family_sendrecv,  &carry_family_cluster,
    &carry_family_generate,      &carry_family_streamcluster};

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

const char *carry_instance_only(const void *instance) {
    const carry_instance *it = instance;
    return it->only[0] != '\0' ? it->only : NULL;
}

int carry_instance_device(const void *instance) {
    return ((const carry_instance *)instance)->device;
}

void carry_family_close(const carry_family *family, void *instance) {
    if (family->close != NULL) {
        family->close(instance);
        return;
    }
    carry_timer_free(((carry_instance *)instance)->timer);
    if (family->release != NULL) {
        family->release(instance);
    }
    free(instance);
}

carry_status carry_family_open(const carry_family *family, carry_ctx *ctx, void **instance, carry_problem *problem,
                               uint64_t seed, int copies) {
    if (family->open != NULL) {
        return family->open(ctx, instance, problem, seed, copies);
    }
    carry_instance *it = calloc(1, family->instance_bytes);
    *instance = NULL;
    if (it == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a problem");
    }
    it->ctx = ctx;
    it->seed = seed;
    carry_status status = family->parse(it, problem);
    for (int i = 0; status == CARRY_OK && family->make_set != NULL && i < copies && i < CARRY_COPIES; i++) {
        it->copies = i + 1;
        status = family->make_set(it, i, seed + (uint64_t)i);
    }
    if (status == CARRY_OK && it->device != 0 && copies > 0) {
        status = carry_timer_new(ctx, &it->timer, it->device);
    }
    if (status != CARRY_OK) {
        carry_family_close(family, it);
        return status;
    }
    *instance = it;
    return CARRY_OK;
}

carry_status carry_family_plan(const carry_family *family, carry_ctx *ctx, void **instance, carry_problem *problem,
                               bool measure) {
    if (family->plan != NULL) {
        return family->plan(ctx, instance, problem, measure);
    }
    if (measure && family->unmeasured != NULL) {
        carry_log(ctx, CARRY_LOG_WARNING, "nothing is measured for '%s': %s", problem->text, family->unmeasured);
    }
    CARRY_TRY(carry_family_open(family, ctx, instance, problem, 0, 0));
    const carry_status status = family->make_plan != NULL ? family->make_plan(*instance, measure)
                                                          : family->choose(*instance, family->only(*instance));
    if (status != CARRY_OK) {
        carry_family_close(family, *instance);
        *instance = NULL;
    }
    return status;
}
