/* Formats with one scale for each block: 8-bit floats, 8-bit integers, Q8_0 and Q4_0 of GGUF, and 4-bit integers with a
   scale and a zero point for each group.

       fp8_block  f32 scale, 128 e4m3                 x = scale * f8
       int8       f32 scale, 128 int8                 x = scale * q
       q8_0       f16 scale, 32 int8                  x = scale * q
       q4_0       f16 scale, 16 bytes                 x = scale * (q - 8)
       int4_gN    f32 scale, u32 zero, N / 2 bytes    x = scale * (q - zero)

   16 bytes of nibbles hold 32 columns: column i < 16 in the low half of byte i, column 16 + i in its high half. */
#include "ops/f8.h"
#include "ops/quantised/blocks.h"

#define WIDE 128
#define NIBBLES 32

float carry_f32_from_f8(uint8_t bits) {
    return carry_f8_value(bits);
}

uint8_t carry_f8_from_f32(float value) {
    return isinf(value) ? (uint8_t)((signbit(value) ? 0x80 : 0) | CARRY_F8_MOST) : carry_f8_round(value);
}

static void decode_fp8(float *to, const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    float values[256];
    for (int i = 0; i < 256; i++) {
        values[i] = carry_f32_from_f8((uint8_t)i);
    }
    for (int64_t b = 0; b < count; b++, at += 4 + WIDE) {
        const float scale = carry_block_f32(at);
        for (int i = 0; i < WIDE; i++) {
            to[b * WIDE + i] = scale * values[at[4 + i]];
        }
    }
}

static void encode_fp8(void *blocks, const float *from, int64_t count) {
    unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 4 + WIDE, from += WIDE) {
        const float scale = carry_block_largest(from, WIDE) / 448.0f;
        carry_block_put_f32(at, scale);
        for (int i = 0; i < WIDE; i++) {
            at[4 + i] = carry_f8_from_f32(scale > 0.0f ? from[i] / scale : 0.0f);
        }
    }
}

static bool finite_fp8(const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    bool fine = true;
    for (int64_t b = 0; b < count; b++, at += 4 + WIDE) {
        fine = fine && isfinite(carry_block_f32(at));
        for (int i = 0; i < WIDE; i++) {
            fine = fine && (at[4 + i] & 0x7f) != 0x7f;
        }
    }
    return fine;
}

const carry_quant_format carry_quant_fp8_block = {.name = "fp8_block",
                                                  .about = "8-bit floats (e4m3), one scale for 128 x 128",
                                                  .block = WIDE,
                                                  .bytes = 4 + WIDE,
                                                  .decode = decode_fp8,
                                                  .encode = encode_fp8,
                                                  .is_finite = finite_fp8};

static void decode_int8(float *to, const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 4 + WIDE) {
        const float scale = carry_block_f32(at);
        for (int i = 0; i < WIDE; i++) {
            to[b * WIDE + i] = scale * (float)(int8_t)at[4 + i];
        }
    }
}

static void encode_int8(void *blocks, const float *from, int64_t count) {
    unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 4 + WIDE, from += WIDE) {
        const float scale = carry_block_largest(from, WIDE) / 127.0f;
        carry_block_put_f32(at, scale);
        for (int i = 0; i < WIDE; i++) {
            at[4 + i] = (unsigned char)carry_block_round(scale > 0.0f ? from[i] / scale : 0.0f, -127, 127);
        }
    }
}

static bool finite_int8(const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    bool fine = true;
    for (int64_t b = 0; b < count; b++, at += 4 + WIDE) {
        fine = fine && isfinite(carry_block_f32(at));
    }
    return fine;
}

const carry_quant_format carry_quant_int8 = {.name = "int8",
                                             .about = "8-bit integers, one scale for each row",
                                             .block = WIDE,
                                             .bytes = 4 + WIDE,
                                             .decode = decode_int8,
                                             .encode = encode_int8,
                                             .is_finite = finite_int8};

