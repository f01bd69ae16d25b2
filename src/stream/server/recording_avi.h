/* JPEGs in an AVI file ("Motion JPEG"): a header, the frames, an index.

   The header is updated once a second, so the file of a killed run can be played up to its last second. The index,
   which players use to seek, is written at the end. A file stays below 2 GiB, the limit of RIFF with signed sizes. */
#ifndef CARRY_STREAM_RECORDING_AVI_H
#define CARRY_STREAM_RECORDING_AVI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_AVI_LIMIT ((uint64_t)0x7F000000) /* maximum bytes of a file */

typedef struct carry_avi carry_avi;

/* fps 0: computed from the times of the frames. limit: maximum bytes, at most CARRY_AVI_LIMIT. An existing file is
   refused. */
carry_status carry_avi_new(carry_ctx *ctx, carry_avi **made, const char *path, int width, int height, double fps,
                           uint64_t limit);
/* True if a frame of this size and its index entry still fit. */
bool carry_avi_fits(const carry_avi *avi, size_t size);
/* CARRY_ESIZE: the frame does not fit. CARRY_EIO: a full disk or another I/O error; frames written before stay
   readable. */
carry_status carry_avi_write(carry_ctx *ctx, carry_avi *avi, const void *jpeg, size_t size, double seconds);
uint64_t carry_avi_bytes(const carry_avi *avi);
/* Writes the index and the last header; frees avi in any case. */
carry_status carry_avi_close(carry_ctx *ctx, carry_avi *avi);

#endif
