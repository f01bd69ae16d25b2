/* Element types, and the scalar conversions that every vector version must equal bit for bit. */
#include <string.h>

#include "carry/tensor.h"

static const char *const names[] = {
#define X(name, text, bytes) text,
    CARRY_DTYPE_LIST(X)
#undef X
};

static const size_t sizes[] = {
#define X(name, text, bytes) bytes,
    CARRY_DTYPE_LIST(X)
#undef X
};

#define DTYPE_COUNT (sizeof names / sizeof names[0])

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* value >> shift, to nearest, ties to even; 0 < shift < 32. */
static uint32_t shift_rounded(uint32_t value, unsigned shift) {
    uint32_t kept = value >> shift;
    uint32_t rest = value & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1u);
    return kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u);
}

const char *carry_dtype_name(carry_dtype dtype) {
    return (unsigned)dtype < DTYPE_COUNT ? names[dtype] : "?";
}

size_t carry_dtype_size(carry_dtype dtype) {
    return (unsigned)dtype < DTYPE_COUNT ? sizes[dtype] : 0;
}

carry_status carry_dtype_parse(carry_dtype *dtype, const char *name) {
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *dtype = (carry_dtype)i;
            return CARRY_OK;
        }
    }
    return CARRY_ENOTFOUND;
}

uint16_t carry_bf16_from_f32(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u); /* quiet, so that dropping the lower half cannot make it infinite */
    }
    return (uint16_t)shift_rounded(bits, 16); /* a carry out of the fraction gives the right exponent, up to infinity */
}

float carry_f32_from_bf16(uint16_t bits) {
    return float_of((uint32_t)bits << 16);
}

uint16_t carry_f16_from_f32(float value) {
    uint32_t bits = bits_of(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    }
    if (magnitude >= 0x47800000u) { /* 65536 and more never round down to the largest finite number */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude >= 0x38800000u) { /* 2^-14: normal */
        return (uint16_t)(sign | shift_rounded(magnitude - 0x38000000u, 13));
    }
    if (magnitude < 0x33000000u) { /* below half of the smallest subnormal */
        return (uint16_t)sign;
    }
    uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
    unsigned shift = 126u - (magnitude >> 23);
    return (uint16_t)(sign | shift_rounded(fraction, shift));
}

float carry_f32_from_f16(uint16_t half) {
    uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    if (exponent == 0x1fu) {
        return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0u));
    }
    if (exponent != 0) {
        return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
    }
    float magnitude = (float)fraction * 0x1p-24f; /* exact: a subnormal has at most 10 bits */
    return float_of(sign | bits_of(magnitude));
}
