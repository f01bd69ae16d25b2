/* Root-mean-square norm of rows, with a weight and a gate. Rows are processed in pieces of columns, so that rows of
   any length and of 16 bits use the same loops. The forward pass of bf16 rows of up to CARRY_HALF_NORM_WIDTH elements
   uses the kernel of half_rows.h instead, if there is one. Backward, the weight's gradient is summed in blocks of
   tokens, each into a row of the workspace, and the rows are added in order. */
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN_ELEMENTS 16384

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, x, w, z;     /* forward */
    carry_tensor dx, dw, dz, dy; /* backward */
    int64_t tokens, n, block;
    float eps;
    bool accumulate;
    float *partial; /* [blocks, n] */
} job;

static float scale_of(const job *j, float squares) {
    return 1.0f / sqrtf(squares / (float)j->n + j->eps);
}

/* bf16 input and output; the weight is widened once. */
static void half_norm_rows(const job *j, const carry_half_rows *half, int64_t begin, int64_t end) {
    float w[CARRY_HALF_NORM_WIDTH];
    half->norm(&(carry_half_norm){.rows = end - begin,
                                  .n = j->n,
                                  .x = (const uint16_t *)j->x.data + begin * j->n,
                                  .z = carry_is_here(&j->z) ? (const uint16_t *)j->z.data + begin * j->n : NULL,
                                  .w = carry_piece_in(j->kernels, w, &j->w, 0, j->n),
                                  .y = (uint16_t *)j->y.data + begin * j->n,
                                  .eps = j->eps});
}

static void norm_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_rows *rows = j->kernels->rows;
    const carry_half_rows *half = carry_half_rows_for(j->kernels, &j->x, &j->y, &j->z);
    if (half != NULL && j->n <= CARRY_HALF_NORM_WIDTH) {
        half_norm_rows(j, half, begin, end);
        return;
    }
    float x[CARRY_PIECE];
    float w[CARRY_PIECE];
    float z[CARRY_PIECE];
    float y[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        float squares = 0.0f;
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            int64_t count = carry_piece(at, j->n);
            squares += rows->sum_squares(carry_piece_in(j->kernels, x, &j->x, t * j->n + at, count), count);
        }
        float scale = scale_of(j, squares);
        for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
            int64_t count = carry_piece(at, j->n);
            int64_t here = t * j->n + at;
            rows->norm(carry_piece_out(y, &j->y, here), carry_piece_in(j->kernels, x, &j->x, here, count),
                       carry_piece_in(j->kernels, w, &j->w, at, count),
                       carry_piece_in(j->kernels, z, &j->z, here, count), scale, count);
            carry_piece_done(j->kernels, y, &j->y, here, count);
        }
    }
}

/* Buffers of a thread in backward. */
typedef struct beside {
    float x[CARRY_PIECE], w[CARRY_PIECE], z[CARRY_PIECE], dy[CARRY_PIECE], dx[CARRY_PIECE], dz[CARRY_PIECE];
    float sigmoid[CARRY_PIECE];
    float nobody[CARRY_PIECE]; /* dw that was not requested */
} beside;

static carry_norm_backward open_piece(const job *j, beside *k, int64_t t, int64_t at, int64_t count) {
    const int64_t here = t * j->n + at;
    return (carry_norm_backward){.dy = carry_piece_in(j->kernels, k->dy, &j->dy, here, count),
                                 .x = carry_piece_in(j->kernels, k->x, &j->x, here, count),
                                 .w = carry_piece_in(j->kernels, k->w, &j->w, at, count),
                                 .z = carry_piece_in(j->kernels, k->z, &j->z, here, count)};
}

/* With s = 1/sqrt(mean x^2 + eps) and g = dy w silu(z), which is the gradient of x s: dx = s g - s^3 mean(g x) x.
   Gradients that were not requested are written to buffers. */
static void backward_token(const job *j, beside *k, int64_t t, float *dw) {
    const carry_rows *rows = j->kernels->rows;
    carry_norm_backward row = {.dy = NULL};
    float sums[2] = {0.0f, 0.0f};
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->n);
        row = open_piece(j, k, t, at, count);
        rows->norm_sums(&row, k->sigmoid, sums, count);
    }
    const float scale = scale_of(j, sums[0]);
    const float back = scale * scale * scale * (sums[1] / (float)j->n);
    for (int64_t at = 0; at < j->n; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->n);
        int64_t here = t * j->n + at;
        if (j->n > CARRY_PIECE) { /* the buffers hold the last piece */
            row = open_piece(j, k, t, at, count);
            rows->norm_sums(&row, k->sigmoid, sums, count);
        }
        float *dx = j->accumulate ? carry_piece_open(j->kernels, k->dx, &j->dx, here, count)
                                  : carry_piece_out(k->dx, &j->dx, here);
        float *dz = carry_piece_out(k->dz, &j->dz, here);
        row.dx = dx != NULL ? dx : k->dx;
        row.dw = dw != NULL ? dw + at : k->nobody;
        row.dz = dz != NULL ? dz : k->dz;
        row.scale = scale;
        row.back = back;
        rows->norm_backward(&row, k->sigmoid, dx != NULL && j->accumulate, count);
        carry_piece_done(j->kernels, k->dx, &j->dx, here, count);
        carry_piece_done(j->kernels, k->dz, &j->dz, here, count);
    }
}

