/* The only list of backends, and the public functions that call through it. */
#include <stdio.h>

#include "core/context.h"
#include "core/sized.h"
#include "device/backend.h"

extern const carry_backend carry_backend_cpu;
#if defined(CARRY_HAVE_CUDA)
extern const carry_backend carry_backend_cuda;
#endif

static const carry_backend *const table[] = {
    &carry_backend_cpu,
#if defined(CARRY_HAVE_CUDA)
    &carry_backend_cuda,
#endif
    NULL,
};

typedef struct place {
    const carry_backend *backend;
    int ordinal;
} place;

/* The backend and ordinal of `device`, which is counted over all backends. */
static place find(int device) {
    for (int i = 0; device >= 0 && table[i] != NULL; i++) {
        int here = table[i]->count();
        if (device < here) {
            return (place){table[i], device};
        }
        device -= here;
    }
    return (place){NULL, 0};
}

/* The backend that allocates host memory: the last one that has a device, since devices copy fastest from its
   memory. */
static const carry_backend *host(void) {
    const carry_backend *found = &carry_backend_cpu;
    for (int i = 0; table[i] != NULL; i++) {
        found = table[i]->count() > 0 ? table[i] : found;
    }
    return found;
}

/* The number, over all backends, of device `ordinal` of backend `backend`. */
static int number(int backend, int ordinal) {
    for (int i = 0; i < backend && table[i] != NULL; i++) {
        ordinal += table[i]->count();
    }
    return ordinal;
}

static carry_status no_such(carry_ctx *ctx, int device) {
    return carry_fail(ctx, CARRY_ENOTFOUND, "there is no device %d here, only 0 to %d (carry list devices shows them)",
                      device, carry_device_count() - 1);
}

static carry_status cannot_record(carry_ctx *ctx, int device) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "device %d works at once: it has no graphs to record or launch", device);
}

const carry_backend *carry_backend_of(int device, int *ordinal) {
    place at = find(device);
    *ordinal = at.ordinal;
    return at.backend;
}

int carry_device_count(void) {
    int count = 0;
    for (int i = 0; table[i] != NULL; i++) {
        count += table[i]->count();
    }
    return count;
}

carry_status carry_device_properties_of(carry_ctx *ctx, carry_device_properties *properties, int device) {
    place at = find(device);
    carry_device_properties own;
    CARRY_TRY(at.backend != NULL ? at.backend->describe(ctx, at.ordinal, &own) : no_such(ctx, device));
    return CARRY_SIZED_WRITE(ctx, carry_device_properties, properties, &own);
}

carry_status carry_device_alloc(carry_ctx *ctx, void **data, int device, size_t bytes) {
    place at = find(device);
    *data = NULL;
    return at.backend != NULL ? at.backend->alloc(ctx, data, at.ordinal, bytes) : no_such(ctx, device);
}

void carry_device_free(carry_ctx *ctx, int device, void *data) {
    place at = find(device);
    if (at.backend != NULL && data != NULL) {
        at.backend->free(ctx, at.ordinal, data);
    }
}

const char *carry_device_absence(carry_ctx *ctx, int index) {
    for (int i = 0; table[i] != NULL; i++) {
        if (table[i]->absence == NULL || table[i]->count() > 0 || index-- > 0) {
            continue;
        }
        char reason[112];
        table[i]->absence(reason, sizeof reason);
        (void)snprintf(ctx->line, sizeof ctx->line, "%s: %s", table[i]->name, reason);
        return ctx->line;
    }
    return NULL;
}

carry_status carry_device_memory(carry_ctx *ctx, size_t *available, size_t *total, int device) {
    place at = find(device);
    *available = *total = 0;
    return at.backend != NULL ? at.backend->memory(ctx, at.ordinal, available, total) : no_such(ctx, device);
}

size_t carry_device_held(carry_ctx *ctx, int device) {
    place at = find(device);
    return at.backend != NULL && at.backend->held != NULL ? at.backend->held(ctx, at.ordinal) : 0;
}

