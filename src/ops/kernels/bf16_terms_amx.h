/* f32 products as sums of bf16 products (bf16.h: terms), in the panels and tiles of bf16_tile_amx.h, which includes
   this. */
#ifndef CARRY_OPS_KERNELS_BF16_TERMS_AMX_H
#define CARRY_OPS_KERNELS_BF16_TERMS_AMX_H

#include <math.h>

#include "ops/kernels/bf16_pack.h"

typedef float bf16_floats __attribute__((vector_size(64)));
typedef float bf16_floats_at __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t bf16_halves __attribute__((vector_size(32)));

#define TERM_LANES 16
#define TERM_MASK UINT32_C(0xffff0000)
#if defined(__clang__)
#define TERM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TERM_UNROLL _Pragma("GCC unroll 16")
#endif

/* Splits sixteen numbers into terms, in the upper halves of `term`; the caller drops the lower halves. *seen becomes
   non-finite if a number is not finite or is too large for bf16: its first term is infinite or NaN, and the remainder
   after the first term is added to *seen. */
BF16_INLINE void terms_of(const int terms, const bf16_floats *x, bf16_pairs term[3], bf16_floats *seen) {
    term[0] = (bf16_pairs)*x + UINT32_C(0x8000);
    const bf16_floats rest = *x - (bf16_floats)(term[0] & TERM_MASK);
    *seen += rest;
    term[1] = (bf16_pairs)rest + UINT32_C(0x8000);
    if (terms == 3) {
        term[2] = (bf16_pairs)(rest - (bf16_floats)(term[1] & TERM_MASK));
    }
}

/* Writes a row of pairs of a tile of b: neighbouring k of sixteen columns. */
BF16_INLINE void put_pair(const int terms, uint16_t *to, ptrdiff_t next, const bf16_floats *even,
                          const bf16_floats *odd, bf16_floats *seen) {
    bf16_pairs low[3];
    bf16_pairs high[3];
    terms_of(terms, even, low, seen);
    terms_of(terms, odd, high, seen);
    TERM_UNROLL
    for (int i = 0; i < terms; i++) {
        const bf16_pairs pair = low[i] >> 16 | (high[i] & TERM_MASK);
        memcpy(to + i * next, &pair, sizeof pair);
    }
}

/* Writes half a row of a tile of a: sixteen k. */
BF16_INLINE void put_half(const int terms, uint16_t *to, ptrdiff_t next, const bf16_floats *x, bf16_floats *seen) {
    bf16_pairs term[3];
    terms_of(terms, x, term, seen);
    TERM_UNROLL
    for (int i = 0; i < terms; i++) {
        const bf16_halves half = __builtin_convertvector(term[i] >> 16, bf16_halves);
        memcpy(to + i * next, &half, sizeof half);
    }
}

/* Sixteen lines by sixteen k of the operand, in either layout: at `from`, or in a copy that is padded with zeros. */
typedef struct terms_square {
    const float *from;
    ptrdiff_t row;
    const float *by; /* factors of sixteen k, or NULL */
    uint16_t *to;    /* output for the first line and k */
} terms_square;

/* Row r of the square, multiplied by the factors `by`. */
BF16_INLINE void square_row(const terms_square *s, bool across, int r, bf16_floats *x) {
    *x = *(const bf16_floats_at *)(s->from + r * s->row);
    if (s->by != NULL && across) {
        *x *= s->by[r];
    } else if (s->by != NULL) {
        *x *= *(const bf16_floats_at *)s->by;
    }
}

BF16_INLINE void square_turned(const terms_square *s, bool across, bf16_pairs rows[16]) {
    TERM_UNROLL
    for (int r = 0; r < TERM_LANES; r++) {
        bf16_floats x;
        square_row(s, across, r, &x);
        rows[r] = (bf16_pairs)x;
    }
    bf16_transpose(rows);
}

/* Writes a square to eight rows of pairs. */
BF16_INLINE void square_to_b(const int terms, const terms_square *s, ptrdiff_t next, const bool across,
                             bf16_floats *seen) {
    if (!across) {
        bf16_pairs rows[TERM_LANES];
        square_turned(s, across, rows);
        TERM_UNROLL
        for (int r = 0; r < TERM_LANES; r += 2) {
            const bf16_floats even = (bf16_floats)rows[r];
            const bf16_floats odd = (bf16_floats)rows[r + 1];
            put_pair(terms, s->to + r * AMX_LINES, next, &even, &odd, seen);
        }
        return;
    }
    for (int r = 0; r < TERM_LANES; r += 2) {
        bf16_floats even;
        bf16_floats odd;
        square_row(s, across, r, &even);
        square_row(s, across, r + 1, &odd);
        put_pair(terms, s->to + r * AMX_LINES, next, &even, &odd, seen);
    }
}

