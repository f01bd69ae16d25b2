/* Products of quantised rows with many tokens, whose activations are rounded as in quant.h. 32 rows of the weight and
   256 columns (a chunk) are unpacked once to unsigned bytes with the scales of each 32 columns, whatever the format,
   and multiplied with the chunk's panels of tokens; sums over chunks stay in f32. */
#ifndef CARRY_OPS_KERNELS_QUANT_MANY_H
#define CARRY_OPS_KERNELS_QUANT_MANY_H

#include "ops/kernels/quant.h"

#define CARRY_QUANT_CHUNK CARRY_QUANT_PAD
#define CARRY_QUANT_PIECES (CARRY_QUANT_CHUNK / CARRY_QUANT_BLOCK)
#define CARRY_QUANT_MANY_ROWS 32
#define CARRY_QUANT_MANY_TOKENS 6

/* A panel: one chunk of six tokens. */
typedef struct carry_quant_panel {
    int8_t q[CARRY_QUANT_PIECES][CARRY_QUANT_MANY_TOKENS][CARRY_QUANT_BLOCK];
    /* -128 times the sums of the integers of columns 0 to 15, 16 to 31 and 0 to 31 of each piece. */
    int32_t start[CARRY_QUANT_PIECES][3][CARRY_QUANT_MANY_TOKENS];
    float scale[CARRY_QUANT_PIECES][CARRY_QUANT_MANY_TOKENS];
    float sum[CARRY_QUANT_PIECES][CARRY_QUANT_MANY_TOKENS];
} carry_quant_panel;

_Static_assert(sizeof(carry_quant_panel) % 64 == 0, "panels follow each other");

/* Adds the products of a chunk to sums[t * sums_row + r]. Sums of all 32 rows and of all tokens of the panels are
   written. */
typedef struct carry_quant_many {
    int rows;   /* 1 to 32 */
    int pieces; /* of the chunk that the weight has; 1 to 8 */
    int64_t chunk;
    const unsigned char *w; /* the first row */
    size_t row_bytes;
    int64_t panels;
    const carry_quant_panel *x; /* the first panel of this chunk; panels follow each other */
    float *sums;
    ptrdiff_t sums_row;
} carry_quant_many;

/* Returns the function of a format, or NULL. */
carry_quant_many_function carry_quant_avx512_many(const carry_quant_format *format);
void carry_quant_avx512_pack(carry_quant_panel *to, int token, const float *x, int64_t count);

#endif
