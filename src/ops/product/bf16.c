/* bf16 products. The panels of a and b are packed into the context's buffer, then tiles of the result are computed
   from them; threads share both steps.

   A sum runs over k in order, whatever tile and thread it belongs to (kernels/bf16.h). If c is f32 and no panels of b
   are kept (kept.h), a long k is cut into blocks, and each block continues the sums in c. If c has 16 bits, k is not
   cut, since a sum is rounded once. */
#include "ops/product/bf16.h"

#include <string.h>

#include "core/context.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/product/kept.h"
#include "ops/product/packed.h"
#include "ops/quantised/rows.h"

/* k of a block if c is f32. A panel of 12 columns of b then takes 48 KiB, about a first-level cache. */
#define DEPTH 2048
/* The largest k that is not cut (16-bit c, or kept panels of b): a few panels of each operand must fit the buffer. */
#define WHOLE_DEPTH 16384
/* Floats for a tile of a 16-bit c, on the stack; and elements of the panels of a that a tile keeps in the
   second-level cache. */
#define TILE_FLOATS (96 * 192)
#define TILE_ELEMENTS ((int64_t)1 << 17)
#define TILES_PER_THREAD 4
/* For an entry that writes whole panels: rows and columns of a panel, and panels of a tile. The sums of a tile take
   272 KiB of the second-level cache, and its rows of a up to 1 MiB for each block of k. */
#define WHOLE_PANEL 32
#define WHOLE_PANELS 8
#define WHOLE_LINES (WHOLE_PANELS * WHOLE_PANEL)
/* For such an entry when it needs no sums besides c: elements of the panels of a in a tile, half of a second-level
   cache of 2 MiB. These panels stay in the cache while each panel of b is used once. */
#define WHOLE_OF_A ((int64_t)1 << 19)
_Static_assert(CARRY_PACKED_SUMS / WHOLE_LINES >= WHOLE_LINES + 16, "sums of a tile");
/* Elements of a block of b, small enough that packed panels are still in a cache when they are used. */
#define MOST_OF_B ((int64_t)1 << 21)
#define PACK_PIECE ((int64_t)1 << 15)
/* Columns of a quantised b that are decoded for a panel at a time, into 16 KiB of stack. */
#define DECODED CARRY_QUANT_PAD
/* Elements of a block of a quantised b for each thread: its panels stay in a second-level cache, where they are packed.
   From LONG_K on, a is larger than the cache, and more panels of b share each block of its k. */
#define DECODED_OF_B ((int64_t)1 << 18)
#define LONG_K 4096
#define TILE_PIECE_FLOPS 2000000

typedef struct job {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    const carry_bf16 *by;
    const carry_mixed_product *p;
    int64_t i, j, l; /* the block */
    int64_t m, n, k; /* its sizes, and k as packed */
    int64_t packed_k;
    uint16_t *a, *b;
    const uint16_t *panels; /* the panels of b, packed now or kept */
    int64_t row_panels, column_panels;
    int64_t pack_a_from;             /* panels of b before this index are packed first; 0: they are already packed */
    int64_t tile_rows, tile_columns; /* in panels */
    carry_quant_rows rows;           /* of a quantised b */
    int64_t row_tiles, column_tiles;
} job;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t pieces(int64_t whole, int64_t piece) {
    return (whole + piece - 1) / piece;
}

static void pack_panel(const job *j, carry_bf16_pack pack, uint16_t *to, const carry_matrix *matrix, bool across,
                       int64_t line, int64_t lines) {
    int64_t at = across ? j->l * matrix->row + line : line * matrix->row + j->l;
    pack(to, (const uint16_t *)matrix->data + at, matrix->row, across, lines, j->k);
}

/* The same for a panel of a quantised b, whose lines are decoded first. While columns of a line are decoded, the next
   ones of that line are fetched: a panel has more lines than processors can predict streams of addresses. */
