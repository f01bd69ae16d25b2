/* Products with triangles. If the rows of b that the triangle multiplies are finite, this is the plain product.
   Otherwise their numbers that are not finite are replaced by zero for the product, and the contributions of these
   numbers are then added to the rows of c that depend on them. */
#include "ops/product/triangle.h"

#include <math.h>
#include <string.h>

/* An exponent of all ones plus one carries into the sign bit, which was cleared. Sixteen at a time, so that the
   compiler uses vectors. */
bool carry_all_finite(const float *numbers, int64_t count) {
    uint32_t seen[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        uint32_t bits[16];
        memcpy(bits, numbers + i, sizeof bits);
        for (int l = 0; l < 16; l++) {
            seen[l] |= (bits[l] & UINT32_C(0x7f800000)) + UINT32_C(0x00800000);
        }
    }
    uint32_t all = 0;
    for (int l = 0; l < 16; l++) {
        all |= seen[l];
    }
    bool finite = (all & UINT32_C(0x80000000)) == 0;
    for (; i < count; i++) {
        finite = finite && isfinite(numbers[i]);
    }
    return finite;
}

/* Adds a[i, first + row] * value to column j of every row i of c that depends on row first + row of b. */
static void add_column(const carry_product *p, int64_t first, int64_t row, int64_t j, float value, bool upper) {
    int64_t begin = upper ? 0 : row;
    int64_t end = upper && row + 1 < p->m ? row + 1 : p->m;
    for (int64_t i = begin; i < end; i++) {
        float a = p->a_transposed ? p->a[(first + row) * p->a_row + i] : p->a[i * p->a_row + first + row];
        p->c[i * p->c_row + j] += a * value;
    }
}

static void careful(const carry_kernels *kernels, const carry_product *p, float *b, int64_t first, int64_t rows,
                    bool upper) {
    float saved[CARRY_TRIANGLE_ROWS * CARRY_TRIANGLE_COLUMNS];
    for (int64_t r = 0; r < rows; r++) {
        float *row = b + (first + r) * p->b_row;
        memcpy(saved + r * p->n, row, (size_t)p->n * sizeof *row);
        for (int64_t j = 0; j < p->n; j++) {
            row[j] = isfinite(row[j]) ? row[j] : 0.0f;
        }
    }
    kernels->product(p);
    for (int64_t r = 0; r < rows; r++) {
        const float *kept = saved + r * p->n;
        memcpy(b + (first + r) * p->b_row, kept, (size_t)p->n * sizeof *b);
        for (int64_t j = 0; j < p->n; j++) {
            if (!isfinite(kept[j])) {
                add_column(p, first, r, j, kept[j], upper);
            }
        }
    }
}

void carry_triangle_product(const carry_kernels *kernels, const carry_product *product, float *b, int64_t first,
                            bool upper) {
    int64_t rows = product->k - first < product->m ? product->k - first : product->m;
    bool finite = true;
    if (product->base != product->c) {
        /* Row 0 of c (the last row if `upper`) depends on one of the triangle's rows of b, and the plain product
           multiplies the triangle's other rows by zero: a NaN or infinity in any of them makes this row of c
           non-finite. */
        kernels->product(product);
        finite = carry_all_finite(product->c + (upper ? product->m - 1 : 0) * product->c_row, product->n);
    } else {
        for (int64_t r = 0; finite && r < rows; r++) {
            finite = carry_all_finite(b + (first + r) * product->b_row, product->n);
        }
        if (finite) {
            kernels->product(product);
        }
    }
    if (!finite) {
        careful(kernels, product, b, first, rows, upper);
    }
}
