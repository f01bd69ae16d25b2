/* Heads of keys and values in 8 bits: D floats of 8 bits (e4m3) times a scale, which is a power of two, 2^(e - 127),
   stored as the byte e. The scale of a head is the smallest for which no element is above 448, the largest 8-bit float.

   A power of two: an element is then exact in bf16, so tensor cores multiply what is stored. A scale between powers of
   two would not make the elements more exact, since they are floats. A scale for each token and head: writing a token
   changes no other token's numbers. */
#ifndef CARRY_OPS_F8_H
#define CARRY_OPS_F8_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__) || defined(CARRY_EMULATED)
#define CARRY_F8_INLINE static __host__ __device__ __forceinline__
#else
#define CARRY_F8_INLINE static inline
#endif

#define CARRY_F8_NAN 0x7fu
#define CARRY_F8_MOST 0x7eu /* 448 */

CARRY_F8_INLINE uint32_t carry_f8_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CARRY_F8_INLINE float carry_f8_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The scale of a head whose largest finite magnitude has these bits. From 1 to 247, so that neither 2^(e - 127) nor its
   inverse is subnormal. */
CARRY_F8_INLINE uint32_t carry_f8_scale_of(uint32_t largest) {
    const uint32_t exponent = largest >> 23, above = (largest & 0x7fffffu) > 0x600000u; /* 448 = 1.75 * 2^8 */
    return exponent + above > 9 ? exponent + above - 8 : 1;
}

CARRY_F8_INLINE float carry_f8_scale(uint32_t e) {
    return carry_f8_float(e << 23);
}

CARRY_F8_INLINE float carry_f8_inverse(uint32_t e) {
    return carry_f8_float((254 - e) << 23);
}

/* Rounds to the nearest 8-bit float, ties to even; above 448 to 448, and infinity and NaN to NaN. */
CARRY_F8_INLINE uint8_t carry_f8_round(float x) {
    const uint32_t bits = carry_f8_bits(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    const uint32_t normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - 960u; /* exponents: 127 and 7 */
    const uint32_t subnormal = carry_f8_bits(carry_f8_float(magnitude) + 16384.0f) - 0x46800000u; /* units of 2^-9 */
    const uint32_t rounded = magnitude < 0x3c800000u ? subnormal : normal;                        /* below 2^-6 */
    const uint32_t code = magnitude >= 0x43e00000u ? CARRY_F8_MOST : rounded;
    return (uint8_t)(sign | (magnitude >= 0x7f800000u ? CARRY_F8_NAN : code));
}

CARRY_F8_INLINE float carry_f8_value(uint8_t code) {
    const uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
    const float normal = carry_f8_float((magnitude << 20) + 0x3c000000u), subnormal = (float)magnitude * 0x1p-9f;
    const float value = magnitude < 8 ? subnormal : normal;
    return carry_f8_float(carry_f8_bits(magnitude == CARRY_F8_NAN ? carry_f8_float(0x7fc00000u) : value) | sign);
}

#if !defined(__cplusplus)
/* Rows on the CPU: values times scale; numbers times inverse, rounded; the bits of the largest finite magnitude. */
void carry_f8_decode(float *to, const uint8_t *codes, float scale, int64_t count);
void carry_f8_encode(uint8_t *to, const float *from, float inverse, int64_t count);
uint32_t carry_f8_largest(const float *from, int64_t count);
#endif

#endif