static void pack_decoded(const job *j, uint16_t *to, int64_t line, int64_t lines) {
    uint16_t rows[WHOLE_PANEL * DECODED] __attribute__((aligned(64)));
    for (int64_t l = 0; l < j->k; l += DECODED) {
        const int64_t count = least(j->k - l, DECODED);
        for (int64_t i = 0; i < lines; i++) {
            if (l + count < j->k) {
                carry_quant_rows_fetch(&j->rows, line + i, j->l + l + count, least(j->k - l - count, DECODED));
            } else if (line + lines + i < j->p->n) {
                carry_quant_rows_fetch(&j->rows, line + lines + i, j->l, least(j->k, DECODED));
            }
            carry_quant_rows_bf16(&j->rows, line + i, j->l + l, count, rows + i * DECODED);
        }
        j->by->pack_b(to + l * j->by->columns, rows, DECODED, false, lines, count);
    }
}

static void pack_panels(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_mixed_product *p = j->p;
    for (int64_t at = begin; at < end; at++) {
        bool of_b = at < j->pack_a_from;
        int panel = of_b ? j->by->columns : j->by->rows;
        int64_t first = (of_b ? at : at - j->pack_a_from) * panel;
        int64_t lines = least((of_b ? j->n : j->m) - first, panel);
        uint16_t *to = (of_b ? j->b : j->a) + first * j->packed_k;
        if (of_b && p->b.dtype == CARRY_QUANTISED) {
            pack_decoded(j, to, j->j + first, lines);
        } else if (of_b) {
            pack_panel(j, j->by->pack_b, to, &p->b, !p->b.transposed, j->j + first, lines);
        } else {
            pack_panel(j, j->by->pack_a, to, &p->a, p->a.transposed, j->i + first, lines);
        }
    }
}

/* Multiplies the panels of a tile, with sums in `sums`, whose rows are an odd number of cache lines apart. The kernel
   writes the result directly to c if c is f32 and all panels are whole, or if c is bf16 and the kernel rounds sums
   (`halves`). */
static void run_whole(const job *j, carry_bf16_tile tile, float *sums) {
    const carry_mixed_product *p = j->p;
    const bool adds = p->accumulate || j->l > 0;
    const size_t size = carry_dtype_size(p->c_dtype);
    const int64_t i = tile.row_panel * j->by->rows;
    const int64_t at = tile.column_panel * j->by->columns;
    const ptrdiff_t row = (tile.column_panels_end - tile.column_panel) * j->by->columns + 16;
    tile.m = least(tile.row_panels_end * j->by->rows, j->m) - i;
    tile.n = least(tile.column_panels_end * j->by->columns, j->n) - at;
    tile.a += i * j->packed_k;
    tile.b += at * j->packed_k;
    tile.row_panels_end -= tile.row_panel;
    tile.column_panels_end -= tile.column_panel;
    tile.row_panel = tile.column_panel = 0;
    tile.c = sums;
    tile.c_row = tile.base_row = row;
    tile.base = adds ? sums : NULL;
    char *to = (char *)p->c + (size_t)((j->i + i) * p->c_row + j->j + at) * size;
    if (p->c_dtype == CARRY_BF16 && j->by->halves) {
        tile.half = (uint16_t *)(void *)to;
        tile.half_row = p->c_row;
        tile.half_adds = adds;
        tile.base = NULL;
        j->by->tile(&tile);
        return;
    }
    if (p->c_dtype == CARRY_F32 && tile.m % j->by->rows == 0 && tile.n % j->by->columns == 0) {
        tile.out = (float *)(void *)to;
        tile.base = adds ? tile.out : NULL;
        tile.out_row = tile.base_row = p->c_row;
        j->by->tile(&tile);
        return;
    }
    for (int64_t r = 0; adds && r < tile.m; r++) {
        carry_widen(j->kernels, sums + r * row, to + (size_t)(r * p->c_row) * size, p->c_dtype, tile.n);
    }
    j->by->tile(&tile);
    for (int64_t r = 0; r < tile.m; r++) {
        carry_narrow(j->kernels, to + (size_t)(r * p->c_row) * size, sums + r * row, p->c_dtype, tile.n);
    }
}