static void backward_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    beside k;
    memset(k.nobody, 0, sizeof k.nobody);
    for (int64_t b = begin; b < end; b++) {
        float *dw = carry_is_here(&j->dw) ? j->partial + b * j->n : NULL;
        for (int64_t i = 0; dw != NULL && i < j->n; i++) {
            dw[i] = 0.0f;
        }
        int64_t last = (b + 1) * j->block < j->tokens ? (b + 1) * j->block : j->tokens;
        for (int64_t t = b * j->block; t < last; t++) {
            backward_token(j, &k, t, dw);
        }
    }
}

/* Checks z or dz: like x, or on a GPU [rows / h, h, n], where each h rows are contiguous. */
static carry_status expect_gate(carry_ctx *ctx, const char *name, const carry_tensor *z, const carry_tensor *x) {
    if (z->rank != 3 || z->device == 0) {
        return carry_expect_like(ctx, name, z, x);
    }
    if (z->stride[2] != 1 || z->stride[1] != z->shape[2] || z->shape[1] < 1 ||
        z->stride[0] < z->shape[1] * z->shape[2] || z->shape[0] * z->shape[1] > INT32_MAX) {
        return carry_fail(ctx, CARRY_ESTRIDE,
                          "%s has strides or sizes that cannot be: its heads must follow each other", name);
    }
    const int64_t shape[] = {z->shape[0] * z->shape[1], z->shape[2]};
    const carry_tensor packed = carry_reshape(*z, 2, shape);
    return carry_expect_like(ctx, name, &packed, x);
}

static carry_status expect_inputs(carry_ctx *ctx, const carry_tensor *x, const carry_tensor *w, const carry_tensor *z) {
    CARRY_TRY(carry_expect_rank(ctx, "x", x, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", x, x));
    if (carry_is_here(w)) {
        CARRY_TRY(carry_expect_weight(ctx, "w", w, 1, &x->shape[1], x));
    }
    if (carry_is_here(z)) {
        CARRY_TRY(expect_gate(ctx, "z", z, x));
    }
    return CARRY_OK;
}

carry_status carry_rms_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor z, float eps) {
    CARRY_OPERATOR(ctx, operators, rms_norm, &x)
    CARRY_TRY(expect_inputs(ctx, &x, &w, &z));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    return operators->rms_norm(ctx, y, x, w, z, eps);
}

carry_status carry_cpu_rms_norm(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor z,
                                float eps) {
    job j = {.y = y, .x = x, .w = w, .z = z, .tokens = x.shape[0], .n = x.shape[1], .eps = eps};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, j.tokens, GRAIN_ELEMENTS / (j.n + 1) + 1, norm_range, &j);
    return CARRY_OK;
}

size_t carry_rms_norm_backward_workspace(int64_t tokens, int64_t n) {
    if (tokens <= 0 || n <= 0) {
        return 0;
    }
    size_t bytes;
    return carry_size_product(&bytes, (const int64_t[]){carry_token_blocks_most(tokens), n}, 2, sizeof(float))
               ? bytes
               : SIZE_MAX;
}

carry_status carry_rms_norm_backward(carry_ctx *ctx, const carry_rms_norm_backward_args *args, void *workspace,
                                     size_t workspace_bytes) {
    const carry_tensor dx = args->dx, dw = args->dw, dz = args->dz, dy = args->dy, x = args->x, w = args->w,
                       z = args->z;
    CARRY_OPERATOR(ctx, operators, rms_norm_backward, &x)
    CARRY_TRY(expect_inputs(ctx, &x, &w, &z));
    CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &x));
    if (carry_is_here(&dx)) {
        CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    }
    if (carry_is_here(&dw)) {
        CARRY_TRY(carry_expect_f32(ctx, "dw", &dw, 1, &x.shape[1], x.device));
        CARRY_TRY(carry_expect_workspace(ctx, "rms_norm_backward", workspace, workspace_bytes,
                                         carry_rms_norm_backward_workspace(x.shape[0], x.shape[1]), x.device));
    }
    if (carry_is_here(&dz)) {
        if (!carry_is_here(&z)) {
            return carry_fail(ctx, CARRY_EARGUMENT, "dz is asked for and z is absent");
        }
        CARRY_TRY(expect_gate(ctx, "dz", &dz, &x));
        if (dz.rank != z.rank || (z.rank == 3 && dz.shape[1] != z.shape[1])) {
            return carry_fail(ctx, CARRY_ESHAPE, "dz and z must have their heads together alike");
        }
    }
    return operators->rms_norm_backward(ctx, dx, dw, dz, dy, x, w, z, args->eps, args->accumulate, workspace);
}

carry_status carry_cpu_rms_norm_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dw, carry_tensor dz,
                                         carry_tensor dy, carry_tensor x, carry_tensor w, carry_tensor z, float eps,
                                         bool accumulate, void *workspace) {
    job j = {.dx = dx, .dw = dw, .dz = dz, .dy = dy, .x = x, .w = w, .z = z, .eps = eps, .accumulate = accumulate};
    j.tokens = x.shape[0];
    j.n = x.shape[1];
    j.partial = workspace;
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    j.block = carry_token_block(j.tokens);
    int64_t blocks = (j.tokens + j.block - 1) / j.block;
    carry_parallel(ctx, blocks, 1, backward_blocks, &j);
    for (int64_t b = 0; carry_is_here(&dw) && b < blocks; b++) {
        j.kernels->rows->add(dw.data, j.partial + b * j.n, j.n);
    }
    return CARRY_OK;
}
