/* Bytes of blocks, which have no alignment. */
#ifndef CARRY_OPS_QUANTISED_BLOCKS_H
#define CARRY_OPS_QUANTISED_BLOCKS_H

#include <math.h>
#include <string.h>

#include "ops/quantised/quantised.h"

static inline float carry_block_f16(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return carry_f32_from_f16(bits);
}

/* Stores a value as f16 and returns it rounded. */
static inline float carry_block_put_f16(unsigned char *at, float value) {
    const uint16_t bits = carry_f16_from_f32(value);
    memcpy(at, &bits, sizeof bits);
    return carry_f32_from_f16(bits);
}

static inline float carry_block_f32(const unsigned char *at) {
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void carry_block_put_f32(unsigned char *at, float value) {
    memcpy(at, &value, sizeof value);
}

/* The 8 scales of a Q4_K or Q5_K block as the bytes of one number, and the 8 minima as the bytes of another. `from`:
   the 12 bytes that hold them. */
static inline void carry_block_k_scales(const unsigned char *from, uint64_t *scales, uint64_t *minima) {
    uint32_t u[3];
    memcpy(u, from, sizeof u);
    const uint32_t high_scales = (u[2] & 0x0f0f0f0fu) | (u[0] >> 2 & 0x30303030u);
    const uint32_t high_minima = (u[2] >> 4 & 0x0f0f0f0fu) | (u[1] >> 2 & 0x30303030u);
    *scales = (u[0] & 0x3f3f3f3fu) | (uint64_t)high_scales << 32;
    *minima = (u[1] & 0x3f3f3f3fu) | (uint64_t)high_minima << 32;
}

/* The nearest whole number in [low, high]; 0 for NaN. */
static inline int carry_block_round(float value, int low, int high) {
    const float rounded = roundf(value);
    return !(rounded > (float)low) ? (isnan(rounded) ? 0 : low) : rounded >= (float)high ? high : (int)rounded;
}

static inline float carry_block_largest(const float *from, int64_t count) {
    float largest = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        largest = fabsf(from[i]) > largest ? fabsf(from[i]) : largest;
    }
    return largest;
}

#endif
