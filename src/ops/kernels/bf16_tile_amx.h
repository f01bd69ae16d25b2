/* bf16 products over eight tile registers of 16 rows of 64 bytes. For each 32 k, a panel of a is two tiles of 16 rows
   by 32 k, and a panel of b is two tiles of 16 pairs of k by 16 columns. Their four products are summed in tiles 0 to 3
   during a block of k; the next block continues from the sums in c. The file that includes this defines

       amx_tiles                          the type of `tiles`, which holds the tiles; unused on the processor
       TILES_OPEN, TILES_CLOSE            configures eight tiles of 16 x 64 bytes on this thread; releases them
       TILE_ZERO(t)                       tile t = 0
       TILE_LOAD(t, from, bytes)          16 rows of 64 bytes, `bytes` apart
       TILE_STREAM(t, from, bytes)        the same for data that need not stay in the first-level cache
       TILE_STORE(t, to, bytes)
       TILE_DOT(c, a, b)                  the instruction

   kernels_bf16_amx.c defines them by instructions, kernels_bf16_emulated.c in C. */
#ifndef CARRY_OPS_KERNELS_BF16_TILE_AMX_H
#define CARRY_OPS_KERNELS_BF16_TILE_AMX_H

#include "ops/kernels/bf16_pack.h"

#define AMX_LINES 32 /* rows of a panel of a, columns of a panel of b */
#define AMX_UNIT 32  /* k of a tile */
#define AMX_HALF 16  /* rows of a tile, columns of a tile of sums */
#define AMX_LEAVE 2  /* rows that are rounded during each unit of k */
/* k of a block. Storing sums between blocks costs more than reading panels from the second-level cache: 256 and 512
   are slower. */
#define AMX_DEPTH 2048

/* Packs an operand that is contiguous along k into rows of tiles, four units of k at a time. */
static void amx_lines(uint16_t *to, const uint16_t *from, ptrdiff_t row, int64_t units) {
    for (int64_t u = 0; u < units; u += 4) {
        const int64_t here = units - u < 4 ? units - u : 4;
        for (int line = 0; line < AMX_LINES; line++) {
            for (int64_t i = u; i < u + here; i++) {
                memcpy(to + (i * AMX_LINES + line) * AMX_UNIT, from + line * row + i * AMX_UNIT, AMX_UNIT * sizeof *to);
            }
        }
    }
}

/* Packs an operand that is contiguous along k into columns of pairs. */
static void amx_columns(uint16_t *to, const uint16_t *from, ptrdiff_t row, int64_t units) {
    for (int64_t u = 0; u < units; u++) {
        for (int half = 0; half < AMX_LINES; half += AMX_HALF) {
            bf16_pairs rows[AMX_HALF];
            for (int line = 0; line < AMX_HALF; line++) {
                memcpy(&rows[line], from + (half + line) * row + u * AMX_UNIT, sizeof *rows);
            }
            bf16_transpose(rows);
            for (int pair = 0; pair < AMX_HALF; pair++) {
                memcpy(to + ((u * AMX_HALF + pair) * AMX_LINES + half) * 2, &rows[pair], sizeof *rows);
            }
        }
    }
}

typedef uint16_t amx_halves __attribute__((vector_size(32)));

/* Pairs sixteen columns of two rows. */
BF16_INLINE void amx_paired(bf16_pairs *to, const uint16_t *first, const uint16_t *second) {
    amx_halves above;
    amx_halves below;
    memcpy(&above, first, sizeof above);
    memcpy(&below, second, sizeof below);
    *to = __builtin_convertvector(above, bf16_pairs) | __builtin_convertvector(below, bf16_pairs) << 16;
}

/* For an operand that is contiguous across k: the 32 elements of a panel for one k fill 64 bytes, far from those for
   the next k. The hardware prefetcher does not predict such addresses, so those AMX_ROWS_AHEAD further on are
   prefetched. */
#define AMX_ROWS_AHEAD 24
#define AMX_ASK(row) __builtin_prefetch((row), 0, 3)

