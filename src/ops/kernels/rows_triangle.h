/* Rows of a chunk of the delta rule, and its small triangles. Part of rows_loops.h. */
#ifndef CARRY_OPS_ROWS_TRIANGLE_H
#define CARRY_OPS_ROWS_TRIANGLE_H

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

static void rows_unit_rows(float *to, const float *from, int64_t from_row, float *norms, float epsilon, int64_t rows,
                           int64_t size) {
    for (int64_t i = 0; i < rows; i++) {
        norms[i] = 1.0f / sqrtf(epsilon + rows_sum_squares(from + i * from_row, size));
    }
    rows_scale_rows(to, size, from, from_row, norms, rows, size);
}

/* Sixteen lanes, whatever the processor has. Loops over arrays of them were made vectors across rows by gcc. */
typedef float sixteen __attribute__((vector_size(CARRY_UNIT_ROWS * 4), aligned(4), may_alias));

/* Row i of the inverse is e_i plus the rows above it by -A[i, j], whose columns from i on are zeros. */
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

/* to = factor decay from, of a row. */
INLINE_ROWS void weigh_row(float *to, const float *from, const float *decay, float factor, int64_t count) {
    INDEPENDENT
    for (int64_t j = 0; j < count; j++) {
        to[j] = factor * decay[j] * from[j];
    }
}

/* Columns of a row of the triangles left of its diagonal block. */
INLINE_ROWS void triangle_row(const carry_triangles *t, int64_t i, int64_t count, float after, const float *before) {
    float *D = t->D + i * t->stride;
    INDEPENDENT
    for (int64_t j = 0; j < count; j++) {
        D[j] = after * before[j];
    }
    weigh_row(t->nA + i * t->stride, t->kk + i * t->stride, D, -t->beta[i], count);
    if (t->qk != NULL) {
        weigh_row(t->P + i * t->stride, t->qk + i * t->stride, D, t->scale, count);
    }
}

/* Columns of its diagonal block, all 16 of them: what is right of the diagonal is zero whatever lies in G, kk and qk.
 */
INLINE_ROWS void triangle_corner(const carry_triangles *t, int64_t i, int64_t block) {
    const int at = (int)(i - block);
    const int64_t from = i * t->stride + block;
    float decay[CARRY_UNIT_ROWS] = {0};
    if (t->G != NULL) {
        const double *G = t->G + block;
        const double here = G[at];
        for (int j = 0; j < CARRY_UNIT_ROWS; j++) {
            decay[j] = (float)(here - G[j]);
        }
        for (int j = 0; j < CARRY_UNIT_ROWS; j++) {
            decay[j] = j < at ? decay[j] : 0.0f;
        }
    }
    exponentials(decay, decay, 1.0f, CARRY_UNIT_ROWS);
    float below[CARRY_UNIT_ROWS];
    weigh_row(below, t->kk + from, decay, -t->beta[i], CARRY_UNIT_ROWS);
    for (int j = 0; j < CARRY_UNIT_ROWS; j++) {
        t->nA[from + j] = j < at ? below[j] : 0.0f;
    }
    for (int j = 0; j < CARRY_UNIT_ROWS; j++) {
        t->D[from + j] = decay[j];
    }
    if (t->qk == NULL) {
        return;
    }
    weigh_row(below, t->qk + from, decay, t->scale, CARRY_UNIT_ROWS);
    for (int j = 0; j < CARRY_UNIT_ROWS; j++) {
        t->P[from + j] = j <= at ? below[j] : 0.0f;
    }
}

/* Left of the diagonal blocks a decay is a product of two factors, both <= 1, around the first token of i's block:
   C^2/16 exponentials instead of C^2/2. */
static void rows_triangles(const carry_triangles *t) {
    for (int64_t block = 0; block < t->tokens; block += CARRY_UNIT_ROWS) {
        int64_t end = block + CARRY_UNIT_ROWS < t->tokens ? block + CARRY_UNIT_ROWS : t->tokens;
        float before[CARRY_TRIANGLES_ROWS];
        float after[CARRY_UNIT_ROWS];
        for (int64_t j = 0; j < block; j++) {
            before[j] = t->G != NULL ? (float)(t->G[block] - t->G[j]) : 0.0f;
        }
        for (int64_t i = block; i < end; i++) {
            after[i - block] = t->G != NULL ? (float)(t->G[i] - t->G[block]) : 0.0f;
        }
        exponentials(before, before, 1.0f, block);
        exponentials(after, after, 1.0f, end - block);
        for (int64_t i = block; i < end; i++) {
            triangle_row(t, i, block, after[i - block], before);
            triangle_corner(t, i, block);
        }
    }
}

#endif
