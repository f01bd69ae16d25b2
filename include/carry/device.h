/* Devices: where memory is and where work runs. Device 0 is the CPU; GPUs follow.

   A stream is an ordered queue of work on one device; NULL is the default stream of the device. Work on the CPU is done
   before a call returns, so its streams are always empty and waiting on them returns at once. */
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
    size_t size;           /* CARRY_INIT */
    char name[96];         /* "Neoverse-V1", "NVIDIA H200" */
    char backend[16];      /* "cpu", "cuda" */
    char kernels[32];      /* instruction sets or architecture: "neon", "avx2 avx512", "sm_90" */
    int units;             /* cores or multiprocessors */
    size_t memory;         /* total bytes, 0 if unknown */
    size_t cache;          /* bytes of the last-level cache, 0 if unknown */
    size_t cache_inner;    /* bytes of the cache private to a unit (L2 of a core, shared memory of a multiprocessor) */
    size_t shared;         /* bytes of shared memory available to one block; 0 on the CPU */
    double clock_hz;       /* highest clock of a unit, 0 if unknown */
    double memory_bytes_s; /* theoretical bandwidth from memory clock and width, 0 if unknown */
    int driver;            /* version as major * 1000 + minor * 10, such as 13000; 0 on the CPU */
    int runtime;           /* version of the toolkit that this library was built with, in the same form */
} carry_device_properties;

CARRY_API int carry_device_count(void);
CARRY_API carry_status carry_device_properties_of(carry_ctx *ctx, carry_device_properties *properties, int device);
/* Finds a device by name: "cpu", "cuda" (the first GPU) or "cuda:N". CARRY_EARGUMENT for any other name;
   CARRY_EUNSUPPORTED, with the reason, if this build or machine does not have the device. */
CARRY_API carry_status carry_device_named(carry_ctx *ctx, int *device, const char *name);
/* Why device kinds known to this build cannot be used here: one error message each, such as "cuda: the driver is for
   CUDA 12.4 and this library was built with CUDA 13.0: install a newer driver". NULL past the end. Valid until the next
   call on this context. */
CARRY_API const char *carry_device_absence(carry_ctx *ctx, int index);
/* Bytes available now, including those that the pool of this context keeps for reuse; 0 if unknown. */
CARRY_API carry_status carry_device_memory(carry_ctx *ctx, size_t *available, size_t *total, int device);
/* Bytes of the device's memory that this context holds now, including those kept for reuse; 0 if unknown (on the CPU,
   and on GPUs whose driver has no memory pools). Other programs and contexts do not count. */
CARRY_API size_t carry_device_held(carry_ctx *ctx, int device);

/* Memory aligned to at least 64 bytes. For 0 bytes the pointer may be freed but not read. On a GPU the memory comes
   from a pool of the context: freed memory is kept for the next request and returned to the system with the context, or
   when memory runs out. Memory may outlive the context it came from.
   alloc: the memory may be used on every stream at once. free: waits until the device is idle, so that nothing is still
   using the memory. alloc_on, free_on: ordered on a stream, without waiting. The memory may be used by work that is on
   that stream between the alloc and the free, and on other streams only if they wait for the alloc and the free waits
   for them. Not allowed while the stream is being recorded (carry_graph_begin). Either free accepts memory from either
   alloc. */
CARRY_API carry_status carry_device_alloc(carry_ctx *ctx, void **data, int device, size_t bytes);
CARRY_API void carry_device_free(carry_ctx *ctx, int device, void *data);
CARRY_API carry_status carry_device_alloc_on(carry_ctx *ctx, void **data, int device, size_t bytes,
                                             carry_stream *stream);
CARRY_API void carry_device_free_on(carry_ctx *ctx, int device, void *data, carry_stream *stream);

/* Pinned host memory: GPUs copy to and from it at full speed while the CPU continues. Without a GPU it is plain memory
   aligned to 64 bytes. Use it sparingly: the system cannot page it out. */
