/* The kernels written once over vectors of LANES floats. A file per instruction set defines

       LANES            floats in a vector
       TILE_VECTORS     widest tile, in vectors
       TILE_ROWS        rows of the widest tile: its sums, a row of b and one of a fit the registers
       PAIR_ROWS        rows of tiles of two vectors
       ONE_ROWS         rows of tiles of one
       TOKEN_VECTORS    vectors of a row of the delta rule's state updated at a time: twice as many and a few fit
       vec              the vector itself, by vector_size
       f16_load, f16_store, bf16_load, bf16_store: LANES 16-bit elements to a vector and back

   and includes this file. Vectors are the compiler's own (vector_size), so gcc and clang, ARM and x86 share one text.

   Products: c is cut into tiles that stay in registers while k runs; a is broadcast, b is read as it lies. Matrices up
   to 128 x 128 sit in the caches, so nothing is packed, except where b is transposed or its last columns do not fill a
   vector: then KBLOCK x (tile width) of it is copied to the stack first. */
#include <string.h>

#include "ops/kernels.h"

#define KBLOCK 256
#define INLINE static inline __attribute__((always_inline))
/* Loops over constant bounds must vanish, or the arrays of sums go to memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vec_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vec load(const float *from) {
    return *(const vec_unaligned *)from;
}

INLINE void keep(float *to, vec value) {
    *(vec_unaligned *)to = value;
}

/* c[rows x vectors] = a[rows x k] b[k x vectors] + base; a's element (r, l) is a[r*a_row + l*a_col]. Rows and vectors
   are constants where this is called. */
INLINE void tile(const int rows, const int vectors, int64_t k, const float *a, ptrdiff_t a_row, ptrdiff_t a_col,
                 const float *b, ptrdiff_t b_row, const float *base, ptrdiff_t base_row, float *c, ptrdiff_t c_row) {
    vec sum[16][4];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = base != NULL ? load(base + r * base_row + v * LANES) : (vec){0};
        }
    }
    for (int64_t l = 0; l < k; l++) {
        vec row[4];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            row[v] = load(b + l * b_row + v * LANES);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            float scalar = a[r * a_row + l * a_col];
            UNROLL
            for (int v = 0; v < vectors; v++) {
                sum[r][v] += scalar * row[v];
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            keep(c + r * c_row + v * LANES, sum[r][v]);
        }
    }
}

/* What the loops below need of one item and one block of k. */
typedef struct block {
    int64_t m, k;
    const float *a, *base;
    float *c;
    ptrdiff_t a_row, a_col, base_row, c_row;
} block;

INLINE void tile_at(const int rows, const int vectors, const block *o, int64_t i, int64_t j, const float *b,
                    ptrdiff_t b_row) {
    tile(rows, vectors, o->k, o->a + i * o->a_row, o->a_row, o->a_col, b, b_row,
         o->base != NULL ? o->base + i * o->base_row + j : NULL, o->base_row, o->c + i * o->c_row + j, o->c_row);
}

/* All m rows of the columns from j on, `vectors` vectors wide, in tiles of `most` rows and of four, so that no tile of
   one or two rows is left where that can be: those leave most of the registers idle. */
INLINE void panel(const int most, const int vectors, const block *o, int64_t j, const float *b, ptrdiff_t b_row) {
    int64_t tall = o->m;
    for (int64_t fours = 0; fours < most && 4 * fours <= o->m; fours++) {
        if ((o->m - 4 * fours) % most == 0) {
            tall = o->m - 4 * fours;
            break;
        }
    }
    int64_t i = 0;
    for (; i + most <= tall; i += most) {
        tile_at(most, vectors, o, i, j, b, b_row);
    }
    for (; i + 4 <= o->m; i += 4) {
        tile_at(4, vectors, o, i, j, b, b_row);
    }
    for (; i + 2 <= o->m; i += 2) {
        tile_at(2, vectors, o, i, j, b, b_row);
    }
    if (i < o->m) {
        tile_at(1, vectors, o, i, j, b, b_row);
    }
}

