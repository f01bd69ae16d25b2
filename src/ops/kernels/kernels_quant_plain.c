/* Dot products of quantised rows in portable C: the integers of a block are decoded first, whatever its format. */
#include <math.h>
#include <string.h>

#include "ops/kernels/quant.h"
#include "ops/quantised/blocks.h"

static bool usable(void) {
    return true;
}

static void round_token(const carry_quant_x *to, int64_t token, const float *x, int64_t count) {
    int8_t *q = to->q + token * to->columns;
    float *scale = to->scale + token * to->columns / CARRY_QUANT_BLOCK;
    float *sum = to->sum + token * to->columns / CARRY_QUANT_BLOCK;
    for (int64_t b = 0; b < to->columns / CARRY_QUANT_BLOCK; b++) {
        float block[CARRY_QUANT_BLOCK] = {0};
        int total = 0;
        for (int64_t i = 0; i < CARRY_QUANT_BLOCK && b * CARRY_QUANT_BLOCK + i < count; i++) {
            block[i] = x[b * CARRY_QUANT_BLOCK + i];
        }
        scale[b] = carry_block_largest(block, CARRY_QUANT_BLOCK) / 127.0f;
        const float by = scale[b] > 0.0f ? 1.0f / scale[b] : 0.0f;
        for (int i = 0; i < CARRY_QUANT_BLOCK; i++) {
            const float rounded = rintf(block[i] * by);
            q[b * CARRY_QUANT_BLOCK + i] = (int8_t)(rounded > 127.0f ? 127.0f : rounded < -127.0f ? -127.0f : rounded);
            total += q[b * CARRY_QUANT_BLOCK + i];
        }
        sum[b] = scale[b] * (float)total;
    }
}

/* 32 integers of a row, the scales of their halves, and the amount subtracted per unit of x. */
typedef struct piece {
    int q[CARRY_QUANT_BLOCK];
    float scale[2], less;
} piece;

static void take_nibbles(piece *to, const unsigned char *from, int zero) {
    for (int i = 0; i < 16; i++) {
        to->q[i] = (from[i] & 15) - zero;
        to->q[16 + i] = (from[i] >> 4) - zero;
    }
}

/* Piece `index` of a block. */
typedef void (*take_function)(piece *to, const unsigned char *block, int index);

static void take_int8(piece *to, const unsigned char *block, int index) {
    for (int i = 0; i < CARRY_QUANT_BLOCK; i++) {
        to->q[i] = (block[4 + index * CARRY_QUANT_BLOCK + i] ^ 128) - 128; /* as an int8_t */
    }
    to->scale[0] = to->scale[1] = carry_block_f32(block);
    to->less = 0.0f;
}

static void take_q8_0(piece *to, const unsigned char *block, int index) {
    (void)index;
    for (int i = 0; i < CARRY_QUANT_BLOCK; i++) {
        to->q[i] = (block[2 + i] ^ 128) - 128; /* as an int8_t */
    }
    to->scale[0] = to->scale[1] = carry_block_f16(block);
    to->less = 0.0f;
}

static void take_q4_0(piece *to, const unsigned char *block, int index) {
    (void)index;
    take_nibbles(to, block + 2, 8);
    to->scale[0] = to->scale[1] = carry_block_f16(block);
    to->less = 0.0f;
}

static void take_int4(piece *to, const unsigned char *block, int index) {
    uint32_t zero;
    memcpy(&zero, block + 4, sizeof zero);
    take_nibbles(to, block + 8 + 16 * index, (int)zero);
    to->scale[0] = to->scale[1] = carry_block_f32(block);
    to->less = 0.0f;
}

static void take_k(piece *to, const unsigned char *block, const unsigned char *high, const unsigned char *low, int j) {
    const unsigned char *s = block + 4;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    for (int i = 0; i < CARRY_QUANT_BLOCK; i++) {
        const int bits = low[j / 2 * 32 + i];
        to->q[i] = (j % 2 == 0 ? bits & 15 : bits >> 4) | (high != NULL ? (high[i] >> j & 1) << 4 : 0);
    }
    to->scale[0] = to->scale[1] = carry_block_f16(block) * (float)scale;
    to->less = carry_block_f16(block + 2) * (float)minimum;
}

