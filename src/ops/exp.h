/* e^x in f32 without a branch or a call, so that loops around it become vectors.

   x = n ln 2 + r with |r| <= ln 2 / 2, and e^x = 2^n e^r with a polynomial for e^r: within 2 ulp of the true value (the
   tests say how near). Infinite above 88.72; zero below -87.3, where the result would no longer be a normal number; NaN
   stays NaN. */
#ifndef CARRY_OPS_EXP_H
#define CARRY_OPS_EXP_H

#include <stdint.h>
#include <string.h>

static inline float carry_exp(float x) {
    const float lowest = -87.3f;
    const float highest = 88.8f;
    const float to_integer = 12582912.0f; /* 1.5 2^23: adding it leaves the nearest integer in the lowest bits */
    float clamped = x < lowest ? lowest : x;
    clamped = clamped > highest ? highest : clamped;
    float shifted = clamped * 1.44269504f + to_integer;
    float n = shifted - to_integer;
    /* ln 2 in two parts: the first has so few bits that n times it is exact. */
    float r = clamped - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    /* 2^(n-1) and then twice, since n may be 128. */
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 126u) << 23;
    float half;
    memcpy(&half, &bits, sizeof half);
    float result = p * half * 2.0f;
    return x < lowest ? 0.0f : result;
}

/* 1 / (1 + e^-x): e^-x may be infinite, and then this is 0. */
static inline float carry_sigmoid(float x) {
    return 1.0f / (1.0f + carry_exp(-x));
}

#endif