/* Copies columns j..j+columns-1 of the k rows from `from` on into packed rows of `stride`, zeros after them. */
static void pack(float *packed, int64_t stride, const carry_product *p, const float *b, int64_t from, int64_t k,
                 int64_t j, int64_t columns) {
    if (!p->b_transposed) {
        for (int64_t l = 0; l < k; l++) {
            memcpy(packed + l * stride, b + (from + l) * p->b_row + j, (size_t)columns * sizeof *packed);
            memset(packed + l * stride + columns, 0, (size_t)(stride - columns) * sizeof *packed);
        }
        return;
    }
    for (int64_t x = 0; x < stride; x++) {
        for (int64_t l = 0; l < k; l++) {
            packed[l * stride + x] = x < columns ? b[(j + x) * p->b_row + from + l] : 0.0f;
        }
    }
}

/* The last columns, fewer than a vector: computed in a vector beside c and copied. b is packed to LANES a row. */
static void edge_panel(const block *o, int64_t j, int64_t columns, const float *b) {
    for (int64_t i = 0; i < o->m; i += 4) {
        int64_t rows = o->m - i < 4 ? o->m - i : 4;
        float beside[4 * LANES] = {0};
        float *c = o->c + i * o->c_row + j;
        for (int64_t r = 0; o->base != NULL && r < rows; r++) {
            memcpy(beside + r * LANES, o->base + (i + r) * o->base_row + j, (size_t)columns * sizeof *c);
        }
        const float *a = o->a + i * o->a_row;
        if (rows == 4) {
            tile(4, 1, o->k, a, o->a_row, o->a_col, b, LANES, beside, LANES, beside, LANES);
        } else {
            for (int64_t r = 0; r < rows; r++) {
                float *row = beside + r * LANES;
                tile(1, 1, o->k, a + r * o->a_row, o->a_row, o->a_col, b, LANES, row, LANES, row, LANES);
            }
        }
        for (int64_t r = 0; r < rows; r++) {
            memcpy(c + r * o->c_row, beside + r * LANES, (size_t)columns * sizeof *c);
        }
    }
}

INLINE void full_panel(const int vectors, const carry_product *p, const block *o, const float *b, int64_t from,
                       int64_t j, float *packed) {
    const int most = vectors == TILE_VECTORS ? TILE_ROWS : vectors == 2 ? PAIR_ROWS : ONE_ROWS;
    if (p->b_transposed) {
        pack(packed, vectors * LANES, p, b, from, o->k, j, vectors * LANES);
        panel(most, vectors, o, j, packed, vectors * LANES);
    } else {
        panel(most, vectors, o, j, b + from * p->b_row + j, p->b_row);
    }
}

INLINE void product_item(const carry_product *p, ptrdiff_t a_row, ptrdiff_t a_col, const float *a, const float *b,
                         const float *base, float *c) {
    float packed[KBLOCK * TILE_VECTORS * LANES];
    for (int64_t from = 0; from < p->k; from += KBLOCK) {
        block o = {.m = p->m,
                   .k = p->k - from < KBLOCK ? p->k - from : KBLOCK,
                   .a = a + from * a_col,
                   .c = c,
                   .base = from == 0 ? base : c,
                   .a_row = a_row,
                   .a_col = a_col,
                   .base_row = from == 0 ? p->base_row : p->c_row,
                   .c_row = p->c_row};
        int64_t j = 0;
        for (; j + TILE_VECTORS * LANES <= p->n; j += TILE_VECTORS * LANES) {
            full_panel(TILE_VECTORS, p, &o, b, from, j, packed);
        }
        if (TILE_VECTORS > 2 && j + 2 * LANES <= p->n) {
            full_panel(2, p, &o, b, from, j, packed);
            j += 2 * LANES;
        }
        if (j + LANES <= p->n) {
            full_panel(1, p, &o, b, from, j, packed);
            j += LANES;
        }
        if (j < p->n) {
            pack(packed, LANES, p, b, from, o.k, j, p->n - j);
            edge_panel(&o, j, p->n - j, packed);
        }
    }
}

