/* Rows of a chunk of the delta rule, and its small triangles. Part of rows_loops.h. */
#ifndef CARRY_OPS_ROWS_TRIANGLE_H
#define CARRY_OPS_ROWS_TRIANGLE_H

/* Sixteen lanes on every processor. gcc vectorised loops over arrays in the wrong direction, across rows. */
typedef float sixteen __attribute__((vector_size(CARRY_UNIT_ROWS * 4), aligned(4), may_alias));

/* These are macros, since a vector wider than the processor's cannot be returned from a function. */
#define SIXTEEN(at) (*(const sixteen *)(at))
#define SIXTEEN_TO(at) (*(sixteen *)(at))

static void rows_scale_rows(float *to, int64_t to_row, const float *from, int64_t from_row, const float *by,
                            int64_t rows, int64_t size) {
    for (int64_t i = 0; i < rows; i++) {
        float *y = to + i * to_row;
        const float *x = from + i * from_row;
        const float factor = by[i];
        INDEPENDENT
        for (int64_t j = 0; j < size; j++) {
            y[j] = factor * x[j];
        }
    }
}

INLINE_ROWS float sixteen_sum(const sixteen *part) {
    typedef float four __attribute__((vector_size(16)));
    const four low =
        __builtin_shufflevector(*part, *part, 0, 1, 2, 3) + __builtin_shufflevector(*part, *part, 4, 5, 6, 7);
    const four high =
        __builtin_shufflevector(*part, *part, 8, 9, 10, 11) + __builtin_shufflevector(*part, *part, 12, 13, 14, 15);
    const four sum = low + high;
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* Keeps the row in registers between the sum and the scaling. A second pass over rows that are a page apart would miss
   the first-level cache, because they share a few of its sets. */
INLINE_ROWS float unit_row(const int sixteens, float *to, const float *x, float epsilon) {
    sixteen given[8];
    sixteen part = {0};
    UNROLL
    for (int i = 0; i < sixteens; i++) {
        given[i] = SIXTEEN(x + i * CARRY_UNIT_ROWS);
        part += given[i] * given[i];
    }
    const float norm = 1.0f / sqrtf(epsilon + sixteen_sum(&part));
    UNROLL
    for (int i = 0; i < sixteens; i++) {
        SIXTEEN_TO(to + i * CARRY_UNIT_ROWS) = norm * given[i];
    }
    return norm;
}

INLINE_ROWS float sixteens_squares(const float *x, int64_t count) {
    sixteen part = {0};
    for (int64_t i = 0; i < count; i += CARRY_UNIT_ROWS) {
        part += SIXTEEN(x + i) * SIXTEEN(x + i);
    }
    return sixteen_sum(&part);
}

/* Rows of any other size, sixteen at a time, so that their square roots are computed as one vector. */
static void unit_rows_of(float *to, const float *from, int64_t from_row, float *norms, float epsilon, int64_t rows,
                         int64_t size) {
    const int whole = size % CARRY_UNIT_ROWS == 0;
    for (int64_t i = 0; i < rows; i += CARRY_UNIT_ROWS) {
        const float *x = from + i * from_row;
        const int64_t count = rows - i < CARRY_UNIT_ROWS ? rows - i : CARRY_UNIT_ROWS;
        float norm[CARRY_UNIT_ROWS] = {0};
        for (int64_t r = 0; r < count; r++) {
            norm[r] = whole ? sixteens_squares(x + r * from_row, size) : rows_sum_squares(x + r * from_row, size);
        }
        for (int r = 0; r < CARRY_UNIT_ROWS; r++) {
            norm[r] = 1.0f / sqrtf(epsilon + norm[r]);
        }
        for (int64_t r = 0; r < count; r++) {
            norms[i + r] = norm[r];
        }
        rows_scale_rows(to + i * size, size, x, from_row, norm, count, size);
    }
}

static void rows_unit_rows(float *to, const float *from, int64_t from_row, float *norms, float epsilon, int64_t rows,
                           int64_t size) {
    if (size == 8 * CARRY_UNIT_ROWS) {
        for (int64_t i = 0; i < rows; i++) {
            norms[i] = unit_row(8, to + i * size, from + i * from_row, epsilon);
        }
    } else if (size == 4 * CARRY_UNIT_ROWS) {
        for (int64_t i = 0; i < rows; i++) {
            norms[i] = unit_row(4, to + i * size, from + i * from_row, epsilon);
        }
    } else {
        unit_rows_of(to, from, from_row, norms, epsilon, rows, size);
    }
}

/* Row i of the inverse is e_i plus the rows j above it times -A[i, j]; their columns from i on are zeros. */
static void rows_unit_inverse(float *inverse, const float *below, int64_t stride, int64_t size) {
    static const float units[2 * CARRY_UNIT_ROWS] = {[CARRY_UNIT_ROWS] = 1.0f};
    for (int64_t i = 0; i < size; i++) {
        sixteen row = *(const sixteen *)(units + CARRY_UNIT_ROWS - i);
        for (int64_t j = 0; j < i; j++) {
            row += below[i * stride + j] * *(const sixteen *)(inverse + j * CARRY_UNIT_ROWS);
        }
        *(sixteen *)(inverse + i * CARRY_UNIT_ROWS) = row;
    }
}

/* Columns of a row of the triangles to the left of its diagonal block: whole groups of sixteen. */
INLINE_ROWS void triangle_row(const carry_triangles *t, int64_t i, int64_t count, float after, const float *before) {
    const int64_t from = i * t->stride;
    const float below = -t->beta[i];
    for (int64_t j = 0; j < count; j += CARRY_UNIT_ROWS) {
        const sixteen decay = after * SIXTEEN(before + j);
        SIXTEEN_TO(t->D + from + j) = decay;
        SIXTEEN_TO(t->nA + from + j) = below * decay * SIXTEEN(t->kk + from + j);
        if (t->qk != NULL) {
            SIXTEEN_TO(t->P + from + j) = t->scale * decay * SIXTEEN(t->qk + from + j);
        }
    }
}

/* Differences of G within a diagonal block, in rows of sixteen; zero on the diagonal and to the right of it. */
INLINE_ROWS void corner_sums(float *to, const double *G, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        const double here = G[i];
        float *row = to + i * CARRY_UNIT_ROWS;
        for (int j = 0; j < CARRY_UNIT_ROWS; j++) {
            float difference = (float)(here - G[j]);
            row[j] = j < i ? difference : 0.0f;
        }
    }
}

