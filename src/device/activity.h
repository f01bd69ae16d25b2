/* Device activity: the kernels and copies of the GPUs while a profile ran.

   carry_activity_start asks the first backend that supports it (device/backend.h) to fill a log until
   carry_activity_stop. Outside these two calls nothing is recorded and there is no cost. Times are those of
   carry_seconds, so that kernels line up with the spans (core/span.h) that launched them. Sums by name are exact,
   however long a run is; records, for a timeline, are kept until the log is full, and the rest is dropped and
   counted. */
#ifndef CARRY_DEVICE_ACTIVITY_H
#define CARRY_DEVICE_ACTIVITY_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "core/launching.h"

#define CARRY_ACTIVITY_RECORDS 65536 /* kept at most */
#define CARRY_ACTIVITY_NAMES 1024    /* kernels that are summed by name; those beyond share one */
#define CARRY_ACTIVITY_NAME 64       /* bytes of a name that is shown */

typedef enum carry_activity_kind {
    CARRY_ACTIVITY_KERNEL,
    CARRY_ACTIVITY_COPY,
    CARRY_ACTIVITY_FILL
} carry_activity_kind;

typedef struct carry_activity {
    carry_activity_kind kind;
    int gpu; /* as its backend counts, from 0 */
    uint32_t stream;
    int name; /* which sum it belongs to */
    double start, end;
    int32_t grid[3], block[3], registers; /* of kernels; registers are a thread's */
    int64_t bytes;                        /* that were copied or filled; of a kernel, shared memory of a block */
} carry_activity;

#define CARRY_ACTIVITY_OPERATORS 4

/* All of one name. */
typedef struct carry_activity_sum {
    char *name; /* NULL: free */
    carry_activity_kind kind;
    int64_t calls;
    double seconds;
    /* The operators that launched it (core/launching.h), over all launches since the start, including recordings of
       graphs; only the first few operators. */
    const char *operator_name[CARRY_ACTIVITY_OPERATORS], *operator_place[CARRY_ACTIVITY_OPERATORS];
    int64_t launches[CARRY_ACTIVITY_OPERATORS];
} carry_activity_sum;

struct carry_backend;

typedef struct carry_activity_log {
    carry_activity *record;
    int64_t count, limit;
    int64_t dropped;        /* not kept; the sums have them */
    double dropped_seconds; /* their time */
    int64_t lost;           /* not recorded: the device's recorder had no space, or no time for them */
    double from;            /* carry_seconds: activities that began earlier are left out */
    int64_t waits;          /* of the host for a stream, an event or a whole GPU */
    int gpus;               /* that did anything */
    double first, last;     /* when the first began and the last ended, of those that are kept */
    double busy;            /* seconds in which a GPU did at least one thing, over all GPUs */
    const struct carry_backend *backend;
    carry_activity_sum sum[CARRY_ACTIVITY_NAMES + 1]; /* by a hash of the name; the last one is for names beyond */
} carry_activity_log;

/* records: kept at most; 0: CARRY_ACTIVITY_RECORDS, and never more. */
carry_status carry_activity_new(carry_ctx *ctx, carry_activity_log **log, int64_t records);
void carry_activity_free(carry_activity_log *log);

/* *log stays NULL where there is no GPU, or none whose work can be recorded; it does too after a failure, whose
   message says why kernels are not on the trace. One log at a time in a process. */
carry_status carry_activity_start(carry_ctx *ctx, carry_activity_log **log, int64_t records);
/* When this returns the log has all work that was launched since the start and has been waited for. */
carry_status carry_activity_stop(carry_ctx *ctx, carry_activity_log *log);

/* For backends: keeps and sums up one thing; its .name is set here. One thread at a time. */
void carry_activity_add(carry_activity_log *log, const carry_activity *activity, const char *name);
/* A kernel of this name was launched, or recorded into a graph, by an operator. */
void carry_activity_launched(carry_activity_log *log, const char *name, const carry_launcher *by);
/* After the last one: sorts by GPU, stream and start, and adds up how long the GPUs were busy. */
void carry_activity_finish(carry_activity_log *log);
/* A demangled kernel without its result, parameters and namespaces; template arguments as far as there is room:
   "void (anonymous namespace)::lookback_kernel<4, float>(carry_diagonal)" is "lookback_kernel<4, float>". */
void carry_activity_shorten(char shown[CARRY_ACTIVITY_NAME], const char *name);

#endif
