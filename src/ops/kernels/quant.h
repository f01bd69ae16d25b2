/* Dot products of quantised rows with activations that were rounded to 8-bit integers in blocks of 32. There is one
   const struct per instruction set; kernels_quant_table.c is the only list. "plain" is the specification.

   A format's integers q, its scales s and, if it has any, its minima or zero points m give

       y = sum over blocks b of 32 of s[b] x_scale[b] (sum over i of q[i] x[i]) - m[b] x_sum[b]

   with sums over i in integers, so that only sums over b are rounded. Q6_K has two scales per block. */
#ifndef CARRY_OPS_KERNELS_QUANT_H
#define CARRY_OPS_KERNELS_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/quantised/quantised.h"

#define CARRY_QUANT_BLOCK 32
/* Tokens are padded with zeros to a multiple of this: whole blocks of every format. */
#define CARRY_QUANT_PAD 256

/* Rounded tokens, which are `columns` elements apart (a multiple of CARRY_QUANT_PAD); their scales and sums are
   columns / 32 apart. */
typedef struct carry_quant_x {
    int64_t columns;
    int8_t *q;
    float *scale;
    float *sum; /* scale times the sum of the block's integers */
} carry_quant_x;

/* Computes y[t * y_row + r] for rows r of the weight, which are row_bytes apart; each has `blocks` blocks of its
   format. */
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
    /* Returns NULL if this set does not support the format. */
    carry_quant_dots_function (*dots)(const carry_quant_format *format);
} carry_quant_kernels;

/* Entries from slow to fast; NULL past the end. */
const carry_quant_kernels *carry_quant_kernels_at(int index);
/* The last usable set; if the context asked for the kernels "plain", the plain set. */
const carry_quant_kernels *carry_quant_kernels_for(const char *kernels);

#endif