static void decode_q8_0(float *to, const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 34) {
        const float scale = carry_block_f16(at);
        for (int i = 0; i < 32; i++) {
            to[b * 32 + i] = scale * (float)(int8_t)at[2 + i];
        }
    }
}

static void encode_q8_0(void *blocks, const float *from, int64_t count) {
    unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 34, from += 32) {
        const float step = carry_block_largest(from, 32) / 127.0f;
        (void)carry_block_put_f16(at, step);
        for (int i = 0; i < 32; i++) {
            at[2 + i] = (unsigned char)carry_block_round(step > 0.0f ? from[i] / step : 0.0f, -127, 127);
        }
    }
}

/* For formats whose blocks, of `bytes` bytes, begin with an f16 scale. */
static bool finite_f16(const unsigned char *at, int64_t count, size_t bytes) {
    bool fine = true;
    for (int64_t b = 0; b < count; b++, at += bytes) {
        fine = fine && isfinite(carry_block_f16(at));
    }
    return fine;
}

static bool finite_q8_0(const void *blocks, int64_t count) {
    return finite_f16(blocks, count, 34);
}

const carry_quant_format carry_quant_q8_0 = {.name = "q8_0",
                                             .about = "GGUF: 8-bit integers, one scale for 32",
                                             .block = 32,
                                             .bytes = 34,
                                             .decode = decode_q8_0,
                                             .encode = encode_q8_0,
                                             .is_finite = finite_q8_0};

static void decode_q4_0(float *to, const void *blocks, int64_t count) {
    const unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 18) {
        const float scale = carry_block_f16(at);
        for (int i = 0; i < 16; i++) {
            to[b * 32 + i] = scale * (float)((at[2 + i] & 15) - 8);
            to[b * 32 + 16 + i] = scale * (float)((at[2 + i] >> 4) - 8);
        }
    }
}

/* The value of largest magnitude becomes -8, which has no positive counterpart. */
static void encode_q4_0(void *blocks, const float *from, int64_t count) {
    unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 18, from += 32) {
        float largest = 0.0f;
        for (int i = 0; i < 32; i++) {
            largest = fabsf(from[i]) > fabsf(largest) ? from[i] : largest;
        }
        const float scale = carry_block_put_f16(at, largest / -8.0f);
        const float by = scale != 0.0f ? 1.0f / scale : 0.0f;
        for (int i = 0; i < 16; i++) {
            const int low = carry_block_round(from[i] * by, -8, 7) + 8;
            const int high = carry_block_round(from[16 + i] * by, -8, 7) + 8;
            at[2 + i] = (unsigned char)(low | high << 4);
        }
    }
}

static bool finite_q4_0(const void *blocks, int64_t count) {
    return finite_f16(blocks, count, 18);
}

const carry_quant_format carry_quant_q4_0 = {.name = "q4_0",
                                             .about = "GGUF: 4-bit integers, one scale for 32",
                                             .block = 32,
                                             .bytes = 18,
                                             .decode = decode_q4_0,
                                             .encode = encode_q4_0,
                                             .is_finite = finite_q4_0};

static uint32_t zero_of(const unsigned char *at) {
    uint32_t zero;
    memcpy(&zero, at + 4, sizeof zero);
    return zero;
}

static void decode_int4(float *to, const void *blocks, int64_t count, int group) {
    const unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 8 + group / 2) {
        const float scale = carry_block_f32(at);
        const int zero = (int)zero_of(at);
        const unsigned char *nibbles = at + 8;
        for (int i = 0; i < group; i += NIBBLES, nibbles += NIBBLES / 2, to += NIBBLES) {
            for (int j = 0; j < NIBBLES / 2; j++) {
                to[j] = scale * (float)((nibbles[j] & 15) - zero);
                to[NIBBLES / 2 + j] = scale * (float)((nibbles[j] >> 4) - zero);
            }
        }
    }
}