/* Writes a square to halves of sixteen rows. */
BF16_INLINE void square_to_a(const int terms, const terms_square *s, ptrdiff_t next, const bool across,
                             bf16_floats *seen) {
    if (across) {
        bf16_pairs rows[TERM_LANES];
        square_turned(s, across, rows);
        TERM_UNROLL
        for (int r = 0; r < TERM_LANES; r++) {
            const bf16_floats x = (bf16_floats)rows[r];
            put_half(terms, s->to + r * AMX_UNIT, next, &x, seen);
        }
        return;
    }
    for (int r = 0; r < TERM_LANES; r++) {
        bf16_floats x;
        square_row(s, across, r, &x);
        put_half(terms, s->to + r * AMX_UNIT, next, &x, seen);
    }
}

typedef void (*square_put)(const terms_square *s, ptrdiff_t next, bf16_floats *seen);

/* The number of terms and the layout of the operand are compile-time constants: eight functions. */
#define SQUARE_PUT(name, side, terms, across)                                    \
    static void name(const terms_square *s, ptrdiff_t next, bf16_floats *seen) { \
        side(terms, s, next, across, seen);                                      \
    }
SQUARE_PUT(a2_along, square_to_a, 2, false)
SQUARE_PUT(a2_across, square_to_a, 2, true)
SQUARE_PUT(a3_along, square_to_a, 3, false)
SQUARE_PUT(a3_across, square_to_a, 3, true)
SQUARE_PUT(b2_along, square_to_b, 2, false)
SQUARE_PUT(b2_across, square_to_b, 2, true)
SQUARE_PUT(b3_along, square_to_b, 3, false)
SQUARE_PUT(b3_across, square_to_b, 3, true)

/* Copies lines from `line` on and k from `l` on of the operand into a square, padded with zeros. */
static void square_beside(const carry_bf16_split *p, int64_t line, int64_t l, float beside[TERM_LANES][TERM_LANES]) {
    memset(beside, 0, TERM_LANES * sizeof *beside);
    for (int64_t i = line; i < line + TERM_LANES && i < p->lines; i++) {
        for (int64_t j = l; j < l + TERM_LANES && j < p->k; j++) {
            const float x = p->from[p->across ? j * p->row + i : i * p->row + j];
            beside[p->across ? j - l : i - line][p->across ? i - line : j - l] = p->by != NULL ? x * p->by[j] : x;
        }
    }
}

static bool split_panels(const carry_bf16_split *p, square_put put, bool of_a) {
    const int64_t k = (p->k + AMX_UNIT - 1) / AMX_UNIT * AMX_UNIT;
    const int64_t lines = (p->lines + AMX_LINES - 1) / AMX_LINES * AMX_LINES;
    bf16_floats seen = {0};
    float beside[TERM_LANES][TERM_LANES];
    for (int64_t line = 0; line < lines; line += TERM_LANES) {
        const int64_t inside = line % AMX_LINES;
        for (int64_t l = 0; l < k; l += TERM_LANES) {
            const bool empty = (p->triangle == CARRY_BF16_LOWER && l > line) ||
                               (p->triangle == CARRY_BF16_UPPER && l < line) || line >= p->lines || l >= p->k;
            const bool whole = !empty && line + TERM_LANES <= p->lines && l + TERM_LANES <= p->k;
            terms_square square = {.from = p->from + (p->across ? l * p->row + line : line * p->row + l),
                                   .row = p->row,
                                   .by = p->by != NULL ? p->by + l : NULL};
            const int64_t unit = l / AMX_UNIT * AMX_UNIT * AMX_LINES;
            const int64_t at = of_a ? inside * AMX_UNIT + l % AMX_UNIT : l % AMX_UNIT * AMX_LINES + inside * 2;
            square.to = p->to + (line - inside) * k + unit + at;
            if (empty) {
                memset(beside, 0, sizeof beside);
            } else if (!whole) {
                square_beside(p, line, l, beside);
            }
            if (!whole) {
                square.from = beside[0];
                square.row = TERM_LANES;
                square.by = NULL;
            }
            put(&square, p->next, &seen);
        }
    }
    bool finite = true;
    for (int i = 0; i < TERM_LANES; i++) {
        finite = finite && isfinite(seen[i]);
    }
    return finite;
}

static bool amx_split_a(const carry_bf16_split *p) {
    return split_panels(p, p->terms == 2 ? (p->across ? a2_across : a2_along) : (p->across ? a3_across : a3_along),
                        true);
}

static bool amx_split_b(const carry_bf16_split *p) {
    return split_panels(p, p->terms == 2 ? (p->across ? b2_across : b2_along) : (p->across ? b3_across : b3_along),
                        false);
}

/* Prefetches the next row that the caller asked for. */
static inline void terms_fetch(carry_rows_ahead *ahead) {
    if (ahead->rows > 0) {
        for (int64_t at = 0; at < ahead->size; at += 64) {
            __builtin_prefetch(ahead->at + at, 0, 2);
        }
        ahead->at += ahead->row;
        ahead->rows--;
    }
}

