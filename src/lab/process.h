/* Starts other programs: git, gnuplot, sbatch, a user's test command. No shell is used unless the caller names one,
   and every wait has a limit. */
#ifndef CARRY_LAB_PROCESS_H
#define CARRY_LAB_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

typedef struct carry_process {
    const char *const *arguments; /* [0] is looked up in PATH; NULL at the end */
    const char *folder;           /* the folder to run in; NULL: the current one */
    const char *input;            /* sent to standard input; NULL: nothing */
    size_t input_length;
    size_t limit;       /* maximum bytes of output to keep; 0: 1 MiB. Further bytes are read and dropped */
    double seconds;     /* time limit, after which its whole group gets SIGTERM, then SIGKILL; 0: 600 */
    bool merge;         /* standard error is added to output; else it is kept in errors */
    bool inherit;       /* output and errors go to our own, and nothing is kept */
    bool (*stop)(void); /* called ten times a second; true ends the program; NULL: never */
} carry_process;

typedef struct carry_process_result {
    int code; /* exit code; 128 + signal if a signal ended it; 127 if it cannot be started */
    bool timed_out, stopped;
    double seconds;
    char *output, *errors; /* zero-terminated; never NULL after CARRY_OK; the caller frees both */
    size_t output_length;
} carry_process_result;

/* CARRY_ENOTFOUND if the program does not exist; an exit code other than 0 is a result, not a failure. */
carry_status carry_process_run(carry_ctx *ctx, carry_process_result *result, const carry_process *process);
void carry_process_free(carry_process_result *result);

#endif
