/* Shared by the families of problems for several ranks: opens and plans an instance. */
#include "bench/family/family_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "comm/ranks.h"
#include "core/context.h"
#include "bench/collective.h"

int carry_ranks_family_size(carry_problem *problem) {
    const int64_t p = carry_problem_size(problem, "p", 0);
    return p <= CARRY_RANKS ? (int)p : 0;
}

carry_status carry_ranks_family_device(carry_ctx *ctx, int *device, carry_problem *problem) {
    const char *text = carry_problem_setting(problem, "device");
    if (text == NULL || strcmp(text, "gpus") != 0) {
        return carry_problem_device(ctx, device, problem);
    }
    const int64_t ranks = carry_problem_size(problem, "p", 0);
    const int gpus = carry_device_count() - 1; /* the CPU is device 0 */
    *device = 0;
    if (ranks > gpus) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "device=gpus in '%s': each of %lld ranks needs a GPU, and this machine has %d (device=cuda "
                          "lets them share one)",
                          problem->text, (long long)ranks, gpus);
    }
    *device = 1 + (problem->comm != NULL ? carry_comm_rank(problem->comm) % gpus : 0);
    return CARRY_OK;
}

static carry_status open_on(const carry_ranks_family *family, carry_ctx *ctx, carry_comm *comm, void **opened,
                            carry_problem *problem, uint64_t seed, int copies) {
    carry_ranks_instance *it = calloc(1, family->bytes);
    *opened = NULL;
    carry_status status = it != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a problem");
    if (it != NULL) {
        it->ctx = ctx;
        it->comm = comm;
        status = family->fill(it, problem, seed, copies);
    }
    status = carry_collective_agree(comm, status);
    if (status != CARRY_OK || it == NULL) {
        if (it != NULL) {
            family->close(it);
        }
        return status != CARRY_OK ? status : CARRY_EMEMORY;
    }
    *opened = it;
    return CARRY_OK;
}

carry_status carry_ranks_family_plan(const carry_ranks_family *family, carry_ctx *ctx, void **opened,
                                     carry_problem *problem, bool measure) {
    if (measure) {
        carry_log(ctx, CARRY_LOG_WARNING, "nothing is remembered for '%s': its planner measures the ranks it is given",
                  problem->text);
    }
    carry_comm *alone = NULL;
    if (problem->comm == NULL) {
        CARRY_TRY(carry_comm_open(ctx, &alone, "self", NULL));
    }
    carry_status status = open_on(family, ctx, alone != NULL ? alone : problem->comm, opened, problem, 0, 0);
    carry_ranks_instance *it = *opened;
    if (status != CARRY_OK || it == NULL) {
        carry_comm_close(alone);
        return status;
    }
    it->alone = alone;
    status = family->make_plan(it, carry_ranks_family_only(it));
    if (status != CARRY_OK) {
        family->close(it);
        *opened = NULL;
    }
    return status;
}

carry_status carry_ranks_family_open(const carry_ranks_family *family, carry_ctx *ctx, void **opened,
                                     carry_problem *problem, uint64_t seed, int copies) {
    if (problem->comm != NULL) {
        return open_on(family, ctx, problem->comm, opened, problem, seed, copies);
    }
    /* Errors in the problem are reported first. */
    CARRY_TRY(carry_ranks_family_plan(family, ctx, opened, problem, false));
    family->close(*opened);
    *opened = NULL;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "'%s' is a problem of several ranks: bench, check, plan and run take it",
                      problem->text);
}

const char *carry_ranks_family_only(const void *instance) {
    const carry_ranks_instance *it = instance;
    return it->only[0] != '\0' ? it->only : NULL;
}

carry_status carry_ranks_family_own_stream(carry_ranks_instance *it, int device) {
    if (device == 0 || it->stream != NULL || carry_ctx_stream(it->ctx, device) != NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_stream_wait(it->ctx, device, NULL)); /* for work already started on the default stream */
    CARRY_TRY(carry_stream_new(it->ctx, &it->stream, device));
    it->device = device;
    return carry_ctx_set_stream(it->ctx, device, it->stream);
}

void carry_ranks_family_end_stream(carry_ranks_instance *it) {
    if (it->stream != NULL) {
        (void)carry_stream_wait(it->ctx, it->device, it->stream);
        (void)carry_ctx_set_stream(it->ctx, it->device, NULL);
        carry_stream_free(it->ctx, it->device, it->stream);
        it->stream = NULL;
    }
}

carry_status carry_ranks_family_worst(carry_comm *comm, carry_deviation *deviations, int count) {
    double worst[2 * CARRY_DEVIATIONS];
    for (int i = 0; i < count; i++) {
        worst[2 * i] = deviations[i].error;
        worst[2 * i + 1] = deviations[i].absolute;
    }
    CARRY_TRY(carry_all_reduce(comm, worst, 2 * (int64_t)count, CARRY_F64, CARRY_REDUCE_MAX));
    for (int i = 0; i < count; i++) {
        deviations[i].error = worst[2 * i];
        deviations[i].absolute = worst[2 * i + 1];
    }
    return CARRY_OK;
}
