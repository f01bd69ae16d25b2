/* Asynchronous uploads: slots of pinned memory, which the CPU fills in turn, each copied on a stream. A slot is
   reused once its copy has completed, so the CPU is at most `slots` uploads ahead. */
#ifndef CARRY_DEVICE_UPLOAD_H
#define CARRY_DEVICE_UPLOAD_H

#include <stdbool.h>

#include "carry/device.h"

#define CARRY_UPLOAD_SLOTS 8

typedef struct carry_upload {
    carry_ctx *ctx;
    int device, slots, next;
    size_t bytes; /* of a slot */
    unsigned char *memory;
    carry_event *event[CARRY_UPLOAD_SLOTS];
    bool is_sent[CARRY_UPLOAD_SLOTS];
} carry_upload;

/* A struct of zeros is a closed upload. slots: at most CARRY_UPLOAD_SLOTS. */
carry_status carry_upload_open(carry_ctx *ctx, carry_upload *upload, int device, size_t bytes, int slots);
void carry_upload_close(carry_upload *upload); /* the device must have finished all copies */

/* Sets *slot to the memory to fill for the next send; waits if its last copy has not completed. */
carry_status carry_upload_slot(carry_upload *upload, void **slot);
/* Copies the first bytes of that slot to the device, in the context's stream. */
carry_status carry_upload_send(carry_upload *upload, void *to, size_t bytes);

#endif
