/* Functions of bf16 rows with bf16 results in one pass, where the loops of rows.h would need f32 copies on both
   sides. Sums and functions are computed in f32; the relative error of a sigmoid is at most 2^-13, which is at
   most 1/32 of the last bit of the result. An element has the same bits at any position in a row. */
#ifndef CARRY_OPS_HALF_ROWS_H
#define CARRY_OPS_HALF_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARRY_HALF_CONV_TAPS 4
#define CARRY_HALF_CONV_CHANNELS 256 /* at most */
#define CARRY_HALF_NORM_WIDTH 8192   /* n at most */

/* y[t * y_row + c] = f(sum_i taps[i * taps_row + c] x[t * x_token + i * x_row + c]) for i < CARRY_HALF_CONV_TAPS, where
   f is silu or the identity. x_token is x_row for tokens of one sequence; tokens of different sequences each have their
   own rows. */
typedef struct carry_half_conv {
    int64_t tokens, channels;
    const uint16_t *x;
    const float *taps;
    uint16_t *y;
    ptrdiff_t x_token, x_row, y_row, taps_row;
    bool silu;
} carry_half_conv;

/* y = x w silu(z) / sqrt(mean x^2 + eps), for packed rows of n elements; w and z may be NULL, y may be x or z. */
typedef struct carry_half_norm {
    int64_t rows, n;
    const uint16_t *x, *z;
    const float *w;
    uint16_t *y;
    float eps;
} carry_half_norm;

typedef struct carry_half_rows {
    void (*swiglu)(uint16_t *y, const uint16_t *gate, const uint16_t *up, int64_t count);
    void (*conv)(const carry_half_conv *conv);
    void (*norm)(const carry_half_norm *norm);
    /* norms[i] = 1 / sqrt(epsilon + sum of squares) for rows of `size` elements. */
    void (*unit_norms)(float *norms, const uint16_t *from, ptrdiff_t row, float epsilon, int64_t rows, int64_t size);
} carry_half_rows;

#endif
