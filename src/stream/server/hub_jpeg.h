/* Encodes pictures as JPEG into a reusable buffer. One thread at a time. */
#ifndef CARRY_STREAM_HUB_JPEG_H
#define CARRY_STREAM_HUB_JPEG_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

#define CARRY_JPEG_SIDE 65500 /* pixels; the format's own limit */

typedef struct carry_jpeg carry_jpeg;

carry_status carry_jpeg_new(carry_ctx *ctx, carry_jpeg **made, int width, int height, int quality);
void carry_jpeg_free(carry_jpeg *jpeg);

/* A buffer that grows: room is the number of bytes allocated. */
typedef struct carry_jpeg_bytes {
    unsigned char *bytes;
    size_t size, room;
} carry_jpeg_bytes;

/* pixels: [3, height, width] f32 in [0, 1]; values outside are clamped, NaN is black. */
carry_status carry_jpeg_encode(carry_ctx *ctx, carry_jpeg *jpeg, carry_jpeg_bytes *to, const float *pixels);

#endif
