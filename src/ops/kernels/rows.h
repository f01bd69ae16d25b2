/* The inner loops, over rows of f32, of the operators of carry/nn.h. They are part of the table of kernels
   (kernels.h), so that they are compiled for every instruction set; rows_loops.h has the only source. An output may be
   the same array as an input if both are read and written at the same index. */
#ifndef CARRY_OPS_ROWS_H
#define CARRY_OPS_ROWS_H

#include <stdint.h>

#include "carry/nn.h"

#define CARRY_CONV_WIDTHS 16
#define CARRY_UNIT_ROWS 16
#define CARRY_TRIANGLES_ROWS 128

typedef struct carry_adam_factors {
    float b1, c1, b2, c2; /* c = 1 - b, rounded once */
    /* rate is corrected for the bias of m: rate / (1 - b1^step). decay includes the rate. */
    float factor, rate, unbias_v, eps, decay;
    float step; /* its last 24 bits; only for rounding to bf16 */
} carry_adam_factors;

/* dx (or added to it) = scale dy w silu(z) - back x; dw += dy x scale silu(z); dz = dy x scale w silu'(z). w and z
   may be NULL, and dz is NULL with z. */
typedef struct carry_norm_backward {
    float *dx, *dw, *dz;
    const float *dy, *x, *w, *z;
    float scale, back;
} carry_norm_backward;

/* Layer norm backward, with x' = (x - mean) scale and g = dy (w + plus), level = mean(g) and back = mean(g x'): dx
   (or added to it) = scale (g - level - x' back); dw += dy x'; db += dy. w may be NULL: g = dy. */
typedef struct carry_layer_backward {
    float *dx, *dw, *db;
    const float *dy, *x, *w;
    float mean, scale, plus, level, back;
} carry_layer_backward;

/* Statistics of a row in layer norm: y = (x - mean) scale (w + plus) + b. */
typedef struct carry_layer_row {
    float mean, scale, plus;
} carry_layer_row;

/* The triangles of a chunk of the delta rule (delta/chunk.h), rows `stride` apart, a multiple of 16:
       D[i, j] = e^{G[i]-G[j]} and P[i, j] = scale D[i, j] qk[i, j] for j <= i
       nA[i, j] = -beta[i] D[i, j] kk[i, j] for j < i
   nA and P are zero in the other columns up to the end of i's block of 16. G NULL: no gate (D is 1); qk NULL: P is not
   computed. At most 128 tokens. */
typedef struct carry_triangles {
    int64_t tokens, stride;
    const double *G;
    const float *kk, *qk, *beta;
    float scale;
    float *D, *nA, *P;
} carry_triangles;

/* The part of a backward chunk with one gate per token (delta/backward_chunk.c) that depends on S, the state before the
   chunk, and on dS, the gradient of the state after it: dbeta and dG are written, dq and dk are added to. on_R is
   dR S^T, on_O is dO S^T and on_end is V' dS^T, in the notation of that file. Rows are packed. */
typedef struct carry_delta_states {
    int64_t tokens, key, value;
    const float *on_R, *on_O, *on_end, *q, *k; /* [tokens, key] */
    const float *dR, *v;                       /* [tokens, value] */
    const float *S, *dS;                       /* [key, value] */
    const float *fade, *left, *beta;           /* [tokens] */
    float scale, end;
    float *dq, *dk, *dbeta;
    double *dG;
} carry_delta_states;

/* The part of the same backward chunk that depends on its triangles nA and P. on_kk, on_qk, dbeta and dG are all added
   to. Rows of the square matrices are `stride` apart. */
typedef struct carry_delta_triangles {
    int64_t tokens, stride;
    const float *dnA, *dP, *nA, *P, *D, *kk, *beta;
    float scale;
    float *on_kk, *on_qk, *dbeta;
    double *dG;
} carry_delta_triangles;

