/* Layouts of the formats whose blocks have one scale, for kernels that are written once for all of them. */
#ifndef CARRY_OPS_KERNELS_QUANT_LAYOUT_H
#define CARRY_OPS_KERNELS_QUANT_LAYOUT_H

#include <stdbool.h>

/* Where the parts of a block are. Its integers are `pieces` times 32 bytes or 32 nibbles. */
typedef struct layout {
    int bytes, integers, pieces;
    bool has_nibbles, has_half_scale;
    int zero; /* the zero point; -1: it is in the byte after the scale */
} layout;

static const layout layout_q8_0 = {.bytes = 34, .integers = 2, .pieces = 1, .has_half_scale = true};
static const layout layout_int8 = {.bytes = 132, .integers = 4, .pieces = 4};
static const layout layout_q4_0 = {
    .bytes = 18, .integers = 2, .pieces = 1, .has_nibbles = true, .has_half_scale = true, .zero = 8};
static const layout layout_int4_g32 = {.bytes = 24, .integers = 8, .pieces = 1, .has_nibbles = true, .zero = -1};
static const layout layout_int4_g64 = {.bytes = 40, .integers = 8, .pieces = 2, .has_nibbles = true, .zero = -1};
static const layout layout_int4_g128 = {.bytes = 72, .integers = 8, .pieces = 4, .has_nibbles = true, .zero = -1};

#endif
