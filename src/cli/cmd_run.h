/* The table at the end of an experiment with problems of several ranks. */
#ifndef CARRY_CLI_CMD_RUN_H
#define CARRY_CLI_CMD_RUN_H

#include "lab/experiment/experiment.h"

/* Bytes received per rank, a row for each problem and method, a column for each number of ranks; nothing where no
   problem has ranks. */
void cli_print_received(const carry_experiment *experiment);

#endif