static void encode_int4(void *blocks, const float *from, int64_t count, int group) {
    unsigned char *at = blocks;
    for (int64_t b = 0; b < count; b++, at += 8 + group / 2) {
        float low = 0.0f;
        float high = 0.0f;
        for (int i = 0; i < group; i++) {
            low = from[i] < low ? from[i] : low;
            high = from[i] > high ? from[i] : high;
        }
        /* The files have scales in f16. */
        const float scale = carry_f32_from_f16(carry_f16_from_f32((high - low) / 15.0f));
        const float by = scale > 0.0f ? 1.0f / scale : 0.0f;
        const uint32_t zero = (uint32_t)carry_block_round(-low * by, 0, 15);
        unsigned char *nibbles = at + 8;
        carry_block_put_f32(at, scale);
        memcpy(at + 4, &zero, sizeof zero);
        for (int i = 0; i < group; i += NIBBLES, nibbles += NIBBLES / 2, from += NIBBLES) {
            for (int j = 0; j < NIBBLES / 2; j++) {
                const int first = carry_block_round(from[j] * by + (float)zero, 0, 15);
                const int second = carry_block_round(from[NIBBLES / 2 + j] * by + (float)zero, 0, 15);
                nibbles[j] = (unsigned char)(first | second << 4);
            }
        }
    }
}

static bool finite_int4(const void *blocks, int64_t count, int group) {
    const unsigned char *at = blocks;
    bool fine = true;
    for (int64_t b = 0; b < count; b++, at += 8 + group / 2) {
        fine = fine && isfinite(carry_block_f32(at)) && zero_of(at) <= 16;
    }
    return fine;
}

static void decode_int4_g32(float *to, const void *blocks, int64_t count) {
    decode_int4(to, blocks, count, 32);
}

static void encode_int4_g32(void *blocks, const float *from, int64_t count) {
    encode_int4(blocks, from, count, 32);
}

static bool finite_int4_g32(const void *blocks, int64_t count) {
    return finite_int4(blocks, count, 32);
}

static void decode_int4_g64(float *to, const void *blocks, int64_t count) {
    decode_int4(to, blocks, count, 64);
}

static void encode_int4_g64(void *blocks, const float *from, int64_t count) {
    encode_int4(blocks, from, count, 64);
}

static bool finite_int4_g64(const void *blocks, int64_t count) {
    return finite_int4(blocks, count, 64);
}

static void decode_int4_g128(float *to, const void *blocks, int64_t count) {
    decode_int4(to, blocks, count, 128);
}

static void encode_int4_g128(void *blocks, const float *from, int64_t count) {
    encode_int4(blocks, from, count, 128);
}

static bool finite_int4_g128(const void *blocks, int64_t count) {
    return finite_int4(blocks, count, 128);
}

#define ABOUT "4-bit integers, a scale and a zero point for each group of "

const carry_quant_format carry_quant_int4_g32 = {.name = "int4_g32",
                                                 .about = ABOUT "32",
                                                 .block = 32,
                                                 .bytes = 8 + 16,
                                                 .decode = decode_int4_g32,
                                                 .encode = encode_int4_g32,
                                                 .is_finite = finite_int4_g32};
const carry_quant_format carry_quant_int4_g64 = {.name = "int4_g64",
                                                 .about = ABOUT "64",
                                                 .block = 64,
                                                 .bytes = 8 + 32,
                                                 .decode = decode_int4_g64,
                                                 .encode = encode_int4_g64,
                                                 .is_finite = finite_int4_g64};
const carry_quant_format carry_quant_int4_g128 = {.name = "int4_g128",
                                                  .about = ABOUT "128",
                                                  .block = 128,
                                                  .bytes = 8 + 64,
                                                  .decode = decode_int4_g128,
                                                  .encode = encode_int4_g128,
                                                  .is_finite = finite_int4_g128};
