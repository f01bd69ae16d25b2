/* Shared by the files of carry run. */
#ifndef CARRY_CLI_CMD_RUN_H
#define CARRY_CLI_CMD_RUN_H

#include "lab/experiment/experiment.h"

/* Prints the bytes received by the rank that received most: a row for each problem, method and stage, a column for each
   number of ranks (at most 8). Prints nothing if no measured problem has ranks. */
void cli_print_received(const carry_experiment *experiment);

/* Prints the path of the text on which problems with data=wikitext are trained (if `prints` is true), and stores the
   path with the run. Does nothing without such problems. */
carry_status cli_run_text(carry_ctx *ctx, const carry_experiment *experiment, const carry_experiment_options *options,
                          bool prints);

/* carry run --continue RUN: loads the experiment stored in the run and its results, so that the problems with results
   are not measured again. All ranks call it. On rank 0, options receive the store, the run and the invocation; the
   caller closes the store even on failure. The caller frees the experiment. text: RUN as typed. name: receives the
   experiment's name in messages, and must outlive the experiment. */
#define CLI_CONTINUED_NAME 64
carry_status cli_run_continue(carry_comm *comm, carry_experiment **experiment, carry_experiment_options *options,
                              const char *store, const char *text, const char *command, char name[CLI_CONTINUED_NAME]);

#endif
