/* Products with 16-bit operands by the kernels for f32: operands are widened as their panels are packed (packed.c is
   the same for f32). The panels of a, over all of k, go into the context's buffer. Then threads take stripes of
   columns, and each keeps a stripe's panels of b and its sums in its own second-level cache: a weight is read once
   for ROWS tokens, and 16-bit results are rounded once.

   Sums run over k in order, whatever stripe and thread they belong to: the bits are those of the tiles of linear.c. */
#include "ops/product/widened.h"

#include "core/context.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/product/packed.h"

/* Rows of a block and columns of a stripe: the sums take 256 KiB, and b 128 KiB on the stack. */
#define ROWS 512
#define STRIPE 128
/* k of a block. 384, which f32 products use on AVX-512, was slower here. Kernels with blocks deeper than MOST_DEPTH
   (NEON) use the tiles of linear.c. */
#define DEPTH 256
#define MOST_DEPTH 384
#define STRIPES_PER_THREAD 4
_Static_assert(ROWS *STRIPE <= CARRY_PACKED_SUMS, "sums of a stripe");
#define PACK_PIECE ((int64_t)1 << 14)
#define STRIPE_PIECE_FLOPS 500000

typedef struct job {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    const carry_packed *packed;
    const carry_mixed_product *p;
    float *a;
    int64_t i, m; /* rows of the block */
    int64_t row_panels, depth, blocks;
    int64_t stripe; /* columns */
} job;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t pieces(int64_t whole, int64_t piece) {
    return (whole + piece - 1) / piece;
}

static float *a_block(const job *j, int64_t block) {
    return j->a + block * j->depth * j->row_panels * j->packed->stride;
}

/* Packs lines from `first` on and k from `l` on of an operand into a panel. Lines are rows of a or columns of b. */
static void pack(const job *j, bool of_b, float *to, int64_t first, int64_t lines, int64_t l, int64_t k) {
    const carry_packed *packed = j->packed;
    const carry_matrix *from = of_b ? &j->p->b : &j->p->a;
    const bool across = from->transposed != of_b;
    const int64_t at = across ? l * from->row + first : first * from->row + l;
    if (from->dtype != CARRY_F32) {
        packed->pack_half(to, of_b ? packed->columns : packed->stride, (const uint16_t *)from->data + at, from->row,
                          across, lines, k, from->dtype);
    } else {
        (of_b ? packed->pack_b : packed->pack_a)(to, (const float *)from->data + at, from->row, from->transposed, lines,
                                                 k);
    }
}

static void pack_a_panels(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t at = begin; at < end; at++) {
        const int64_t panel = at % j->row_panels;
        const int64_t l = at / j->row_panels * j->depth;
        const int64_t k = least(j->p->k - l, j->depth);
        const int64_t first = carry_packed_row(panel, j->m, j->row_panels);
        const int64_t rows = carry_packed_row(panel + 1, j->m, j->row_panels) - first;
        pack(j, false, a_block(j, at / j->row_panels) + panel * j->packed->stride * k, j->i + first, rows, l, k);
    }
}

static void run_stripe(const job *j, int64_t n_at, int64_t n, float *sums) {
    const carry_mixed_product *p = j->p;
    const int columns = j->packed->columns;
    float b[STRIPE * DEPTH];
    const size_t size = carry_dtype_size(p->c_dtype);
    char *to = (char *)p->c + (size_t)(j->i * p->c_row + n_at) * size;
    const bool beside = p->c_dtype != CARRY_F32;
    carry_packed_tile tile = {.m = j->m,
                              .n = n,
                              .row_panels = j->row_panels,
                              .row_panels_end = j->row_panels,
                              .column_panels_end = pieces(n, columns),
                              .b = b,
                              .c = beside ? sums : (float *)(void *)to,
                              .c_row = beside ? n : p->c_row};
    tile.base_row = tile.c_row;
    for (int64_t r = 0; beside && p->accumulate && r < j->m; r++) {
        carry_widen(j->kernels, sums + r * n, to + (size_t)(r * p->c_row) * size, p->c_dtype, n);
    }
    for (int64_t block = 0; block < j->blocks; block++) {
        const int64_t l = block * j->depth;
        tile.k = least(p->k - l, j->depth);
        tile.a = a_block(j, block);
        tile.base = block > 0 || p->accumulate ? tile.c : NULL;
        for (int64_t first = 0; first < n; first += columns) {
            pack(j, true, b + first * tile.k, n_at + first, least(n - first, columns), l, tile.k);
        }
        j->packed->tile(&tile);
    }
    for (int64_t r = 0; beside && r < j->m; r++) {
        carry_narrow(j->kernels, to + (size_t)(r * p->c_row) * size, sums + r * n, p->c_dtype, n);
    }
}

static void run_stripes(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float *sums = carry_packed_sums(j->ctx);
    for (int64_t at = begin; at < end; at++) {
        run_stripe(j, at * j->stripe, least(j->p->n - at * j->stripe, j->stripe), sums);
    }
}

static void spread(carry_ctx *ctx, int64_t count, int64_t grain, carry_task task, job *j) {
    if (ctx != NULL) {
        carry_parallel(ctx, count, grain, task, j);
    } else {
        task(j, 0, count, 0);
    }
}

bool carry_widened_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *p) {
    const carry_packed *packed = kernels->packed;
    int64_t elements;
    float *buffer = (float *)(void *)carry_packed_buffer(ctx, &elements);
    if (buffer == NULL || packed->columns > STRIPE || packed->depth > MOST_DEPTH || carry_packed_sums(ctx) == NULL) {
        return false;
    }
    carry_ctx *over = carry_worker(ctx) > 0 ? NULL : ctx;
    const int threads = over != NULL ? carry_ctx_threads(ctx) : 1;
    job j = {.ctx = ctx, .kernels = kernels, .packed = packed, .p = p, .a = buffer};
    j.depth = pieces(p->k, pieces(p->k, least(packed->depth, DEPTH)));
    j.blocks = pieces(p->k, j.depth);
    const int64_t fit = elements / 2 / (j.blocks * j.depth * packed->stride) * packed->rows;
    if (fit < packed->rows) {
        return false;
    }
    const int64_t most = pieces(p->m, pieces(p->m, least(fit, ROWS)));
    const int64_t wanted = pieces(p->n, threads > 1 ? (int64_t)threads * STRIPES_PER_THREAD : 1);
    j.stripe = least(pieces(wanted, packed->columns) * packed->columns, STRIPE / packed->columns * packed->columns);
    for (j.i = 0; j.i < p->m; j.i += most) {
        j.m = least(p->m - j.i, most);
        j.row_panels = pieces(j.m, packed->rows);
        spread(over, j.row_panels * j.blocks, PACK_PIECE / (packed->stride * j.depth) + 1, pack_a_panels, &j);
        const double flops = 2.0 * (double)j.m * (double)j.stripe * (double)p->k;
        spread(over, pieces(p->n, j.stripe), flops < STRIPE_PIECE_FLOPS ? (int64_t)(STRIPE_PIECE_FLOPS / flops) + 1 : 1,
               run_stripes, &j);
    }
    return true;
}
