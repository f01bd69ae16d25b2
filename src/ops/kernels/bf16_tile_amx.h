/* bf16 products over eight tile registers of 16 rows of 64 bytes. A panel of a is two tiles of 16 rows by 32 k, one of
   b two of 16 pairs of k by 16 columns; their four products stay in tiles 0 to 3 while a block of k runs, and are taken
   up again from c after it. The file that includes this defines

       amx_tiles                          what holds the tiles, as `tiles`; unused on the processor
       TILES_OPEN, TILES_CLOSE            configures eight tiles of 16 x 64 bytes on this thread; releases them
       TILE_ZERO(t)                       tile t = 0
       TILE_LOAD(t, from, bytes)          16 rows of 64 bytes, `bytes` apart
       TILE_STORE(t, to, bytes)
       TILE_DOT(c, a, b)                  the instruction

   kernels_bf16_amx.c has the processor's, kernels_bf16_emulated.c the same in C. */
#ifndef CARRY_OPS_KERNELS_BF16_TILE_AMX_H
#define CARRY_OPS_KERNELS_BF16_TILE_AMX_H

#include "ops/kernels/bf16_pack.h"

#define AMX_LINES 32 /* rows of a panel of a, columns of one of b */
#define AMX_UNIT 32  /* k of a tile */
#define AMX_HALF 16  /* rows of a tile, columns of a tile of sums */

/* Lines with k contiguous become lines of tiles, four tiles at a time. */
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

/* Lines with k contiguous become columns of pairs. */
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

/* Lines that are contiguous over lines become lines of tiles. */
static void amx_turned(uint16_t *to, const uint16_t *from, ptrdiff_t row, int64_t units) {
    for (int64_t u = 0; u < units; u++) {
        for (int half = 0; half < AMX_LINES; half += AMX_HALF) {
            bf16_pairs rows[AMX_HALF];
            for (int pair = 0; pair < AMX_HALF; pair++) {
                const uint16_t *first = from + (u * AMX_UNIT + 2 * pair) * row + half;
                const uint16_t *second = first + row;
                for (int line = 0; line < AMX_HALF; line++) {
                    rows[pair][line] = first[line] | (uint32_t)second[line] << 16;
                }
            }
            bf16_transpose(rows);
            for (int line = 0; line < AMX_HALF; line++) {
                memcpy(to + (u * AMX_LINES + half + line) * AMX_UNIT, &rows[line], sizeof *rows);
            }
        }
    }
}

/* Whole units of whole panels by vectors, the rest element by element. */
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
    const int64_t units = lines == AMX_LINES && !across ? k / AMX_UNIT : 0;
    const int64_t l = units * AMX_UNIT;
    amx_columns(to, from, row, units);
    if (l < k) {
        bf16_pack(2, AMX_LINES, AMX_UNIT, to + l * AMX_LINES, from + (across ? l * row : l), row, across, lines, k - l);
    }
}

/* A pair of panels. */
typedef struct amx_pair {
    const uint16_t *a, *b;
    int64_t k;
    const float *base; /* NULL: zero */
    float *c;
    ptrdiff_t base_row, c_row;
    const char *next; /* a part of the panel of b after this one, `hints` lines of a cache for each unit of k */
    int hints;
} amx_pair;

/* Weights that were packed before come from memory, in pieces of 16 KiB that no processor foresees: the next one is
   asked for while panels of a pass. */
static inline const char *amx_fetch(const char *next, int hints) {
    for (int i = 0; i < hints; i++) {
        __builtin_prefetch(next + i * 64, 0, 2);
    }
    return next + (ptrdiff_t)hints * 64;
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
    amx_store(tiles, p->c, p->c_row);
}

/* The first half alone, for 16 rows and fewer. */
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

/* k of a block: with it a panel of b stays in a first cache of 48 KiB while panels of a pass through. */
#define AMX_DEPTH 256

static void amx_block(const carry_bf16_tile *t, int64_t l, int64_t depth) {
    amx_tiles tiles = {0};
    const float *base = l > 0 ? t->c : t->base;
    const ptrdiff_t base_row = l > 0 ? t->c_row : t->base_row;
    const bool leaves = t->out != NULL && l + depth == t->k;
    float *c = leaves ? t->out : t->c;
    const ptrdiff_t c_row = leaves ? t->out_row : t->c_row;
    const int64_t rows = t->row_panels_end - t->row_panel;
    const int hints = rows < 4 ? 8 : (int)((AMX_UNIT + rows - 1) / rows);
    const int64_t part = depth / AMX_UNIT * hints * 64;
    for (int64_t q = t->column_panel; q < t->column_panels_end; q++) {
        const bool ends = q + 1 == t->column_panels_end && l + depth < t->k;
        const uint16_t *after = t->b + ((ends ? t->column_panel : q + 1) * t->k + (ends ? l + depth : l)) * AMX_LINES;
        for (int64_t r = t->row_panel; r < t->row_panels_end; r++) {
            const amx_pair pair = {.a = t->a + (r * t->k + l) * AMX_LINES,
                                   .b = t->b + (q * t->k + l) * AMX_LINES,
                                   .k = depth,
                                   .base = base != NULL ? base + (r * base_row + q) * AMX_LINES : NULL,
                                   .c = c + (r * c_row + q) * AMX_LINES,
                                   .base_row = base_row,
                                   .c_row = c_row,
                                   .next = (const char *)after + (r - t->row_panel) * part,
                                   .hints = hints};
            (t->m - r * AMX_LINES <= AMX_HALF ? amx_upper : amx_whole)(&tiles, &pair);
        }
    }
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
    .tile = amx_tile, .whole = true, .split_a = amx_split_a, .split_b = amx_split_b, .terms = amx_terms

#endif
