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
typedef struct carry_graph carry_graph;

typedef struct carry_device_properties {
    char name[96];         /* "Neoverse-V1", "NVIDIA H200" */
    char backend[16];      /* "cpu", "cuda" */
    char kernels[32];      /* instruction sets or architecture that matter here: "neon", "avx2 avx512", "sm_90" */
    int units;             /* cores or multiprocessors */
    size_t memory;         /* bytes in all, 0 when unknown */
    size_t cache;          /* bytes of the last level of cache, 0 when unknown */
    size_t cache_inner;    /* bytes of the cache private to a unit (L2 of a core, shared memory of a multiprocessor) */
    size_t shared;         /* bytes of shared memory that one block may ask for; 0 on the CPU */
    double clock_hz;       /* highest clock of a unit, 0 when unknown */
    double memory_bytes_s; /* what the memory could move by its clock and width, 0 when unknown */
    int driver;            /* version as major * 1000 + minor * 10, such as 13000; 0 on the CPU */
    int runtime;           /* of the toolkit that this library was built with, in the same form */
} carry_device_properties;

CARRY_API int carry_device_count(void);
CARRY_API carry_status carry_device_describe(carry_ctx *ctx, carry_device_properties *properties, int device);
/* The device that a name means: "cpu", "cuda" (the first GPU) or "cuda:N". CARRY_EARGUMENT for another name;
   CARRY_EUNSUPPORTED where this build or this machine has no such device, with the reason. */
CARRY_API carry_status carry_device_named(carry_ctx *ctx, int *device, const char *name);
/* Kinds of devices that this build knows and that are not usable here: one error message each, such as "cuda: the
   driver is for CUDA 12.4 and this library was built with CUDA 13.0: install a newer driver". NULL past the end. Valid
   until the next call on this context. */
CARRY_API const char *carry_device_absence(carry_ctx *ctx, int index);
/* Bytes available now, with those that this context's pool keeps for reuse; 0 when unknown. */
CARRY_API carry_status carry_device_memory(carry_ctx *ctx, size_t *available, size_t *total, int device);

/* Memory aligned to 64 bytes at least. bytes 0 gives a pointer that may be freed and not read. On a GPU it comes from a
   pool of the context: what is freed is kept for the next request, and goes back to the system with the context, or
   when memory runs out. Memory may outlive the context it came from. alloc: ready for every stream at once. free: waits
   until the device is idle, so nothing can still be using it. alloc_on, free_on: ordered in a stream, and nobody waits.
   Work later in that stream may use the memory, work earlier than the free may still do so; other streams must have
   waited for that point. Not while the stream is recorded (carry_graph_begin). Either free takes what either alloc
   gave. */
CARRY_API carry_status carry_device_alloc(carry_ctx *ctx, void **data, int device, size_t bytes);
CARRY_API void carry_device_free(carry_ctx *ctx, int device, void *data);
CARRY_API carry_status carry_device_alloc_on(carry_ctx *ctx, void **data, int device, size_t bytes,
                                             carry_stream *stream);
CARRY_API void carry_device_free_on(carry_ctx *ctx, int device, void *data, carry_stream *stream);

/* Memory of the CPU that GPUs copy from and to at full speed while the CPU goes on (pinned); without a GPU, plain
   memory aligned to 64 bytes. It is scarce: the system cannot page it out. */
CARRY_API carry_status carry_host_alloc(carry_ctx *ctx, void **data, size_t bytes);
CARRY_API void carry_host_free(carry_ctx *ctx, void *data);

/* CARRY_EDEVICE with an error message that calls the pointer `name`, unless it points to memory of `device`; NULL
   passes. A read through a host pointer in a kernel would end the use of the GPU for the whole process, so operators
   ask first.
 */
CARRY_API carry_status carry_device_check_pointer(carry_ctx *ctx, const char *name, const void *pointer, int device);

/* Ordered on the stream; between the CPU and a GPU, on a stream of the GPU; between two GPUs, of the one written to.
   A copy to the CPU on the stream NULL has happened on return. */
CARRY_API carry_status carry_device_copy(carry_ctx *ctx, void *to, int to_device, const void *from, int from_device,
                                         size_t bytes, carry_stream *stream);
CARRY_API carry_status carry_device_fill(carry_ctx *ctx, void *to, int device, unsigned char byte, size_t bytes,
                                         carry_stream *stream);

/* Streams of a GPU do not wait for its default queue. carry_stream_wait is where work that went wrong on the device is
   told, with the device's own words. */
CARRY_API carry_status carry_stream_new(carry_ctx *ctx, carry_stream **stream, int device);
CARRY_API carry_status carry_stream_wait(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API void carry_stream_free(carry_ctx *ctx, int device, carry_stream *stream);

/* The stream of a device that this context's operators and scans work on: NULL, the device's own, until another is set.
   The stream is borrowed: set NULL, or free the context, before it is freed. Operators on a GPU return when their work
   is in the stream; what is wrong with it comes out of carry_stream_wait. Devices up to CARRY_STREAM_DEVICES - 1. */
#define CARRY_STREAM_DEVICES 16
CARRY_API carry_status carry_ctx_set_stream(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API carry_stream *carry_ctx_stream(const carry_ctx *ctx, int device); /* NULL for a device that is not there */

/* An event marks a point of a stream. Seconds between two recorded events, once both have happened; wait: until what is
   before the point is done, whatever follows it. */
CARRY_API carry_status carry_event_new(carry_ctx *ctx, carry_event **event, int device);
CARRY_API carry_status carry_event_record(carry_ctx *ctx, int device, carry_event *event, carry_stream *stream);
CARRY_API carry_status carry_event_wait(carry_ctx *ctx, int device, carry_event *event);
CARRY_API carry_status carry_event_elapsed(carry_ctx *ctx, double *seconds, int device, carry_event *from,
                                           carry_event *to);
CARRY_API void carry_event_free(carry_ctx *ctx, int device, carry_event *event);
/* What the stream of `device` is given from now on starts after the last record of the event, which may be of another
   stream, device or context; the CPU does not wait. An event that was never recorded is no obstacle. */
CARRY_API carry_status carry_stream_after(carry_ctx *ctx, int device, carry_stream *stream, carry_event *event);
/* *done is 1 when the last record of the event has happened, else 0. Never waits. */
CARRY_API carry_status carry_event_test(carry_ctx *ctx, int device, carry_event *event, int *done);

/* A graph is a piece of a stream that was recorded instead of run, and is launched as a whole, many times, for the
   price of one launch. Between begin and end, work put into the stream is recorded with its pointers; nothing runs. Run
   the same work once before: what is set up at the first call (memory, libraries) is not recorded well. A device that
   cannot record (the CPU works at once) refuses with CARRY_EUNSUPPORTED, and so does the stream NULL. carry_graph_end
   ends the recording also when it fails. */
CARRY_API carry_status carry_graph_begin(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API carry_status carry_graph_end(carry_ctx *ctx, carry_graph **graph, int device, carry_stream *stream);
CARRY_API carry_status carry_graph_launch(carry_ctx *ctx, int device, carry_graph *graph, carry_stream *stream);
CARRY_API void carry_graph_free(carry_ctx *ctx, int device, carry_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
