/* Products of many tokens with quantised weights by integers. Tokens are rounded into panels of six, chunk by chunk of
   256 columns. Threads take stripes of the weight's rows; in a stripe, 32 rows of a chunk are unpacked to the
   first-level cache and multiplied with all panels of the chunk, which stay in the second level with the stripe's sums.

   Sums run over k in order, whatever stripe, panel and thread they belong to. */
#include "ops/quantised/many.h"

#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/kernels/quant_many.h"
#include "ops/product/packed.h"

/* Rows of a stripe, and the most panels at a time: the sums take CARRY_PACKED_SUMS. */
#define STRIPE 128
#define MOST_PANELS (CARRY_PACKED_SUMS / (STRIPE * CARRY_QUANT_MANY_TOKENS))
#define STRIPES_PER_THREAD 4
#define PACK_GRAIN 4 /* panels */
_Static_assert(STRIPE % CARRY_QUANT_MANY_ROWS == 0, "rows of a stripe");

typedef struct map {
    carry_quant_many_function function;
    carry_tensor y, W;
    int64_t pieces, stripes; /* pieces of a row of W */
} map;

typedef struct job {
    carry_ctx *ctx;
    const carry_kernels *kernels;
    const carry_quant_kernels *by;
    carry_tensor x;
    map of[CARRY_MAX_MERGED_MAPS];
    int maps;
    bool accumulate;
    int64_t first, tokens, panels; /* the block of tokens */
    int64_t chunks, stripe;
    carry_quant_panel *packed; /* [chunk][panel] */
} job;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t pieces(int64_t whole, int64_t piece) {
    return (whole + piece - 1) / piece;
}

static void pack_token(const job *j, int64_t token) {
    const int64_t k = j->x.shape[1];
    const size_t size = carry_dtype_size(j->x.dtype);
    const char *from = (const char *)j->x.data + (size_t)((j->first + token) * k) * size;
    float wide[CARRY_QUANT_CHUNK];
    for (int64_t c = 0; c < j->chunks; c++) {
        const int64_t at = c * CARRY_QUANT_CHUNK;
        const int64_t count = token < j->tokens ? least(k - at, CARRY_QUANT_CHUNK) : 0; /* zeros after the last token */
        if (count > 0) {
            carry_widen(j->kernels, wide, from + (size_t)at * size, j->x.dtype, count);
        }
        j->by->pack(&j->packed[c * j->panels + token / CARRY_QUANT_MANY_TOKENS], (int)(token % CARRY_QUANT_MANY_TOKENS),
                    wide, count);
    }
}

static void pack_panels(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t t = begin * CARRY_QUANT_MANY_TOKENS; t < end * CARRY_QUANT_MANY_TOKENS; t++) {
        pack_token(argument, t);
    }
}

/* Multiplies `rows` rows of a map, at most a stripe, with `panels` panels, and writes them to y. */
static void run_rows(const job *j, const map *m, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                     float *sums) {
    const size_t row_bytes = (size_t)m->W.stride[0];
    const size_t size = carry_dtype_size(m->y.dtype);
    memset(sums, 0, (size_t)(panels * CARRY_QUANT_MANY_TOKENS * STRIPE) * sizeof *sums);
    for (int64_t c = 0; c < j->chunks; c++) {
        for (int64_t r = 0; r < rows; r += CARRY_QUANT_MANY_ROWS) {
            m->function(
                &(carry_quant_many){.rows = (int)least(rows - r, CARRY_QUANT_MANY_ROWS),
                                    .pieces = (int)least(m->pieces - c * CARRY_QUANT_PIECES, CARRY_QUANT_PIECES),
                                    .chunk = c,
                                    .w = (const unsigned char *)m->W.data + (size_t)(row + r) * row_bytes,
                                    .row_bytes = row_bytes,
                                    .panels = panels,
                                    .x = j->packed + c * j->panels + panel,
                                    .sums = sums + r,
                                    .sums_row = STRIPE});
        }
    }
    for (int64_t t = 0; t < panels * CARRY_QUANT_MANY_TOKENS; t++) {
        const int64_t token = panel * CARRY_QUANT_MANY_TOKENS + t;
        float *from = sums + t * STRIPE;
        float old[STRIPE];
        if (token >= j->tokens) {
            break;
        }
        char *to = (char *)m->y.data + (size_t)((j->first + token) * m->y.shape[1] + row) * size;
        if (j->accumulate) {
            carry_widen(j->kernels, old, to, m->y.dtype, rows);
        }
        for (int64_t r = 0; j->accumulate && r < rows; r++) {
            from[r] += old[r];
        }
        carry_narrow(j->kernels, to, from, m->y.dtype, rows);
    }
}

static void run_stripe(const job *j, const map *m, int64_t stripe) {
    const int64_t row = stripe * j->stripe;
    const int64_t rows = least(m->W.shape[0] - row, j->stripe);
    float *sums = carry_packed_sums(j->ctx);
    if (sums != NULL) {
        run_rows(j, m, row, rows, 0, j->panels, sums);
        return;
    }
    float few[CARRY_QUANT_MANY_TOKENS * STRIPE]; /* out of memory: slower, and the same bits */
    for (int64_t panel = 0; panel < j->panels; panel++) {
        run_rows(j, m, row, rows, panel, 1, few);
    }
}