/* Packs an operand that is contiguous across k (each k has a row of memory) into rows of tiles. */
static void amx_turned(uint16_t *to, const uint16_t *from, ptrdiff_t row, int64_t units) {
    for (int64_t u = 0; u < units; u++) {
        for (int half = 0; half < AMX_LINES; half += AMX_HALF) {
            bf16_pairs rows[AMX_HALF];
            for (int pair = 0; pair < AMX_HALF; pair++) {
                const uint16_t *first = from + (u * AMX_UNIT + 2 * pair) * row + half;
                AMX_ASK(first + (AMX_ROWS_AHEAD + half / AMX_HALF) * row);
                amx_paired(&rows[pair], first, first + row);
            }
            bf16_transpose(rows);
            for (int line = 0; line < AMX_HALF; line++) {
                memcpy(to + (u * AMX_LINES + half + line) * AMX_UNIT, &rows[line], sizeof *rows);
            }
        }
    }
}

typedef uint16_t amx_line __attribute__((vector_size(64)));

/* Packs an operand that is contiguous across k (each k has a row of memory) into columns of pairs. */
static void amx_pairs(uint16_t *to, const uint16_t *from, ptrdiff_t row, int64_t units) {
    for (int64_t pair = 0; pair < units * AMX_HALF; pair++) {
        const uint16_t *first = from + 2 * pair * row;
        amx_line above;
        amx_line below;
        AMX_ASK(first + AMX_ROWS_AHEAD * row);
        AMX_ASK(first + (AMX_ROWS_AHEAD + 1) * row);
        memcpy(&above, first, sizeof above);
        memcpy(&below, first + row, sizeof below);
        const amx_line left = __builtin_shufflevector(above, below, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7,
                                                      39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
        const amx_line right =
            __builtin_shufflevector(above, below, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24,
                                    56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
        memcpy(to + pair * AMX_LINES * 2, &left, sizeof left);
        memcpy(to + (pair * AMX_LINES + AMX_HALF) * 2, &right, sizeof right);
    }
}

/* Packs whole units of whole panels by vectors, the rest element by element. */
static void amx_pack_a(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines, int64_t k) {
    const int64_t units = lines == AMX_LINES ? k / AMX_UNIT : 0;
    const int64_t l = units * AMX_UNIT;
    (across ? amx_turned : amx_lines)(to, from, row, units);
    if (l < k) {
        bf16_pack(AMX_UNIT, AMX_LINES, AMX_UNIT, to + l * AMX_LINES, from + (across ? l * row : l), row, across, lines,
                  k - l);
    }
}

static void amx_pack_b(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines, int64_t k) {
    const int64_t units = lines == AMX_LINES ? k / AMX_UNIT : 0;
    const int64_t l = units * AMX_UNIT;
    (across ? amx_pairs : amx_columns)(to, from, row, units);
    if (l < k) {
        bf16_pack(2, AMX_LINES, AMX_UNIT, to + l * AMX_LINES, from + (across ? l * row : l), row, across, lines, k - l);
    }
}

/* A block of sums, AMX_LINES columns wide, that still has to be rounded to bf16; rows: the number of rows left. */
typedef struct amx_leaving {
    const float *from;
    uint16_t *to;
    ptrdiff_t row;
    int64_t rows;
    int turn; /* the half of amx_step.beside that is free */
} amx_leaving;

/* A pair of panels. */
typedef struct amx_pair {
    const uint16_t *a, *b;
    int64_t k;
    const float *base; /* NULL: zero */
    float *c;
    ptrdiff_t base_row, c_row;
    /* Part of the panel of b after this one, `hints` cache lines for each unit of k. */
    const char *next;
    int hints;
    /* Where the sums of the next pair come from or go to, to prefetch it; NULL: already near. */
    const char *soon;
    ptrdiff_t soon_row;
    int64_t soon_rows;
    amx_leaving *leaving; /* the previous pair, which is rounded while this one is multiplied */
} amx_pair;

/* Panels of weights that were packed earlier come from memory, in an order that the hardware does not predict: the
   next panel of b is prefetched while this one is multiplied. */
BF16_INLINE const char *amx_fetch(const char *next, int hints) {
    for (int i = 0; i < hints; i++) {
        __builtin_prefetch(next + i * 64, 0, 2);
    }
    return next + (ptrdiff_t)hints * 64;
}

/* Prefetches, with each unit of k, two rows of the memory that the next pair of panels reads or writes its sums in. A
   row is one or two cache lines, and rows are far apart. */
BF16_INLINE void amx_fetch_sums(const amx_pair *p, int64_t l) {
    const int64_t first = l / AMX_UNIT * 2;
    if (p->soon != NULL && first < p->soon_rows) {
        const char *row = p->soon + first * p->soon_row;
        __builtin_prefetch(row, 1, 2);
        __builtin_prefetch(row + 64, 1, 2);
        __builtin_prefetch(row + p->soon_row, 1, 2);
        __builtin_prefetch(row + p->soon_row + 64, 1, 2);
    }
}

/* Rounds sixteen f32 sums to bf16, to nearest, as carry_bf16_from_f32 does. */
BF16_INLINE void amx_round(uint16_t *to, const float *from) {
    bf16_pairs bits;
    memcpy(&bits, from, sizeof bits);
    const bf16_pairs rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bf16_pairs is_nan = (bf16_pairs)((bits & 0x7fffffff) > 0x7f800000);
    const bf16_pairs made = (rounded & ~is_nan) | (((bits >> 16) | 0x40) & is_nan);
    const amx_halves halves = __builtin_convertvector(made, amx_halves);
    memcpy(to, &halves, sizeof halves);
}

BF16_INLINE void amx_widen(float *to, const uint16_t *from) {
    amx_halves halves;
    memcpy(&halves, from, sizeof halves);
    const bf16_pairs bits = __builtin_convertvector(halves, bf16_pairs) << 16;
    memcpy(to, &bits, sizeof bits);
}

BF16_INLINE void amx_leave(amx_leaving *l, int rows) {
    for (int i = 0; i < rows && l->rows > 0; i++) {
        amx_round(l->to, l->from);
        amx_round(l->to + AMX_HALF, l->from + AMX_HALF);
        l->to += l->row;
        l->from += AMX_LINES;
        l->rows--;
    }
}

static void amx_zero(amx_tiles *tiles) {
    (void)tiles;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

static void amx_store(amx_tiles *tiles, float *c, ptrdiff_t c_row) {
    (void)tiles;
    float *below = c + AMX_HALF * c_row;
    TILE_STORE(0, c, c_row * 4);
    TILE_STORE(1, c + AMX_HALF, c_row * 4);
    TILE_STORE(2, below, c_row * 4);
    TILE_STORE(3, below + AMX_HALF, c_row * 4);
}

/* Both halves of a's rows. */
static void amx_whole(amx_tiles *tiles, const amx_pair *p) {
    const ptrdiff_t base_bytes = p->base_row * 4;
    if (p->base != NULL) {
        const float *below = p->base + AMX_HALF * p->base_row;
        TILE_LOAD(0, p->base, base_bytes);
        TILE_LOAD(1, p->base + AMX_HALF, base_bytes);
        TILE_LOAD(2, below, base_bytes);
        TILE_LOAD(3, below + AMX_HALF, base_bytes);
    } else {
        amx_zero(tiles);
    }
    const uint16_t *a = p->a;
    const uint16_t *b = p->b;
    const char *next = p->next;
    for (int64_t l = 0; l < p->k; l += AMX_UNIT) {
        next = amx_fetch(next, p->hints);
        amx_fetch_sums(p, l);
        amx_leave(p->leaving, AMX_LEAVE);
        TILE_STREAM(4, a, 64);
        TILE_LOAD(6, b, 128);
        TILE_LOAD(7, b + 2 * AMX_HALF, 128);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_STREAM(5, a + AMX_HALF * AMX_UNIT, 64);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        a += AMX_LINES * AMX_UNIT;
        b += AMX_LINES * AMX_UNIT;
    }
    amx_store(tiles, p->c, p->c_row);
}

/* Computes only the first half, for 16 rows and fewer. */
static void amx_upper(amx_tiles *tiles, const amx_pair *p) {
    (void)tiles;
    const ptrdiff_t base_bytes = p->base_row * 4;
    const ptrdiff_t bytes = p->c_row * 4;
    if (p->base != NULL) {
        TILE_LOAD(0, p->base, base_bytes);
        TILE_LOAD(1, p->base + AMX_HALF, base_bytes);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
    }
    const uint16_t *a = p->a;
    const uint16_t *b = p->b;
    const char *next = p->next;
    for (int64_t l = 0; l < p->k; l += AMX_UNIT) {
        next = amx_fetch(next, p->hints);
        TILE_LOAD(4, a, 64);
        TILE_LOAD(6, b, 128);
        TILE_LOAD(7, b + 2 * AMX_HALF, 128);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        a += AMX_LINES * AMX_UNIT;
        b += AMX_LINES * AMX_UNIT;
    }
    TILE_STORE(0, p->c, bytes);
    TILE_STORE(1, p->c + AMX_HALF, bytes);
}

/* Widens the bf16 elements of c at a pair of panels into `beside`; zeros beyond the edges of c. */
static void amx_take_halves(const carry_bf16_tile *t, int64_t r, int64_t q, float *beside) {
    const int64_t rows = t->m - r * AMX_LINES;
    const int64_t columns = t->n - q * AMX_LINES;
    const uint16_t *from = t->half + (r * t->half_row + q) * AMX_LINES;
    for (int64_t i = 0; i < AMX_LINES && i < rows; i++, from += t->half_row, beside += AMX_LINES) {
        uint16_t line[AMX_LINES] = {0};
        const uint16_t *whole = from;
        if (columns < AMX_LINES) {
            memcpy(line, from, (size_t)columns * sizeof *line);
            whole = line;
        }
        amx_widen(beside, whole);
        amx_widen(beside + AMX_HALF, whole + AMX_HALF);
    }
    if (rows < AMX_LINES) {
        memset(beside, 0, (size_t)((AMX_LINES - rows) * AMX_LINES) * sizeof *beside);
    }
}

/* Rounds the sums of a pair of panels to bf16: with all AMX_LINES columns while the next pair is multiplied, with fewer
   at once. */
static void amx_give_halves(const carry_bf16_tile *t, int64_t r, int64_t q, const float *beside, amx_leaving *leaving) {
    const int64_t rows = t->m - r * AMX_LINES < AMX_LINES ? t->m - r * AMX_LINES : AMX_LINES;
    const int64_t columns = t->n - q * AMX_LINES;
    uint16_t *to = t->half + (r * t->half_row + q) * AMX_LINES;
    if (columns >= AMX_LINES) {
        *leaving = (amx_leaving){.from = beside, .to = to, .row = t->half_row, .rows = rows, .turn = 1 - leaving->turn};
        return;
    }
    for (int64_t i = 0; i < rows; i++, to += t->half_row, beside += AMX_LINES) {
        uint16_t line[AMX_LINES];
        amx_round(line, beside);
        amx_round(line + AMX_HALF, beside + AMX_HALF);
        memcpy(to, line, (size_t)columns * sizeof *line);
    }
}

/* A block of k from l on: where the sums come from, and where they go. */
typedef struct amx_step {
    const carry_bf16_tile *t;
    int64_t l, depth;
    const float *base;
    float *c;
    ptrdiff_t base_row, c_row;
    bool begins, ends; /* begins: sums start from t->half; ends: they go to t->half */
    int hints;         /* prefetches of a panel of b per unit of k */
    float *beside;     /* sums of two pairs of panels */
    amx_leaving *leaving;
} amx_step;

/* The panel of b that is multiplied after panel q of this block. */
static const uint16_t *amx_after(const amx_step *s, int64_t q) {
    const carry_bf16_tile *t = s->t;
    int64_t l = s->l;
    q++;
    if (q >= t->column_panels_end && l + s->depth < t->k) {
        q += t->column_panel - t->column_panels_end;
        l += s->depth;
    }
    return t->b + (q * t->k + l) * AMX_LINES;
}

static void amx_one(amx_tiles *tiles, const amx_step *s, int64_t r, int64_t q) {
    const carry_bf16_tile *t = s->t;
    float *beside = s->beside + s->leaving->turn * AMX_LINES * AMX_LINES;
    amx_pair pair = {.a = t->a + (r * t->k + s->l) * AMX_LINES,
                     .b = t->b + (q * t->k + s->l) * AMX_LINES,
                     .k = s->depth,
                     .base = s->base != NULL ? s->base + (r * s->base_row + q) * AMX_LINES : NULL,
                     .c = s->c + (r * s->c_row + q) * AMX_LINES,
                     .base_row = s->base_row,
                     .c_row = s->c_row,
                     .next = (const char *)amx_after(s, q) + (r - t->row_panel) * (s->depth / AMX_UNIT) * s->hints * 64,
                     .hints = s->hints,
                     .leaving = s->leaving};
    if (s->begins) {
        amx_take_halves(t, r, q, beside);
        pair.base = beside;
        pair.base_row = AMX_LINES;
    }
    if (s->ends) {
        pair.c = beside;
        pair.c_row = AMX_LINES;
    }
    pair.soon_rows = r + 1 < t->row_panels_end ? t->m - (r + 1) * AMX_LINES : 0;
    if (s->ends || s->begins) {
        pair.soon = (const char *)(t->half + ((r + 1) * t->half_row + q) * AMX_LINES);
        pair.soon_row = t->half_row * (ptrdiff_t)sizeof *t->half;
    } else if (t->out != NULL && (s->c == t->out || s->base == t->out)) {
        pair.soon = (const char *)(t->out + ((r + 1) * t->out_row + q) * AMX_LINES);
        pair.soon_row = t->out_row * (ptrdiff_t)sizeof *t->out;
    }
    pair.soon_rows = pair.soon_rows < AMX_LINES ? pair.soon_rows : AMX_LINES;
    (t->m - r * AMX_LINES <= AMX_HALF ? amx_upper : amx_whole)(tiles, &pair);
    amx_leave(s->leaving, AMX_LINES);
    if (s->ends) {
        amx_give_halves(t, r, q, beside, s->leaving);
    }
}

static void amx_block(const carry_bf16_tile *t, int64_t l, int64_t depth) {
    amx_tiles tiles = {0};
    amx_leaving leaving = {0};
    float beside[2 * AMX_LINES * AMX_LINES] __attribute__((aligned(64)));
    const bool leaves = t->out != NULL && l + depth == t->k;
    const int64_t rows = t->row_panels_end - t->row_panel;
    const amx_step step = {.t = t,
                           .l = l,
                           .depth = depth,
                           .base = l > 0 ? t->c : t->base,
                           .base_row = l > 0 ? t->c_row : t->base_row,
                           .c = leaves ? t->out : t->c,
                           .c_row = leaves ? t->out_row : t->c_row,
                           .begins = t->half != NULL && t->half_adds && l == 0,
                           .ends = t->half != NULL && l + depth == t->k,
                           .hints = rows < 4 ? 8 : (int)((AMX_UNIT + rows - 1) / rows),
                           .beside = beside,
                           .leaving = &leaving};
    for (int64_t q = t->column_panel; q < t->column_panels_end; q++) {
        for (int64_t r = t->row_panel; r < t->row_panels_end; r++) {
            amx_one(&tiles, &step, r, q);
        }
    }
    amx_leave(&leaving, AMX_LINES);
}

static void amx_tile(const carry_bf16_tile *t) {
    TILES_OPEN;
    for (int64_t l = 0; l < t->k; l += AMX_DEPTH) {
        amx_block(t, l, t->k - l < AMX_DEPTH ? t->k - l : AMX_DEPTH);
    }
    TILES_CLOSE;
}

#include "ops/kernels/bf16_terms_amx.h"

#define AMX_BF16                                                                                           \
    .rows = AMX_LINES, .columns = AMX_LINES, .unit = AMX_UNIT, .pack_a = amx_pack_a, .pack_b = amx_pack_b, \
    .tile = amx_tile, .whole = true, .halves = true, .depth = AMX_DEPTH, .split_a = amx_split_a,           \
    .split_b = amx_split_b, .terms = amx_terms

#endif
