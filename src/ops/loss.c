/* Cross entropy, of logits and of a linear layer whose logits are never all in memory.

   A row of logits is read three times while it is in a cache: for its maximum, for the sum of exponentials relative
   to that, and for the gradient. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/product/bf16.h"
#include "ops/cpu.h"
#include "ops/linear.h"
#include "ops/nn.h"

#define LEFT_OUT (-100)
#define GRAIN_ELEMENTS 16384
/* Bytes of the logits of a block of tokens: enough tokens that reading the weight for them costs little compared
   with the product. */
#define BLOCK_BYTES (16 << 20)
#define BLOCK_LEAST 16

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor dlogits, logits;
    const int64_t *targets;
    int64_t vocabulary;
    float scale;
    float *losses;
    bool rounded; /* a row of f32 gradients is replaced by one of bf16, at its start */
} job;

static float largest_of(const job *j, int64_t row) {
    float beside[CARRY_PIECE];
    float largest = -INFINITY;
    for (int64_t at = 0; at < j->vocabulary; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->vocabulary);
        float here = j->kernels->rows->maximum(carry_piece_in(j->kernels, beside, &j->logits, row + at, count), count);
        largest = here > largest ? here : largest;
    }
    return largest;
}

/* Sum of e^(x - minus) over a row. If the gradient is f32, the exponentials are stored in it. */
static double sum_of(const job *j, int64_t row, float minus, bool kept) {
    float beside[CARRY_PIECE];
    double sum = 0.0;
    for (int64_t at = 0; at < j->vocabulary; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->vocabulary);
        const float *x = carry_piece_in(j->kernels, beside, &j->logits, row + at, count);
        sum += (double)j->kernels->rows->sum_exp(kept ? (float *)j->dlogits.data + row + at : NULL, x, minus, count);
    }
    return sum;
}

/* Writes scale * softmax of a row. kept: dlogits has the exponentials already. Otherwise dlogits has 16 bits, and they
   are computed again: exponentials stored in 16 bits would be rounded before and after scaling. */
static void softmax_row(const job *j, int64_t row, float minus, float scale, bool kept) {
    float beside[CARRY_PIECE];
    for (int64_t at = 0; at < j->vocabulary; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->vocabulary);
        float *d = carry_piece_out(beside, &j->dlogits, row + at);
        if (!kept) {
            (void)j->kernels->rows->sum_exp(d, carry_piece_in(j->kernels, beside, &j->logits, row + at, count), minus,
                                            count);
        }
        j->kernels->rows->scale(d, scale, count);
        carry_piece_done(j->kernels, beside, &j->dlogits, row + at, count);
    }
}

static void loss_token(const job *j, int64_t t) {
    const int64_t row = t * j->vocabulary;
    const int64_t target = j->targets[t];
    const size_t size = carry_dtype_size(j->logits.dtype);
    const bool asked = carry_is_here(&j->dlogits);
    const bool kept = asked && j->logits.dtype == CARRY_F32;
    j->losses[t] = 0.0f;
    if (target == LEFT_OUT) {
        if (asked) {
            memset((char *)j->dlogits.data + (size_t)row * size, 0, (size_t)j->vocabulary * size);
        }
        return;
    }
    const double at_target = carry_tensor_at(&j->logits, row + target); /* dlogits may be logits */
    const float largest = largest_of(j, row);
    const double sum = sum_of(j, row, largest, kept);
    j->losses[t] = (float)(log(sum) + ((double)largest - at_target));
    if (asked) {
        softmax_row(j, row, largest, (float)((double)j->scale / sum), kept);
        float one = (float)((double)j->scale * (exp(at_target - (double)largest) / sum - 1.0));
        carry_narrow(j->kernels, (char *)j->dlogits.data + (size_t)(row + target) * size, &one, j->logits.dtype, 1);
    }
}

static void round_row(const job *j, float *row) {
    float beside[CARRY_PIECE];
    for (int64_t at = 0; at < j->vocabulary; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, j->vocabulary);
        memcpy(beside, row + at, (size_t)count * sizeof *beside);
        j->kernels->bf16_from_f32((uint16_t *)(void *)row + at, beside, count);
    }
}

static void loss_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t t = begin; t < end; t++) {
        loss_token(j, t);
        if (j->rounded) {
            round_row(j, (float *)j->dlogits.data + t * j->vocabulary);
        }
    }
}

