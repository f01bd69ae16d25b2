/* The device table: one const struct per backend, each with any number of devices. table.c is the only list.

   Public functions (carry/device.h) find the backend and its ordinal and call through this struct, so adding a
   backend takes one file and one line. Every function gets the ordinal of the device inside its backend. A comment
   says so where an entry may be NULL. */
#ifndef CARRY_DEVICE_BACKEND_H
#define CARRY_DEVICE_BACKEND_H

#include "carry/device.h"
#include "device/gpu.h"

struct carry_activity_log;
struct carry_exchange_name;

typedef enum carry_copy_way { CARRY_COPY_TO_DEVICE, CARRY_COPY_TO_HOST, CARRY_COPY_WITHIN } carry_copy_way;

/* The kind of memory that a pointer refers to, as far as a backend knows. */
typedef enum carry_memory_place {
    CARRY_PLACE_UNKNOWN, /* host memory that this backend did not allocate or register */
    CARRY_PLACE_HOST,
    CARRY_PLACE_DEVICE,
    CARRY_PLACE_EVERYWHERE, /* managed memory: moves to the processor that reads it */
} carry_memory_place;

typedef struct carry_backend {
    const char *name, *about;
    int (*count)(void); /* devices found; 0 without a driver */
    /* Writes why no device was found: an error message without the backend's name. NULL: a device is always found. */
    void (*absence)(char *line, size_t size);
    carry_status (*describe)(carry_ctx *ctx, int ordinal, carry_device_properties *properties);
    carry_status (*measure)(carry_ctx *ctx, int ordinal, carry_gpu *gpu); /* NULL: no GPU */
    carry_status (*memory)(carry_ctx *ctx, int ordinal, size_t *available, size_t *total);
    size_t (*held)(carry_ctx *ctx, int ordinal); /* carry_device_held; NULL: unknown */
    carry_status (*alloc)(carry_ctx *ctx, void **data, int ordinal, size_t bytes);
    void (*free)(carry_ctx *ctx, int ordinal, void *data);
    carry_status (*alloc_on)(carry_ctx *ctx, void **data, int ordinal, size_t bytes, carry_stream *stream);
    void (*free_on)(carry_ctx *ctx, int ordinal, void *data, carry_stream *stream);
    carry_status (*host_alloc)(carry_ctx *ctx, void **data, size_t bytes);
    void (*host_free)(carry_ctx *ctx, void *data);
    carry_memory_place (*where)(const void *pointer, int *ordinal); /* NULL: knows only memory of the process */
    carry_status (*copy)(carry_ctx *ctx, int ordinal, void *to, const void *from, size_t bytes, carry_copy_way way,
                         carry_stream *stream);
    /* Copies between two devices of this backend. NULL: it has only one device. */
    carry_status (*copy_between)(carry_ctx *ctx, void *to, int to_ordinal, const void *from, int from_ordinal,
                                 size_t bytes, carry_stream *stream);
    carry_status (*fill)(carry_ctx *ctx, int ordinal, void *to, unsigned char byte, size_t bytes, carry_stream *stream);
    carry_status (*stream_new)(carry_ctx *ctx, carry_stream **stream, int ordinal);
    /* A stream on a part of the multiprocessors (device/share.h). NULL: not supported. */
    carry_status (*stream_new_share)(carry_ctx *ctx, carry_stream **stream, int ordinal, int multiprocessors,
                                     bool rest);
    carry_status (*stream_wait)(carry_ctx *ctx, int ordinal, carry_stream *stream);
    void (*stream_free)(carry_ctx *ctx, int ordinal, carry_stream *stream);
    carry_status (*event_new)(carry_ctx *ctx, carry_event **event, int ordinal);
    carry_status (*event_record)(carry_ctx *ctx, int ordinal, carry_event *event, carry_stream *stream);
    carry_status (*event_wait)(carry_ctx *ctx, int ordinal, carry_event *event);
    carry_status (*event_elapsed)(carry_ctx *ctx, int ordinal, double *seconds, carry_event *from, carry_event *to);
    void (*event_free)(carry_ctx *ctx, int ordinal, carry_event *event);
    carry_status (*stream_after)(carry_ctx *ctx, int ordinal, carry_stream *stream, carry_event *event);
    carry_status (*event_test)(carry_ctx *ctx, int ordinal, carry_event *event, int *done);
    /* All four are NULL if graphs are not supported. */
    carry_status (*graph_begin)(carry_ctx *ctx, int ordinal, carry_stream *stream);
    carry_status (*graph_end)(carry_ctx *ctx, carry_graph **graph, int ordinal, carry_stream *stream);
    carry_status (*graph_launch)(carry_ctx *ctx, int ordinal, carry_graph *graph, carry_stream *stream);
    void (*graph_free)(carry_ctx *ctx, int ordinal, carry_graph *graph);
    /* Records the work of all devices of this backend from start to stop (device/activity.h). Both NULL: not
       supported. */
    carry_status (*activity_start)(carry_ctx *ctx, struct carry_activity_log *log);
    carry_status (*activity_stop)(carry_ctx *ctx, struct carry_activity_log *log);
    /* Memory that other processes read from (device/exchange.h), kept until the process ends. All three NULL: not
       supported. */
    carry_status (*give_name)(carry_ctx *ctx, void **data, struct carry_exchange_name *name, int ordinal, size_t bytes);
    carry_status (*open_name)(carry_ctx *ctx, void **data, int ordinal, const struct carry_exchange_name *name);
    void (*close_name)(carry_ctx *ctx, int ordinal, void *data);
    /* Writes CARRY_DEVICE_IDENTITY bytes that identify the device to all processes of the machine. NULL: its number
       identifies it. */
    carry_status (*identity)(carry_ctx *ctx, char *identity, int ordinal);
} carry_backend;

/* Returns the backend of a device and sets the device's ordinal in it; NULL if the device does not exist. */
const carry_backend *carry_backend_of(int device, int *ordinal);

#endif
