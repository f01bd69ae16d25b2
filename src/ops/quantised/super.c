/* GGUF's blocks of 256: Q4_K, Q5_K and Q6_K.

       q4_k  f16 d, f16 dmin, 12 bytes of scales, 128 bytes                  x = d * s[j] * q - dmin * m[j]
       q5_k  f16 d, f16 dmin, 12 bytes of scales, 32 bytes of bit 4, 128 bytes of bits 0 to 3
                                                                             the same with q of 5 bits
       q6_k  128 bytes of bits 0 to 3, 64 bytes of bits 4 and 5, 16 int8 scales, f16 d
                                                                             x = d * s[j] * (q - 32)

   Q4_K and Q5_K have 8 sub-blocks j of 32 columns, whose 6-bit scales s and minima m share the 12 bytes; Q6_K has 16 of
   16 columns. A byte of low bits holds two columns of different sub-blocks, the earlier one in its low half. Every
   product above is exact in f32. */
#include "ops/quantised/blocks.h"

#define SUPER 256
#define Q4_K_BYTES 144
#define Q5_K_BYTES 176
#define Q6_K_BYTES 210

/* Scale and minimum of sub-block j. */
static void take_scale(const unsigned char *from, int j, int *scale, int *minimum) {
    if (j < 4) {
        *scale = from[j] & 63;
        *minimum = from[j + 4] & 63;
    } else {
        *scale = (from[j + 4] & 15) | from[j - 4] >> 6 << 4;
        *minimum = from[j + 4] >> 4 | from[j] >> 6 << 4;
    }
}

static void put_scale(unsigned char *to, int j, int scale, int minimum) {
    if (j < 4) {
        to[j] = (unsigned char)(to[j] | scale);
        to[j + 4] = (unsigned char)(to[j + 4] | minimum);
    } else {
        to[j + 4] = (unsigned char)((scale & 15) | (minimum & 15) << 4);
        to[j - 4] = (unsigned char)(to[j - 4] | scale >> 4 << 6);
        to[j] = (unsigned char)(to[j] | minimum >> 4 << 6);
    }
}

/* high: the 32 bytes that hold bit 4 of each value, or NULL. */
static void decode_k(float *to, const unsigned char *at, const unsigned char *high, const unsigned char *low) {
    const float d = carry_block_f16(at);
    const float least = carry_block_f16(at + 2);
    for (int j = 0; j < 8; j++) {
        int scale;
        int minimum;
        take_scale(at + 4, j, &scale, &minimum);
        const float by = d * (float)scale;
        const float less = least * (float)minimum;
        for (int i = 0; i < 32; i++) {
            const int bits = low[j / 2 * 32 + i];
            const int q = (j % 2 == 0 ? bits & 15 : bits >> 4) | (high != NULL ? (high[i] >> j & 1) << 4 : 0);
            to[j * 32 + i] = by * (float)q - less;
        }
    }
}

static void decode_q4_k(float *to, const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += Q4_K_BYTES) {
        decode_k(to + b * SUPER, at, NULL, at + 16);
    }
}

static void decode_q5_k(float *to, const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += Q5_K_BYTES) {
        decode_k(to + b * SUPER, at, at + 16, at + 48);
    }
}

/* Fits scale and minimum of 32 values, x = scale q - minimum with q from 0 to most: starts from the range of 0 and the
   values, and refines by least squares up to three times. */
