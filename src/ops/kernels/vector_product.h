/* Products: c is cut into tiles that stay in registers while k runs; a is broadcast, and b is read directly.
   Matrices up to 128 x 128 fit the caches, so nothing is packed, except if b is transposed or its last columns do
   not fill a vector: then KBLOCK x (tile width) of it is copied to the stack first. Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_PRODUCT_H
#define CARRY_OPS_VECTOR_PRODUCT_H

#define KBLOCK 256

/* AHEAD_LINE: bytes of a cache line. AHEAD_EVERY: the number of k after which the next row that the caller named in
   `ahead` is prefetched. */
#define AHEAD_LINE 64
#define AHEAD_EVERY 16

/* Prefetches the next row that the caller asked for; returns false if none is left. */
INLINE bool fetch_ahead(carry_rows_ahead *ahead) {
    if (ahead->rows == 0) {
        return false;
    }
    for (int64_t at = 0; at < ahead->size; at += AHEAD_LINE) {
        __builtin_prefetch(ahead->at + at, 0, 2);
    }
    ahead->at += ahead->row;
    ahead->rows--;
    return true;
}

/* In tiles of more than eight rows on x86-64, four rows of a share a pointer that is opaque to gcc. Otherwise gcc would
   keep one pointer per row, more than there are registers, and load them from the stack for every k (16 x 16 x 128:
   2,540 cycles instead of 1,810). */
#if defined(__x86_64__)
#define SHARED_LINES(rows) ((rows) > 8)
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))
#else
#define SHARED_LINES(rows) 0
#define OPAQUE(pointer) (void)(pointer)
#endif

/* Forces a product to be rounded before it is added: in a x + b y gcc may fuse either product or none, and chose
   differently for tiles of different sizes, so that the number of threads changed the last bits. */
#if defined(__AVX512F__)
#define ROUNDED(vector) __asm__("" : "+v"(vector))
#elif defined(__x86_64__)
#define ROUNDED(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define ROUNDED(vector) __asm__("" : "+w"(vector))
#else
#error "name the constraint of a vector register"
#endif

/* Some sixty tiles are compiled from the functions below. Under gcc's sanitizers one function does all
   sizes, with its sums in memory: it reads and writes the same elements, and the file for AVX-512 otherwise took 143 s
   to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INLINE_TILE static
#define UNROLL_TILE
#else
#define INLINE_TILE INLINE
#define UNROLL_TILE UNROLL
#endif

/* Arguments of the loops below for one item and one block of k. */
typedef struct block {
    int64_t m, k;
    const float *a, *base;
    float *c;
    ptrdiff_t a_row, base_row, c_row;
    const float *by, *base_by;
    carry_rows_ahead *ahead;
} block;

/* c[rows x vectors] = by a[rows x k] b[k x vectors] + base_by base, from row i and column j of c on; across: a is
   transposed. Callers pass constants for rows, vectors and across. */
INLINE_TILE void tile(const int rows, const int vectors, const bool across, const block *o, int64_t i, int64_t j,
                      const float *b, ptrdiff_t b_row) {
    const ptrdiff_t a_row = across ? 1 : o->a_row;
    const ptrdiff_t a_col = across ? o->a_row : 1;
    const float *a = o->a + i * a_row;
    const float *base = o->base != NULL ? o->base + i * o->base_row + j : NULL;
    const float *base_by = o->base_by != NULL ? o->base_by + i : NULL;
    float *c = o->c + i * o->c_row + j;
    vec sum[16][4];
    UNROLL_TILE
    for (int r = 0; r < rows; r++) {
        UNROLL_TILE
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = base != NULL && o->by == NULL ? load(base + r * o->base_row + v * LANES) : (vec){0};
        }
    }
    if (base_by != NULL && o->by == NULL) {
        UNROLL_TILE
        for (int r = 0; r < rows; r++) {
            UNROLL_TILE
            for (int v = 0; v < vectors; v++) {
                sum[r][v] *= base_by[r];
            }
        }
    }
    const float *line[4];
    UNROLL_TILE
    for (int r = 0; r < rows; r += 4) {
        line[r / 4] = a + r * a_row;
    }
    for (int64_t until = 0, l = 0; until < o->k;) {
        until = fetch_ahead(o->ahead) && o->k - until >= 2 * AHEAD_EVERY ? until + AHEAD_EVERY : o->k;
        for (; l < until; l++) {
            vec row[4];
            UNROLL_TILE
            for (int v = 0; v < vectors; v++) {
                row[v] = load(b + l * b_row + v * LANES);
            }
            UNROLL_TILE
            for (int r = 0; r < rows; r++) {
                float scalar = SHARED_LINES(rows) ? line[r / 4][r % 4 * a_row] : a[r * a_row + l * a_col];
                UNROLL_TILE
                for (int v = 0; v < vectors; v++) {
                    sum[r][v] += scalar * row[v];
                }
            }
            UNROLL_TILE
            for (int r = 0; SHARED_LINES(rows) && r < rows; r += 4) {
                line[r / 4] += a_col;
                OPAQUE(line[r / 4]);
            }
        }
    }
    if (o->by != NULL) {
        UNROLL_TILE
        for (int r = 0; r < rows; r++) {
            const float factor = o->by[i + r];
            UNROLL_TILE
            for (int v = 0; v < vectors; v++) {
                vec more = base != NULL ? load(base + r * o->base_row + v * LANES) : (vec){0};
                more = base != NULL && base_by != NULL ? more * base_by[r] : more;
                sum[r][v] *= factor;
                ROUNDED(more);
                ROUNDED(sum[r][v]);
                sum[r][v] += more;
            }
        }
    }
    UNROLL_TILE
    for (int r = 0; r < rows; r++) {
        UNROLL_TILE
        for (int v = 0; v < vectors; v++) {
            keep(c + r * o->c_row + v * LANES, sum[r][v]);
        }
    }
}

