/* Packed products, for matrices larger than the first-level caches: panels of PACK_ROWS rows of a and of
   PACK_VECTORS vectors of columns of b have no gaps, so that the innermost loop reads both from start to end,
   whatever the strides and the transposition were. The loop is the tile of vector_product.h with constant strides.

   Every element of c is one chain of fused multiply-adds over k that begins with base, as in vector_product.h: at
   the end of a block of k the chain is stored and later continued unchanged. So packed and unpacked products, cut in
   any way, give the same bits; only unpacked products with a single column (vector_dots.h) or with the factors `by`
   may sum in another order. Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_PACKED_H
#define CARRY_OPS_VECTOR_PACKED_H

#define PACK_COLUMNS (PACK_VECTORS * LANES)
/* Floats from one k to the next in a panel of a: a multiple of SQUARE. */
#define PACK_STRIDE ((PACK_ROWS + SQUARE - 1) / SQUARE * SQUARE)

/* Packs contiguous lines, `vectors` vectors of them. */
INLINE void pack_vectors(const int vectors, float *to, ptrdiff_t stride, const float *from, ptrdiff_t row, int64_t k) {
    for (int64_t l = 0; l < k; l++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            keep(to + l * stride + v * LANES, load(from + l * row + v * LANES));
        }
    }
}

/* The same for any number of lines: two overlapping loads of SQUARE lines if possible, else one by one. */
static void pack_across(float *to, ptrdiff_t stride, const float *from, ptrdiff_t row, int64_t lines, int64_t k) {
    if (lines >= SQUARE && lines <= 2 * SQUARE) {
        for (int64_t l = 0; l < k; l++) {
            part first = load_part(from + l * row);
            part last = load_part(from + l * row + lines - SQUARE);
            keep_part(to + l * stride, first);
            keep_part(to + l * stride + lines - SQUARE, last);
        }
        return;
    }
    for (int64_t l = 0; l < k; l++) {
        for (int64_t x = 0; x < lines; x++) {
            to[l * stride + x] = from[l * row + x];
        }
    }
}

static void pack_a(float *to, const float *a, ptrdiff_t row, bool transposed, int64_t rows, int64_t k) {
    if (!transposed) {
        pack_along(to, PACK_STRIDE, a, row, rows, k);
    } else {
        pack_across(to, PACK_STRIDE, a, row, rows, k);
    }
}

/* The last vector of columns is computed whole: its lanes after the last column must be initialised. */
static void pack_b(float *to, const float *b, ptrdiff_t row, bool transposed, int64_t columns, int64_t k) {
    for (int64_t l = 0; columns % LANES != 0 && l < k; l++) {
        keep(to + l * PACK_COLUMNS + columns / LANES * LANES, (vec){0});
    }
    if (transposed) {
        pack_along(to, PACK_COLUMNS, b, row, columns, k);
    } else if (columns == PACK_COLUMNS) {
        pack_vectors(PACK_VECTORS, to, PACK_COLUMNS, b, row, k);
    } else {
        pack_across(to, PACK_COLUMNS, b, row, columns, k);
    }
}

/* Number of k that are widened into a buffer before they are transposed. */
#define HALF_STRIP 64

#if LANES == 16
#include "ops/kernels/bf16_pack.h"

/* Packs sixteen bf16 lines with contiguous k, pairs of neighbours at a time: widening a pair takes a shift and a
   mask. Returns the number of k done. It also prefetches what the next block of k reads, since these addresses are
   far apart and the hardware does not predict them. */
static int64_t pack_pairs(float *to, ptrdiff_t stride, const uint16_t *from, ptrdiff_t row, int64_t lines, int64_t k) {
    int64_t l = 0;
    for (; l + 2 * LANES <= k; l += 2 * LANES) {
        bf16_pairs rows[LANES];
        for (int64_t i = 0; i < LANES; i++) {
            const uint16_t *line = from + (i < lines ? i : lines - 1) * row + l;
            memcpy(&rows[i], line, sizeof *rows);
            __builtin_prefetch(line + PACK_DEPTH, 0, 2);
        }
        bf16_transpose(rows);
        for (int64_t i = 0; i < LANES; i++) {
            keep(to + (l + 2 * i) * stride, (vec)(rows[i] << 16));
            keep(to + (l + 2 * i + 1) * stride, (vec)(rows[i] & 0xffff0000u));
        }
    }
    return l;
}
#else
static int64_t pack_pairs(float *to, ptrdiff_t stride, const uint16_t *from, ptrdiff_t row, int64_t lines, int64_t k) {
    (void)to, (void)stride, (void)from, (void)row, (void)lines, (void)k;
    return 0;
}
#endif

