/* Copies slots and pages on a GPU in one launch: a state has some eighty parts, and launching a copy for each would
   take longer than the copies. The same for a page that goes to host memory or comes from it: its parts are packed in a
   buffer on the device, which is copied as a whole. */
#ifndef CARRY_ENGINE_SLOT_DEVICE_H
#define CARRY_ENGINE_SLOT_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/device.h"

/* Rows of one part: row i is at base + i * bytes. */
typedef struct carry_slot_part {
    unsigned char *base;
    uint64_t bytes;  /* a multiple of 4 */
    uint64_t offset; /* of the part in a packed row */
} carry_slot_part;

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_slot_kernel {
    const char *backend;
    /* Copies row `from` to row `to` in all parts, or zeroes it if `from` is negative; the same for last[to], unless
       last is NULL. parts and last are on the device. */
    carry_status (*copy)(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_slot_part *parts, int count,
                         int32_t *last, int64_t to, int64_t from);
    /* Copies row `row` of all parts to `packed`, or the reverse if is_write. `packed` is on the device, aligned to 16.
     */
    carry_status (*pack)(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_slot_part *parts, int count,
                         void *packed, int64_t row, bool is_write);
} carry_slot_kernel;

/* NULL: not implemented for the device. */
const carry_slot_kernel *carry_slot_kernel_of(int device, int *ordinal);

#ifdef __cplusplus
}
#endif
#endif
