/* GPU memory that other processes on this machine can read (CUDA IPC). Memory from the pool of a context cannot be
   exported, so this memory is allocated separately, as pieces of regions. The process keeps a region until it exits,
   so that it never disappears while another process reads it. */
#ifndef CARRY_DEVICE_EXCHANGE_H
#define CARRY_DEVICE_EXCHANGE_H

#include <stdint.h>

#include "carry/device.h"

/* The name of a region for other processes. */
typedef struct carry_exchange_name {
    unsigned char bytes[64];
} carry_exchange_name;

typedef struct carry_exchange {
    struct carry_exchange *next; /* exchange.c's */
    void *data;
    size_t bytes; /* at least the requested size */
    int device;
    carry_exchange_name name; /* of its region */
    uint64_t offset;          /* in it */
} carry_exchange;

/* CARRY_EUNSUPPORTED: this device's memory cannot be exported. Work of earlier users of the piece has ended. */
carry_status carry_exchange_take(carry_ctx *ctx, carry_exchange **piece, int device, size_t bytes);
/* True if a piece of this many bytes can begin at `offset` in a region. Checks values that come from another
   process. */
bool carry_exchange_fits(uint64_t offset, size_t bytes);
/* NULL is accepted. */
void carry_exchange_give(carry_exchange *piece);

/* Opens a region of another process, until it is closed. */
carry_status carry_exchange_open(carry_ctx *ctx, void **data, int device, const carry_exchange_name *name);
void carry_exchange_close(carry_ctx *ctx, int device, void *data);

/* Identifies the GPU independently of its number in this process: "0000:65:00.0". */
#define CARRY_DEVICE_IDENTITY 32
carry_status carry_device_identity(carry_ctx *ctx, char identity[CARRY_DEVICE_IDENTITY], int device);

#endif