INLINE float lanes_sum(vec v) {
    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < LANES; i++) {
        sum += v[i];
    }
    return sum;
}

/* c[rows] = a[rows x k] b[k] + base[rows], b packed: dot products, `rows` at a time to hide the latency of the sums. */
INLINE void dots(const int rows, int64_t k, const float *a, ptrdiff_t a_row, const float *b, const float *base,
                 ptrdiff_t base_row, float *c, ptrdiff_t c_row) {
    vec sum[8];
    float rest[8];
    UNROLL
    for (int r = 0; r < rows; r++) {
        sum[r] = (vec){0};
        rest[r] = base != NULL ? base[r * base_row] : 0.0f;
    }
    int64_t l = 0;
    for (; l + LANES <= k; l += LANES) {
        vec x = load(b + l);
        UNROLL
        for (int r = 0; r < rows; r++) {
            sum[r] += load(a + r * a_row + l) * x;
        }
    }
    for (; l < k; l++) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            rest[r] += a[r * a_row + l] * b[l];
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        c[r * c_row] = rest[r] + lanes_sum(sum[r]);
    }
}

INLINE void dots_at(const int rows, const carry_product *p, int64_t i, const float *a, const float *b,
                    const float *base, float *c) {
    dots(rows, p->k, a + i * p->a_row, p->a_row, b, base != NULL ? base + i * p->base_row : NULL, p->base_row,
         c + i * p->c_row, p->c_row);
}

/* Matrix times vector: every element of a is used once, so this runs at the speed of reading it. */
static void times_vector(const carry_product *p, const float *a, const float *b, const float *base, float *c) {
    int64_t i = 0;
    for (; i + 8 <= p->m; i += 8) {
        dots_at(8, p, i, a, b, base, c);
    }
    for (; i + 2 <= p->m; i += 2) {
        dots_at(2, p, i, a, b, base, c);
    }
    if (i < p->m) {
        dots_at(1, p, i, a, b, base, c);
    }
}

/* k = 0: what is left of c = a b + base. */
static void base_only(const carry_product *p, const float *base, float *c) {
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            c[i * p->c_row + j] = base != NULL ? base[i * p->base_row + j] : 0.0f;
        }
    }
}

/* a^T times a vector is the row vector b^T a: one row, a's columns side by side. */
static carry_product as_row_times_matrix(const carry_product *p) {
    carry_product q = *p;
    q.m = 1;
    q.n = p->m;
    q.a = p->b;
    q.a_next = p->b_next;
    q.b = p->a;
    q.b_row = p->a_row;
    q.b_next = p->a_next;
    q.a_transposed = false;
    q.b_transposed = false;
    return q;
}

static void product(const carry_product *given) {
    bool packed_vector = given->n == 1 && (given->b_row == 1 || given->b_transposed || given->k == 1);
    bool columns_packed = given->c_row == 1 && (given->base == NULL || given->base_row == 1);
    bool turned = packed_vector && given->a_transposed && columns_packed;
    const carry_product now = turned ? as_row_times_matrix(given) : *given;
    const carry_product *p = &now;
    for (int64_t i = 0; i < p->count; i++) {
        const float *a = p->a + i * p->a_next;
        const float *b = p->b + i * p->b_next;
        const float *base = p->base != NULL ? p->base + i * p->base_next : NULL;
        float *c = p->c + i * p->c_next;
        if (p->k == 0) {
            base_only(p, base, c);
        } else if (packed_vector && !p->a_transposed && !turned) {
            times_vector(p, a, b, base, c);
        } else if (p->a_transposed) {
            product_item(p, 1, p->a_row, a, b, base, c);
        } else {
            product_item(p, p->a_row, 1, a, b, base, c);
        }
    }
}

