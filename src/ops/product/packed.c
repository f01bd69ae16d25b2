/* Packed products. For each block of k, the panels of a and b are packed into the context's buffer, then tiles of
   the result are computed from it; threads share both steps.

   A tile takes few enough panels of a that they stay in the second-level cache while the panels of b pass through
   the first. Sums run over k in order, whatever tile and thread they belong to: the number of threads and the sizes
   of tiles do not change the bits (kernels/vector_packed.h). */
#include "ops/product/packed.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/context.h"
#include "core/threads.h"
#include "ops/product/bf16.h"
#include "ops/product/kept.h"
#include "ops/product/rates.h"

/* SHARED_FLOATS: floats that f32 products use of the buffer that all threads fill together; WORKER_FLOATS: floats of
   the buffer of one thread. Half of either is for a and half for b. */
#define SHARED_FLOATS ((int64_t)1 << 21)
/* 16-bit elements of the buffer that all threads fill: enough for 512 tokens of 9216 and a block of a weight. */
#define SHARED_HALVES ((int64_t)1 << 23)
#define WORKER_FLOATS ((int64_t)3 << 16)
#define LARGE_PAGE ((size_t)1 << 21)
/* Floats of the panels of a that a tile keeps in the second-level cache. */
#define TILE_FLOATS ((int64_t)1 << 17)
#define TILES_PER_THREAD 4
/* k of a block is a multiple of the side of the squares that packing transposes, as a kernel's largest depth is. */
#define DEPTH_UNIT 8
/* Amounts of work that are worth a thread. */
#define PACK_PIECE ((int64_t)1 << 14)
#define TILE_PIECE_FLOPS 500000

/* Whether the processor's bf16 instructions are used, or bf16 is widened because that was measured to be faster. */
enum { FASTER = 1, SLOWER };
/* Types of activations whose products with quantised weights are done by integers. */
enum { SETTLED = 1, FOR_BF16 = 2, FOR_OTHERS = 4 };

/* The data of a context's slot of ops. */
typedef struct buffers {
    const carry_kernels *kernels;
    const carry_bf16 *bf16;
    _Atomic int bf16_settled; /* 0: not decided yet; else FASTER or SLOWER */
    _Atomic int integers;     /* 0: not decided yet; else SETTLED with the types */
    int threads;
    double blas_from;
    carry_kept *kept;
    void *decoded; /* carry_packed_decoded */
    size_t decoded_bytes;
    float *of[]; /* by worker; worker 0 has the shared buffer */
} buffers;

typedef struct job {
    const carry_packed *packed;
    const carry_product *p; /* one item */
    int64_t i, j, l;        /* the block */
    carry_packed_tile block;
    float *a, *b;
    int64_t column_panels;
    int64_t pack_a_from; /* panels of b before this index are packed first; 0: they are already packed */
    int64_t tile_rows, tile_columns, column_tiles; /* in panels */
} job;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t pieces(int64_t whole, int64_t piece) {
    return (whole + piece - 1) / piece;
}

static void pack_a_panel(const job *j, int64_t panel) {
    const carry_product *p = j->p;
    int64_t first = carry_packed_row(panel, j->block.m, j->block.row_panels);
    int64_t rows = carry_packed_row(panel + 1, j->block.m, j->block.row_panels) - first;
    int64_t i = j->i + first;
    const float *from = p->a_transposed ? p->a + j->l * p->a_row + i : p->a + i * p->a_row + j->l;
    j->packed->pack_a(j->a + panel * j->packed->stride * j->block.k, from, p->a_row, p->a_transposed, rows, j->block.k);
}

static void pack_b_panel(const job *j, int64_t panel) {
    const carry_product *p = j->p;
    int64_t first = panel * j->packed->columns;
    int64_t columns = least(j->block.n - first, j->packed->columns);
    int64_t at = j->j + first;
    const float *from = p->b_transposed ? p->b + at * p->b_row + j->l : p->b + j->l * p->b_row + at;
    j->packed->pack_b(j->b + first * j->block.k, from, p->b_row, p->b_transposed, columns, j->block.k);
}

static void pack_panels(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t panel = begin; panel < end; panel++) {
        if (panel < j->pack_a_from) {
            pack_b_panel(j, panel);
        } else {
            pack_a_panel(j, panel - j->pack_a_from);
        }
    }
}

static void run_tiles(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t at = begin; at < end; at++) {
        carry_packed_tile tile = j->block;
        tile.row_panel = at / j->column_tiles * j->tile_rows;
        tile.row_panels_end = least(tile.row_panel + j->tile_rows, tile.row_panels);
        tile.column_panel = at % j->column_tiles * j->tile_columns;
        tile.column_panels_end = least(tile.column_panel + j->tile_columns, j->column_panels);
        j->packed->tile(&tile);
    }
}

/* Makes tiles as large as the second-level cache allows; smaller if there would be fewer than TILES_PER_THREAD tiles
   for each of several threads. */
