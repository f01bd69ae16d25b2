/* Rounding of f32 to bf16, up or down at random, so that small changes of a running mean are not lost: the expected
   result is the number itself. The random bits are a function of the element's index, of the step and of the numbers to
   be rounded, so results do not depend on threads, and a resumed run gives the same bits. CUDA sources define
   CARRY_DITHER_FUNCTION before they include this file. */
#ifndef CARRY_OPS_DITHER_H
#define CARRY_OPS_DITHER_H

#include <stdint.h>

#ifndef CARRY_DITHER_FUNCTION
#define CARRY_DITHER_FUNCTION static inline
#endif

/* 32 random bits for the element `index`; m and v: the bits of its numbers. `step` should differ in every training
   step: with the same numbers and the same random bits, a mean that was rounded back to its old value would never
   change again. */
CARRY_DITHER_FUNCTION uint32_t carry_dither_bits(int64_t index, uint32_t m, uint32_t v, uint32_t step) {
    uint32_t h = (uint32_t)index * 0x9E3779B1u ^ (uint32_t)((uint64_t)index >> 32) * 0x85EBCA77u ^ m * 0xC2B2AE3Du ^
                 v * 0x27D4EB2Fu ^ step * 0x165667B1u;
    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    h ^= h >> 12;
    h *= 0x297A2D39u;
    return h ^ h >> 15;
}

/* The bf16 of an f32, given as bits; the low 16 bits of `random` choose the direction. Infinity and NaN are
   truncated: a NaN stays NaN if one of its upper fraction bits is set, as in every quiet NaN. */
CARRY_DITHER_FUNCTION uint16_t carry_dither(uint32_t number, uint32_t random) {
    const uint32_t exponent = number & 0x7F800000u;
    const uint32_t sum = exponent == 0x7F800000u ? number : number + (random & 0xFFFFu);
    return (uint16_t)(sum >> 16);
}

#endif
