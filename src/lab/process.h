/* Starting other programs: git, gnuplot, sbatch, the test command of a user. No shell is used unless the caller
   names one, and every wait has a limit. */
#ifndef CARRY_LAB_PROCESS_H
#define CARRY_LAB_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

typedef struct carry_process {
    const char *const *arguments; /* [0] is looked up in PATH; NULL at the end */
    const char *folder;           /* to run in; NULL: this one */
    const char *input;            /* given on standard input; NULL: nothing */
    size_t input_length;
    size_t limit;       /* of bytes kept of its output; 0: 1 MiB. Bytes beyond it are read and dropped */
    double seconds;     /* before it is ended (SIGTERM, then SIGKILL, to its whole group); 0: 600 */
    bool merge;         /* standard error goes into output as well, else it is kept in errors */
    bool inherit;       /* both go to our own instead, and nothing is kept */
    bool (*stop)(void); /* asked ten times a second; true ends it; NULL: never */
} carry_process;

typedef struct carry_process_result {
    int code; /* exit code; 128 + signal when a signal ended it; 127 when it cannot be started */
    bool timed_out, stopped;
    double seconds;
    char *output, *errors; /* with a 0 byte at the end; never NULL after CARRY_OK; the caller frees both */
    size_t output_length;
} carry_process_result;

/* CARRY_ENOTFOUND if the program does not exist; an exit code other than 0 is a result, not a failure. */
carry_status carry_process_run(carry_ctx *ctx, carry_process_result *result, const carry_process *process);
void carry_process_free(carry_process_result *result);

#endif