typedef struct carry_rows {
    void (*activate)(float *y, const float *x, int64_t count, carry_activation activation);
    void (*activate_backward)(float *dx, const float *dy, const float *x, int64_t count, carry_activation activation);
    void (*swiglu)(float *y, const float *gate, const float *up, int64_t count);
    void (*swiglu_backward)(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                            int64_t count);
    void (*add)(float *y, const float *x, int64_t count);
    float (*sum_squares)(const float *x, int64_t count);
    double (*sum_squares_double)(const float *x, int64_t count);
    /* y = x scale w silu(z); w and z may be NULL. */
    void (*norm)(float *y, const float *x, const float *w, const float *z, float scale, int64_t count);
    /* sums[0] += sum x^2, sums[1] += sum dy w silu(z) x; also writes sigmoid(z) to `sigmoid` for norm_backward. */
    void (*norm_sums)(const carry_norm_backward *row, float *sigmoid, float sums[2], int64_t count);
    void (*norm_backward)(const carry_norm_backward *row, const float *sigmoid, int add, int64_t count);
    /* y = sum_i taps[i * stride + c] x[i][c]. */
    void (*conv)(float *y, const float *const *x, const float *taps, int64_t stride, int64_t width, int64_t count);
    /* sums[i * stride + c] += dy[c] x[i][c]. */
    void (*conv_weights)(float *sums, const float *dy, const float *const *x, int64_t stride, int64_t width,
                         int64_t count);
    float (*maximum)(const float *x, int64_t count);
    /* Returns the sum of e^(x - minus); the terms are written to y unless it is NULL. */
    float (*sum_exp)(float *y, const float *x, float minus, int64_t count);
    /* With p = e^(x - minus): x becomes p, and y becomes p (y - mean). */
    void (*softmax_backward)(float *x, float *y, float minus, float mean, int64_t count);
    void (*scale)(float *y, float scale, int64_t count);
    float (*sum)(const float *x, int64_t count);
    float (*sum_squares_from)(const float *x, float mean, int64_t count); /* of x - mean */
    /* w and b may be NULL; plus is ignored if w is NULL. */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, const carry_layer_row *row,
                       int64_t count);
    void (*gated_add)(float *x, const float *y, const float *g, int64_t count); /* x += g y */
    /* Rotates pairs by table[i] = (cosine, sine); with sign -1 it rotates back. */
    void (*rotary)(float *y, const float *x, const float *table, float sign, int64_t pairs);
    void (*adamw)(float *w, float *m, float *v, const float *g, const carry_adam_factors *factors, int64_t count);
    /* Adds the sums of g and of g x' to sums. */
    void (*layer_sums)(const carry_layer_backward *row, float sums[2], int64_t count);
    void (*layer_backward)(const carry_layer_backward *row, int add, int64_t count);
    /* Rows: to[i] = by[i] from[i]. */
    void (*scale_rows)(float *to, int64_t to_row, const float *from, int64_t from_row, const float *by, int64_t rows,
                       int64_t size);
    /* to[i] = norms[i] from[i], packed, with norms[i] = 1 / sqrt(epsilon + sum of squares). */
    void (*unit_rows)(float *to, const float *from, int64_t from_row, float *norms, float epsilon, int64_t rows,
                      int64_t size);
    /* inverse[i][c], in rows of 16, is the inverse of the lower triangle I + A, which has `size` rows, at most 16.
       below holds -A, with rows `stride` apart. If a number is not finite, zeros of the inverse may become NaN. */
    void (*unit_inverse)(float *inverse, const float *below, int64_t stride, int64_t size);
    void (*triangles)(const carry_triangles *triangles);
    double (*delta_states)(const carry_delta_states *states); /* returns the amount to add to dG of the last token */
    void (*delta_triangles)(const carry_delta_triangles *triangles);
    /* dy[i] = norms[i] (dy[i] - y[i] (y[i] . dy[i])), for packed rows that unit_rows wrote. */
    void (*unit_rows_backward)(float *dy, const float *y, const float *norms, int64_t rows, int64_t size);
} carry_rows;

#endif