/* Without memory for sums, multiplies one pair of panels at a time: slower, with the same bits. */
static void run_pairs(const job *j, carry_bf16_tile tile) {
    float sums[WHOLE_PANEL * (WHOLE_PANEL + 16)];
    for (int64_t r = tile.row_panel; r < tile.row_panels_end; r++) {
        for (int64_t q = tile.column_panel; q < tile.column_panels_end; q++) {
            carry_bf16_tile pair = tile;
            pair.row_panel = r;
            pair.row_panels_end = r + 1;
            pair.column_panel = q;
            pair.column_panels_end = q + 1;
            run_whole(j, pair, sums);
        }
    }
}

static void run_tile(const job *j, carry_bf16_tile tile) {
    const carry_mixed_product *p = j->p;
    const bool adds = p->accumulate || j->l > 0;
    if (j->by->whole) {
        float *sums = carry_packed_sums(j->ctx);
        if (sums != NULL) {
            run_whole(j, tile, sums);
        } else {
            run_pairs(j, tile);
        }
        return;
    }
    if (p->c_dtype == CARRY_BF16 && j->by->halves) {
        tile.half = (uint16_t *)p->c + j->i * p->c_row + j->j;
        tile.half_row = p->c_row;
        tile.half_adds = adds;
        j->by->tile(&tile);
        return;
    }
    if (p->c_dtype == CARRY_F32) {
        tile.c = (float *)p->c + j->i * p->c_row + j->j;
        tile.c_row = tile.base_row = p->c_row;
        tile.base = adds ? tile.c : NULL;
        j->by->tile(&tile);
        return;
    }
    float beside[TILE_FLOATS];
    const int64_t i = tile.row_panel * j->by->rows;
    const int64_t at = tile.column_panel * j->by->columns;
    const int64_t rows = least(tile.row_panels_end * j->by->rows, j->m) - i;
    const int64_t columns = least(tile.column_panels_end * j->by->columns, j->n) - at;
    uint16_t *to = (uint16_t *)p->c + (j->i + i) * p->c_row + j->j + at;
    for (int64_t r = 0; adds && r < rows; r++) {
        carry_widen(j->kernels, beside + r * columns, to + r * p->c_row, p->c_dtype, columns);
    }
    tile.a += i * j->packed_k;
    tile.b += at * j->packed_k;
    tile.m = rows;
    tile.n = columns;
    tile.row_panels_end -= tile.row_panel;
    tile.column_panels_end -= tile.column_panel;
    tile.row_panel = tile.column_panel = 0;
    tile.c = beside;
    tile.c_row = tile.base_row = columns;
    tile.base = adds ? beside : NULL;
    j->by->tile(&tile);
    for (int64_t r = 0; r < rows; r++) {
        carry_narrow(j->kernels, to + r * p->c_row, beside + r * columns, p->c_dtype, columns);
    }
}

static void run_tiles(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t at = begin; at < end; at++) {
        int64_t row_panel =
            at % j->row_tiles * j->tile_rows; /* all rows for some columns, so that the panels of b stay in the cache */
        int64_t column_panel = at / j->row_tiles * j->tile_columns;
        run_tile(j, (carry_bf16_tile){.m = j->m,
                                      .n = j->n,
                                      .k = j->packed_k,
                                      .row_panel = row_panel,
                                      .row_panels_end = least(row_panel + j->tile_rows, j->row_panels),
                                      .column_panel = column_panel,
                                      .column_panels_end = least(column_panel + j->tile_columns, j->column_panels),
                                      .a = j->a,
                                      .b = j->panels});
    }
}

