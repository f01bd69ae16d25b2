/* Dot products of quantised rows with activations that were rounded to 8-bit integers in blocks of 32: one const struct
   per instruction set, kernels_quant_table.c is the only list. "plain" is the specification.

   A format's integers, its scales and, where it has any, its minima or zero points make up
       y = sum over blocks b of 32 of s[b] x_scale[b] (sum over i of q[i] x[i]) - m[b] x_sum[b]
   with sums over i in integers, so that only sums over b are rounded. Q6_K has two scales in a block. */
#ifndef CARRY_OPS_KERNELS_QUANT_H
#define CARRY_OPS_KERNELS_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/quantised/quantised.h"

#define CARRY_QUANT_BLOCK 32
#define CARRY_QUANT_PAD 256 /* tokens are padded with zeros to a multiple of this: whole blocks of every format */

/* Rounded tokens, `columns` apart (a multiple of CARRY_QUANT_PAD); scales and sums are columns / 32 apart. */
typedef struct carry_quant_x {
    int64_t columns;
    int8_t *q;
    float *scale;
    float *sum; /* scale times the sum of the block's integers */
} carry_quant_x;

/* y[t * y_row + r] for rows r of the weight, row_bytes apart, each of `blocks` blocks of its format. */
typedef struct carry_quant_dots {
    int64_t rows, tokens, blocks;
    const unsigned char *w;
    size_t row_bytes;
    carry_quant_x x;
    float *y;
    ptrdiff_t y_row;
} carry_quant_dots;

typedef void (*carry_quant_dots_function)(const carry_quant_dots *dots);

typedef struct carry_quant_kernels {
    const char *name;
    bool (*usable)(void);
    void (*round)(const carry_quant_x *to, int64_t token, const float *x, int64_t count);
    /* NULL: this set does not support the format. */
    carry_quant_dots_function (*dots)(const carry_quant_format *format);
} carry_quant_kernels;

/* Slowest first; NULL past the end. */
const carry_quant_kernels *carry_quant_kernels_at(int index);
/* The last usable one; of the set `kernels` that a context asked for, "plain" is plain. */
const carry_quant_kernels *carry_quant_kernels_for(const char *kernels);

#endif