carry_status carry_device_alloc_on(carry_ctx *ctx, void **data, int device, size_t bytes, carry_stream *stream) {
    place at = find(device);
    *data = NULL;
    return at.backend != NULL ? at.backend->alloc_on(ctx, data, at.ordinal, bytes, stream) : no_such(ctx, device);
}

void carry_device_free_on(carry_ctx *ctx, int device, void *data, carry_stream *stream) {
    place at = find(device);
    if (at.backend != NULL && data != NULL) {
        at.backend->free_on(ctx, at.ordinal, data, stream);
    }
}

carry_status carry_host_alloc(carry_ctx *ctx, void **data, size_t bytes) {
    *data = NULL;
    return host()->host_alloc(ctx, data, bytes);
}

void carry_host_free(carry_ctx *ctx, void *data) {
    if (data != NULL) {
        host()->host_free(ctx, data);
    }
}

carry_status carry_device_check_pointer(carry_ctx *ctx, const char *name, const void *pointer, int device) {
    int is_on = 0; /* memory that no backend knows belongs to the process */
    for (int i = 0; pointer != NULL && table[i] != NULL; i++) {
        int ordinal = 0;
        carry_memory_place where =
            table[i]->where != NULL && table[i]->count() > 0 ? table[i]->where(pointer, &ordinal) : CARRY_PLACE_UNKNOWN;
        if (where == CARRY_PLACE_EVERYWHERE) {
            return CARRY_OK;
        }
        is_on = where == CARRY_PLACE_DEVICE ? number(i, ordinal) : is_on;
    }
    if (pointer == NULL || is_on == device) {
        return CARRY_OK;
    }
    if (is_on == 0) {
        return carry_fail(ctx, CARRY_EDEVICE,
                          "%s is in host memory and must be on device %d: carry_device_copy brings it there", name,
                          device);
    }
    if (device == 0) {
        return carry_fail(ctx, CARRY_EDEVICE,
                          "%s is in memory of device %d and must be in host memory: carry_device_copy brings it there",
                          name, is_on);
    }
    return carry_fail(ctx, CARRY_EDEVICE,
                      "%s is in memory of device %d and must be on device %d: carry_device_copy brings it there", name,
                      is_on, device);
}

carry_status carry_device_copy(carry_ctx *ctx, void *to, int to_device, const void *from, int from_device, size_t bytes,
                               carry_stream *stream) {
    place target = find(to_device);
    place source = find(from_device);
    if (target.backend == NULL || source.backend == NULL) {
        return no_such(ctx, target.backend == NULL ? to_device : from_device);
    }
    if (to_device != 0 && from_device != 0 && to_device != from_device) {
        if (target.backend == source.backend && target.backend->copy_between != NULL) {
            return target.backend->copy_between(ctx, to, target.ordinal, from, source.ordinal, bytes, stream);
        }
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "a copy from device %d to device %d must go through the CPU",
                          from_device, to_device);
    }
    if (to_device == 0 && from_device != 0) {
        return source.backend->copy(ctx, source.ordinal, to, from, bytes, CARRY_COPY_TO_HOST, stream);
    }
    carry_copy_way way = to_device != 0 && from_device == 0 ? CARRY_COPY_TO_DEVICE : CARRY_COPY_WITHIN;
    return target.backend->copy(ctx, target.ordinal, to, from, bytes, way, stream);
}

carry_status carry_device_fill(carry_ctx *ctx, void *to, int device, unsigned char byte, size_t bytes,
                               carry_stream *stream) {
    place at = find(device);
    return at.backend != NULL ? at.backend->fill(ctx, at.ordinal, to, byte, bytes, stream) : no_such(ctx, device);
}

carry_status carry_stream_new(carry_ctx *ctx, carry_stream **stream, int device) {
    place at = find(device);
    *stream = NULL;
    return at.backend != NULL ? at.backend->stream_new(ctx, stream, at.ordinal) : no_such(ctx, device);
}

carry_status carry_stream_wait(carry_ctx *ctx, int device, carry_stream *stream) {
    place at = find(device);
    return at.backend != NULL ? at.backend->stream_wait(ctx, at.ordinal, stream) : no_such(ctx, device);
}

