/* Shared by the files of carry run. */
#ifndef CARRY_CLI_CMD_RUN_H
#define CARRY_CLI_CMD_RUN_H

#include "lab/experiment/experiment.h"

/* Bytes received per rank, a row for each problem and method, a column for each number of ranks; nothing where no
   problem has ranks. */
void cli_print_received(const carry_experiment *experiment);

/* Prints the text that problems with data=wikitext are trained on, and stores it with the run; else does nothing. */
carry_status cli_run_text(carry_ctx *ctx, const carry_experiment *experiment, const carry_experiment_options *options,
                          bool prints);

/* carry run --continue RUN: the experiment is the one that the run has stored, and the problems it has measured are
   done. On rank 0 options get the store, the run and the invocation; the store is open whatever is returned. All ranks
   call it; the experiment is to be freed. `text` is what run is called on the command line, `name` what messages call
   the experiment, which must outlive it. */
#define CLI_CONTINUED_NAME 64
carry_status cli_run_continue(carry_comm *comm, carry_experiment **experiment, carry_experiment_options *options,
                              const char *store, const char *text, const char *command, char name[CLI_CONTINUED_NAME]);

#endif