/* Computes all m rows of the columns from j on, `vectors` vectors wide, in tiles of `most` rows and of four. It
   avoids tiles of one or two rows if possible, since they leave most of the registers idle. */
INLINE_TILE void panel(const int most, const int vectors, const bool across, const block *o, int64_t j, const float *b,
                       ptrdiff_t b_row) {
    int64_t tall = o->m;
    for (int64_t fours = 0; fours < most && 4 * fours <= o->m; fours++) {
        if ((o->m - 4 * fours) % most == 0) {
            tall = o->m - 4 * fours;
            break;
        }
    }
    int64_t i = 0;
    for (; i + most <= tall; i += most) {
        tile(most, vectors, across, o, i, j, b, b_row);
    }
    for (; i + 4 <= o->m; i += 4) {
        tile(4, vectors, across, o, i, j, b, b_row);
    }
    for (; i + 2 <= o->m; i += 2) {
        tile(2, vectors, across, o, i, j, b, b_row);
    }
    if (i < o->m) {
        tile(1, vectors, across, o, i, j, b, b_row);
    }
}

/* Panels are separate functions, so that each has all registers: when they were inlined into one function, gcc kept
   pointers of their innermost loops on the stack, and the delta rule took 5 to 10 % longer (docs/results/x86.md). */
typedef void (*panel_function)(const block *o, int64_t j, const float *b, ptrdiff_t b_row);
#define PANEL(name, most, vectors)                                                                                    \
    static __attribute__((noinline)) void name##_rows(const block *o, int64_t j, const float *b, ptrdiff_t b_row) {   \
        panel(most, vectors, false, o, j, b, b_row);                                                                  \
    }                                                                                                                 \
    static __attribute__((noinline)) void name##_across(const block *o, int64_t j, const float *b, ptrdiff_t b_row) { \
        panel(most, vectors, true, o, j, b, b_row);                                                                   \
    }
PANEL(panel_1, ONE_ROWS, 1)
PANEL(panel_2, PAIR_ROWS, 2)
#if THREE_ROWS > 0
PANEL(panel_3, THREE_ROWS, 3)
#else
#define panel_3_rows NULL
#define panel_3_across NULL
#endif
#if TILE_VECTORS > 2
PANEL(panel_4, TILE_ROWS, 4)
#else
#define panel_4_rows NULL
#define panel_4_across NULL
#endif

/* Indexed by whether a is transposed, then by the panel's width in vectors minus one. NULL: no panel has that width. */
static const panel_function panels[2][4] = {{panel_1_rows, panel_2_rows, panel_3_rows, panel_4_rows},
                                            {panel_1_across, panel_2_across, panel_3_across, panel_4_across}};

/* Copies columns j..j+columns-1 of k rows, from row `from` on, into packed rows of `stride` elements, padded with
   zeros. */
