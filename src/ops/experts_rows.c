/* Rows of a mixture of experts: one for every pair of a token and an expert, and their weighted sums. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN_ELEMENTS 16384

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, base, x, s;
    const int64_t *at; /* pair or place */
    float *weights;
    int64_t n, k;
} job;

static void gather_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const size_t bytes = (size_t)j->n * carry_dtype_size(j->x.dtype);
    float beside[CARRY_PIECE];
    float to[CARRY_PIECE];
    for (int64_t row = begin; row < end; row++) {
        const int64_t t = j->at[row] / j->k;
        if (j->weights == NULL) {
            memcpy((unsigned char *)j->y.data + (size_t)row * bytes,
                   (const unsigned char *)j->x.data + (size_t)t * bytes, bytes);
            continue;
        }
        const float w = j->weights[j->at[row]];
        for (int64_t c = 0; c < j->n; c += CARRY_PIECE) {
            const int64_t count = carry_piece(c, j->n);
            const float *from = carry_piece_in(j->kernels, beside, &j->x, t * j->n + c, count);
            float *into = carry_piece_out(to, &j->y, row * j->n + c);
            for (int64_t i = 0; i < count; i++) {
                into[i] = w * from[i];
            }
            carry_piece_done(j->kernels, to, &j->y, row * j->n + c, count);
        }
    }
}

/* Adds columns from c on of the weighted sum of a token's rows to `sum`. */
static void add_pairs(const job *j, int64_t t, int64_t c, int64_t count, float *sum) {
    float beside[CARRY_PIECE];
    for (int64_t i = t * j->k; i < (t + 1) * j->k; i++) {
        const float w = j->weights != NULL ? j->weights[i] : 1.0f;
        const float *from = carry_piece_in(j->kernels, beside, &j->x, j->at[i] * j->n + c, count);
        for (int64_t l = 0; l < count; l++) {
            sum[l] += w * from[l];
        }
    }
}

/* Tokens are rows of y. */
static void combine_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float beside[CARRY_PIECE];
    float sum[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        for (int64_t c = 0; c < j->n; c += CARRY_PIECE) {
            const int64_t count = carry_piece(c, j->n);
            memset(sum, 0, sizeof sum);
            add_pairs(j, t, c, count, sum);
            const float *base = carry_piece_in(j->kernels, beside, &j->base, t * j->n + c, count);
            for (int64_t l = 0; base != NULL && l < count; l++) {
                sum[l] += base[l];
            }
            carry_narrow(j->kernels, (unsigned char *)j->y.data + (size_t)(t * j->n + c) * carry_dtype_size(j->y.dtype),
                         sum, j->y.dtype, count);
        }
    }
}

/* The dot product of row t of y and row r of x, in float64. */
static double dot_rows(const job *j, int64_t t, int64_t r) {
    float y[CARRY_PIECE];
    float x[CARRY_PIECE];
    double sum = 0.0;
    for (int64_t c = 0; c < j->n; c += CARRY_PIECE) {
        const int64_t count = carry_piece(c, j->n);
        const float *a = carry_piece_in(j->kernels, y, &j->y, t * j->n + c, count);
        const float *b = carry_piece_in(j->kernels, x, &j->x, r * j->n + c, count);
        for (int64_t l = 0; l < count; l++) {
            sum += (double)a[l] * (double)b[l];
        }
    }
    return sum;
}

static void combine_back_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t i = t * j->k; i < (t + 1) * j->k; i++) {
            j->weights[i] = (float)dot_rows(j, t, j->at[i]);
        }
    }
}

/* Number t of s. */
static float one_of(const job *j, const carry_tensor *s, int64_t t) {
    float beside[1];
    return *carry_piece_in(j->kernels, beside, s, t, 1);
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static void gate_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float beside[CARRY_PIECE];
    float more[CARRY_PIECE];
    float to[CARRY_PIECE];
    for (int64_t t = begin; t < end; t++) {
        const float s = sigmoid(one_of(j, &j->s, t));
        for (int64_t c = 0; c < j->n; c += CARRY_PIECE) {
            const int64_t count = carry_piece(c, j->n);
            const float *x = carry_piece_in(j->kernels, beside, &j->x, t * j->n + c, count);
            const float *base = carry_piece_in(j->kernels, more, &j->base, t * j->n + c, count);
            float *y = carry_piece_out(to, &j->y, t * j->n + c);
            for (int64_t l = 0; l < count; l++) {
                y[l] = (base != NULL ? base[l] : 0.0f) + s * x[l];
            }
            carry_piece_done(j->kernels, to, &j->y, t * j->n + c, count);
        }
    }
}

/* Here y is dy, and base receives the gradient of s. */
static void gate_back_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    for (int64_t t = begin; t < end; t++) {
        const float s = sigmoid(one_of(j, &j->s, t));
        const float ds = (float)((double)(s * (1.0f - s)) * dot_rows(j, t, t));
        carry_narrow(j->kernels, (unsigned char *)j->base.data + (size_t)t * carry_dtype_size(j->base.dtype), &ds,
                     j->base.dtype, 1);
    }
}

static int64_t grain_of(int64_t n) {
    return GRAIN_ELEMENTS / (n + 1) + 1;
}

