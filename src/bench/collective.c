/* Provides the ranks for problems of several ranks. */
#include "bench/collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/product/rates.h"

#define PATIENCE 86400.0 /* seconds that the other ranks wait for those that work */
#define HOST 256

int carry_collective_ranks(carry_ctx *ctx, const char *problem) {
    carry_problem parsed;
    const carry_family *family;
    if (carry_problem_parse(ctx, &parsed, problem) != CARRY_OK || carry_family_of(ctx, &family, &parsed) != CARRY_OK ||
        family->ranks == NULL) {
        return 0;
    }
    return family->ranks(&parsed);
}

/* Makes a rank's context with its share of the threads; the first ranks get the remainder. Measured rates are
   copied: otherwise every rank would measure them again for every problem, at the same time as all others. */
static carry_status new_context(carry_ctx *ctx, carry_ctx **made, int rank, int ranks) {
    const carry_rates_table *rates;
    const int all = carry_ctx_threads(ctx);
    const int share = all / ranks + (rank < all % ranks ? 1 : 0);
    CARRY_TRY(carry_rates_of(ctx, &rates, false));
    const carry_status status =
        carry_ctx_new(made, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = share > 0 ? share : 1,
                                                 .kernels = ctx->kernels, .log_level = ctx->log_level, .log = ctx->log,
                                                 .log_user = ctx->log_user});
    if (status != CARRY_OK || !carry_rates_put(*made, rates)) {
        return carry_fail(ctx, status != CARRY_OK ? status : CARRY_EMEMORY, "no context for rank %d of %d: %s", rank,
                          ranks, *made != NULL ? carry_ctx_error(*made) : "out of memory");
    }
    carry_recorder *recorder = carry_recorder_of(ctx); /* a profile shows every rank, and what it waits for */
    return recorder != NULL ? carry_recorder_attach(recorder, *made, rank) : CARRY_OK;
}

static carry_status on_threads(carry_ctx *ctx, double deadline, int ranks, carry_comm_function work, void *user) {
    carry_ctx **ctxs = calloc((size_t)ranks, sizeof(carry_ctx *));
    if (ctxs == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d ranks", ranks);
    }
    carry_status status = CARRY_OK;
    for (int r = 0; r < ranks && status == CARRY_OK; r++) {
        status = new_context(ctx, &ctxs[r], r, ranks);
    }
    if (status == CARRY_OK) {
        status = carry_comm_threads(
            ctxs, ranks, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = deadline}, work, user);
        if (status != CARRY_OK) {
            status = carry_fail(ctx, status, "%s", carry_ctx_error(ctxs[0]));
        }
    }
    for (int r = 0; r < ranks; r++) {
        carry_ctx_free(ctxs[r]);
    }
    free(ctxs);
    return status;
}

/* Runs work on the first ranks of comm. The other ranks wait for the end, up to PATIENCE seconds. */
static carry_status on_part(carry_comm *comm, int ranks, carry_comm_function work, void *user) {
    carry_comm *part = NULL;
    carry_status status = CARRY_OK;
    const double deadline = carry_comm_deadline(comm);
    const int self = carry_comm_rank(comm);
    if (ranks == carry_comm_size(comm)) {
        return carry_collective_agree(comm, work(user, comm));
    }
    CARRY_TRY(carry_comm_split(comm, &part, self < ranks ? 0 : -1, self));
    if (part != NULL) {
        status = work(user, part);
        carry_comm_close(part);
    }
    CARRY_TRY(carry_comm_set_deadline(comm, deadline > PATIENCE ? deadline : PATIENCE));
    status = carry_collective_agree(comm, status);
    (void)carry_comm_set_deadline(comm, deadline);
    return status;
}

carry_status carry_collective_run(carry_ctx *ctx, carry_comm *comm, int ranks, carry_comm_function work, void *user) {
    if (comm == NULL || carry_comm_size(comm) == 1) {
        return on_threads(ctx, comm != NULL ? carry_comm_deadline(comm) : CARRY_COMM_DEADLINE, ranks, work, user);
    }
    if (ranks > carry_comm_size(comm)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "p%d is more than the %d ranks that there are (%s): start %d, or one process alone, which "
                          "takes threads for ranks",
                          ranks, carry_comm_size(comm), carry_comm_name(comm), ranks);
    }
    return on_part(comm, ranks, work, user);
}

carry_status carry_collective_agree(carry_comm *comm, carry_status own) {
    if (comm == NULL || own == CARRY_EPEER || own == CARRY_ETIMEOUT) { /* the communicator has failed */
        return own;
    }
    int64_t worst = (int64_t)own;
    CARRY_TRY(carry_all_reduce(comm, &worst, 1, CARRY_I64, CARRY_REDUCE_MAX));
    if (own == CARRY_OK && worst != CARRY_OK) {
        return carry_fail(carry_comm_ctx(comm), (carry_status)worst, "another rank: %s",
                          carry_status_text((carry_status)worst));
    }
    return (carry_status)worst;
}

typedef struct machine {
    int64_t cores;
    char name[HOST];
} machine;

static int cores_of(const machine *all, int count) {
    int64_t cores = 0;
    for (int i = 0; i < count; i++) {
        bool counted = false;
        for (int j = 0; j < i && !counted; j++) {
            counted = memcmp(all[i].name, all[j].name, HOST) == 0;
        }
        cores += counted ? 0 : all[i].cores;
    }
    return (int)cores;
}

/* Gathers the machine of every rank. The caller frees *all, also after a failure. */
static carry_status gather_machines(carry_comm *comm, machine **all) {
    machine here;
    memset(&here, 0, sizeof here); /* padding is sent too */
    (void)gethostname(here.name, HOST - 1);
    /* A launcher may bind a process to some cores, so the cores it may use are not those of the machine. */
    const bool is_alone = strcmp(carry_comm_name(comm), "mpi") != 0;
    here.cores = is_alone ? carry_cores() : sysconf(_SC_NPROCESSORS_ONLN);
    *all = calloc((size_t)carry_comm_size(comm), sizeof **all);
    CARRY_TRY(carry_collective_agree(
        comm, *all != NULL ? CARRY_OK : carry_fail(carry_comm_ctx(comm), CARRY_EMEMORY, "out of memory")));
    return carry_all_gather(comm, *all, &here, sizeof here);
}

carry_status carry_collective_cores(carry_comm *comm, int *cores) {
    machine *all;
    const carry_status status = gather_machines(comm, &all);
    *cores = status == CARRY_OK ? cores_of(all, carry_comm_size(comm)) : 0;
    free(all);
    return status;
}

carry_status carry_collective_neighbours(carry_comm *comm, int *ranks) {
    machine *all;
    const carry_status status = gather_machines(comm, &all);
    *ranks = 0;
    for (int i = 0; status == CARRY_OK && all != NULL && i < carry_comm_size(comm); i++) {
        *ranks += memcmp(all[i].name, all[carry_comm_rank(comm)].name, HOST) == 0;
    }
    free(all);
    return status;
}

const char *carry_collective_note(char note[CARRY_COLLECTIVE_NOTE], int ranks, int cores) {
    note[0] = '\0';
    if (ranks > cores) {
        (void)snprintf(note, CARRY_COLLECTIVE_NOTE, "%d ranks on %d core%s: times include waiting for a core", ranks,
                       cores, cores == 1 ? "" : "s");
    }
    return note;
}
