/* carry run --continue RUN: collects results of several invocations and machines in one run. */
#include <stdlib.h>
#include <string.h>

#include "bench/collective.h"
#include "cli/cli.h"
#include "cli/lab/cmd_run.h"
#include "core/error.h"

#define MOST_SPEC ((size_t)1 << 20)

/* Called on rank 0. */
static carry_status find_run(carry_ctx *ctx, carry_run **run, carry_experiment_options *options, const char *store,
                             const char *text) {
    CARRY_TRY(carry_store_open(ctx, &options->store, store));
    CARRY_TRY(carry_store_find(options->store, &options->run, text));
    CARRY_TRY(carry_store_load(options->store, run, options->run));
    if (strcmp((*run)->kind, "experiment") != 0 || (*run)->spec[0] == '\0') {
        char shown[64];
        return carry_fail(ctx, CARRY_EARGUMENT, "run %lld has the kind '%s': only an experiment can be continued",
                          (long long)(*run)->id, cli_shown(shown, (*run)->kind));
    }
    return strlen((*run)->spec) < MOST_SPEC
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ESIZE, "the experiment of run %lld is longer than %zu bytes",
                            (long long)(*run)->id, MOST_SPEC);
}

/* Sends rank 0's text to all ranks; the other ranks' argument is ignored. */
static carry_status share_text(carry_comm *comm, char **text, const char *own) {
    const bool is_first = carry_comm_rank(comm) == 0;
    uint64_t length = is_first ? strlen(own) : 0;
    CARRY_TRY(carry_broadcast(comm, &length, sizeof length, 0));
    *text = calloc(1, length + 1);
    const carry_status status = *text != NULL
                                    ? CARRY_OK
                                    : carry_fail(carry_comm_ctx(comm), CARRY_EMEMORY,
                                                 "out of memory: experiment of %llu bytes", (unsigned long long)length);
    CARRY_TRY(carry_collective_agree(comm, status));
    if (is_first && *text != NULL) {
        memcpy(*text, own, length);
    }
    return carry_broadcast(comm, *text, length, 0);
}

/* Changes the run's state only after everything else has succeeded. */
static carry_status take_up(carry_experiment *experiment, const carry_run *run, carry_experiment_options *options,
                            const char *command) {
    CARRY_TRY(carry_experiment_restore(experiment, run));
    return carry_store_resume(options->store, options->run, command, &options->continues);
}

carry_status cli_run_continue(carry_comm *comm, carry_experiment **experiment, carry_experiment_options *options,
                              const char *store, const char *text, const char *command, char name[CLI_CONTINUED_NAME]) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    const bool is_first = carry_comm_rank(comm) == 0;
    carry_run *run = NULL;
    char *spec = NULL;
    (void)snprintf(name, CLI_CONTINUED_NAME, "the experiment of run %.40s", text);
    carry_status status = is_first ? find_run(ctx, &run, options, store, text) : CARRY_OK;
    status = carry_collective_agree(carry_comm_size(comm) > 1 ? comm : NULL, status);
    status = status == CARRY_OK ? share_text(comm, &spec, run != NULL ? run->spec : "") : status;
    status = status == CARRY_OK ? carry_experiment_load_text(ctx, experiment, spec, name) : status;
    status = status == CARRY_OK ? carry_experiment_stage(*experiment, options->stage) : status;
    if (status == CARRY_OK && is_first) {
        status = take_up(*experiment, run, options, command);
    }
    status = carry_collective_agree(carry_comm_size(comm) > 1 ? comm : NULL, status);
    carry_run_free(run);
    free(spec);
    return status;
}
