/* CRC-32C (Castagnoli), in two implementations that agree. */
#ifndef CARRY_CORE_CRC32C_H
#define CARRY_CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) over these bytes; uses the processor's instruction if there is one. */
uint32_t carry_crc32c(uint32_t crc, const void *data, size_t bytes);
uint32_t carry_crc32c_plain(uint32_t crc, const void *data, size_t bytes);
const char *carry_crc32c_name(void); /* the implementation that carry_crc32c uses: "plain", "sse4.2", "armv8" */

#endif