/* One step of a row: h = a*before + b. */
INLINE void step_row(float *h, float a, const float *before, const float *b, int64_t width) {
    int64_t j = 0;
    for (; j + LANES <= width; j += LANES) {
        keep(h + j, a * load(before + j) + load(b + j));
    }
    for (; j < width; j++) {
        h[j] = a * before[j] + b[j];
    }
}

/* Width 1: the rows themselves lie side by side, each with its own factor. */
INLINE void step_column(float *h, const float *a, const float *before, const float *b, int64_t rows) {
    int64_t r = 0;
    for (; r + LANES <= rows; r += LANES) {
        keep(h + r, load(a + r) * load(before + r) + load(b + r));
    }
    for (; r < rows; r++) {
        h[r] = a[r] * before[r] + b[r];
    }
}

/* Loads and stores of LANES elements of a stored type; NOTHING stands for h when only the state is wanted. */
#define NOTHING (-1)

INLINE vec load_as(const int type, const void *from, int64_t at) {
    return type == CARRY_F32    ? load((const float *)from + at)
           : type == CARRY_BF16 ? bf16_load((const uint16_t *)from + at)
                                : f16_load((const uint16_t *)from + at);
}

INLINE void keep_as(const int type, void *to, int64_t at, vec value) {
    if (type == CARRY_F32) {
        keep((float *)to + at, value);
    } else if (type == CARRY_BF16) {
        bf16_store((uint16_t *)to + at, value);
    } else if (type == CARRY_F16) {
        f16_store((uint16_t *)to + at, value);
    }
}

/* `vectors` vectors of state stay in registers while time runs; same_factor: one row, scaled by a[0]. */
INLINE void scan_in_registers(const int b_type, const int h_type, const int vectors, const bool same_factor,
                              const carry_diagonal_scan *s, int64_t a_at, int64_t at) {
    vec state[8];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        state[v] = load(s->state + at + v * LANES);
    }
    /* Copies, since the compiler must think that stores of vectors may change what s points to. */
    const int64_t steps = s->steps;
    const ptrdiff_t a_step = s->a_step;
    const ptrdiff_t b_step = s->b_step;
    const ptrdiff_t h_step = s->h_step;
    const void *b = s->b;
    void *h = s->h;
    const float *a = s->a + a_at;
    int64_t b_at = at;
    int64_t h_at = at;
    for (int64_t t = 0; t < steps; t++, a += a_step, b_at += b_step, h_at += h_step) {
        const float factor = a[0]; /* read before the stores, which the compiler must think may change it */
        vec x[8];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            x[v] = load_as(b_type, b, b_at + v * LANES);
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            state[v] = same_factor ? factor * state[v] + x[v] : load(a + v * LANES) * state[v] + x[v];
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            keep_as(h_type, h, h_at + v * LANES, state[v]);
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        keep(s->state + at + v * LANES, state[v]);
    }
}

/* The last columns, fewer than a vector, of f32: four at a time, then one by one. */
typedef float four __attribute__((vector_size(16)));
typedef float four_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

INLINE void scan_four(const bool keep_h, const bool same_factor, const carry_diagonal_scan *s, int64_t a_at,
                      int64_t at) {
    four state = *(const four_unaligned *)(s->state + at);
    const float *a = s->a + a_at;
    const float *b = (const float *)s->b + at;
    float *h = (float *)s->h + (keep_h ? at : 0);
    for (int64_t t = 0; t < s->steps; t++, a += s->a_step, b += s->b_step) {
        four x = *(const four_unaligned *)b;
        four factors = {a[0], a[0], a[0], a[0]};
        if (!same_factor) {
            factors = *(const four_unaligned *)a;
        }
        state = factors * state + x;
        if (keep_h) {
            *(four_unaligned *)h = state;
            h += s->h_step;
        }
    }
    *(four_unaligned *)(s->state + at) = state;
}