/* True if an entry that writes whole panels writes c itself, without separate sums. */
static bool writes_c(const job *j) {
    const carry_mixed_product *p = j->p;
    const bool whole = j->m % j->by->rows == 0 && j->n % j->by->columns == 0;
    const bool can = (p->c_dtype == CARRY_BF16 && j->by->halves) || (p->c_dtype == CARRY_F32 && whole);
    return can && j->packed_k <= j->by->depth;
}

/* Makes tiles as large as the second-level cache and, for a 16-bit c, the stack allow; smaller if there would be fewer
   than TILES_PER_THREAD tiles for each of several threads. */
static void cut_into_tiles(job *j, int threads) {
    const int rows = j->by->rows;
    const int columns = j->by->columns;
    int64_t most = TILE_ELEMENTS / (rows * j->packed_k) + 1;
    int64_t most_columns = least(j->column_panels, MOST_OF_B / (columns * j->packed_k) + 1);
    if (j->by->whole && writes_c(j)) {
        most = WHOLE_OF_A / (rows * j->packed_k) + 1;
        most_columns = j->column_panels;
    } else if (j->by->whole) {
        most = WHOLE_PANELS;
        most_columns = WHOLE_PANELS;
    } else if (j->p->c_dtype != CARRY_F32 && !(j->by->halves && j->p->c_dtype == CARRY_BF16)) {
        most = least(most, 96 / rows);
        most_columns = least(most_columns, TILE_FLOATS / (most * rows * columns));
    }
    int64_t wanted = threads > 1 ? (int64_t)threads * TILES_PER_THREAD : 1;
    int64_t row_tiles = pieces(j->row_panels, most);
    int64_t column_tiles = pieces(j->column_panels, most_columns);
    if (row_tiles * column_tiles < wanted) {
        column_tiles = least(pieces(wanted, row_tiles), j->column_panels);
    }
    if (row_tiles * column_tiles < wanted) {
        row_tiles = least(pieces(wanted, column_tiles), j->row_panels);
    }
    j->tile_rows = pieces(j->row_panels, row_tiles);
    j->tile_columns = pieces(j->column_panels, column_tiles);
    j->row_tiles = pieces(j->row_panels, j->tile_rows);
    j->column_tiles = pieces(j->column_panels, j->tile_columns);
}

static void spread(carry_ctx *ctx, int64_t count, int64_t grain, carry_task task, job *j) {
    if (ctx != NULL) {
        carry_parallel(ctx, count, grain, task, j);
    } else {
        task(j, 0, count, 0);
    }
}

static int64_t grain_of(double work, double each) {
    return each < work ? (int64_t)(work / each) + 1 : 1;
}

/* Runs one block in two steps; on this thread if ctx is NULL. */
static void run_block(carry_ctx *ctx, job *j, bool pack_a, bool pack_b, int threads) {
    j->packed_k = pieces(j->k, j->by->unit) * j->by->unit;
    j->row_panels = pieces(j->m, j->by->rows);
    j->column_panels = pieces(j->n, j->by->columns);
    j->pack_a_from = pack_b ? j->column_panels : 0;
    double panel = 0.5 * (double)(j->by->rows + j->by->columns) * (double)j->packed_k;
    spread(ctx, j->pack_a_from + (pack_a ? j->row_panels : 0), grain_of((double)PACK_PIECE, panel + 1.0), pack_panels,
           j);
    cut_into_tiles(j, threads);
    int64_t tiles = j->row_tiles * j->column_tiles;
    double flops = 2.0 * (double)(j->tile_rows * j->by->rows) * (double)(j->tile_columns * j->by->columns);
    spread(ctx, tiles, grain_of(TILE_PIECE_FLOPS, flops * (double)j->packed_k + 1.0), run_tiles, j);
}

