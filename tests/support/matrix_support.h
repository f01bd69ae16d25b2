/* Matrices with gaps of NaN between their rows, so that a read or write there is noticed. */
#ifndef CARRY_TESTS_MATRIX_SUPPORT_H
#define CARRY_TESTS_MATRIX_SUPPORT_H

#include "nn_support.h"

enum { GAP = 3 };

typedef struct matrix {
    array a;
    int64_t rows, columns, row;
} matrix;

static matrix random_matrix(carry_dtype dtype, int64_t rows, int64_t columns) {
    matrix made = {.rows = rows, .columns = columns, .row = columns + GAP};
    made.a = random_array(dtype, 2, SHAPE(rows, made.row), -1, 1);
    array gaps = poisoned(dtype, 1, SHAPE(GAP));
    size_t size = carry_dtype_size(dtype);
    for (int64_t r = 0; r < rows; r++) {
        memcpy((char *)made.a.t.data + (size_t)(r * made.row + columns) * size, gaps.t.data, GAP * size);
    }
    return made;
}

#endif