/* All 16 columns of a diagonal block. To the right of the diagonal, nA and P are zero (nA also on it), whatever the
   values in G, kk and qk; D is 1. */
INLINE_ROWS void triangle_corner(const carry_triangles *t, int64_t block, int64_t size) {
    typedef int32_t mask __attribute__((vector_size(CARRY_UNIT_ROWS * 4)));
    const mask column = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float decays[CARRY_UNIT_ROWS * CARRY_UNIT_ROWS] = {0};
    if (t->G != NULL) {
        corner_sums(decays, t->G + block, size);
    }
    exponentials(decays, decays, 1.0f, size * CARRY_UNIT_ROWS);
    for (int64_t i = 0; i < size; i++) {
        const int64_t from = (block + i) * t->stride + block;
        const sixteen decay = SIXTEEN(decays + i * CARRY_UNIT_ROWS);
        const sixteen below = -t->beta[block + i] * decay * SIXTEEN(t->kk + from);
        SIXTEEN_TO(t->D + from) = decay;
        SIXTEEN_TO(t->nA + from) = (sixteen)((mask)below & (column < (int32_t)i));
        if (t->qk != NULL) {
            const sixteen own = t->scale * decay * SIXTEEN(t->qk + from);
            SIXTEEN_TO(t->P + from) = (sixteen)((mask)own & (column <= (int32_t)i));
        }
    }
}

/* To the left of the diagonal blocks, a decay is the product of two factors, both at most 1: from token j to the
   first token of i's block, and from that token to i. For C tokens, these blocks take about C^2/32 + C exponentials
   instead of C^2/2. */
static void rows_triangles(const carry_triangles *t) {
    for (int64_t block = 0; block < t->tokens; block += CARRY_UNIT_ROWS) {
        int64_t size = block + CARRY_UNIT_ROWS < t->tokens ? CARRY_UNIT_ROWS : t->tokens - block;
        float before[CARRY_TRIANGLES_ROWS];
        float after[CARRY_UNIT_ROWS] = {0};
        for (int64_t j = 0; j < block; j++) {
            before[j] = t->G != NULL ? (float)(t->G[block] - t->G[j]) : 0.0f;
        }
        for (int64_t i = 0; i < size; i++) {
            after[i] = t->G != NULL ? (float)(t->G[block + i] - t->G[block]) : 0.0f;
        }
        exponentials(before, before, 1.0f, block);
        exponentials(after, after, 1.0f, CARRY_UNIT_ROWS);
        for (int64_t i = 0; i < size; i++) {
            triangle_row(t, block + i, block, after[i], before);
        }
        triangle_corner(t, block, size);
    }
}

#endif