INLINE void scan_one(const bool keep_h, const carry_diagonal_scan *s, int64_t a_at, int64_t at) {
    float state = s->state[at];
    for (int64_t t = 0; t < s->steps; t++) {
        state = s->a[t * s->a_step + a_at] * state + ((const float *)s->b)[t * s->b_step + at];
        if (keep_h) {
            ((float *)s->h)[t * s->h_step + at] = state;
        }
    }
    s->state[at] = state;
}

/* The last columns, fewer than a vector, of 16 bits: one vector beside them, of which only these are kept. */
INLINE void scan_beside(const int b_type, const int h_type, const bool same_factor, const carry_diagonal_scan *s,
                        int64_t a_at, int64_t at, int64_t columns) {
    const size_t h_size = h_type == CARRY_F32 ? 4 : 2;
    float state[LANES] = {0};
    float factors[LANES] = {0};
    uint16_t in[LANES] = {0};
    float out[LANES] = {0};
    memcpy(state, s->state + at, (size_t)columns * sizeof *state);
    for (int64_t t = 0; t < s->steps; t++) {
        const float *a = s->a + t * s->a_step + a_at;
        const uint16_t *b = (const uint16_t *)s->b + t * s->b_step + at;
        for (int64_t j = 0; j < columns; j++) {
            factors[j] = same_factor ? a[0] : a[j];
            in[j] = b[j];
        }
        vec now = load(factors) * load(state) + load_as(b_type, in, 0);
        keep(state, now);
        keep_as(h_type, out, 0, now);
        if (h_type != NOTHING) {
            memcpy((char *)s->h + (t * s->h_step + at) * (ptrdiff_t)h_size, out, (size_t)columns * h_size);
        }
    }
    memcpy(s->state + at, state, (size_t)columns * sizeof *state);
}

