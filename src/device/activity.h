/* Device activity: the kernels and copies of the GPUs while a profile ran.

   carry_activity_start asks the first backend that supports it (device/backend.h) to fill a log until
   carry_activity_stop. Before and after that, nothing is recorded and there is no cost. Times are those of
   carry_seconds, so that kernels line up with the spans (core/span.h) that launched them. Sums by name are exact for up
   to CARRY_ACTIVITY_NAMES names, however long a run is; records, for a timeline, are kept until the log is full, and
   the rest is dropped and counted. */
#ifndef CARRY_DEVICE_ACTIVITY_H
#define CARRY_DEVICE_ACTIVITY_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "core/launching.h"

#define CARRY_ACTIVITY_RECORDS 65536 /* the largest number of records */
#define CARRY_ACTIVITY_NAMES 1024    /* kernels that are summed by name; further ones share one sum */
#define CARRY_ACTIVITY_NAME 64       /* bytes of a name as displayed */

typedef enum carry_activity_kind {
    CARRY_ACTIVITY_KERNEL,
    CARRY_ACTIVITY_COPY,
    CARRY_ACTIVITY_FILL
} carry_activity_kind;

typedef struct carry_activity {
    carry_activity_kind kind;
    int gpu; /* its number in its backend, from 0 */
    uint32_t stream;
    int name; /* index of its sum */
    double start, end;
    int32_t grid[3], block[3], registers; /* of kernels; registers are a thread's */
    int64_t bytes;                        /* bytes copied or filled; for a kernel, shared memory per block */
} carry_activity;

#define CARRY_ACTIVITY_OPERATORS 4

/* Sums over all activities of one name. */
typedef struct carry_activity_sum {
    char *name; /* NULL: free */
    carry_activity_kind kind;
    int64_t calls;
    double seconds;
    /* The operators that launched the kernel (core/launching.h), over all launches since the start, including
       launches recorded into graphs. Only the first few operators are kept. */
    const char *operator_name[CARRY_ACTIVITY_OPERATORS], *operator_place[CARRY_ACTIVITY_OPERATORS];
    int64_t launches[CARRY_ACTIVITY_OPERATORS];
} carry_activity_sum;

struct carry_backend;

typedef struct carry_activity_log {
    carry_activity *record;
    int64_t count, limit;
    int64_t dropped;        /* records that are only in the sums */
    double dropped_seconds; /* their time */
    int64_t lost;           /* activities that the device's recorder could not record, for lack of space or time */
    double from;            /* carry_seconds; earlier activities are left out */
    int64_t waits;          /* times the host waited for a stream, an event or a whole GPU */
    int gpus;               /* GPUs that did anything */
    double first, last;     /* start of the first and end of the last record that is kept */
    double busy;            /* seconds in which a GPU did at least one thing, summed over GPUs */
    const struct carry_backend *backend;
    carry_activity_sum sum[CARRY_ACTIVITY_NAMES + 1]; /* by a hash of the name; the last is for all further names */
} carry_activity_log;

/* records: the largest number to keep; 0: CARRY_ACTIVITY_RECORDS, which is also the limit. */
carry_status carry_activity_new(carry_ctx *ctx, carry_activity_log **log, int64_t records);
void carry_activity_free(carry_activity_log *log);

/* *log is NULL if there is no GPU whose work can be recorded (CARRY_OK), and after a failure, whose message says why
   the trace has no kernels. A process can have one log at a time. */
carry_status carry_activity_start(carry_ctx *ctx, carry_activity_log **log, int64_t records);
/* On return the log has all work that was launched since the start and has been waited for. */
carry_status carry_activity_stop(carry_ctx *ctx, carry_activity_log *log);

/* For backends: adds one activity to the records and sums, and sets its .name. Only one thread may call it at a
   time. */
void carry_activity_add(carry_activity_log *log, const carry_activity *activity, const char *name);
/* Notes that an operator launched a kernel of this name, or recorded it into a graph. */
void carry_activity_launched(carry_activity_log *log, const char *name, const carry_launcher *by);
/* Call it after the last activity: sorts by GPU, stream and start, and adds up how long the GPUs were busy. */
void carry_activity_finish(carry_activity_log *log);
/* Shortens the demangled name of a kernel: drops result, parameters and namespaces, and keeps template arguments as
   far as they fit. "void (anonymous namespace)::lookback_kernel<4, float>(carry_diagonal)" becomes
   "lookback_kernel<4, float>". */
void carry_activity_shorten(char shown[CARRY_ACTIVITY_NAME], const char *name);

#endif
