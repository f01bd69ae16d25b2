/* Dot products of quantised rows with activations that were rounded to 8-bit integers in blocks of 32. There is one
   const struct per instruction set; kernels_quant_table.c is the only list. "plain" is the specification.

   A format's integers q, its scales s and, if it has any, its minima m (or zero points times s) give

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

/* Decodes `count` blocks to bf16: the bits of decoding to f32 and rounding, but AVX512_BF16 stores a zero for values
   below 2^-126. */
typedef void (*carry_quant_bf16_function)(uint16_t *to, const unsigned char *blocks, int64_t count);

/* In quant_many.h. */
struct carry_quant_many;
struct carry_quant_panel;
typedef void (*carry_quant_many_function)(const struct carry_quant_many *many);
/* Rounds `count` values, at most a chunk, as token `token` of a panel; the rest of the chunk becomes zeros. */
typedef void (*carry_quant_pack_function)(struct carry_quant_panel *to, int token, const float *x, int64_t count);

typedef struct carry_quant_entry {
    const carry_quant_format *format;
    carry_quant_dots_function dots;
} carry_quant_entry;

typedef struct carry_quant_kernels {
    const char *name;
    bool (*usable)(void);
    int few_tokens; /* for more, decoding rows to bf16 or f32 is faster */
    void (*round)(const carry_quant_x *to, int64_t token, const float *x, int64_t count);
    const carry_quant_entry *entries; /* ends with a format of NULL */
    /* Returns the function of a format; NULL if the format is not supported. The pointer itself may be NULL. */
    carry_quant_bf16_function (*bf16)(const carry_quant_format *format);
    /* Products of many tokens (quant_many.h). The pointers may be NULL. `many` returns the function of a
       format, or NULL. */
    carry_quant_many_function (*many)(const carry_quant_format *format);
    carry_quant_pack_function pack;
    int many_tokens; /* from this many tokens on, they are faster than `entries` */
} carry_quant_kernels;

extern const carry_quant_kernels carry_quant_kernels_plain;

/* The function of this set for a format, or the plain one; NULL if neither set has one. */
carry_quant_dots_function carry_quant_dots_by(const carry_quant_kernels *by, const carry_quant_format *format);

/* Entries from slow to fast; NULL past the end. */
const carry_quant_kernels *carry_quant_kernels_at(int index);
/* The usable set of that name, which is the name of the context's other kernels; else, and for NULL, the last usable
   set. */
const carry_quant_kernels *carry_quant_kernels_for(const char *kernels);

#endif