static void pack(float *packed, int64_t stride, const carry_product *p, const float *b, int64_t from, int64_t k,
                 int64_t j, int64_t columns) {
    if (!p->b_transposed) {
        for (int64_t l = 0; l < k; l++) {
            memcpy(packed + l * stride, b + (from + l) * p->b_row + j, (size_t)columns * sizeof *packed);
            memset(packed + l * stride + columns, 0, (size_t)(stride - columns) * sizeof *packed);
        }
        return;
    }
    if (columns < stride) {
        memset(packed, 0, (size_t)(k * stride) * sizeof *packed);
    }
    pack_along(packed, stride, b + j * p->b_row + from, p->b_row, columns, k);
}

/* The last columns, fewer than a vector: computed in a padded buffer and copied to c. b is packed with LANES columns
   per row. */
static void edge_panel(const block *o, bool across, int64_t j, int64_t columns, const float *b) {
    for (int64_t i = 0; i < o->m; i += 4) {
        int64_t rows = o->m - i < 4 ? o->m - i : 4;
        float beside[4 * LANES] = {0};
        float *c = o->c + i * o->c_row + j;
        for (int64_t r = 0; o->base != NULL && r < rows; r++) {
            memcpy(beside + r * LANES, o->base + (i + r) * o->base_row + j, (size_t)columns * sizeof *c);
        }
        block here = *o;
        here.m = rows;
        here.a = o->a + i * (across ? 1 : o->a_row);
        here.base = here.c = beside;
        here.base_row = here.c_row = LANES;
        here.by = o->by != NULL ? o->by + i : NULL;
        here.base_by = o->base_by != NULL ? o->base_by + i : NULL;
        panels[across][0](&here, 0, b, LANES);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(c + r * o->c_row, beside + r * LANES, (size_t)columns * sizeof *c);
        }
    }
}

static void product_item(const carry_product *p, const float *a, const float *b, const float *base, float *c,
                         carry_rows_ahead *ahead) {
    const bool across = p->a_transposed;
    float packed[KBLOCK * TILE_VECTORS * LANES];
    for (int64_t from = 0; from < p->k; from += KBLOCK) {
        block o = {.m = p->m,
                   .k = p->k - from < KBLOCK ? p->k - from : KBLOCK,
                   .a = a + from * (across ? p->a_row : 1),
                   .c = c,
                   .base = from == 0 ? base : c,
                   .a_row = p->a_row,
                   .base_row = from == 0 ? p->base_row : p->c_row,
                   .c_row = p->c_row,
                   .by = p->by,
                   .base_by = from == 0 ? p->base_by : NULL,
                   .ahead = ahead};
        int64_t j = 0;
        for (int vectors = TILE_VECTORS; vectors > 0; vectors--) {
            const panel_function function = panels[across][vectors - 1];
            const int64_t columns = vectors * LANES;
            for (; function != NULL && j + columns <= p->n; j += columns) {
                if (p->b_transposed) {
                    pack(packed, columns, p, b, from, o.k, j, columns);
                    function(&o, j, packed, columns);
                } else {
                    function(&o, j, b + from * p->b_row + j, p->b_row);
                }
            }
        }
        if (j < p->n) {
            pack(packed, LANES, p, b, from, o.k, j, p->n - j);
            edge_panel(&o, across, j, p->n - j, packed);
        }
    }
}

/* k = 0: c = base_by base. */
static void base_only(const carry_product *p, const float *base, float *c) {
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            float value = base != NULL ? base[i * p->base_row + j] : 0.0f;
            c[i * p->c_row + j] = p->base_by != NULL ? p->base_by[i] * value : value;
        }
    }
}

/* a^T times a vector is the row vector b^T a: one row, with a's columns contiguous. */
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
    bool packed_vector = given->n == 1 && (given->b_row == 1 || given->b_transposed || given->k == 1) &&
                         given->by == NULL && given->base_by == NULL;
    bool columns_packed = given->c_row == 1 && (given->base == NULL || given->base_row == 1);
    bool turned = packed_vector && given->a_transposed && columns_packed;
    const carry_product now = turned ? as_row_times_matrix(given) : *given;
    const carry_product *p = &now;
    carry_rows_ahead ahead = p->ahead;
    for (int64_t i = 0; i < p->count; i++) {
        const float *a = p->a + i * p->a_next;
        const float *b = p->b + i * p->b_next;
        const float *base = p->base != NULL ? p->base + i * p->base_next : NULL;
        float *c = p->c + i * p->c_next;
        if (p->k == 0) {
            base_only(p, base, c);
        } else if (packed_vector && !p->a_transposed && !turned) {
            times_vector(p, a, b, base, c);
        } else {
            product_item(p, a, b, base, c, &ahead);
        }
    }
}

#endif