/* Packs 16-bit lines with contiguous k, SQUARE lines at a time. */
INLINE void pack_half_along(const int type, float *to, ptrdiff_t stride, const uint16_t *from, ptrdiff_t row,
                            int64_t lines, int64_t k) {
    float beside[SQUARE * HALF_STRIP];
    const float *line[SQUARE];
    for (int64_t x = 0; x < lines; x += SQUARE) {
        for (int64_t i = 0; i < SQUARE; i++) { /* past the last line it is repeated, as in pack_along */
            line[i] = beside + (x + i < lines ? i : lines - 1 - x) * HALF_STRIP;
        }
        const int64_t have = lines - x < SQUARE ? lines - x : SQUARE;
        for (int64_t l = 0; l < k; l += HALF_STRIP) {
            const int64_t length = k - l < HALF_STRIP ? k - l : HALF_STRIP;
            for (int64_t i = 0; i < have; i++) {
                widen(type, beside + i * HALF_STRIP, from + (x + i) * row + l, length);
            }
            int64_t at = 0;
            for (; at + SQUARE <= length; at += SQUARE) {
                transpose_square(to + (l + at) * stride + x, stride, line, at);
            }
            for (; at < length; at++) {
                for (int64_t i = 0; i < SQUARE; i++) {
                    to[(l + at) * stride + x + i] = line[i][at];
                }
            }
        }
    }
}

INLINE void pack_half_of(const int type, float *to, ptrdiff_t stride, const uint16_t *from, ptrdiff_t row, bool across,
                         int64_t lines, int64_t k) {
    for (int64_t l = 0; stride == PACK_COLUMNS && lines % LANES != 0 && l < k; l++) {
        keep(to + l * stride + lines / LANES * LANES, (vec){0});
    }
    for (int64_t x = 0; !across && x < lines; x += LANES) {
        const int64_t here = lines - x < LANES ? lines - x : LANES;
        const int64_t l =
            type == CARRY_BF16 && x + LANES <= stride ? pack_pairs(to + x, stride, from + x * row, row, here, k) : 0;
        pack_half_along(type, to + l * stride + x, stride, from + x * row + l, row, here, k - l);
    }
    for (int64_t l = 0; across && l < k; l++) {
        widen(type, to + l * stride, from + l * row, lines);
    }
}

static void pack_half(float *to, ptrdiff_t stride, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines,
                      int64_t k, carry_dtype type) {
    if (type == CARRY_BF16) {
        pack_half_of(CARRY_BF16, to, stride, from, row, across, lines, k);
    } else {
        pack_half_of(CARRY_F16, to, stride, from, row, across, lines, k);
    }
}

/* The arguments of one register tile: a panel of a times a panel of b. */
typedef struct packed_place {
    int64_t k;
    const float *a, *b, *base;
    float *c;
    ptrdiff_t base_row, c_row;
    const float *next; /* rows of base to prefetch for the next tile, or NULL */
    ptrdiff_t next_row;
} packed_place;

/* The sums start from base. While a tile is computed, the rows of base (or of c, if there is no base) for the next tile
   are prefetched into the second-level cache: not into the first level, where rows 4 KiB apart displace each other; and
   one row at a time, spread over k, since all of them at once would occupy the buffers through which a and b are
   loaded. */
INLINE void fetch_row(const float *from) {
    for (int64_t j = 0; j < PACK_COLUMNS; j += 16) {
        __builtin_prefetch(from + j, 0, 2);
    }
    __builtin_prefetch(from + PACK_COLUMNS - 1, 0, 2);
}

/* As tile (vector_product.h), over panels. */
INLINE void packed_sums(const int rows, const int vectors, const packed_place *o) {
    vec sum[16][4];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = o->base != NULL ? load(o->base + r * o->base_row + v * LANES) : (vec){0};
        }
    }
    const float *a = o->a;
    const float *b = o->b;
    const float *end = o->a + o->k * PACK_STRIDE;
    const float *next = o->next;
    ptrdiff_t step = (next != NULL ? (o->k + PACK_ROWS) / (PACK_ROWS + 1) : o->k) * PACK_STRIDE;
    const float *until = a + step;
    for (;;) {
        do { /* not `for`: gcc would jump to its test and back into the loop at every k */
            vec row[4];
            UNROLL
            for (int v = 0; v < vectors; v++) {
                row[v] = load(b + v * LANES);
                if (PACK_AHEAD > 0) {
                    __builtin_prefetch(b + PACK_AHEAD * PACK_COLUMNS + v * LANES, 0, 3);
                }
            }
            if (PACK_AHEAD > 0) {
                __builtin_prefetch(a + PACK_AHEAD * PACK_STRIDE, 0, 3);
            }
            UNROLL
            for (int r = 0; r < rows; r++) {
                float scalar = a[r];
                UNROLL
                for (int v = 0; v < vectors; v++) {
                    sum[r][v] += scalar * row[v];
                }
            }
            a += PACK_STRIDE;
            b += PACK_COLUMNS;
        } while (a < until);
        if (until == end) {
            break;
        }
        /* Without the asm, gcc 12 moves the prefetch into the loop above: a row would be prefetched for every k, from
           address 0 if there is no next tile. A product of 128^3 on Neoverse-V1 had 15 GFLOP/s instead of 59. */
        __asm__ volatile("" : "+r"(next));
        fetch_row(next);
        next += o->next_row;
        until = end - until <= step ? end : until + step;
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            keep(o->c + r * o->c_row + v * LANES, sum[r][v]);
        }
    }
}

