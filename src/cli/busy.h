/* Measures the share of the time of some training steps during which the device was busy: for a GPU, from its activity
   log (device/activity.h); for the CPU, as the process's processor time divided by wall time and number of threads. */
#ifndef CARRY_CLI_BUSY_H
#define CARRY_CLI_BUSY_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

struct carry_activity_log;

typedef struct cli_busy {
    int64_t from, steps; /* number of the first step, from 1; number of steps, 0: none */
    double share;        /* 0: unknown */
    /* While the steps run: */
    bool is_open;
    double wall, processor; /* values when the steps began */
    struct carry_activity_log *log;
} cli_busy;

/* Starts watching the training that calls cli_busy_step; one at a time in a process. `busy` is borrowed. */
void cli_busy_watch(cli_busy *busy);
void cli_busy_unwatch(carry_ctx *ctx); /* call it after the training, even if that failed */
/* Use as carry_train_hooks.step. Waits for the device when the watched steps begin and end. */
void cli_busy_step(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end);

#endif
