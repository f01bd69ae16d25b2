/* Functions of bf16 rows with bf16 results in one pass, where the loops of rows.h would need f32 copies on both
   sides. Sums and functions are computed in f32; a sigmoid is within 2^-13, which is a sixteenth of the last bit of
   the result. An element has the same bits at any position in a row. */
#ifndef CARRY_OPS_HALF_ROWS_H
#define CARRY_OPS_HALF_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARRY_HALF_CONV_TAPS 4
#define CARRY_HALF_CONV_CHANNELS 256 /* at most */
#define CARRY_HALF_NORM_WIDTH 8192   /* n at most */

/* y[t][c] = f(sum_i taps[i * taps_row + c] x[t + i][c]) for i < CARRY_HALF_CONV_TAPS, where f is silu or the
   identity. */
typedef struct carry_half_conv {
    int64_t tokens, channels;
    const uint16_t *x; /* tokens + CARRY_HALF_CONV_TAPS - 1 rows, x_row apart */
    const float *taps;
    uint16_t *y;
    ptrdiff_t x_row, y_row, taps_row;
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
