/* Dot products of rows in float64, in which products of two f32 numbers are exact; a sum is rounded to f32 at the end.
   Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_EXACT_H
#define CARRY_OPS_VECTOR_EXACT_H

#define EXACT_LANES (LANES / 2)
#define EXACT_ROWS 2
#define EXACT_COLUMNS 4

typedef double exact_vec __attribute__((vector_size(EXACT_LANES * 8)));
typedef float exact_floats __attribute__((vector_size(EXACT_LANES * 4), aligned(4), may_alias));

INLINE exact_vec exact_load(const float *from) {
    return __builtin_convertvector(*(const exact_floats *)from, exact_vec);
}

INLINE void exact_tile(const int rows, const int columns, const carry_exact_dots *d, int64_t i, int64_t j) {
    const float *a = d->a + i * d->a_row;
    const float *b = d->b + j * d->b_row;
    exact_vec sum[EXACT_ROWS][EXACT_COLUMNS] = {{{0}}};
    int64_t l = 0;
    for (; l + EXACT_LANES <= d->k; l += EXACT_LANES) {
        exact_vec left[EXACT_ROWS];
        UNROLL
        for (int r = 0; r < rows; r++) {
            left[r] = exact_load(a + r * d->a_row + l);
        }
        UNROLL
        for (int q = 0; q < columns; q++) {
            exact_vec right = exact_load(b + q * d->b_row + l);
            UNROLL
            for (int r = 0; r < rows; r++) {
                sum[r][q] += left[r] * right;
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int q = 0; q < columns; q++) {
            float *c = d->c + (i + r) * d->c_row + j + q;
            double total = d->accumulate ? (double)*c : 0.0;
            for (int lane = 0; lane < EXACT_LANES; lane++) {
                total += sum[r][q][lane];
            }
            for (int64_t at = l; at < d->k; at++) {
                total += (double)a[r * d->a_row + at] * (double)b[q * d->b_row + at];
            }
            *c = (float)total;
        }
    }
}

static void exact_dots(const carry_exact_dots *d) {
    int64_t i = 0;
    for (; i + EXACT_ROWS <= d->m; i += EXACT_ROWS) {
        int64_t j = 0;
        for (; j + EXACT_COLUMNS <= d->n; j += EXACT_COLUMNS) {
            exact_tile(EXACT_ROWS, EXACT_COLUMNS, d, i, j);
        }
        for (; j < d->n; j++) {
            exact_tile(EXACT_ROWS, 1, d, i, j);
        }
    }
    for (int64_t j = 0; i < d->m && j < d->n; j++) {
        exact_tile(1, 1, d, i, j);
    }
}

#endif
