/* Layer norm backward. With s = 1/sqrt(variance + eps), x' = (x - mean) s, and g = dy (w + plus), the gradient of x':

       dx = s (g - mean(g) - x' mean(g x'));  dw += sum over tokens of dy x';  db += sum over tokens of dy

   Nothing is kept from the forward pass: mean and variance are computed again. Sums over tokens are computed in
   blocks, each into two rows of the workspace, and the rows are added in order. */
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor dx, dw, db, dy, x, w;
    int64_t tokens, n, block;
    float plus, eps;
    bool accumulate;
    float *partial; /* [blocks, 2, n]: dw, db */
} job;

/* Buffers of a thread. */
typedef struct beside {
    float x[CARRY_PIECE], w[CARRY_PIECE], dy[CARRY_PIECE], dx[CARRY_PIECE];
    float nobody[2][CARRY_PIECE]; /* sums that were not requested */
} beside;

static void open_piece(const job *j, beside *k, carry_layer_backward *row, int64_t t, int64_t at, int64_t count) {
    const int64_t here = t * j->n + at;
    row->dy = carry_piece_in(j->kernels, k->dy, &j->dy, here, count);
    row->x = carry_piece_in(j->kernels, k->x, &j->x, here, count);
    row->w = carry_piece_in(j->kernels, k->w, &j->w, at, count);
}

/* Computes the mean, and then the squared differences from it. */
static void measure(const job *j, beside *k, carry_layer_backward *row, int64_t t) {
    const carry_rows *rows = j->kernels->rows;
    float sum = 0.0f;
    float squares = 0.0f;
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        const int64_t count = carry_piece(at, j->n);
        sum += rows->sum(carry_piece_in(j->kernels, k->x, &j->x, t * j->n + at, count), count);
    }
    row->mean = sum / (float)j->n;
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        const int64_t count = carry_piece(at, j->n);
        const float *x = carry_piece_in(j->kernels, k->x, &j->x, t * j->n + at, count);
        squares += rows->sum_squares_from(x, row->mean, count);
    }
    row->scale = 1.0f / sqrtf(squares / (float)j->n + j->eps);
}

/* sums: rows of dw and db, or NULL. */
static void backward_token(const job *j, beside *k, int64_t t, float *sums) {
    const carry_rows *rows = j->kernels->rows;
    carry_layer_backward row = {.plus = j->plus};
    float totals[2] = {0.0f, 0.0f};
    measure(j, k, &row, t);
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        const int64_t count = carry_piece(at, j->n);
        open_piece(j, k, &row, t, at, count);
        rows->layer_sums(&row, totals, count);
    }
    row.level = totals[0] / (float)j->n;
    row.back = totals[1] / (float)j->n;
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        const int64_t count = carry_piece(at, j->n);
        const int64_t here = t * j->n + at;
        open_piece(j, k, &row, t, at, count);
        float *dx = j->accumulate ? carry_piece_open(j->kernels, k->dx, &j->dx, here, count)
                                  : carry_piece_out(k->dx, &j->dx, here);
        row.dx = dx != NULL ? dx : k->dx;
        row.dw = sums != NULL ? sums + at : k->nobody[0];
        row.db = sums != NULL ? sums + j->n + at : k->nobody[1];
        rows->layer_backward(&row, dx != NULL && j->accumulate, count);
        carry_piece_done(j->kernels, k->dx, &j->dx, here, count);
    }
}

static void backward_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    beside k;
    memset(k.nobody, 0, sizeof k.nobody);
    for (int64_t b = begin; b < end; b++) {
        float *sums = j->partial != NULL ? j->partial + b * 2 * j->n : NULL;
        if (sums != NULL) {
            memset(sums, 0, 2 * (size_t)j->n * sizeof *sums);
        }
        const int64_t last = (b + 1) * j->block < j->tokens ? (b + 1) * j->block : j->tokens;
        for (int64_t t = b * j->block; t < last; t++) {
            backward_token(j, &k, t, sums);
        }
    }
}

size_t carry_layer_norm_backward_workspace(int64_t tokens, int64_t n) {
    if (tokens <= 0 || n <= 0) {
        return 0;
    }
    const int64_t factors[] = {carry_token_blocks_most(tokens), 2, n};
    size_t bytes;
    return carry_size_product(&bytes, factors, 3, sizeof(float)) ? bytes : SIZE_MAX;
}

carry_status carry_layer_norm_backward(carry_ctx *ctx, const carry_layer_norm_backward_args *args, void *workspace,
                                       size_t workspace_bytes) {
    const carry_tensor dx = args->dx, dw = args->dw, db = args->db, dy = args->dy, x = args->x, w = args->w;
    CARRY_OPERATOR(ctx, operators, layer_norm_backward, &x)
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    const int64_t n = x.shape[1];
    CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &x));
    if (carry_is_here(&w)) {
        CARRY_TRY(carry_expect_weight(ctx, "w", &w, 1, &n, &x));
    }
    if (carry_is_here(&dx)) {
        CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    }
    if (carry_is_here(&dw)) {
        CARRY_TRY(carry_expect_f32(ctx, "dw", &dw, 1, &n, x.device));
    }
    if (carry_is_here(&db)) {
        CARRY_TRY(carry_expect_f32(ctx, "db", &db, 1, &n, x.device));
    }
    if (carry_is_here(&dw) || carry_is_here(&db)) {
        CARRY_TRY(carry_expect_workspace(ctx, "layer_norm_backward", workspace, workspace_bytes,
                                         carry_layer_norm_backward_workspace(x.shape[0], n), x.device));
    }
    return operators->layer_norm_backward(ctx, dx, dw, db, dy, x, w, args->plus, args->eps, args->accumulate,
                                          workspace);
}

carry_status carry_cpu_layer_norm_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dw, carry_tensor db,
                                           carry_tensor dy, carry_tensor x, carry_tensor w, float plus, float eps,
                                           bool accumulate, void *workspace) {
    job j = {.dx = dx, .dw = dw, .db = db, .dy = dy, .x = x, .w = w, .plus = plus, .eps = eps};
    j.accumulate = accumulate;
    j.tokens = x.shape[0];
    j.n = x.shape[1];
    j.partial = carry_is_here(&dw) || carry_is_here(&db) ? workspace : NULL;
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    j.block = carry_token_block(j.tokens);
    const int64_t blocks = (j.tokens + j.block - 1) / j.block;
    carry_parallel(ctx, blocks, 1, backward_blocks, &j);
    for (int64_t b = 0; j.partial != NULL && b < blocks; b++) {
        const float *sums = j.partial + b * 2 * j.n;
        if (carry_is_here(&dw)) {
            j.kernels->rows->add(dw.data, sums, j.n);
        }
        if (carry_is_here(&db)) {
            j.kernels->rows->add(db.data, sums + j.n, j.n);
        }
    }
    return CARRY_OK;
}