INLINE void scan_edge(const int b_type, const int h_type, const bool same_factor, const carry_diagonal_scan *s,
                      int64_t a_at, int64_t at, int64_t columns) {
    if (b_type != CARRY_F32) {
        scan_beside(b_type, h_type, same_factor, s, a_at, at, columns);
        return;
    }
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
        scan_four(h_type != NOTHING, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    for (; j < columns; j++) {
        scan_one(h_type != NOTHING, s, same_factor ? a_at : a_at + j, at + j);
    }
}

INLINE void scan_span(const int b_type, const int h_type, const bool same_factor, const carry_diagonal_scan *s,
                      int64_t a_at, int64_t at, int64_t length) {
    int64_t j = 0;
    for (; j + 8 * LANES <= length; j += 8 * LANES) {
        scan_in_registers(b_type, h_type, 8, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    for (; j + 2 * LANES <= length; j += 2 * LANES) {
        scan_in_registers(b_type, h_type, 2, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    for (; j + LANES <= length; j += LANES) {
        scan_in_registers(b_type, h_type, 1, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    if (j < length) {
        scan_edge(b_type, h_type, same_factor, s, same_factor ? a_at : a_at + j, at + j, length - j);
    }
}

/* Each span of columns runs through a block of steps with its state in registers, then the next span through the same
   block: at least 8 steps, since eight streams in and eight out keep more of memory busy than one
   (docs/results/scan.md: 41 % of the copy rate step by step, 73 % by eights), and as many as stay in the first cache
   between two spans. */
#define BLOCK_FLOATS 4096
#define LEAST_STEPS 8

INLINE void scan_as(const int b_type, const int h_type, const carry_diagonal_scan *given) {
    int64_t most = BLOCK_FLOATS / (given->rows * given->width);
    most = most > LEAST_STEPS ? most : LEAST_STEPS;
    carry_diagonal_scan s = *given;
    for (int64_t t = 0; t < given->steps; t += most) {
        s.steps = given->steps - t < most ? given->steps - t : most;
        s.a = given->a + t * given->a_step;
        s.b = (const char *)given->b + t * given->b_step * (b_type == CARRY_F32 ? 4 : 2);
        s.h = h_type == NOTHING ? NULL : (char *)given->h + t * given->h_step * (h_type == CARRY_F32 ? 4 : 2);
        if (s.width == 1) {
            scan_span(b_type, h_type, false, &s, 0, 0, s.rows);
        } else {
            for (int64_t r = 0; r < s.rows; r++) {
                scan_span(b_type, h_type, true, &s, r, r * s.width, s.width);
            }
        }
    }
}

static void diagonal_scan(const carry_diagonal_scan *s) {
    bool wide_h = s->h != NULL && s->h_type == CARRY_F32;
    switch (s->b_type) {
    case CARRY_BF16:
        if (s->h == NULL) {
            scan_as(CARRY_BF16, NOTHING, s);
        } else if (wide_h) {
            scan_as(CARRY_BF16, CARRY_F32, s);
        } else {
            scan_as(CARRY_BF16, CARRY_BF16, s);
        }
        break;
    case CARRY_F16:
        if (s->h == NULL) {
            scan_as(CARRY_F16, NOTHING, s);
        } else if (wide_h) {
            scan_as(CARRY_F16, CARRY_F32, s);
        } else {
            scan_as(CARRY_F16, CARRY_F16, s);
        }
        break;
    default:
        if (s->h == NULL) {
            scan_as(CARRY_F32, NOTHING, s);
        } else {
            scan_as(CARRY_F32, CARRY_F32, s);
        }
    }
}

static void diagonal_apply(const carry_diagonal_apply *p) {
    for (int64_t item = 0; item < p->count; item++) {
        const float *a = p->a + item * p->a_next;
        const float *x = p->x + item * p->x_next;
        const float *base = p->base + item * p->base_next;
        float *y = p->y + item * p->y_next;
        if (p->width == 1) {
            step_column(y, a, x, base, p->rows);
        } else {
            for (int64_t r = 0; r < p->rows; r++) {
                step_row(y + r * p->width, a[r], x + r * p->width, base + r * p->width, p->width);
            }
        }
    }
}

/* A block of columns: what is seen is summed in registers over all rows; then the rows are written, half of the block
   at a time where u and o need the registers. A block of 128 rows stays in the first cache between the two passes, so
   that the state comes from further away once: the second cache's bandwidth bounds this otherwise
   (docs/results/delta.md). */
INLINE void token_see(const int vectors, const carry_delta_token *t, int64_t at, float *u) {
    /* Copies, since the compiler must think that stores of vectors may change what t points to. */
    const ptrdiff_t stride = t->stride;
    const int64_t rows = t->rows;
    const float *S = t->S + at;
    const float *factors = t->faded_k;
    vec seen[16];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        seen[v] = (vec){0};
    }
    for (int64_t i = 0; i < rows; i++, S += stride) {
        const float factor = factors[i];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            seen[v] += factor * load(S + v * LANES);
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        keep(u + v * LANES, t->beta * (load(t->v + at + v * LANES) - seen[v]));
    }
}

INLINE void token_write(const int vectors, const carry_delta_token *t, int64_t at, const float *u, ptrdiff_t ahead) {
    const ptrdiff_t stride = t->stride;
    const int64_t rows = t->rows;
    float *S = t->S + at;
    const float *decays = t->decay;
    const float *keys = t->k;
    const float *queries = t->q;
    vec value[8];
    vec sum[8];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        value[v] = load(u + v * LANES);
        sum[v] = (vec){0};
    }
    for (int64_t i = 0; i < rows; i++, S += stride) {
        const float decay = decays[i];
        const float key = keys[i];
        const float query = queries[i];
        UNROLL
        for (int v = 0; v<vectors; v += 16 / LANES> 0 ? 16 / LANES : 1) {
            __builtin_prefetch(S + ahead + v * LANES, 0, 2);
        }
        vec now[8];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            now[v] = decay * load(S + v * LANES) + key * value[v];
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            keep(S + v * LANES, now[v]);
            sum[v] += query * now[v];
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        keep(t->o + at + v * LANES, sum[v]);
    }
}

/* The last columns, fewer than a vector: the specification's loops. */
static void token_edge(const carry_delta_token *t, int64_t at) {
    for (int64_t j = at; j < t->columns; j++) {
        float seen = 0.0f;
        for (int64_t i = 0; i < t->rows; i++) {
            seen += t->faded_k[i] * t->S[i * t->stride + j];
        }
        float u = t->beta * (t->v[j] - seen);
        float sum = 0.0f;
        for (int64_t i = 0; i < t->rows; i++) {
            float now = t->decay[i] * t->S[i * t->stride + j] + t->k[i] * u;
            t->S[i * t->stride + j] = now;
            sum += t->q[i] * now;
        }
        t->o[j] = sum;
    }
}

static void delta_token(const carry_delta_token *t) {
    float u[2 * TOKEN_VECTORS * LANES];
    const int half = TOKEN_VECTORS * LANES;
    int64_t at = 0;
    for (; at + 2 * half <= t->columns; at += 2 * half) {
        /* While a block is written the next one is fetched: the columns beside it, or the first ones of the next state,
           which lies behind this one when many are decoded. A hint costs nothing where nothing is. */
        ptrdiff_t ahead = at + 4 * half <= t->columns ? 2 * half : t->rows * t->stride - at;
        token_see(2 * TOKEN_VECTORS, t, at, u);
        token_write(TOKEN_VECTORS, t, at, u, ahead);
        token_write(TOKEN_VECTORS, t, at + half, u + half, ahead);
    }
    for (; at + half <= t->columns; at += half) {
        token_see(TOKEN_VECTORS, t, at, u);
        token_write(TOKEN_VECTORS, t, at, u, t->rows * t->stride);
    }
    for (; at + LANES <= t->columns; at += LANES) {
        token_see(1, t, at, u);
        token_write(1, t, at, u, t->rows * t->stride);
    }
    token_edge(t, at);
}

/* The last few, fewer than a vector, go through a full one. */
INLINE void widen(const int type, float *to, const uint16_t *from, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        keep(to + i, load_as(type, from, i));
    }
    if (i < count) {
        uint16_t in[LANES] = {0};
        float out[LANES];
        memcpy(in, from + i, (size_t)(count - i) * sizeof *in);
        keep(out, load_as(type, in, 0));
        memcpy(to + i, out, (size_t)(count - i) * sizeof *out);
    }
}

INLINE void narrow(const int type, uint16_t *to, const float *from, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        keep_as(type, to, i, load(from + i));
    }
    if (i < count) {
        float in[LANES] = {0};
        uint16_t out[LANES];
        memcpy(in, from + i, (size_t)(count - i) * sizeof *in);
        keep_as(type, out, 0, load(in));
        memcpy(to + i, out, (size_t)(count - i) * sizeof *out);
    }
}

static void f32_from_bf16(float *to, const uint16_t *from, int64_t count) {
    widen(CARRY_BF16, to, from, count);
}

static void bf16_from_f32(uint16_t *to, const float *from, int64_t count) {
    narrow(CARRY_BF16, to, from, count);
}

static void f32_from_f16(float *to, const uint16_t *from, int64_t count) {
    widen(CARRY_F16, to, from, count);
}

static void f16_from_f32(uint16_t *to, const float *from, int64_t count) {
    narrow(CARRY_F16, to, from, count);
}

#define VECTOR_KERNELS                                                                                      \
    .usable = usable, .product = product, .diagonal_scan = diagonal_scan, .diagonal_apply = diagonal_apply, \
    .delta_token = delta_token, .f32_from_bf16 = f32_from_bf16, .f32_from_f16 = f32_from_f16,               \
    .bf16_from_f32 = bf16_from_f32, .f16_from_f32 = f16_from_f32