bool carry_bf16_pays(const carry_bf16 *by, const carry_mixed_product *p) {
    bool fits = p->a.dtype == CARRY_BF16 && (p->b.dtype == CARRY_BF16 || p->b.dtype == CARRY_QUANTISED);
    fits = fits && (p->c_dtype == CARRY_F32 || p->k <= WHOLE_DEPTH);
    return by != NULL && fits && p->m >= 4 && p->n >= 4 && p->k >= 16 &&
           (double)p->m * (double)p->n * (double)p->k >= 32.0 * 32.0 * 32.0;
}

/* Elements of the buffer that are for panels of a: enough for all rows, so that they are packed once, if that leaves a
   quarter for b; else half of the buffer. If panels of b are kept elsewhere, the whole buffer. */
static int64_t room_for_a(const carry_bf16 *by, const carry_mixed_product *p, int64_t depth, int64_t elements,
                          bool b_is_kept) {
    const int64_t all = pieces(p->m, by->rows) * by->rows * depth;
    const int64_t wanted = pieces(all, 64) * 64;
    return b_is_kept ? elements : wanted <= elements / 4 * 3 ? wanted : elements / 2;
}

static int64_t of_decoded(int64_t depth, int threads) {
    return depth < LONG_K ? least(threads * DECODED_OF_B, MOST_OF_B) : MOST_OF_B;
}

static bool run(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *by, const carry_mixed_product *p,
                bool alone) {
    int64_t elements;
    uint16_t *buffer = carry_packed_buffer(ctx, &elements);
    if (buffer == NULL) {
        return false;
    }
    const bool decodes = p->b.dtype == CARRY_QUANTISED;
    const uint16_t *kept = p->k <= WHOLE_DEPTH && !decodes ? carry_kept_find(ctx, by, p) : NULL; /* of whole k */
    const int threads = alone ? 1 : carry_ctx_threads(ctx);
    int64_t blocks = p->c_dtype == CARRY_F32 && kept == NULL ? pieces(p->k, DEPTH) : 1;
    const int64_t unit = decodes ? CARRY_QUANT_PAD : by->unit; /* blocks of k start at whole blocks of a format */
    const int64_t depth = pieces(pieces(p->k, blocks), unit) * unit;
    int64_t a_room = room_for_a(by, p, depth, elements, kept != NULL);
    int64_t b_room = least(elements - a_room, decodes ? of_decoded(depth, threads) : MOST_OF_B);
    int64_t most_m = a_room / (depth * by->rows) * by->rows;
    int64_t most_n = kept != NULL ? p->n : b_room / (depth * by->columns) * by->columns;
    if (most_m < 1 || most_n < 1) {
        return false;
    }
    job j = {.ctx = ctx, .kernels = kernels, .by = by, .p = p, .a = buffer, .b = buffer + a_room};
    if (decodes) {
        j.rows = carry_quant_rows_of(kernels, &p->b, p->n, p->k);
    }
    j.panels = kept != NULL ? kept : j.b;
    bool a_stays = most_m >= p->m && depth >= p->k;
    const bool a_lasts = a_stays && !alone; /* the next product may reuse it */
    const bool a_is_there = a_lasts && p->a_packed != NULL && *p->a_packed;
    if (p->a_packed != NULL) {
        *p->a_packed = a_lasts;
    }
    for (j.j = 0; j.j < p->n; j.j += most_n) {
        for (j.l = 0; j.l < p->k; j.l += depth) {
            for (j.i = 0; j.i < p->m; j.i += most_m) {
                j.m = least(p->m - j.i, most_m);
                j.n = least(p->n - j.j, most_n);
                j.k = least(p->k - j.l, depth);
                run_block(alone ? NULL : ctx, &j, !a_is_there && (j.j == 0 || !a_stays), j.i == 0 && kept == NULL,
                          threads);
            }
        }
    }
    return true;
}

bool carry_bf16_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *by,
                    const carry_mixed_product *product) {
    return run(ctx, kernels, by, product, carry_worker(ctx) > 0);
}

bool carry_bf16_run_alone(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *by,
                          const carry_mixed_product *product) {
    return run(ctx, kernels, by, product, true);
}