/* Checks y [T k, n] and x [T, n], or the other way round, with k > 0; at [T k] and weights [T, k]. */
static carry_status expect_pairs(carry_ctx *ctx, const carry_tensor *rows, const carry_tensor *tokens,
                                 const carry_tensor *at, const carry_tensor *weights, int64_t *k) {
    CARRY_TRY(carry_expect_rank(ctx, "rows", rows, 2));
    CARRY_TRY(carry_expect_rank(ctx, "tokens", tokens, 2));
    CARRY_TRY(carry_expect_like(ctx, "tokens", tokens, tokens));
    *k = tokens->shape[0] > 0 ? rows->shape[0] / tokens->shape[0] : 0;
    carry_tensor like = *tokens;
    like.shape[0] = *k * tokens->shape[0];
    if (*k < 1) {
        return carry_fail(ctx, CARRY_ESHAPE, "%" PRId64 " rows are no whole number for each of %" PRId64 " tokens",
                          rows->shape[0], tokens->shape[0]);
    }
    CARRY_TRY(carry_expect_like(ctx, "rows", rows, &like));
    CARRY_TRY(carry_expect_i64(ctx, "pairs", at, rows->shape[0], rows->device));
    return carry_is_here(weights)
               ? carry_expect_f32(ctx, "weights", weights, 2, (const int64_t[]){tokens->shape[0], *k}, rows->device)
               : CARRY_OK;
}

carry_status carry_gather_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor pair,
                                carry_tensor weights) {
    int64_t k;
    CARRY_OPERATOR(ctx, operators, gather_pairs, &x)
    CARRY_TRY(expect_pairs(ctx, &y, &x, &pair, &weights, &k));
    return operators->gather_pairs(ctx, y, x, pair, weights);
}

carry_status carry_cpu_gather_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor pair,
                                    carry_tensor weights) {
    job j = {.y = y, .x = x, .at = pair.data, .weights = weights.data, .n = x.shape[1]};
    j.k = y.shape[0] / x.shape[0];
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, y.shape[0], grain_of(j.n), gather_range, &j);
    return CARRY_OK;
}

carry_status carry_combine_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x, carry_tensor place,
                                 carry_tensor weights) {
    int64_t k;
    CARRY_OPERATOR(ctx, operators, combine_pairs, &x)
    CARRY_TRY(expect_pairs(ctx, &x, &y, &place, &weights, &k));
    if (carry_is_here(&base)) {
        CARRY_TRY(carry_expect_like(ctx, "base", &base, &y));
    }
    return operators->combine_pairs(ctx, y, base, x, place, weights);
}

carry_status carry_cpu_combine_pairs(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x,
                                     carry_tensor place, carry_tensor weights) {
    job j = {.y = y, .base = base, .x = x, .at = place.data, .weights = weights.data, .n = x.shape[1]};
    j.k = x.shape[0] / y.shape[0];
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, y.shape[0], grain_of(j.n * j.k), combine_range, &j);
    return CARRY_OK;
}

carry_status carry_combine_pairs_backward(carry_ctx *ctx, carry_tensor dweights, carry_tensor dy, carry_tensor x,
                                          carry_tensor place) {
    int64_t k;
    CARRY_OPERATOR(ctx, operators, combine_pairs_backward, &x)
    CARRY_TRY(expect_pairs(ctx, &x, &dy, &place, &dweights, &k));
    return operators->combine_pairs_backward(ctx, dweights, dy, x, place);
}

carry_status carry_cpu_combine_pairs_backward(carry_ctx *ctx, carry_tensor dweights, carry_tensor dy, carry_tensor x,
                                              carry_tensor place) {
    job j = {.y = dy, .x = x, .at = place.data, .weights = dweights.data, .n = x.shape[1]};
    j.k = x.shape[0] / dy.shape[0];
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, dy.shape[0], grain_of(j.n * j.k), combine_back_range, &j);
    return CARRY_OK;
}

/* y and x [T, n], s [T, 1]. */
static carry_status expect_gate(carry_ctx *ctx, const carry_tensor *y, const carry_tensor *x, const carry_tensor *s) {
    CARRY_TRY(carry_expect_rank(ctx, "x", x, 2));
    CARRY_TRY(carry_expect_like(ctx, "x", x, x));
    CARRY_TRY(carry_expect_like(ctx, "y", y, x));
    carry_tensor like = *x;
    like.shape[1] = 1;
    return carry_expect_like(ctx, "s", s, &like);
}

carry_status carry_row_gate(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x, carry_tensor s) {
    CARRY_OPERATOR(ctx, operators, row_gate, &x)
    CARRY_TRY(expect_gate(ctx, &y, &x, &s));
    if (carry_is_here(&base)) {
        CARRY_TRY(carry_expect_like(ctx, "base", &base, &x));
    }
    return operators->row_gate(ctx, y, base, x, s);
}

carry_status carry_cpu_row_gate(carry_ctx *ctx, carry_tensor y, carry_tensor base, carry_tensor x, carry_tensor s) {
    job j = {.y = y, .base = base, .x = x, .s = s, .n = x.shape[1]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], grain_of(j.n), gate_range, &j);
    return CARRY_OK;
}

carry_status carry_row_gate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor ds, carry_tensor dy, carry_tensor x,
                                     carry_tensor s) {
    CARRY_OPERATOR(ctx, operators, row_gate_backward, &x)
    CARRY_TRY(expect_gate(ctx, &dy, &x, &s));
    CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    CARRY_TRY(carry_expect_like(ctx, "ds", &ds, &s));
    return operators->row_gate_backward(ctx, dx, ds, dy, x, s);
}

carry_status carry_cpu_row_gate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor ds, carry_tensor dy,
                                         carry_tensor x, carry_tensor s) {
    job j = {.y = dy, .base = ds, .x = x, .s = s, .n = x.shape[1]};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, x.shape[0], grain_of(j.n), gate_back_range, &j);
    return carry_cpu_row_gate(ctx, dx, (carry_tensor){0}, dy, s);
}
