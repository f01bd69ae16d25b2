/* Looks up rows of a table by token id, and computes the gradient of the table. In the backward pass threads take
   columns: each goes through all tokens in order, so a row that occurs twice gets the same sum for any number of
   threads. */
#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/linear.h"
#include "ops/nn.h"
#include "ops/quantised/quantised.h"

#define GRAIN_ELEMENTS 16384
#define COLUMNS 64
#define AHEAD 4 /* tokens by which rows are prefetched, since they are anywhere in the table */

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, table;
    const int64_t *ids;
    int64_t tokens, n;
} job;

static void prefetch(const job *j, int64_t t, int64_t at, int64_t count) {
    if (t + AHEAD >= j->tokens) {
        return;
    }
    const size_t size = carry_dtype_size(j->table.dtype);
    const char *row = (const char *)j->table.data + (size_t)(j->ids[t + AHEAD] * j->n + at) * size;
    for (size_t line = 0; line < (size_t)count * size && line < 4096; line += 64) {
        __builtin_prefetch(row + line);
    }
}

/* Gathers from a quantised table in pieces of 1024 columns, which are whole blocks of every format. */
static void gather_quantised(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float beside[CARRY_PIECE];
    const size_t size = carry_dtype_size(j->y.dtype);
    for (int64_t t = begin; t < end; t++) {
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            const int64_t count = carry_piece(at, j->n);
            carry_quant_decode(&j->table, j->ids[t], at, count, beside);
            carry_narrow(j->kernels, (char *)j->y.data + (size_t)(t * j->n + at) * size, beside, j->y.dtype, count);
        }
    }
}

static void gather_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float beside[CARRY_PIECE];
    const size_t size = carry_dtype_size(j->y.dtype);
    for (int64_t t = begin; t < end; t++) {
        prefetch(j, t, 0, j->n);
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            int64_t count = carry_piece(at, j->n);
            const float *from = carry_piece_in(j->kernels, beside, &j->table, j->ids[t] * j->n + at, count);
            carry_narrow(j->kernels, (char *)j->y.data + (size_t)(t * j->n + at) * size, from, j->y.dtype, count);
        }
    }
}

static void scatter_columns(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float beside[COLUMNS];
    float *table = j->table.data;
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * COLUMNS;
        int64_t count = j->n - at < COLUMNS ? j->n - at : COLUMNS;
        for (int64_t t = 0; t < j->tokens; t++) {
            prefetch(j, t, at, count);
            const float *from = carry_piece_in(j->kernels, beside, &j->y, t * j->n + at, count);
            j->kernels->rows->add(table + j->ids[t] * j->n + at, from, count);
        }
    }
}

/* Checks that there is an id for each row of y, and that every id is a row of the table. Ids on a GPU are not read: the
   caller checked them before copying them. */
static carry_status expect_ids(carry_ctx *ctx, const carry_tensor *y, const carry_tensor *table,
                               const carry_tensor *ids) {
    CARRY_TRY(carry_expect_i64(ctx, "ids", ids, y->shape[0], y->device));
    return y->device == 0 ? carry_check_ids(ctx, *ids, table->shape[0]) : CARRY_OK;
}

carry_status carry_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, carry_tensor ids) {
    CARRY_OPERATOR(ctx, operators, embed, &y)
    CARRY_TRY(carry_expect_rank(ctx, "y", &y, 2));
    CARRY_TRY(carry_expect_rank(ctx, "table", &table, 2));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &y));
    CARRY_TRY(carry_expect_matrix(ctx, "table", &table, table.shape[0], &y));
    CARRY_TRY(expect_ids(ctx, &y, &table, &ids));
    return operators->embed(ctx, y, table, ids);
}

carry_status carry_embed_backward(carry_ctx *ctx, carry_tensor dtable, carry_tensor dy, carry_tensor ids) {
    CARRY_OPERATOR(ctx, operators, embed_backward, &dy)
    CARRY_TRY(carry_expect_rank(ctx, "dy", &dy, 2));
    CARRY_TRY(carry_expect_rank(ctx, "dtable", &dtable, 2));
    CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &dy));
    CARRY_TRY(carry_expect_f32(ctx, "dtable", &dtable, 2, (const int64_t[]){dtable.shape[0], dy.shape[1]}, dy.device));
    CARRY_TRY(expect_ids(ctx, &dy, &dtable, &ids));
    return operators->embed_backward(ctx, dtable, dy, ids);
}

carry_status carry_cpu_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, carry_tensor ids) {
    job j = {.y = y, .table = table, .ids = ids.data, .tokens = y.shape[0], .n = y.shape[1]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, j.tokens, GRAIN_ELEMENTS / (j.n + 1) + 1,
                   table.dtype == CARRY_QUANTISED ? gather_quantised : gather_range, &j);
    return CARRY_OK;
}

carry_status carry_cpu_embed_backward(carry_ctx *ctx, carry_tensor dtable, carry_tensor dy, carry_tensor ids) {
    job j = {.y = dy, .table = dtable, .ids = ids.data, .tokens = dy.shape[0], .n = dy.shape[1]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, (j.n + COLUMNS - 1) / COLUMNS, 1, scatter_columns, &j);
    return CARRY_OK;
}