/* Losses are f32, as they are returned; the sum of a batch is computed from these in float64. */
static void run_losses(carry_ctx *ctx, job *j, int64_t tokens) {
    carry_parallel(ctx, tokens, GRAIN_ELEMENTS / (j->vocabulary + 1) + 1, loss_range, j);
}

static carry_status expect_targets(carry_ctx *ctx, const carry_tensor *losses, const carry_tensor *targets,
                                   int64_t tokens, int64_t vocabulary, int device) {
    CARRY_TRY(carry_expect_f32(ctx, "losses", losses, 1, &tokens, device));
    CARRY_TRY(carry_expect_i64(ctx, "targets", targets, tokens, device));
    return device == 0 ? carry_check_targets(ctx, NULL, *targets, vocabulary) : CARRY_OK;
}

carry_status carry_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dlogits, carry_tensor logits,
                                 carry_tensor targets, float scale) {
    CARRY_OPERATOR(ctx, operators, cross_entropy, &logits)
    CARRY_TRY(carry_expect_rank(ctx, "logits", &logits, 2));
    CARRY_TRY(carry_expect_like(ctx, "logits", &logits, &logits));
    if (carry_is_here(&dlogits)) {
        CARRY_TRY(carry_expect_like(ctx, "dlogits", &dlogits, &logits));
    }
    CARRY_TRY(expect_targets(ctx, &losses, &targets, logits.shape[0], logits.shape[1], logits.device));
    return operators->cross_entropy(ctx, losses, dlogits, logits, targets, scale);
}

carry_status carry_cpu_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dlogits, carry_tensor logits,
                                     carry_tensor targets, float scale) {
    job j = {.dlogits = dlogits,
             .logits = logits,
             .targets = targets.data,
             .losses = losses.data,
             .vocabulary = logits.shape[1],
             .scale = scale};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    run_losses(ctx, &j, logits.shape[0]);
    return CARRY_OK;
}

static int64_t block_tokens(int64_t tokens, int64_t vocabulary) {
    int64_t block = BLOCK_BYTES / (int64_t)sizeof(float) / (vocabulary > 0 ? vocabulary : 1);
    block = block > BLOCK_LEAST ? block / BLOCK_LEAST * BLOCK_LEAST : BLOCK_LEAST;
    return block < tokens ? block : tokens;
}

size_t carry_linear_cross_entropy_workspace(int64_t tokens, int64_t n, int64_t vocabulary) {
    (void)n;
    if (tokens <= 0 || vocabulary <= 0) {
        return 0;
    }
    size_t bytes;
    return carry_size_product(&bytes, (const int64_t[]){block_tokens(tokens, vocabulary), vocabulary}, 2, sizeof(float))
               ? bytes
               : SIZE_MAX;
}

/* Processes tokens first..first+count-1: logits, their loss and gradient in place, and the gradients of x and W. */
static void linear_block(carry_ctx *ctx, job *j, const carry_tensor *dx, const carry_tensor *dW, const carry_tensor *x,
                         const carry_tensor *W, int64_t first, int64_t count) {
    const int64_t n = x->shape[1];
    const size_t offset = (size_t)(first * n) * carry_dtype_size(x->dtype);
    carry_matrix rows = {.data = (const char *)x->data + offset, .dtype = x->dtype, .row = n};
    carry_matrix weight = carry_weight_transposed(W);
    carry_matrix logits = {.data = j->logits.data, .dtype = CARRY_F32, .row = j->vocabulary};
    carry_mixed_products(ctx, j->kernels,
                         &(carry_mixed_product){.m = count,
                                                .n = j->vocabulary,
                                                .k = n,
                                                .a = rows,
                                                .b = weight,
                                                .c = j->logits.data,
                                                .c_dtype = CARRY_F32,
                                                .c_row = j->vocabulary});
    run_losses(ctx, j, count);
    if (j->rounded) {
        logits.dtype = CARRY_BF16;
        logits.row = 2 * j->vocabulary;
    }
    if (carry_is_here(dx)) {
        weight.transposed = false;
        carry_mixed_products(ctx, j->kernels,
                             &(carry_mixed_product){.m = count,
                                                    .n = n,
                                                    .k = j->vocabulary,
                                                    .a = logits,
                                                    .b = weight,
                                                    .c = (char *)dx->data + offset,
                                                    .c_dtype = dx->dtype,
                                                    .c_row = n});
    }
    if (carry_is_here(dW)) {
        logits.transposed = true;
        carry_mixed_products(ctx, j->kernels,
                             &(carry_mixed_product){.m = j->vocabulary,
                                                    .n = n,
                                                    .k = count,
                                                    .a = logits,
                                                    .b = rows,
                                                    .c = dW->data,
                                                    .c_dtype = CARRY_F32,
                                                    .c_row = n,
                                                    .accumulate = true});
    }
}