static void run_stripes(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    int64_t before = 0;
    for (int i = 0; i < j->maps; i++) {
        const int64_t last = least(end - before, j->of[i].stripes);
        for (int64_t stripe = begin > before ? begin - before : 0; stripe < last; stripe++) {
            run_stripe(j, &j->of[i], stripe);
        }
        before += j->of[i].stripes;
    }
}

/* Returns the number of stripes of all maps. */
static int64_t cut_into_stripes(job *j, int64_t rows, int threads) {
    const int64_t wanted = threads > 1 ? (int64_t)threads * STRIPES_PER_THREAD : 1;
    const int64_t even = pieces(pieces(rows, wanted), CARRY_QUANT_MANY_ROWS) * CARRY_QUANT_MANY_ROWS;
    int64_t stripes = 0;
    j->stripe = least(even, STRIPE);
    for (int i = 0; i < j->maps; i++) {
        j->of[i].stripes = pieces(j->of[i].W.shape[0], j->stripe);
        stripes += j->of[i].stripes;
    }
    return stripes;
}

static bool run(carry_ctx *ctx, job *j, int maps, const carry_tensor *y, const carry_tensor *W, bool alone) {
    const int64_t k = j->x.shape[1];
    const int64_t tokens = j->x.shape[0];
    int64_t rows = 0;
    int64_t elements;
    for (int i = 0; j->by->many != NULL && i < maps; i++) {
        const carry_quant_format *format = carry_quant_format_of(&W[i]);
        carry_quant_many_function function = format != NULL ? j->by->many(format) : NULL;
        if (function == NULL) {
            return false;
        }
        j->of[j->maps++] = (map){
            .function = function, .y = y[i], .W = W[i], .pieces = pieces(k, format->block) * (format->block / 32)};
        rows += W[i].shape[0];
    }
    j->packed = j->maps > 0 ? (carry_quant_panel *)(void *)carry_packed_buffer(ctx, &elements) : NULL;
    if (j->packed == NULL || tokens < 1 || rows < 1 || k < 1) {
        return false;
    }
    j->ctx = ctx;
    j->chunks = pieces(k, CARRY_QUANT_CHUNK);
    const int64_t most = least(MOST_PANELS, 2 * elements / (j->chunks * (int64_t)sizeof *j->packed));
    if (most < 1) {
        return false;
    }
    CARRY_SPAN(ctx, "ops", "linear");
    carry_span_work(ctx, 2.0 * (double)tokens * (double)rows * (double)k, 0.0);
    const int64_t all = pieces(tokens, CARRY_QUANT_MANY_TOKENS);
    const int64_t each = pieces(all, pieces(all, most)); /* panels, so that blocks have about the same size */
    for (j->first = 0; j->first < tokens; j->first += each * CARRY_QUANT_MANY_TOKENS) {
        j->tokens = least(tokens - j->first, each * CARRY_QUANT_MANY_TOKENS);
        j->panels = pieces(j->tokens, CARRY_QUANT_MANY_TOKENS);
        const int64_t stripes = cut_into_stripes(j, rows, alone ? 1 : carry_ctx_threads(ctx));
        if (alone) {
            pack_panels(j, 0, j->panels, 0);
            run_stripes(j, 0, stripes, 0);
        } else {
            carry_parallel(ctx, j->panels, PACK_GRAIN, pack_panels, j);
            carry_parallel(ctx, stripes, 1, run_stripes, j);
        }
    }
    return true;
}

static bool run_maps(carry_ctx *ctx, const carry_kernels *kernels, int maps, const carry_tensor *y, carry_tensor x,
                     const carry_tensor *W, bool accumulate) {
    const bool is_half = x.dtype == CARRY_BF16 || x.dtype == CARRY_F16;
    job j = {.kernels = kernels, .by = carry_quant_kernels_for(kernels->name), .x = x, .accumulate = accumulate};
    return is_half && j.by->many != NULL && x.shape[0] >= j.by->many_tokens && carry_packed_integers(ctx, x.dtype) &&
           run(ctx, &j, maps, y, W, false);
}

bool carry_quantised_many(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                          bool accumulate) {
    return run_maps(ctx, kernels, 1, &y, x, &W, accumulate);
}

bool carry_quantised_many_merged(carry_ctx *ctx, const carry_kernels *kernels, const carry_merged_linear_args *args) {
    bool alike = args->maps > 0;
    for (int i = 0; i < args->maps; i++) {
        alike = alike && args->W[i].dtype == CARRY_QUANTISED;
    }
    return alike && run_maps(ctx, kernels, args->maps, args->y, args->x, args->W, false);
}

bool carry_quantised_many_alone(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x,
                                carry_tensor W) {
    job j = {.kernels = kernels, .by = carry_quant_kernels_for(kernels->name), .x = x};
    return run(ctx, &j, 1, &y, &W, true);
}
