/* e^x in f32 without a branch or a call, so that the compiler can vectorise loops around it.

   x = n ln 2 + r with |r| <= ln 2 / 2, and e^x = 2^n e^r with a polynomial for e^r: within 2^-22 of the true value.
   Infinite above 88.72; zero below -86.99, a little before results become subnormal (-87.34); NaN stays NaN. */
#ifndef CARRY_OPS_EXP_H
#define CARRY_OPS_EXP_H

#include <stdint.h>
#include <string.h>

static inline int32_t carry_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float carry_from_bits(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float carry_exp(float x) {
    const float to_integer = 12582912.0f; /* 1.5 2^23: adding it leaves the nearest integer in the lowest bits */
    /* The bounds are compared as integers: for comparisons of floats, gcc added three instructions for NaN to each
       (1.8 against 1.6 ns per element). 88.8 is above the largest x with a finite result. */
    const int32_t most = 0x42b1999a; /* 88.8 */
    int32_t sign = carry_bits(x) & INT32_MIN;
    int32_t magnitude = carry_bits(x) & INT32_MAX;
    magnitude = magnitude < most ? magnitude : most;
    float bounded = carry_from_bits(magnitude | sign);
    float shifted = bounded * 1.44269504f + to_integer;
    float n = shifted - to_integer;
    /* ln 2 in two parts: the first is short enough that n times it is exact. */
    float r = bounded - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    /* Multiplies by 2^(n-1) and then by 2, since n may be 128; zero for the lowest n. */
    int32_t exponent = carry_bits(shifted) - 0x4b400000 + 126;
    exponent = exponent > 0 ? exponent : 0;
    float result = p * carry_from_bits(exponent << 23) * 2.0f;
    return x == x ? result : x; /* NOLINT(misc-redundant-expression): NaN */
}

#endif