void carry_stream_free(carry_ctx *ctx, int device, carry_stream *stream) {
    place at = find(device);
    if (at.backend != NULL && stream != NULL) {
        at.backend->stream_free(ctx, at.ordinal, stream);
    }
}

carry_status carry_ctx_set_stream(carry_ctx *ctx, int device, carry_stream *stream) {
    _Static_assert(CARRY_CTX_STREAMS == CARRY_MAX_DEVICES, "a context has a stream for every device that may have one");
    if (find(device).backend == NULL) {
        return no_such(ctx, device);
    }
    if (device >= CARRY_MAX_DEVICES) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "device %d cannot have a stream in a context: only 0 to %d can",
                          device, CARRY_MAX_DEVICES - 1);
    }
    ctx->streams[device] = stream;
    return CARRY_OK;
}

carry_stream *carry_ctx_stream(const carry_ctx *ctx, int device) {
    return device >= 0 && device < CARRY_MAX_DEVICES ? ctx->streams[device] : NULL;
}

carry_status carry_event_new(carry_ctx *ctx, carry_event **event, int device) {
    place at = find(device);
    *event = NULL;
    return at.backend != NULL ? at.backend->event_new(ctx, event, at.ordinal) : no_such(ctx, device);
}

carry_status carry_event_record(carry_ctx *ctx, int device, carry_event *event, carry_stream *stream) {
    place at = find(device);
    return at.backend != NULL ? at.backend->event_record(ctx, at.ordinal, event, stream) : no_such(ctx, device);
}

carry_status carry_event_wait(carry_ctx *ctx, int device, carry_event *event) {
    const place at = find(device);
    return at.backend != NULL ? at.backend->event_wait(ctx, at.ordinal, event) : no_such(ctx, device);
}

carry_status carry_event_elapsed(carry_ctx *ctx, double *seconds, int device, carry_event *from, carry_event *to) {
    place at = find(device);
    return at.backend != NULL ? at.backend->event_elapsed(ctx, at.ordinal, seconds, from, to) : no_such(ctx, device);
}

void carry_event_free(carry_ctx *ctx, int device, carry_event *event) {
    place at = find(device);
    if (at.backend != NULL && event != NULL) {
        at.backend->event_free(ctx, at.ordinal, event);
    }
}

carry_status carry_stream_after(carry_ctx *ctx, int device, carry_stream *stream, carry_event *event) {
    place at = find(device);
    return at.backend != NULL ? at.backend->stream_after(ctx, at.ordinal, stream, event) : no_such(ctx, device);
}

carry_status carry_event_test(carry_ctx *ctx, int device, carry_event *event, int *done) {
    place at = find(device);
    *done = 0;
    return at.backend != NULL ? at.backend->event_test(ctx, at.ordinal, event, done) : no_such(ctx, device);
}

carry_status carry_graph_begin(carry_ctx *ctx, int device, carry_stream *stream) {
    place at = find(device);
    if (at.backend == NULL) {
        return no_such(ctx, device);
    }
    return at.backend->graph_begin != NULL ? at.backend->graph_begin(ctx, at.ordinal, stream)
                                           : cannot_record(ctx, device);
}

carry_status carry_graph_end(carry_ctx *ctx, carry_graph **graph, int device, carry_stream *stream) {
    place at = find(device);
    *graph = NULL;
    if (at.backend == NULL) {
        return no_such(ctx, device);
    }
    return at.backend->graph_end != NULL ? at.backend->graph_end(ctx, graph, at.ordinal, stream)
                                         : cannot_record(ctx, device);
}

carry_status carry_graph_launch(carry_ctx *ctx, int device, carry_graph *graph, carry_stream *stream) {
    place at = find(device);
    if (at.backend == NULL) {
        return no_such(ctx, device);
    }
    return at.backend->graph_launch != NULL ? at.backend->graph_launch(ctx, at.ordinal, graph, stream)
                                            : cannot_record(ctx, device);
}

void carry_graph_free(carry_ctx *ctx, int device, carry_graph *graph) {
    place at = find(device);
    if (at.backend != NULL && at.backend->graph_free != NULL && graph != NULL) {
        at.backend->graph_free(ctx, at.ordinal, graph);
    }
}
