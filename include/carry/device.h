/* Devices: where memory is and where work runs. Device 0 is the CPU and always there; GPUs follow.

   A stream is an ordered queue of work on one device; NULL is the device's own default queue. The CPU works at once, so
   its streams are always empty and waiting on them returns at once. */
#ifndef CARRY_DEVICE_H
#define CARRY_DEVICE_H

#include <stddef.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_stream carry_stream;
typedef struct carry_event carry_event;

typedef struct carry_device_properties {
    char name[96];      /* "Neoverse-V1", "NVIDIA H200" */
    char backend[16];   /* "cpu", "cuda" */
    char kernels[32];   /* instruction sets or architecture that matter here: "neon", "avx2 avx512", "sm_90" */
    int units;          /* cores or multiprocessors */
    size_t memory;      /* bytes in all, 0 when unknown */
    size_t cache;       /* bytes of the last level of cache, 0 when unknown */
    size_t cache_inner; /* bytes of the cache private to a unit (L2 of a core, shared memory of a multiprocessor) */
} carry_device_properties;

CARRY_API int carry_device_count(void);
CARRY_API carry_status carry_device_describe(carry_ctx *ctx, int device, carry_device_properties *properties);

/* Memory aligned to 64 bytes at least. bytes 0 gives a pointer that may be freed and not read. */
CARRY_API carry_status carry_device_alloc(carry_ctx *ctx, void **data, int device, size_t bytes);
CARRY_API void carry_device_free(carry_ctx *ctx, int device, void *data);

/* Ordered on the stream; between two devices, on the stream of the one that is not the CPU. */
CARRY_API carry_status carry_device_copy(carry_ctx *ctx, void *to, int to_device, const void *from, int from_device,
                                         size_t bytes, carry_stream *stream);
CARRY_API carry_status carry_device_fill(carry_ctx *ctx, void *to, int device, unsigned char byte, size_t bytes,
                                         carry_stream *stream);

CARRY_API carry_status carry_stream_new(carry_ctx *ctx, carry_stream **stream, int device);
CARRY_API carry_status carry_stream_wait(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API void carry_stream_free(carry_ctx *ctx, int device, carry_stream *stream);

/* The stream of a device that this context's operators and scans work on: NULL, the device's own, until another is set.
   The stream is borrowed: set NULL, or free the context, before it is freed. Operators on a GPU return when their work
   is in the stream; what is wrong with it comes out of carry_stream_wait. Devices up to CARRY_STREAM_DEVICES - 1. */
#define CARRY_STREAM_DEVICES 16
CARRY_API carry_status carry_ctx_set_stream(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API carry_stream *carry_ctx_stream(const carry_ctx *ctx, int device); /* NULL for a device that is not there */

/* An event marks a point of a stream. Seconds between two recorded events, once both have happened. */
CARRY_API carry_status carry_event_new(carry_ctx *ctx, carry_event **event, int device);
CARRY_API carry_status carry_event_record(carry_ctx *ctx, int device, carry_event *event, carry_stream *stream);
CARRY_API carry_status carry_event_elapsed(carry_ctx *ctx, int device, double *seconds, carry_event *from,
                                           carry_event *to);
CARRY_API void carry_event_free(carry_ctx *ctx, int device, carry_event *event);

#ifdef __cplusplus
}
#endif
#endif