INLINE void packed_rows(const int rows, int vectors, const packed_place *o) {
    switch (vectors) {
    case 1:
        packed_sums(rows, 1, o);
        break;
#if PACK_VECTORS > 2
    case 2:
        packed_sums(rows, 2, o);
        break;
#endif
    default:
        packed_sums(rows, PACK_VECTORS, o);
    }
}

static void packed_registers(int64_t rows, int vectors, const packed_place *o) {
    switch (rows) {
    case 1:
        packed_rows(1, vectors, o);
        break;
    case 2:
        packed_rows(2, vectors, o);
        break;
    case 3:
        packed_rows(3, vectors, o);
        break;
    case 4:
        packed_rows(4, vectors, o);
        break;
    case 5:
        packed_rows(5, vectors, o);
        break;
#if PACK_ROWS > 6
    case 6:
        packed_rows(6, vectors, o);
        break;
    case 7:
        packed_rows(7, vectors, o);
        break;
#endif
#if PACK_ROWS > 8
    case 8:
        packed_rows(8, vectors, o);
        break;
    case 9:
        packed_rows(9, vectors, o);
        break;
    case 10:
        packed_rows(10, vectors, o);
        break;
    case 11:
        packed_rows(11, vectors, o);
        break;
#endif
#if PACK_ROWS > 12
    case 12:
        packed_rows(12, vectors, o);
        break;
    case 13:
        packed_rows(13, vectors, o);
        break;
#endif
    default:
        packed_rows(PACK_ROWS, vectors, o);
    }
}

/* The last columns, which do not fill a vector: computed in a buffer and copied to c. */
static void packed_edge(int64_t rows, int64_t columns, const packed_place *o) {
    float beside[PACK_ROWS * PACK_COLUMNS] = {0};
    packed_place here = *o;
    here.c = beside;
    here.c_row = here.base_row = PACK_COLUMNS;
    here.base = o->base != NULL ? beside : NULL;
    for (int64_t r = 0; o->base != NULL && r < rows; r++) {
        memcpy(beside + r * PACK_COLUMNS, o->base + r * o->base_row, (size_t)columns * sizeof *beside);
    }
    packed_registers(rows, (int)((columns + LANES - 1) / LANES), &here);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(o->c + r * o->c_row, beside + r * PACK_COLUMNS, (size_t)columns * sizeof *beside);
    }
}

static void packed_tile(const carry_packed_tile *t) {
    for (int64_t q = t->column_panel; q < t->column_panels_end; q++) {
        int64_t j = q * PACK_COLUMNS;
        int64_t columns = t->n - j < PACK_COLUMNS ? t->n - j : PACK_COLUMNS;
        for (int64_t p = t->row_panel; p < t->row_panels_end; p++) {
            int64_t i = carry_packed_row(p, t->m, t->row_panels);
            int64_t rows = carry_packed_row(p + 1, t->m, t->row_panels) - i;
            packed_place o = {.k = t->k,
                              .a = t->a + p * PACK_STRIDE * t->k,
                              .b = t->b + q * PACK_COLUMNS * t->k,
                              .base = t->base != NULL ? t->base + i * t->base_row + j : NULL,
                              .c = t->c + i * t->c_row + j,
                              .base_row = t->base_row,
                              .c_row = t->c_row};
            if (p + 1 < t->row_panels_end && columns == PACK_COLUMNS) {
                o.next_row = o.base != NULL ? t->base_row : t->c_row;
                o.next = (o.base != NULL ? o.base : o.c) + rows * o.next_row;
            }
            if (columns % LANES == 0) {
                packed_registers(rows, (int)(columns / LANES), &o);
            } else {
                packed_edge(rows, columns, &o);
            }
        }
    }
}

static const carry_packed packed_kernels = {.rows = PACK_ROWS,
                                            .stride = PACK_STRIDE,
                                            .columns = PACK_COLUMNS,
                                            .depth = PACK_DEPTH,
                                            .pack_a = pack_a,
                                            .pack_b = pack_b,
                                            .pack_half = pack_half,
                                            .tile = packed_tile};

#endif
