/* Shared by the two files of carry climb. */
#ifndef CARRY_CLI_CLIMB_H
#define CARRY_CLI_CLIMB_H

#include "cli/cli.h"
#include "lab/climb/climb_tune.h"

/* cmd_climb_tune.c: runs climb tune PROBLEM and returns the exit code. Sets the callbacks in options. */
int cli_climb_tune(carry_ctx *ctx, const char *problem, const carry_tune_options *options, bool json);

#endif