static void take_q4_k(piece *to, const unsigned char *block, int index) {
    take_k(to, block, NULL, block + 16, index);
}

static void take_q5_k(piece *to, const unsigned char *block, int index) {
    take_k(to, block, block + 16, block + 48, index);
}

static void take_q6_k(piece *to, const unsigned char *block, int index) {
    const int half = index / 4;
    const int quarter = index % 4;
    for (int i = 0; i < CARRY_QUANT_BLOCK; i++) {
        const int low = block[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
        const int high = block[128 + half * 32 + i] >> (quarter * 2) & 3;
        to->q[i] = (low | high << 4) - 32;
    }
    for (int i = 0; i < 2; i++) {
        to->scale[i] = carry_block_f16(block + 208) * (float)(int8_t)block[192 + 2 * index + i];
    }
    to->less = 0.0f;
}

static void run(const carry_quant_dots *d, take_function take, const carry_quant_format *format) {
    const int pieces = (int)(format->block / CARRY_QUANT_BLOCK);
    for (int64_t t = 0; t < d->tokens; t++) {
        const int8_t *x = d->x.q + t * d->x.columns;
        const float *scale = d->x.scale + t * d->x.columns / CARRY_QUANT_BLOCK;
        const float *sum = d->x.sum + t * d->x.columns / CARRY_QUANT_BLOCK;
        for (int64_t r = 0; r < d->rows; r++) {
            float total = 0.0f;
            for (int64_t b = 0; b < d->blocks * pieces; b++) {
                piece p;
                int dot[2] = {0, 0};
                take(&p, d->w + (size_t)r * d->row_bytes + (size_t)(b / pieces) * format->bytes, (int)(b % pieces));
                for (int i = 0; i < CARRY_QUANT_BLOCK; i++) {
                    dot[i / 16] += p.q[i] * x[b * CARRY_QUANT_BLOCK + i];
                }
                total += (p.scale[0] * (float)dot[0] + p.scale[1] * (float)dot[1]) * scale[b] - p.less * sum[b];
            }
            d->y[t * d->y_row + r] = total;
        }
    }
}

static void dots_int8(const carry_quant_dots *d) {
    run(d, take_int8, &carry_quant_int8);
}

static void dots_q8_0(const carry_quant_dots *d) {
    run(d, take_q8_0, &carry_quant_q8_0);
}

static void dots_q4_0(const carry_quant_dots *d) {
    run(d, take_q4_0, &carry_quant_q4_0);
}

static void dots_int4_g32(const carry_quant_dots *d) {
    run(d, take_int4, &carry_quant_int4_g32);
}

static void dots_int4_g64(const carry_quant_dots *d) {
    run(d, take_int4, &carry_quant_int4_g64);
}

static void dots_int4_g128(const carry_quant_dots *d) {
    run(d, take_int4, &carry_quant_int4_g128);
}

static void dots_q4_k(const carry_quant_dots *d) {
    run(d, take_q4_k, &carry_quant_q4_k);
}

static void dots_q5_k(const carry_quant_dots *d) {
    run(d, take_q5_k, &carry_quant_q5_k);
}

static void dots_q6_k(const carry_quant_dots *d) {
    run(d, take_q6_k, &carry_quant_q6_k);
}

static const carry_quant_entry entries[] = {
    {&carry_quant_int8, dots_int8},         {&carry_quant_q8_0, dots_q8_0},
    {&carry_quant_q4_0, dots_q4_0},         {&carry_quant_int4_g32, dots_int4_g32},
    {&carry_quant_int4_g64, dots_int4_g64}, {&carry_quant_int4_g128, dots_int4_g128},
    {&carry_quant_q4_k, dots_q4_k},         {&carry_quant_q5_k, dots_q5_k},
    {&carry_quant_q6_k, dots_q6_k},         {NULL, NULL}};

const carry_quant_kernels carry_quant_kernels_plain = {
    .name = "plain", .usable = usable, .few_tokens = 8, .round = round_token, .entries = entries};