carry_status carry_linear_cross_entropy(carry_ctx *ctx, const carry_linear_cross_entropy_args *args, void *workspace,
                                        size_t workspace_bytes) {
    const carry_tensor losses = args->losses, dx = args->dx, dW = args->dW, x = args->x, W = args->W,
                       targets = args->targets;
    CARRY_OPERATOR(ctx, operators, linear_cross_entropy, &x)
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 2));
    CARRY_TRY(carry_expect_rank(ctx, "W", &W, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_matrix(ctx, "W", &W, W.shape[0], &x));
    if (W.dtype == CARRY_QUANTISED && (carry_is_here(&dx) || carry_is_here(&dW))) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "W is quantised: there are no gradients");
    }
    if (carry_is_here(&dx)) {
        CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    }
    if (carry_is_here(&dW)) {
        CARRY_TRY(carry_expect_f32(ctx, "dW", &dW, 2, W.shape, x.device));
    }
    CARRY_TRY(expect_targets(ctx, &losses, &targets, x.shape[0], W.shape[0], x.device));
    CARRY_TRY(carry_expect_workspace(ctx, "linear_cross_entropy", workspace, workspace_bytes,
                                     carry_linear_cross_entropy_workspace(x.shape[0], x.shape[1], W.shape[0]),
                                     x.device));
    return operators->linear_cross_entropy(ctx, losses, dx, dW, x, W, targets, args->scale, workspace, workspace_bytes);
}

carry_status carry_cpu_linear_cross_entropy(carry_ctx *ctx, carry_tensor losses, carry_tensor dx, carry_tensor dW,
                                            carry_tensor x, carry_tensor W, carry_tensor targets, float scale,
                                            void *workspace, size_t workspace_bytes) {
    (void)workspace_bytes; /* blocks depend on the shape alone, so that sums do too */
    const int64_t tokens = x.shape[0];
    job j = {.scale = scale, .vocabulary = W.shape[0]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    const int64_t block = block_tokens(tokens, j.vocabulary);
    /* If bf16 products are faster than f32 ones, the gradient of the logits is rounded like x and W. */
    const bool bf16 = x.dtype == CARRY_BF16 && W.dtype == CARRY_BF16 && carry_bf16_of(ctx) != NULL;
    for (int64_t first = 0; first < tokens; first += block) {
        int64_t count = tokens - first < block ? tokens - first : block;
        j.logits = carry_view_2d(workspace, CARRY_F32, count, j.vocabulary);
        j.dlogits = carry_is_here(&dx) || carry_is_here(&dW) ? j.logits : (carry_tensor){.data = NULL};
        j.rounded = carry_is_here(&j.dlogits) && bf16;
        j.targets = (const int64_t *)targets.data + first;
        j.losses = (float *)losses.data + first;
        linear_block(ctx, &j, &dx, &dW, &x, &W, first, count);
    }
    return CARRY_OK;
}

carry_status carry_sum_losses(carry_ctx *ctx, carry_tensor total, carry_tensor losses, carry_tensor targets,
                              bool accumulate) {
    CARRY_OPERATOR(ctx, operators, sum_losses, &losses)
    CARRY_TRY(carry_expect_rank(ctx, "losses", &losses, 1));
    CARRY_TRY(carry_expect_f32(ctx, "losses", &losses, 1, losses.shape, losses.device));
    CARRY_TRY(carry_expect_i64(ctx, "targets", &targets, losses.shape[0], losses.device));
    CARRY_TRY(carry_expect_f64(ctx, "total", &total, 2, losses.device));
    return operators->sum_losses(ctx, total, losses, targets, accumulate);
}

carry_status carry_cpu_sum_losses(carry_ctx *ctx, carry_tensor total, carry_tensor losses, carry_tensor targets,
                                  bool accumulate) {
    (void)ctx;
    const float *loss = losses.data;
    const int64_t *target = targets.data;
    double *to = total.data;
    double sum = 0.0;
    int64_t counted = 0;
    for (int64_t t = 0; t < losses.shape[0]; t++) {
        sum += (double)loss[t];
        counted += target[t] != LEFT_OUT;
    }
    to[0] = accumulate ? to[0] + sum : sum;
    to[1] = accumulate ? to[1] + (double)counted : (double)counted;
    return CARRY_OK;
}
