/* The steps of a training that a profile records: carry profile train --profile-from N --profile-steps M. */
#ifndef CARRY_CLI_WINDOW_H
#define CARRY_CLI_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

struct carry_recorder;

typedef struct cli_window {
    int64_t from, steps; /* number of the first step, from 1; number of steps, 0: up to the end */
    struct carry_recorder *recorder;
    void (*begin)(void *user); /* starts the recording of GPUs, on rank 0 */
    void (*end)(void *user);
    void *user;
    int64_t covered; /* steps that were recorded */
    bool is_open;
} cli_window;

/* NULL: whole runs are recorded. The window is borrowed. */
void cli_set_window(cli_window *window);
const cli_window *cli_get_window(void);
/* Every rank calls it before each step, when `done` steps are done, and after the last. Waits for the device when
   the window opens and closes. */
void cli_window_step(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end);

#endif
