/* Shared by the files of carry runs. */
#ifndef CARRY_CLI_CMD_RUNS_H
#define CARRY_CLI_CMD_RUNS_H

#include "cli/cli.h"
#include "lab/store/store.h"

typedef struct cli_runs_options {
    carry_ctx *ctx;
    carry_store *store;
    bool json, csv, history, samples, yes;
    const char *kind, *name, *output, *tensorboard;
    int64_t limit, keep;
    double slack;
    int words;
    char **word;
} cli_runs_options;

/* Loads the run named on the command line. Returns false after printing a message. */
bool cli_runs_load(const cli_runs_options *given, carry_run **run, const char *text);

int cli_runs_compare(cli_runs_options *given);
int cli_runs_export(cli_runs_options *given);
int cli_runs_import(cli_runs_options *given);

#endif