/* Sums of one panel of a and one of b over `units` units of k and one pair of terms, in tiles 0 to 3. */
static void terms_sum(amx_tiles *tiles, const uint16_t *a, const uint16_t *b, int64_t units, carry_rows_ahead *ahead) {
    (void)tiles;
    for (int64_t u = 0; u < units; u++) {
        TILE_LOAD(4, a, 64);
        TILE_LOAD(6, b, 128);
        TILE_LOAD(7, b + 2 * AMX_HALF, 128);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_LOAD(5, a + AMX_HALF * AMX_UNIT, 64);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        a += AMX_LINES * AMX_UNIT;
        b += AMX_LINES * AMX_UNIT;
    }
    terms_fetch(ahead);
    terms_fetch(ahead);
}

/* Computes columns `begin` to `end` - 1 of c's rows from their sums, one by one. */
static void terms_edge(const carry_bf16_terms *t, const float *made, int64_t i, int64_t j, int64_t rows, int64_t begin,
                       int64_t end) {
    for (int64_t r = 0; r < rows; r++) {
        const float by = t->by != NULL ? t->by[i + r] : 1.0f;
        for (int64_t x = begin; x < end; x++) {
            float sum = by * made[r * AMX_LINES + x] * (t->columns_by != NULL ? t->columns_by[j + x] : 1.0f);
            if (t->base != NULL) {
                sum += (t->base_by != NULL ? t->base_by[i + r] : 1.0f) * t->base[(i + r) * t->base_row + j + x];
            }
            t->c[(i + r) * t->c_row + j + x] = sum;
        }
    }
}

/* `vectors` vectors of every row. */
BF16_INLINE void terms_rows(const int vectors, const bool with_base, const carry_bf16_terms *t, const float *made,
                            int64_t i, int64_t j, int64_t rows) {
    static const float one = 1.0f;
    const float *by = t->by != NULL ? t->by + i : &one;
    const float *base_by = t->base_by != NULL ? t->base_by + i : &one;
    const ptrdiff_t by_next = t->by != NULL;
    const ptrdiff_t base_by_next = t->base_by != NULL;
    const float *base = with_base ? t->base + i * t->base_row + j : NULL;
    float *c = t->c + i * t->c_row + j;
    bf16_floats across[2];
    TERM_UNROLL
    for (int v = 0; v < vectors; v++) {
        across[v] = (bf16_floats){0} + 1.0f;
        if (t->columns_by != NULL) {
            across[v] = *(const bf16_floats_at *)(t->columns_by + j + v * TERM_LANES);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        TERM_UNROLL
        for (int v = 0; v < vectors; v++) {
            bf16_floats sum = *by * *(const bf16_floats_at *)(made + v * TERM_LANES) * across[v];
            if (with_base) {
                sum += *base_by * *(const bf16_floats_at *)(base + v * TERM_LANES);
            }
            *(bf16_floats_at *)(c + v * TERM_LANES) = sum;
        }
        made += AMX_LINES;
        base = with_base ? base + t->base_row : NULL;
        c += t->c_row;
        by += by_next;
        base_by += base_by_next;
    }
}

/* Computes c of a pair of panels from its sums. */
static void terms_finish(const carry_bf16_terms *t, const float *made, int64_t i, int64_t j) {
    const int64_t rows = t->m - i < AMX_LINES ? t->m - i : AMX_LINES;
    const int64_t columns = t->n - j < AMX_LINES ? t->n - j : AMX_LINES;
    if (columns == AMX_LINES && t->base != NULL) {
        terms_rows(2, true, t, made, i, j, rows);
    } else if (columns == AMX_LINES) {
        terms_rows(2, false, t, made, i, j, rows);
    } else if (columns >= TERM_LANES && t->base != NULL) {
        terms_rows(1, true, t, made, i, j, rows);
    } else if (columns >= TERM_LANES) {
        terms_rows(1, false, t, made, i, j, rows);
    }
    if (columns % TERM_LANES != 0) {
        terms_edge(t, made, i, j, rows, columns / TERM_LANES * TERM_LANES, columns);
    }
}

static void amx_terms(const carry_bf16_terms *t) {
    amx_tiles tiles = {0};
    carry_rows_ahead ahead = t->ahead;
    _Alignas(64) float made[AMX_LINES * AMX_LINES];
    TILES_OPEN;
    for (int64_t j = 0; j < t->n; j += AMX_LINES) {
        for (int64_t i = 0; i < t->m; i += AMX_LINES) {
            const int64_t begin = t->triangle == CARRY_BF16_UPPER ? i : 0;
            const int64_t end = t->triangle == CARRY_BF16_LOWER && i + AMX_LINES < t->k ? i + AMX_LINES : t->k;
            const uint16_t *a = t->a + i * t->k + begin * AMX_LINES;
            const uint16_t *b = t->b + j * t->k + begin * AMX_LINES;
            amx_zero(&tiles);
            for (int order = t->order; order >= 0; order--) {
                for (int x = order - t->b_terms + 1 > 0 ? order - t->b_terms + 1 : 0; x <= order && x < t->a_terms;
                     x++) {
                    terms_sum(&tiles, a + x * t->a_next, b + (order - x) * t->b_next, (end - begin) / AMX_UNIT, &ahead);
                }
            }
            amx_store(&tiles, made, AMX_LINES);
            terms_finish(t, made, i, j);
        }
    }
    TILES_CLOSE;
}

#endif
