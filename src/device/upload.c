/* Asynchronous uploads through slots of pinned memory. */
#include "device/upload.h"

#include "core/error.h"
#include "core/memory.h"

carry_status carry_upload_open(carry_ctx *ctx, carry_upload *u, int device, size_t bytes, int slots) {
    *u = (carry_upload){.ctx = ctx, .device = device, .slots = slots, .bytes = (bytes + 63) / 64 * 64};
    void *memory = NULL;
    CARRY_TRY(carry_host_alloc(ctx, &memory, u->bytes * (size_t)slots));
    u->memory = memory;
    for (int i = 0; i < slots; i++) {
        CARRY_TRY(carry_event_new(ctx, &u->event[i], device));
    }
    return CARRY_OK;
}

void carry_upload_close(carry_upload *u) {
    for (int i = 0; i < u->slots; i++) {
        carry_event_free(u->ctx, u->device, u->event[i]);
    }
    if (u->memory != NULL) {
        carry_host_free(u->ctx, u->memory);
    }
    *u = (carry_upload){0};
}

carry_status carry_upload_slot(carry_upload *u, void **slot) {
    *slot = u->memory + (size_t)u->next * u->bytes;
    return u->is_sent[u->next] ? carry_event_wait(u->ctx, u->device, u->event[u->next]) : CARRY_OK;
}

carry_status carry_upload_send(carry_upload *u, void *to, size_t bytes) {
    carry_stream *stream = carry_ctx_stream(u->ctx, u->device);
    CARRY_TRY(carry_device_copy(u->ctx, to, u->device, u->memory + (size_t)u->next * u->bytes, 0, bytes, stream));
    CARRY_TRY(carry_event_record(u->ctx, u->device, u->event[u->next], stream));
    u->is_sent[u->next] = true;
    u->next = (u->next + 1) % u->slots;
    return CARRY_OK;
}
