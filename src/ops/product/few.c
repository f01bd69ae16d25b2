/* A few tokens times a 16-bit weight, as dot products: the weight is read as it is, or from kept panels (kept.h), and
   threads share its rows. */
#include "ops/product/few.h"

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/product/bf16.h"
#include "ops/convert.h"
#include "ops/product/kept.h"
#include "ops/product/packed.h"

/* FEW_TOKENS: the largest number of tokens computed at once with bf16 instructions (carry_bf16.few); without such
   instructions, half as many. With them, up to MORE_TOKENS tokens are computed in several parts: at 2048 x 2048, 16
   tokens reach 145 GFLOP/s, against 96 with the weight packed, and 32 tokens 145 against 140. From PANEL_TOKENS tokens
   on, kept panels of the weight (kept.h) are faster if there are any; then up to MORE_TOKENS tokens are computed at
   once. FEW_SUMS: sums held at a time, those of 8192 rows of the weight for one token; they are many because each part
   restarts prefetching. FEW_PIECE: elements of the weight that are worth a thread, some 25 us of reading. */
#define FEW_TOKENS 8
#define MORE_TOKENS 24
#define PANEL_TOKENS 5
#define FEW_SUMS 8192
#define FEW_PIECE ((int64_t)1 << 19)
#define PIECES_PER_THREAD 4

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* A few tokens times a weight of 16 bits. */
typedef struct few_job {
    const carry_kernels *kernels;
    const carry_bf16 *bf16; /* NULL: the weight is widened */
    carry_half_dots dots;
    const uint16_t *packed; /* x for bf16 */
    const uint16_t *panels; /* panels of the weight, with x in panels too; NULL: the weight is not packed */
    carry_tensor y;
    bool accumulate;
} few_job;

static void few_rows(const few_job *j, int64_t begin, int64_t end) {
    const size_t size = carry_dtype_size(j->y.dtype);
    const int64_t panel = j->panels != NULL ? j->bf16->columns : 1;
    const int64_t rows = FEW_SUMS / j->dots.tokens / panel * panel;
    float sums[FEW_SUMS];
    float old[FEW_SUMS];
    for (int64_t row = begin; row < end; row += rows) {
        carry_half_dots d = j->dots;
        d.rows = least(end - row, rows);
        d.w += row * d.w_row;
        d.y = sums;
        d.y_row = rows;
        if (j->bf16 != NULL) {
            (j->panels != NULL ? j->bf16->few_panels
                               : j->bf16->few)(&(carry_bf16_few){.rows = d.rows,
                                                                 .tokens = d.tokens,
                                                                 .k = d.k,
                                                                 .x = j->packed,
                                                                 .w = j->panels != NULL ? j->panels + row * d.k : d.w,
                                                                 .y = sums,
                                                                 .w_row = d.w_row,
                                                                 .y_row = rows});
        } else {
            j->kernels->half_dots(&d);
        }
        for (int64_t t = 0; t < d.tokens; t++) {
            char *to = (char *)j->y.data + (size_t)(t * j->dots.rows + row) * size;
            if (j->accumulate) {
                carry_widen(j->kernels, old, to, j->y.dtype, d.rows);
            }
            for (int64_t r = 0; j->accumulate && r < d.rows; r++) {
                sums[t * rows + r] += old[r];
            }
            carry_narrow(j->kernels, to, sums + t * rows, j->y.dtype, d.rows);
        }
    }
}

/* Several weights with one x; their rows are numbered one after the other. */
typedef struct merged_job {
    few_job of[CARRY_MAX_MERGED_MAPS];
    int maps;
} merged_job;

static void merged_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const merged_job *all = argument;
    int64_t before = 0;
    for (int i = 0; i < all->maps; i++) {
        const int64_t rows = all->of[i].dots.rows;
        int64_t first = begin > before ? begin - before : 0;
        int64_t last = least(end - before, rows);
        if (all->of[i].panels != NULL) { /* the thread that has a panel's first row computes the panel */
            const int64_t panel = all->of[i].bf16->columns;
            first = (first + panel - 1) / panel * panel;
            last = last > 0 ? least((last + panel - 1) / panel * panel, rows) : last;
        }
        if (first < last) {
            few_rows(&all->of[i], first, last);
        }
        before += rows;
    }
}

/* Rows of a piece. Every thread gets the same number of pieces, since all threads wait for the last piece; and the
   pieces are few, since prefetching restarts in each. */
static int64_t rows_of_piece(int64_t rows, int64_t k, int threads) {
    const int64_t small = (FEW_PIECE / (k + 1) / 64 + 1) * 64;
    const int64_t each = (rows + small * threads - 1) / (small * threads);
    const int64_t count = threads * least(each, PIECES_PER_THREAD);
    return rows <= small ? rows : ((rows + count - 1) / count + 3) / 4 * 4;
}

/* Finds the kept panels of every W. Returns false if some are not kept, or if products of this many tokens or of this k
   do not use them. */
