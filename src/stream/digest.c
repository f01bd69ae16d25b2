/* The digest with which ranks compare their results. */
#include "stream/envelope.h"

#include <string.h>

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    return hash ^ hash >> 32;
}

/* Reads up to 8 bytes as a little-endian number; the missing bytes are zero. */
static uint64_t read_up_to_8(const unsigned char *at, size_t bytes) {
    uint64_t word = 0;
    memcpy(&word, at, bytes);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? word : __builtin_bswap64(word);
}

/* Each step is a bijection of the state for a given word, and of the word for a given state. Two inputs of the same
   length that differ only in one aligned group of 8 bytes therefore always have different digests. Words are read as
   little-endian, so the digest does not depend on the machine. */
int64_t carry_stream_digest(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t hash = mix(0x43525945, bytes);
    for (; bytes >= 8; bytes -= 8, at += 8) {
        hash = mix(hash, read_up_to_8(at, 8));
    }
    return (int64_t)mix(hash, bytes > 0 ? read_up_to_8(at, bytes) : 0);
}
