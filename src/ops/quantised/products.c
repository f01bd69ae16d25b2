/* Products with a quantised weight on the CPU: a few tokens by integers, many by decoded rows. */
#include "ops/quantised/products.h"

#include <stdlib.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/kernels/quant.h"
#include "ops/product/bf16.h"
#include "ops/product/packed.h"
#include "ops/quantised/rows.h"

/* FEW_SUMS: sums held at a time. FEW_PIECE: elements of the weight that are worth a thread. */
#define FEW_SUMS 2048
#define FEW_PIECE ((int64_t)1 << 19)
#define PIECES_PER_THREAD 4
/* Rows of the weight that are decoded at a time: 512 rows of 2560 columns are 2.6 MB in bf16. */
#define DECODED_ROWS 512
#define DECODED_GRAIN 4

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

typedef struct few_job {
    const carry_kernels *kernels;
    carry_quant_dots_function function;
    carry_quant_dots dots;
    carry_tensor y;
    bool accumulate;
} few_job;

static void few_rows(const few_job *j, int64_t begin, int64_t end) {
    float sums[FEW_SUMS];
    float old[FEW_SUMS];
    const size_t size = carry_dtype_size(j->y.dtype);
    const int64_t rows = FEW_SUMS / j->dots.tokens;
    for (int64_t row = begin; row < end; row += rows) {
        carry_quant_dots d = j->dots;
        d.rows = least(rows, end - row);
        d.w += (size_t)row * d.row_bytes;
        d.y = sums;
        d.y_row = rows;
        j->function(&d);
        for (int64_t t = 0; t < d.tokens; t++) {
            char *to = (char *)j->y.data + (size_t)(t * j->y.shape[1] + row) * size;
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

typedef struct merged_job {
    few_job of[CARRY_MAX_MERGED_MAPS];
    int maps;
} merged_job;

static void merged_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const merged_job *all = argument;
    int64_t before = 0;
    for (int i = 0; i < all->maps; i++) {
        const int64_t rows = all->of[i].y.shape[1];
        const int64_t first = begin > before ? begin - before : 0;
        const int64_t last = least(end - before, rows);
        if (first < last) {
            few_rows(&all->of[i], first, last);
        }
        before += rows;
    }
}

/* Rows of a piece: few pieces, and the same number for every thread. */
static int64_t rows_of_piece(int64_t rows, int64_t k, int threads) {
    const int64_t small = (FEW_PIECE / (k + 1) / 64 + 1) * 64;
    const int64_t each = (rows + small * threads - 1) / (small * threads);
    const int64_t count = threads * least(each, PIECES_PER_THREAD);
    return rows <= small ? rows : ((rows + count - 1) / count + 3) / 4 * 4;
}

/* Rounds the tokens into the context's buffer; returns false if memory runs out. */
static bool round_tokens(carry_ctx *ctx, const carry_kernels *kernels, const carry_quant_kernels *by, carry_tensor x,
                         carry_quant_x *to) {
    const int64_t tokens = x.shape[0];
    const int64_t k = x.shape[1];
    int64_t elements;
    uint16_t *beside = carry_packed_buffer(ctx, &elements);
    to->columns = (k + CARRY_QUANT_PAD - 1) / CARRY_QUANT_PAD * CARRY_QUANT_PAD;
    /* In bytes: the integers, two floats for each block, and one token in f32. */
    if (beside == NULL || tokens * to->columns * 2 + to->columns * 4 > elements) {
        return false;
    }
    to->scale = (float *)(void *)beside;
    to->sum = to->scale + tokens * to->columns / CARRY_QUANT_BLOCK;
    float *wide = to->sum + tokens * to->columns / CARRY_QUANT_BLOCK;
    to->q = (int8_t *)(wide + to->columns);
    for (int64_t t = 0; t < tokens; t++) {
        const char *from = (const char *)x.data + (size_t)(t * k) * carry_dtype_size(x.dtype);
        if (x.dtype == CARRY_F32) {
            by->round(to, t, (const float *)(const void *)from, k);
        } else {
            carry_widen(kernels, wide, from, x.dtype, k);
            by->round(to, t, wide, k);
        }
    }
    return true;
}

static bool run_few(carry_ctx *ctx, const carry_kernels *kernels, int maps, const carry_tensor *y, carry_tensor x,
                    const carry_tensor *W, bool accumulate) {
    const carry_quant_kernels *by = carry_quant_kernels_for(kernels->name);
    merged_job all = {.maps = maps};
    int64_t rows = 0;
    carry_quant_x rounded;
    for (int i = 0; i < maps; i++) {
        const carry_quant_format *format = carry_quant_format_of(&W[i]);
        all.of[i] = (few_job){.kernels = kernels,
                              .function = format != NULL ? carry_quant_dots_by(by, format) : NULL,
                              .dots = {.tokens = x.shape[0],
                                       .blocks = format != NULL ? W[i].stride[0] / (int64_t)format->bytes : 0,
                                       .w = W[i].data,
                                       .row_bytes = (size_t)W[i].stride[0]},
                              .y = y[i],
                              .accumulate = accumulate};
        rows += W[i].shape[0];
        if (all.of[i].function == NULL) {
            return false;
        }
    }
    if (x.shape[0] < 1 || x.shape[0] > by->few_tokens || !round_tokens(ctx, kernels, by, x, &rounded)) {
        return false;
    }
    for (int i = 0; i < maps; i++) {
        all.of[i].dots.x = rounded;
    }
    CARRY_SPAN(ctx, "ops", "linear");
    carry_span_work(ctx, 2.0 * (double)x.shape[0] * (double)rows * (double)x.shape[1], 0.0);
    carry_parallel(ctx, rows, rows_of_piece(rows, x.shape[1], carry_ctx_threads(ctx)), merged_rows, &all);
    return true;
}

bool carry_quantised_few(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                         bool accumulate) {
    return run_few(ctx, kernels, 1, &y, x, &W, accumulate);
}

bool carry_quantised_few_merged(carry_ctx *ctx, const carry_kernels *kernels, const carry_merged_linear_args *args) {
    bool alike = args->maps > 0;
    for (int i = 0; i < args->maps; i++) {
        alike = alike && args->W[i].dtype == CARRY_QUANTISED;
    }
    return alike && run_few(ctx, kernels, args->maps, args->y, args->x, args->W, false);
}

typedef struct decode_job {
    carry_quant_rows rows;
    int64_t first, columns;
    void *to;
    carry_dtype dtype;
} decode_job;

static void decode_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const decode_job *j = argument;
    for (int64_t row = begin; row < end; row++) {
        if (j->dtype == CARRY_F32) {
            carry_quant_decode(&j->rows.W, j->first + row, 0, j->columns, (float *)j->to + row * j->columns);
        } else {
            carry_quant_rows_bf16(&j->rows, j->first + row, 0, j->columns, (uint16_t *)j->to + row * j->columns);
        }
    }
}

/* Decodes some rows at a time, for a product with each part. */
static void decoded_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *p) {
    const bool is_bf16 = p->a.dtype == CARRY_BF16 && carry_bf16_of(ctx) != NULL;
    const carry_dtype dtype = is_bf16 ? CARRY_BF16 : CARRY_F32;
    const size_t row = (size_t)p->k * carry_dtype_size(dtype);
    float one[4096]; /* if memory runs out, rows are decoded one by one */
    void *decoded = carry_packed_decoded(ctx, (size_t)least(p->n, DECODED_ROWS) * row);
    const bool is_short = decoded == NULL && row > sizeof one;
    void *own = is_short ? carry_aligned_new(row) : NULL;
    const int64_t rows = decoded != NULL ? DECODED_ROWS : 1;
    void *to = decoded != NULL ? decoded : is_short ? own : one;
    decode_job j = {.rows = carry_quant_rows_of(kernels, &p->b, p->n, p->k), .columns = p->k, .to = to, .dtype = dtype};
    bool a_packed = p->a_packed != NULL && *p->a_packed;
    for (; to != NULL && j.first < p->n; j.first += rows) {
        carry_mixed_product part = *p;
        part.n = least(rows, p->n - j.first);
        part.b = (carry_matrix){.data = to, .dtype = dtype, .row = p->k, .transposed = true};
        part.c = (char *)p->c + (size_t)j.first * carry_dtype_size(p->c_dtype);
        part.a_packed = &a_packed;
        carry_parallel(ctx, part.n, DECODED_GRAIN, decode_rows, &j);
        carry_mixed_products(ctx, kernels, &part);
    }
    if (p->a_packed != NULL) {
        *p->a_packed = a_packed && to != NULL;
    }
    free(own);
}

void carry_quantised_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *p) {
    const carry_bf16 *bf16 = carry_bf16_of(ctx);
    if (carry_bf16_pays(bf16, p)) {
        CARRY_SPAN(ctx, "ops", "linear");
        if (carry_bf16_run(ctx, kernels, bf16, p)) {
            carry_span_work(ctx, 2.0 * (double)p->m * (double)p->n * (double)p->k, 0.0);
            return;
        }
    }
    decoded_products(ctx, kernels, p);
}
