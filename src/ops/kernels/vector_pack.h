/* Transposes matrices in registers, square by square: this is how lines with contiguous k become rows of a panel.
   Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_PACK_H
#define CARRY_OPS_VECTOR_PACK_H

/* SQUARE floats: the side of the squares that are transposed in registers. */
typedef float part __attribute__((vector_size(SQUARE * 4)));
typedef float part_unaligned __attribute__((vector_size(SQUARE * 4), aligned(4), may_alias));

INLINE part load_part(const float *from) {
    return *(const part_unaligned *)from;
}

INLINE void keep_part(float *to, part value) {
    *(part_unaligned *)to = value;
}

/* to[l][x] = from[x][l] for a square. If the side is 8, a vector is loaded as two halves, from lines that are four
   apart: this replaces one of the three steps of shuffles. */
INLINE void transpose_square(float *to, ptrdiff_t to_row, const float *const from[SQUARE], int64_t at) {
#if SQUARE == 4
    part a = load_part(from[0] + at);
    part b = load_part(from[1] + at);
    part c = load_part(from[2] + at);
    part d = load_part(from[3] + at);
    part ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    part ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    part cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    part cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    keep_part(to, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    keep_part(to + to_row, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    keep_part(to + 2 * to_row, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
    keep_part(to + 3 * to_row, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
#else
    typedef float half __attribute__((vector_size(16), aligned(4), may_alias));
    part pair[4];
    UNROLL
    for (int64_t side = 0; side < 2; side++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            half low = *(const half *)(from[i] + at + 4 * side);
            half high = *(const half *)(from[i + 4] + at + 4 * side);
            pair[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
        }
        part ab_low = __builtin_shufflevector(pair[0], pair[1], 0, 8, 1, 9, 4, 12, 5, 13);
        part ab_high = __builtin_shufflevector(pair[0], pair[1], 2, 10, 3, 11, 6, 14, 7, 15);
        part cd_low = __builtin_shufflevector(pair[2], pair[3], 0, 8, 1, 9, 4, 12, 5, 13);
        part cd_high = __builtin_shufflevector(pair[2], pair[3], 2, 10, 3, 11, 6, 14, 7, 15);
        float *row = to + 4 * side * to_row;
        keep_part(row, __builtin_shufflevector(ab_low, cd_low, 0, 1, 8, 9, 4, 5, 12, 13));
        keep_part(row + to_row, __builtin_shufflevector(ab_low, cd_low, 2, 3, 10, 11, 6, 7, 14, 15));
        keep_part(row + 2 * to_row, __builtin_shufflevector(ab_high, cd_high, 0, 1, 8, 9, 4, 5, 12, 13));
        keep_part(row + 3 * to_row, __builtin_shufflevector(ab_high, cd_high, 2, 3, 10, 11, 6, 7, 14, 15));
    }
#endif
}

/* Packs lines with contiguous k. If fewer than SQUARE lines are left, the last line is repeated; results of
   these lanes are not used. */
static void pack_along(float *to, ptrdiff_t stride, const float *from, ptrdiff_t row, int64_t lines, int64_t k) {
    for (int64_t x = 0; x < lines; x += SQUARE) {
        const float *line[SQUARE];
        for (int64_t i = 0; i < SQUARE; i++) {
            line[i] = from + (x + i < lines ? x + i : lines - 1) * row;
        }
        int64_t l = 0;
        for (; l + SQUARE <= k; l += SQUARE) {
            transpose_square(to + l * stride + x, stride, line, l);
        }
        for (; l < k; l++) {
            for (int64_t i = 0; i < SQUARE; i++) {
                to[l * stride + x + i] = line[i][l];
            }
        }
    }
}

static void transpose(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row, int64_t rows,
                      int64_t columns) {
    int64_t squares = rows / SQUARE * SQUARE;
    pack_along(to, to_row, from, from_row, squares, columns);
    for (int64_t j = 0; squares < rows && j < columns; j++) {
        for (int64_t i = squares; i < rows; i++) {
            to[j * to_row + i] = from[i * from_row + j];
        }
    }
}

#endif
