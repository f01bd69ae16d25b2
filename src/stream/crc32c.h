/* CRC32C (Castagnoli), two ways that agree: carry_crc32c of envelope.h takes the processor's instruction where there is
   one. */
#ifndef CARRY_STREAM_CRC32C_H
#define CARRY_STREAM_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t carry_crc32c_plain(uint32_t crc, const void *data, size_t bytes);
const char *carry_crc32c_name(void); /* which way carry_crc32c goes: "plain", "sse4.2", "armv8" */

#endif
