/* Reduces data from several ranks in host memory; cuda/reduce.cu does the same on a GPU. */
#include <math.h>
#include <string.h>

#include "comm/backend.h"

/* bf16 values are added in f32, and the sum is rounded after every rank. */
static float bf16_value(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even. A NaN keeps its upper 16 bits and becomes quiet. There are no branches, so that the
   compiler can vectorise loops. */
static uint16_t bf16_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static void reduce_bf16(uint16_t *to, const uint16_t *from, int64_t count, carry_reduce reduce) {
    for (int64_t i = 0; i < count; i++) {
        const float a = bf16_value(to[i]), b = bf16_value(from[i]);
        to[i] = bf16_bits(reduce == CARRY_REDUCE_SUM ? a + b : a >= b || isnan(a) ? a : b);
    }
}

static void reduce_f32(float *to, const float *from, int64_t count, carry_reduce reduce) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = reduce == CARRY_REDUCE_SUM ? to[i] + from[i] : from[i] > to[i] || isnan(from[i]) ? from[i] : to[i];
    }
}

static void reduce_f64(double *to, const double *from, int64_t count, carry_reduce reduce) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = reduce == CARRY_REDUCE_SUM ? to[i] + from[i] : from[i] > to[i] || isnan(from[i]) ? from[i] : to[i];
    }
}

static void reduce_i64(int64_t *to, const int64_t *from, int64_t count, carry_reduce reduce) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t sum = (int64_t)((uint64_t)to[i] + (uint64_t)from[i]);
        const int64_t larger = from[i] > to[i] ? from[i] : to[i];
        to[i] = reduce == CARRY_REDUCE_SUM ? sum : larger;
    }
}

void carry_comm_reduce_into(void *to, const void *from, int64_t count, carry_dtype type, carry_reduce reduce) {
    switch (type) {
    case CARRY_F32:
        reduce_f32(to, from, count, reduce);
        break;
    case CARRY_F64:
        reduce_f64(to, from, count, reduce);
        break;
    case CARRY_I64:
        reduce_i64(to, from, count, reduce);
        break;
    case CARRY_BF16:
        reduce_bf16(to, from, count, reduce);
        break;
    default: /* refused before */
        break;
    }
}
