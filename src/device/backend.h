/* The device table: one const struct per backend, each with any number of devices. table.c is the only list.

   Public functions (carry/device.h) find the backend and its ordinal and call through this struct, so a second backend
   is one file and one line. Every function gets the ordinal of the device inside its backend. */
#ifndef CARRY_DEVICE_BACKEND_H
#define CARRY_DEVICE_BACKEND_H

#include "carry/device.h"

typedef enum carry_copy_way { CARRY_COPY_TO_DEVICE, CARRY_COPY_TO_HOST, CARRY_COPY_WITHIN } carry_copy_way;

typedef struct carry_backend {
    const char *name, *about;
    int (*count)(void); /* devices here and now; 0 when there is no driver */
    carry_status (*describe)(carry_ctx *ctx, int ordinal, carry_device_properties *properties);
    carry_status (*alloc)(carry_ctx *ctx, void **data, int ordinal, size_t bytes);
    void (*free)(carry_ctx *ctx, int ordinal, void *data);
    carry_status (*copy)(carry_ctx *ctx, int ordinal, void *to, const void *from, size_t bytes, carry_copy_way way,
                         carry_stream *stream);
    carry_status (*fill)(carry_ctx *ctx, int ordinal, void *to, unsigned char byte, size_t bytes, carry_stream *stream);
    carry_status (*stream_new)(carry_ctx *ctx, carry_stream **stream, int ordinal);
    carry_status (*stream_wait)(carry_ctx *ctx, int ordinal, carry_stream *stream);
    void (*stream_free)(carry_ctx *ctx, int ordinal, carry_stream *stream);
    carry_status (*event_new)(carry_ctx *ctx, carry_event **event, int ordinal);
    carry_status (*event_record)(carry_ctx *ctx, int ordinal, carry_event *event, carry_stream *stream);
    carry_status (*event_elapsed)(carry_ctx *ctx, int ordinal, double *seconds, carry_event *from, carry_event *to);
    void (*event_free)(carry_ctx *ctx, int ordinal, carry_event *event);
} carry_backend;

#endif
