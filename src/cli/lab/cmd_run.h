/* Shared by the files of carry run. */
#ifndef CARRY_CLI_CMD_RUN_H
#define CARRY_CLI_CMD_RUN_H

#include "lab/experiment/experiment.h"

/* Prints the bytes received per rank: a row for each problem and method, a column for each number of ranks. Prints
   nothing if no problem has ranks. */
void cli_print_received(const carry_experiment *experiment);

/* Prints the text on which problems with data=wikitext are trained, and stores it with the run. Does nothing without
   such problems. */
carry_status cli_run_text(carry_ctx *ctx, const carry_experiment *experiment, const carry_experiment_options *options,
                          bool prints);

/* carry run --continue RUN: loads the experiment stored in the run and skips the problems that it has measured. All
   ranks call it. On rank 0, options receive the store, the run and the invocation; the store is open even on
   failure. The caller frees the experiment. text: the run's name on the command line. name: receives the
   experiment's name in messages, and must outlive the experiment. */
#define CLI_CONTINUED_NAME 64
carry_status cli_run_continue(carry_comm *comm, carry_experiment **experiment, carry_experiment_options *options,
                              const char *store, const char *text, const char *command, char name[CLI_CONTINUED_NAME]);

#endif
