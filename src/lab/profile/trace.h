/* Traces in the trace-event format, gzipped, for Perfetto (ui.perfetto.dev) and chrome://tracing.

   A rank is a process of the trace, and a thread of its context is a thread. Spans are complete events ("X") whose
   argument "at" is the place in the source. Counters ("C") are the resident memory of the process and the number of
   tasks waiting in a pool's queue. A GPU is a process too, and a stream is a thread; kernels, copies and fills are
   complete events whose arguments are grid, block, registers and shared_bytes, or bytes. A stream has further tracks
   if activities on it overlap. After the events comes an object "carry" with the exact hotspots, even if events
   were dropped. carry_trace_read reads only that object, so it accepts only traces of carry profile. */
#ifndef CARRY_LAB_TRACE_H
#define CARRY_LAB_TRACE_H

#include "lab/profile/hotspots.h"

#define CARRY_TRACE_BYTES ((size_t)64 << 20) /* limit of the JSON text; a run store accepts as much */

/* Makes a gzipped trace; the caller frees *bytes. log: GPU activity, or NULL. */
carry_status carry_trace_make(carry_ctx *ctx, void **bytes, size_t *length, const carry_recorder *recorder,
                              const carry_activity_log *log, const carry_hotspots *hotspots, const char *command);

/* Reads a trace, gzipped or plain; messages call it `name`. CARRY_EFORMAT with the error. */
carry_status carry_trace_read(carry_ctx *ctx, carry_hotspots *hotspots, const void *bytes, size_t length,
                              const char *name);

#endif
