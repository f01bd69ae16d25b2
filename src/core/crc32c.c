/* CRC32C, polynomial 0x1EDC6F41 with bits reflected: 8 bytes a step from 8 tables, or by the processor's instruction.

   The instruction is written as assembly: an intrinsic would need the whole file compiled for processors that have it.
 */
#include "core/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define HWCAP_HAS_CRC32 (1UL << 7)
#endif

static pthread_once_t made = PTHREAD_ONCE_INIT;
static uint32_t table[8][256]; /* table[k][b]: byte b with k zero bytes after it */
static bool has_instruction;

static void make(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78U : 0);
        }
        table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            const uint32_t before = table[k - 1][byte];
            table[k][byte] = before >> 8 ^ table[0][before & 0xFF];
        }
    }
#if defined(__aarch64__) && defined(__linux__)
    has_instruction = (getauxval(AT_HWCAP) & HWCAP_HAS_CRC32) != 0;
#elif defined(__x86_64__)
    has_instruction = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

static uint32_t read_u32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t carry_crc32c_plain(uint32_t crc, const void *data, size_t bytes) {
    (void)pthread_once(&made, make);
    const unsigned char *at = data;
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        const uint32_t low = read_u32(at) ^ crc;
        const uint32_t high = read_u32(at + 4);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24] ^
              table[3][high & 0xFF] ^ table[2][high >> 8 & 0xFF] ^ table[1][high >> 16 & 0xFF] ^ table[0][high >> 24];
    }
    for (; bytes > 0; bytes--, at++) {
        crc = crc >> 8 ^ table[0][(crc ^ *at) & 0xFF];
    }
    return ~crc;
}

/* Takes 8 bytes per step. Each step waits for the previous one, and this is still faster than memory can be read. */
static uint32_t by_instruction(uint32_t crc, const unsigned char *at, size_t bytes) {
#if defined(__aarch64__) && defined(__linux__)
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; bytes > 0; bytes--, at++) {
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*at));
    }
    return ~crc;
#elif defined(__x86_64__)
    uint64_t wide = (uint32_t)~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        __asm__("crc32q %1, %0" : "+r"(wide) : "r"(word));
    }
    for (; bytes > 0; bytes--, at++) {
        __asm__("crc32b %1, %0" : "+r"(wide) : "r"(*at));
    }
    return ~(uint32_t)wide;
#else
    return carry_crc32c_plain(crc, at, bytes);
#endif
}

const char *carry_crc32c_name(void) {
    (void)pthread_once(&made, make);
#if defined(__x86_64__)
    return has_instruction ? "sse4.2" : "plain";
#else
    return has_instruction ? "armv8" : "plain";
#endif
}

uint32_t carry_crc32c(uint32_t crc, const void *data, size_t bytes) {
    (void)pthread_once(&made, make);
    return has_instruction ? by_instruction(crc, data, bytes) : carry_crc32c_plain(crc, data, bytes);
}
