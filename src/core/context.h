/* The fields of a context. Each layer above core keeps its data for a context in a slot, so that core does not
   depend on those layers. */
#ifndef CARRY_CORE_CONTEXT_H
#define CARRY_CORE_CONTEXT_H

#include "carry/context.h"
#include "core/error.h"

struct carry_pool;
struct carry_recording;
struct carry_stream;

#define CARRY_CTX_STREAMS 16 /* equal to CARRY_MAX_DEVICES of carry/device.h, which core does not include */

typedef enum carry_slot {
    CARRY_SLOT_OPS,      /* the kernels chosen for this processor (ops/) */
    CARRY_SLOT_RATES,    /* measured rates (ops/) */
    CARRY_SLOT_WISDOM,   /* measured plans (scan/) */
    CARRY_SLOT_BLASLT,   /* cuBLASLt: handles, plans and workspaces (ops/) */
    CARRY_SLOT_GPU,      /* measured rates of GPUs (device/) */
    CARRY_SLOT_POOLS,    /* memory pools of GPUs (device/) */
    CARRY_SLOT_CEILINGS, /* measured ceilings of GPUs (ops/) */
    CARRY_SLOT_PACKED,   /* buffers of packed products, one per thread (ops/) */
    CARRY_SLOT_COUNT
} carry_slot;

struct carry_ctx {
    int threads;
    char *kernels; /* the kernel set requested by name, or NULL */
    char *wisdom;  /* path, or NULL */
    struct carry_pool *pool;
    struct carry_recording *recording; /* where spans are recorded (span.h), or NULL */
    carry_log_level log_level;
    carry_log_sink log;
    void *log_user;
    struct {
        void *data;
        void (*free)(void *data);
    } slots[CARRY_SLOT_COUNT];
    struct carry_stream *streams[CARRY_CTX_STREAMS]; /* by device; borrowed */
    /* Memory set by carry_fixed_rows_set (ops/linear.h), borrowed: matrix products are then computed in blocks of a
       fixed number of rows. NULL: in blocks of any size. */
    void *fixed_rows;
    size_t fixed_rows_bytes;
    carry_status error_status;
    char error[512];
    char error_place[96];
    char line[128]; /* the buffer of functions that return a line of text */
};

/* Formats one line and passes it to the sink if its level is enabled. */
void carry_log(carry_ctx *ctx, carry_log_level level, const char *format, ...) CARRY_PRINTF(3, 4);

#endif