CARRY_API carry_status carry_host_alloc(carry_ctx *ctx, void **data, size_t bytes);
CARRY_API void carry_host_free(carry_ctx *ctx, void *data);

/* CARRY_EDEVICE, with `name` in the error message, unless the pointer is NULL or points to memory of `device`. Reading
   through a host pointer in a kernel would make the GPU unusable for the rest of the process, so operators check first.
 */
CARRY_API carry_status carry_device_check_pointer(carry_ctx *ctx, const char *name, const void *pointer, int device);

/* Ordered on the stream, which belongs to the GPU for a copy between the CPU and a GPU, and to the destination for a
   copy between two GPUs. A copy to the CPU on stream NULL is complete on return. */
CARRY_API carry_status carry_device_copy(carry_ctx *ctx, void *to, int to_device, const void *from, int from_device,
                                         size_t bytes, carry_stream *stream);
CARRY_API carry_status carry_device_fill(carry_ctx *ctx, void *to, int device, unsigned char byte, size_t bytes,
                                         carry_stream *stream);

/* GPU streams do not synchronise with the default stream. carry_stream_wait reports errors of work on the device, with
   the device's own error message. */
CARRY_API carry_status carry_stream_new(carry_ctx *ctx, carry_stream **stream, int device);
CARRY_API carry_status carry_stream_wait(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API void carry_stream_free(carry_ctx *ctx, int device, carry_stream *stream);

/* The stream on which the operators and scans of this context run on a device; initially NULL, the default stream. The
   context borrows the stream: set NULL, or free the context, before freeing the stream. Operators on a GPU return once
   their work is enqueued; carry_stream_wait reports its errors. Devices up to CARRY_MAX_DEVICES - 1. */
#define CARRY_MAX_DEVICES 16
CARRY_API carry_status carry_ctx_set_stream(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API carry_stream *carry_ctx_stream(const carry_ctx *ctx, int device); /* NULL for a device that does not exist */

/* An event marks a point in a stream. wait: until the work before that point is done, whatever follows it. elapsed:
   seconds between two recorded events, once both have happened. */
CARRY_API carry_status carry_event_new(carry_ctx *ctx, carry_event **event, int device);
CARRY_API carry_status carry_event_record(carry_ctx *ctx, int device, carry_event *event, carry_stream *stream);
CARRY_API carry_status carry_event_wait(carry_ctx *ctx, int device, carry_event *event);
CARRY_API carry_status carry_event_elapsed(carry_ctx *ctx, double *seconds, int device, carry_event *from,
                                           carry_event *to);
CARRY_API void carry_event_free(carry_ctx *ctx, int device, carry_event *event);
/* Makes work added to the stream of `device` from now on start after the last record of the event, which may belong to
   another stream, device or context. The CPU does not wait. An event that was never recorded has no effect. */
CARRY_API carry_status carry_stream_after(carry_ctx *ctx, int device, carry_stream *stream, carry_event *event);
/* Sets *done to 1 if the last record of the event has happened, else to 0. Does not block. */
CARRY_API carry_status carry_event_test(carry_ctx *ctx, int device, carry_event *event, int *done);

/* A graph is recorded work that can be launched many times, each time at the cost of one launch. Between begin and end,
   work put into the stream is recorded with its pointers and does not run. Run the same work once beforehand: the setup
   of a first call (memory, libraries) cannot be recorded. CARRY_EUNSUPPORTED for the CPU, which cannot record, and for
   stream NULL. carry_graph_end ends the recording even if it fails. */
CARRY_API carry_status carry_graph_begin(carry_ctx *ctx, int device, carry_stream *stream);
CARRY_API carry_status carry_graph_end(carry_ctx *ctx, carry_graph **graph, int device, carry_stream *stream);
CARRY_API carry_status carry_graph_launch(carry_ctx *ctx, int device, carry_graph *graph, carry_stream *stream);
CARRY_API void carry_graph_free(carry_ctx *ctx, int device, carry_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