static void cut_into_tiles(job *j, int threads) {
    const carry_packed_tile *b = &j->block;
    int64_t most = TILE_FLOATS / (j->packed->stride * b->k) + 1;
    int64_t row_tiles = pieces(b->row_panels, most);
    int64_t wanted = threads > 1 ? (int64_t)threads * TILES_PER_THREAD : 1;
    int64_t column_tiles = least(pieces(wanted, row_tiles), pieces(j->column_panels, 2));
    if (row_tiles * column_tiles < wanted) {
        row_tiles = least(pieces(wanted, column_tiles), b->row_panels);
    }
    j->tile_rows = pieces(b->row_panels, row_tiles);
    j->tile_columns = pieces(j->column_panels, column_tiles);
    j->column_tiles = pieces(j->column_panels, j->tile_columns);
}

static void spread(carry_ctx *ctx, int64_t count, int64_t grain, carry_task task, job *j) {
    if (ctx != NULL) {
        carry_parallel(ctx, count, grain, task, j);
    } else {
        task(j, 0, count, 0);
    }
}

/* Runs one block, m x n x k, in two steps; on this thread if ctx is NULL. */
static void run_block(carry_ctx *ctx, job *j, bool pack_b, int threads) {
    int64_t a_floats = j->packed->stride * j->block.k;
    int64_t b_floats = j->packed->columns * j->block.k;
    j->pack_a_from = pack_b ? j->column_panels : 0;
    spread(ctx, j->pack_a_from + j->block.row_panels, PACK_PIECE / (a_floats + b_floats) * 2 + 1, pack_panels, j);
    cut_into_tiles(j, threads);
    int64_t tiles = pieces(j->block.row_panels, j->tile_rows) * j->column_tiles;
    double flops = 2.0 * (double)(j->tile_rows * j->packed->rows) * (double)(j->tile_columns * b_floats);
    spread(ctx, tiles, flops < TILE_PIECE_FLOPS ? (int64_t)(TILE_PIECE_FLOPS / flops) + 1 : 1, run_tiles, j);
}

static void run_item(carry_ctx *ctx, const carry_packed *packed, const carry_product *p, float *buffer, int64_t floats,
                     int threads) {
    job j = {.packed = packed, .p = p, .a = buffer, .b = buffer + floats / 2};
    int64_t k_blocks = pieces(p->k, packed->depth);
    int64_t depth = pieces(pieces(p->k, k_blocks), DEPTH_UNIT) * DEPTH_UNIT;
    int64_t most_m = floats / 2 / (depth * packed->stride) * packed->rows;
    int64_t most_n = floats / 2 / (depth * packed->columns) * packed->columns;
    for (j.j = 0; j.j < p->n; j.j += most_n) {
        for (j.l = 0; j.l < p->k; j.l += depth) {
            for (j.i = 0; j.i < p->m; j.i += most_m) {
                const float *base = j.l > 0 ? p->c : p->base;
                ptrdiff_t base_row = j.l > 0 ? p->c_row : p->base_row;
                int64_t m = least(p->m - j.i, most_m);
                j.block = (carry_packed_tile){.m = m,
                                              .n = least(p->n - j.j, most_n),
                                              .k = least(p->k - j.l, depth),
                                              .row_panels = pieces(m, packed->rows),
                                              .a = j.a,
                                              .b = j.b,
                                              .base = base != NULL ? base + j.i * base_row + j.j : NULL,
                                              .c = p->c + j.i * p->c_row + j.j,
                                              .base_row = base_row,
                                              .c_row = p->c_row};
                j.column_panels = pieces(j.block.n, packed->columns);
                run_block(ctx, &j, j.i == 0, threads);
            }
        }
    }
}

/* Packing costs about as much as reading a and b once more, which pays from sides of 48 on. */
bool carry_packed_pays(const carry_kernels *kernels, const carry_product *p) {
    return kernels->packed != NULL && p->m >= 48 && p->n >= 48 && p->k >= 32 &&
           (double)p->m * (double)p->n * (double)p->k >= 96.0 * 96.0 * 96.0;
}

static void free_buffers(void *given) {
    buffers *b = given;
    for (int i = 0; i < b->threads; i++) {
        free(b->of[i]);
    }
    carry_kept_free(b->kept);
    free(b->decoded);
    free(b);
}

const carry_kernels *carry_packed_kernels(const carry_ctx *ctx) {
    const buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    return all != NULL ? all->kernels : NULL;
}

/* As with OpenBLAS (matmul.c), only remembered rates count, and the choice is fixed at a context's first product. */
const carry_bf16 *carry_bf16_of(carry_ctx *ctx) {
    buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    if (all == NULL || all->bf16 == NULL) {
        return NULL;
    }
    int settled = atomic_load(&all->bf16_settled);
    if (settled == 0) {
        const carry_rates_table *rates = ctx->slots[CARRY_SLOT_RATES].data;
        bool slower = ctx->kernels == NULL && rates != NULL && rates->remembered && carry_rates_bf16_slower(rates);
        settled = slower ? SLOWER : FASTER;
        atomic_store(&all->bf16_settled, settled);
    }
    return settled == FASTER ? all->bf16 : NULL;
}

