/* Small files, read and written so that nothing is lost. */
#ifndef CARRY_CORE_FILE_H
#define CARRY_CORE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

/* The whole of a regular file of at most limit bytes, with a 0 byte after its end; the caller frees *text.
   CARRY_ENOTFOUND when there is none (no sentence needed by most callers, but there is one). */
carry_status carry_file_read(carry_ctx *ctx, char **text, size_t *length, const char *path, size_t limit);

/* Replaces path by these bytes: written beside it, synced, renamed. A crash leaves the old file or the new one. Missing
   folders are made. */
carry_status carry_file_replace(carry_ctx *ctx, const char *path, const void *bytes, size_t length);

/* CRC-32C (Castagnoli), of bytes after `crc` (0 at the start). */
uint32_t carry_crc32c(uint32_t crc, const void *bytes, size_t length);

#endif