static bool find_panels(carry_ctx *ctx, const carry_bf16 *bf16, int maps, carry_tensor x, const carry_tensor *W,
                        const uint16_t **panels) {
    const int64_t k = x.shape[1];
    bool found = bf16->few_panels != NULL && x.shape[0] >= PANEL_TOKENS && x.shape[0] <= MORE_TOKENS && k % 8 == 0;
    for (int i = 0; found && i < maps; i++) {
        const carry_mixed_product p = {
            .m = x.shape[0], .n = W[i].shape[0], .k = k, .b = carry_weight_transposed(&W[i])};
        panels[i] = carry_kept_find(ctx, bf16, &p);
        found = panels[i] != NULL;
    }
    return found;
}

static void pack_panels(const carry_bf16 *bf16, uint16_t *to, carry_tensor x) {
    const int64_t k = x.shape[1];
    for (int64_t t = 0; t < x.shape[0]; t += bf16->rows) {
        bf16->pack_a(to + t * k, (const uint16_t *)x.data + t * k, k, false, least(x.shape[0] - t, bf16->rows), k);
    }
}

/* y = x W^T, or added to y, for every W, each read once. Returns false if there are no tokens or too many, if there is
   no buffer, or if x does not fit into it. */
static bool few_at_once(carry_ctx *ctx, const carry_kernels *kernels, int maps, const carry_tensor *y, carry_tensor x,
                        const carry_tensor *W, bool accumulate) {
    const int64_t tokens = x.shape[0];
    const int64_t k = x.shape[1];
    const carry_bf16 *bf16 = carry_bf16_of(ctx);
    bool by_bf16 = bf16 != NULL && bf16->few_tokens > 0 && x.dtype == CARRY_BF16 && W[0].dtype == CARRY_BF16;
    int64_t elements;
    int64_t rows = 0;
    uint16_t *beside = carry_packed_buffer(ctx, &elements);
    const uint16_t *panels[CARRY_MAX_MERGED_MAPS] = {NULL};
    const bool by_panels = by_bf16 && find_panels(ctx, bf16, maps, x, W, panels);
    const int64_t most = by_panels ? MORE_TOKENS : by_bf16 ? least(bf16->few_tokens, FEW_TOKENS) : FEW_TOKENS / 2;
    if (tokens < 1 || tokens > most || beside == NULL ||
        (by_panels ? MORE_TOKENS : FEW_TOKENS) * (k + 64) > elements / 2) {
        return false;
    }
    merged_job all = {.maps = maps};
    for (int i = 0; i < maps; i++) {
        rows += W[i].shape[0];
        all.of[i] = (few_job){.kernels = kernels,
                              .bf16 = by_bf16 ? bf16 : NULL,
                              .dots = {.rows = W[i].shape[0],
                                       .tokens = tokens,
                                       .k = k,
                                       .w = W[i].data,
                                       .x = (const float *)(const void *)beside,
                                       .w_row = k,
                                       .x_row = k,
                                       .type = W[i].dtype},
                              .packed = beside,
                              .panels = by_panels ? panels[i] : NULL,
                              .y = y[i],
                              .accumulate = accumulate};
    }
    CARRY_SPAN(ctx, "ops", "linear");
    carry_span_work(ctx, 2.0 * (double)tokens * (double)rows * (double)k, 0.0);
    if (by_panels) {
        pack_panels(bf16, beside, x);
    } else if (by_bf16) {
        bf16->pack_few(beside, x.data, k, tokens, k);
    } else {
        carry_widen(kernels, (float *)(void *)beside, x.data, x.dtype, tokens * k);
    }
    carry_parallel(ctx, rows, rows_of_piece(rows, k, carry_ctx_threads(ctx)), merged_rows, &all);
    return true;
}

bool carry_few_tokens_merged(carry_ctx *ctx, const carry_kernels *kernels, const carry_merged_linear_args *args) {
    bool alike = args->maps > 0;
    for (int i = 0; i < args->maps; i++) {
        const carry_dtype type = args->W[i].dtype;
        alike = alike && (type == CARRY_BF16 || type == CARRY_F16) && type == args->W[0].dtype;
    }
    return alike && few_at_once(ctx, kernels, args->maps, args->y, args->x, args->W, false);
}

/* Does more tokens than fit at once in a few parts. */
bool carry_few_tokens(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                      bool accumulate) {
    const int64_t tokens = x.shape[0];
    bool done = tokens <= MORE_TOKENS;
    if (tokens > FEW_TOKENS && done && few_at_once(ctx, kernels, 1, &y, x, &W, accumulate)) {
        return true;
    }
    for (int64_t t = 0; done && t < tokens; t += FEW_TOKENS) {
        carry_tensor rows = x;
        carry_tensor to = y;
        rows.shape[0] = to.shape[0] = least(tokens - t, FEW_TOKENS);
        rows.data = (char *)x.data + (size_t)(t * x.shape[1]) * carry_dtype_size(x.dtype);
        to.data = (char *)y.data + (size_t)(t * y.shape[1]) * carry_dtype_size(y.dtype);
        done = few_at_once(ctx, kernels, 1, &to, rows, &W, accumulate);
    }
    return done;
}