/* Without remembered rates, integers are faster than f32, and products by instructions for bf16 are faster. */
bool carry_packed_integers(carry_ctx *ctx, carry_dtype dtype) {
    buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    int settled = all != NULL ? atomic_load(&all->integers) : SETTLED;
    if (settled == 0) {
        const carry_rates_table *rates = ctx->slots[CARRY_SLOT_RATES].data;
        const bool known = ctx->kernels == NULL && rates != NULL && rates->remembered && rates->large_integers > 0.0;
        const bool beat_f32 = !known || rates->large_integers > rates->large_own;
        const bool beat_bf16 = known && rates->large_integers > rates->large_bf16;
        settled = SETTLED | (beat_f32 ? FOR_OTHERS : 0);
        settled |= (carry_bf16_of(ctx) != NULL ? beat_bf16 : beat_f32) ? FOR_BF16 : 0;
        atomic_store(&all->integers, settled);
    }
    return (settled & (dtype == CARRY_BF16 ? FOR_BF16 : FOR_OTHERS)) != 0;
}

const carry_bf16 *carry_packed_bf16(const carry_ctx *ctx) {
    const buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    return all != NULL ? all->bf16 : NULL;
}

carry_status carry_packed_prepare(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *bf16) {
    buffers *made = calloc(1, sizeof *made + (size_t)carry_ctx_threads(ctx) * sizeof made->of[0]);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a table of %d buffers", carry_ctx_threads(ctx));
    }
    made->kernels = kernels;
    made->bf16 = bf16;
    made->threads = carry_ctx_threads(ctx);
    ctx->slots[CARRY_SLOT_OPS].data = made;
    ctx->slots[CARRY_SLOT_OPS].free = free_buffers;
    return CARRY_OK;
}

double *carry_packed_blas_from(carry_ctx *ctx) {
    buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    return all != NULL ? &all->blas_from : NULL;
}

carry_kept **carry_packed_kept(carry_ctx *ctx) {
    buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    return all != NULL ? &all->kept : NULL;
}

void *carry_packed_decoded(carry_ctx *ctx, size_t bytes) {
    buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    if (all == NULL || carry_worker(ctx) != 0) {
        return NULL;
    }
    if (bytes > all->decoded_bytes) {
        const size_t whole = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
        free(all->decoded);
        all->decoded = aligned_alloc(LARGE_PAGE, whole);
        all->decoded_bytes = all->decoded != NULL ? whole : 0;
        if (all->decoded != NULL) {
            (void)madvise(all->decoded, whole, MADV_HUGEPAGE); /* as in buffer_of */
        }
    }
    return all->decoded;
}

static float *buffer_of(buffers *all, int worker) {
    if (all->of[worker] == NULL) {
        const int64_t floats = worker == 0 ? SHARED_HALVES / 2 : WORKER_FLOATS;
        size_t bytes = (size_t)(floats + CARRY_PACKED_SUMS) * sizeof(float);
        all->of[worker] = aligned_alloc(LARGE_PAGE, (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
        if (all->of[worker] != NULL) {
            /* A hint: thousands of pages of 4 KiB would miss the TLB. */
            (void)madvise(all->of[worker], bytes, MADV_HUGEPAGE);
        }
    }
    return all->of[worker];
}

uint16_t *carry_packed_buffer(carry_ctx *ctx, int64_t *elements) {
    buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    int worker = carry_worker(ctx);
    *elements = worker == 0 ? SHARED_HALVES : 2 * WORKER_FLOATS;
    return all != NULL ? (uint16_t *)(void *)buffer_of(all, worker) : NULL;
}

float *carry_packed_sums(carry_ctx *ctx) {
    int64_t elements;
    uint16_t *buffer = carry_packed_buffer(ctx, &elements);
    return buffer != NULL ? (float *)(void *)(buffer + elements) : NULL;
}

static void run(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product, int64_t item, bool alone) {
    buffers *all = ctx->slots[CARRY_SLOT_OPS].data;
    carry_product one = *product;
    one.count = 1;
    one.a += item * one.a_next;
    one.b += item * one.b_next;
    one.c += item * one.c_next;
    one.base = one.base != NULL ? one.base + item * one.base_next : NULL;
    int worker = carry_worker(ctx);
    int64_t floats = worker == 0 ? SHARED_FLOATS : WORKER_FLOATS;
    float *buffer = all != NULL ? buffer_of(all, worker) : NULL;
    if (buffer == NULL || kernels->packed == NULL) {
        kernels->product(&one); /* out of memory: slower, and the same bits */
        return;
    }
    alone = alone || worker > 0;
    run_item(alone ? NULL : ctx, kernels->packed, &one, buffer, floats, alone ? 1 : carry_ctx_threads(ctx));
}

void carry_packed_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product, int64_t item) {
    run(ctx, kernels, product, item, false);
}

void carry_packed_run_alone(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product) {
    run(ctx, kernels, product, 0, true);
}
