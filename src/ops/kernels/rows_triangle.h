/* Small lower triangles with ones on the diagonal. Part of rows_loops.h. */
#ifndef CARRY_OPS_ROWS_TRIANGLE_H
#define CARRY_OPS_ROWS_TRIANGLE_H

/* Row i of the inverse is e_i plus the rows above it by -A[i, j]. */
static void rows_unit_inverse(float *inverse, const float *below, int64_t stride, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        float row[CARRY_UNIT_ROWS] = {0};
        row[i] = 1.0f;
        for (int64_t j = 0; j < i; j++) {
            float by = below[i * stride + j];
            for (int c = 0; c < CARRY_UNIT_ROWS; c++) {
                row[c] += by * inverse[j * CARRY_UNIT_ROWS + c];
            }
        }
        for (int c = 0; c < CARRY_UNIT_ROWS; c++) {
            inverse[i * CARRY_UNIT_ROWS + c] = row[c];
        }
    }
}

#endif
