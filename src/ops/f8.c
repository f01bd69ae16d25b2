/* Rows of 8-bit floats (f8.h): loops that become vectors. */
#include "ops/f8.h"

void carry_f8_decode(float *to, const uint8_t *codes, float scale, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = carry_f8_value(codes[i]) * scale;
    }
}

void carry_f8_encode(uint8_t *to, const float *from, float inverse, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = carry_f8_round(from[i] * inverse);
    }
}

uint32_t carry_f8_largest(const float *from, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t size = carry_f8_bits(from[i]) & 0x7fffffffu;
        const uint32_t finite = size < 0x7f800000u ? size : 0;
        largest = finite > largest ? finite : largest;
    }
    return largest;
}