static void fit(const float *x, int most, float *scale, float *minimum) {
    float low = 0.0f;
    float high = 0.0f;
    for (int i = 0; i < 32; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    *scale = (high - low) / (float)most;
    *minimum = -low;
    for (int turn = 0; turn < 3 && *scale > 0.0f; turn++) {
        double q1 = 0.0;
        double q2 = 0.0;
        double x1 = 0.0;
        double qx = 0.0;
        for (int i = 0; i < 32; i++) {
            const double q = carry_block_round((x[i] + *minimum) / *scale, 0, most);
            q1 += q;
            q2 += q * q;
            x1 += (double)x[i];
            qx += q * (double)x[i];
        }
        const double divisor = 32.0 * q2 - q1 * q1;
        const double by = divisor > 0.0 ? (32.0 * qx - q1 * x1) / divisor : 0.0;
        const double less = (by * q1 - x1) / 32.0;
        if (by <= 0.0 || less < 0.0) { /* a minimum must not be negative */
            return;
        }
        *scale = (float)by;
        *minimum = (float)less;
    }
}

static void encode_k(const float *from, unsigned char *at, unsigned char *high, unsigned char *low, int most) {
    float scale[8];
    float minimum[8];
    for (int j = 0; j < 8; j++) {
        fit(from + j * 32, most, &scale[j], &minimum[j]);
    }
    const float d = carry_block_put_f16(at, carry_block_largest(scale, 8) / 63.0f);
    const float least = carry_block_put_f16(at + 2, carry_block_largest(minimum, 8) / 63.0f);
    for (int j = 0; j < 8; j++) {
        const int s = carry_block_round(d > 0.0f ? scale[j] / d : 0.0f, 0, 63);
        const int m = carry_block_round(least > 0.0f ? minimum[j] / least : 0.0f, 0, 63);
        const float by = d * (float)s;
        const float less = least * (float)m;
        put_scale(at + 4, j, s, m);
        for (int i = 0; i < 32; i++) {
            const int q = carry_block_round(by > 0.0f ? (from[j * 32 + i] + less) / by : 0.0f, 0, most);
            low[j / 2 * 32 + i] = (unsigned char)(low[j / 2 * 32 + i] | (q & 15) << (j % 2 * 4));
            if (high != NULL) {
                high[i] = (unsigned char)(high[i] | q >> 4 << j);
            }
        }
    }
}

static void encode_q4_k(void *blocks, const float *from, int64_t count) {
    unsigned char *at = blocks;
    memset(blocks, 0, (size_t)count * Q4_K_BYTES);
    for (int64_t b = 0; b < count; b++, at += Q4_K_BYTES) {
        encode_k(from + b * SUPER, at, NULL, at + 16, 15);
    }
}

static void encode_q5_k(void *blocks, const float *from, int64_t count) {
    unsigned char *at = blocks;
    memset(blocks, 0, (size_t)count * Q5_K_BYTES);
    for (int64_t b = 0; b < count; b++, at += Q5_K_BYTES) {
        encode_k(from + b * SUPER, at, at + 16, at + 48, 31);
    }
}

static bool finite_k(const unsigned char *at, int64_t count, size_t bytes) {
    bool fine = true;
    for (int64_t b = 0; b < count; b++, at += bytes) {
        fine = fine && isfinite(carry_block_f16(at)) && isfinite(carry_block_f16(at + 2));
    }
    return fine;
}

static bool finite_q4_k(const void *blocks, int64_t count) {
    return finite_k(blocks, count, Q4_K_BYTES);
}

static bool finite_q5_k(const void *blocks, int64_t count) {
    return finite_k(blocks, count, Q5_K_BYTES);
}

/* Column i of a block is in half i / 128 of the block and in quarter (i % 128) / 32 of that half. The quarter selects
   two bits of a byte of bits 4 and 5, and one half of a byte of bits 0 to 3. */
static void decode_q6_k(float *to, const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += Q6_K_BYTES) {
        const float d = carry_block_f16(at + 208);
        for (int i = 0; i < SUPER; i++) {
            const int half = i / 128;
            const int quarter = i % 128 / 32;
            const int low = at[half * 64 + quarter % 2 * 32 + i % 32] >> (quarter / 2 * 4) & 15;
            const int high = at[128 + half * 32 + i % 32] >> (quarter * 2) & 3;
            const float by = d * (float)(int8_t)at[192 + i / 16];
            to[b * SUPER + i] = by * (float)((low | high << 4) - 32);
        }
    }
}

static void encode_q6_k(void *blocks, const float *from, int64_t count) {
    unsigned char *at = blocks;
    memset(blocks, 0, (size_t)count * Q6_K_BYTES);
    for (int64_t b = 0; b < count; b++, at += Q6_K_BYTES, from += SUPER) {
        float scale[16];
        for (int j = 0; j < 16; j++) {
            scale[j] = carry_block_largest(from + j * 16, 16) / 31.0f;
        }
        const float d = carry_block_put_f16(at + 208, carry_block_largest(scale, 16) / 127.0f);
        for (int i = 0; i < SUPER; i++) {
            const int half = i / 128;
            const int quarter = i % 128 / 32;
            const int s = carry_block_round(d > 0.0f ? scale[i / 16] / d : 0.0f, 0, 127);
            const float by = d * (float)s;
            const int q = carry_block_round(by > 0.0f ? from[i] / by : 0.0f, -32, 31) + 32;
            unsigned char *low = &at[half * 64 + quarter % 2 * 32 + i % 32];
            unsigned char *high = &at[128 + half * 32 + i % 32];
            *low = (unsigned char)(*low | (q & 15) << (quarter / 2 * 4));
            *high = (unsigned char)(*high | q >> 4 << (quarter * 2));
            at[192 + i / 16] = (unsigned char)s;
        }
    }
}

static bool finite_q6_k(const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    bool fine = true;
    for (int64_t b = 0; b < count; b++, at += Q6_K_BYTES) {
        fine = fine && isfinite(carry_block_f16(at + 208));
    }
    return fine;
}

const carry_quant_format carry_quant_q4_k = {.name = "q4_k",
                                             .about =
                                                 "GGUF: 4-bit integers, scale and minimum for 32, in blocks of 256",
                                             .block = SUPER,
                                             .bytes = Q4_K_BYTES,
                                             .decode = decode_q4_k,
                                             .encode = encode_q4_k,
                                             .is_finite = finite_q4_k};
const carry_quant_format carry_quant_q5_k = {.name = "q5_k",
                                             .about =
                                                 "GGUF: 5-bit integers, scale and minimum for 32, in blocks of 256",
                                             .block = SUPER,
                                             .bytes = Q5_K_BYTES,
                                             .decode = decode_q5_k,
                                             .encode = encode_q5_k,
                                             .is_finite = finite_q5_k};
const carry_quant_format carry_quant_q6_k = {.name = "q6_k",
                                             .about = "GGUF: 6-bit integers, one scale for 16, in blocks of 256",
                                             .block = SUPER,
                                             .bytes = Q6_K_BYTES,
                                             .decode = decode_q6_k,
                                             .encode = encode_q6_k,
                                             .is_finite = finite_q6_k};
