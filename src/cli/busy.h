/* The share of some steps of a training in which its device worked: of a GPU by its activity log (device/activity.h),
   of the CPU by processor time over the context's threads. */
#ifndef CARRY_CLI_BUSY_H
#define CARRY_CLI_BUSY_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

struct carry_activity_log;

typedef struct cli_busy {
    int64_t from, steps; /* the first step, from 1; how many, 0: none */
    double share;        /* 0: not known */
    /* While the steps run: */
    bool is_open;
    double wall, processor; /* when they began */
    struct carry_activity_log *log;
} cli_busy;

/* The training that cli_busy_step is called by: one at a time in a process. Borrowed. */
void cli_busy_watch(cli_busy *busy);
void cli_busy_unwatch(carry_ctx *ctx); /* after it, also where it failed */
/* carry_train_hooks.step. The device's work is waited for where the steps begin and end. */
void cli_busy_step(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end);

#endif
