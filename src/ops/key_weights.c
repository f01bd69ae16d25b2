/* The attention weights of a few keys: the norm of queries, scores and softmax, without the sum over values. */
#include <inttypes.h>
#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/video.h"

typedef struct job {
    const carry_key_weights_args *args;
} job;

static double element(const carry_tensor *tensor, int64_t at) {
    switch (tensor->dtype) {
    case CARRY_BF16:
        return (double)carry_f32_from_bf16(((const uint16_t *)tensor->data)[at]);
    case CARRY_F16:
        return (double)carry_f32_from_f16(((const uint16_t *)tensor->data)[at]);
    default:
        return (double)((const float *)tensor->data)[at];
    }
}

static void put(const carry_tensor *tensor, int64_t at, double value) {
    switch (tensor->dtype) {
    case CARRY_BF16:
        ((uint16_t *)tensor->data)[at] = carry_bf16_from_f32((float)value);
        break;
    case CARRY_F16:
        ((uint16_t *)tensor->data)[at] = carry_f16_from_f32((float)value);
        break;
    default:
        ((float *)tensor->data)[at] = (float)value;
    }
}

static double score(const carry_key_weights_args *a, int64_t row, int64_t head, int64_t key, double over) {
    const int64_t n = a->q.shape[1];
    const int64_t width = n / a->heads;
    double sum = 0.0;
    for (int64_t i = head * width; i < (head + 1) * width; i++) {
        const double w = carry_is_here(&a->w) ? (double)((const float *)a->w.data)[i] : 1.0;
        sum += element(&a->q, row * n + i) * w * element(&a->k, key * n + i);
    }
    return sum * over / sqrt((double)width) + (key == a->keys - 1 ? (double)a->last : 0.0);
}

/* The specification, which is rarely used: scores are computed again for each of the three passes. */
static void weigh_row(const carry_key_weights_args *a, int64_t row) {
    const int64_t n = a->q.shape[1];
    const int64_t stride = a->p.shape[1] / a->heads;
    double squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        squares += element(&a->q, row * n + i) * element(&a->q, row * n + i);
    }
    const double over = carry_is_here(&a->w) ? 1.0 / sqrt(squares / (double)n + (double)a->eps) : 1.0;
    for (int64_t head = 0; head < a->heads; head++) {
        double largest = -INFINITY;
        double sum = 0.0;
        for (int64_t j = 0; j < a->keys; j++) {
            const double value = score(a, row, head, j, over);
            largest = value > largest ? value : largest;
        }
        for (int64_t j = 0; j < a->keys; j++) {
            sum += exp(score(a, row, head, j, over) - largest);
        }
        for (int64_t j = 0; j < stride; j++) {
            put(&a->p, (row * a->heads + head) * stride + j,
                j < a->keys ? exp(score(a, row, head, j, over) - largest) / sum : 0.0);
        }
    }
}

static void weigh_range(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        weigh_row(j->args, row);
    }
}

carry_status carry_key_weights(carry_ctx *ctx, const carry_key_weights_args *args) {
    CARRY_OPERATOR(ctx, operators, key_weights, &args->q)
    CARRY_TRY(carry_expect_rank(ctx, "q", &args->q, 2));
    CARRY_TRY(carry_expect_like(ctx, "q", &args->q, &args->q));
    CARRY_TRY(carry_expect_rank(ctx, "k", &args->k, 2));
    CARRY_TRY(carry_expect_rank(ctx, "p", &args->p, 2));
    const int64_t T = args->q.shape[0];
    const int64_t n = args->q.shape[1];
    if (args->heads < 1 || n % args->heads != 0 || args->p.shape[1] % args->heads != 0) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "key_weights: %" PRId64 " heads do not divide %" PRId64 " columns of q and %" PRId64 " of p",
                          args->heads, n, args->p.shape[1]);
    }
    const int64_t stride = args->p.shape[1] / args->heads;
    if (args->keys < 1 || args->keys > stride || args->keys > args->k.shape[0]) {
        return carry_fail(ctx, CARRY_ERANGE,
                          "key_weights: %" PRId64 " keys, where p has room for %" PRId64 " and k has %" PRId64,
                          args->keys, stride, args->k.shape[0]);
    }
    const carry_tensor k = carry_slice(args->k, 0, args->keys);
    CARRY_TRY(carry_expect_activation(ctx, "k", &k, 2, (const int64_t[]){args->keys, n}, args->q.device));
    CARRY_TRY(
        carry_expect_activation(ctx, "p", &args->p, 2, (const int64_t[]){T, args->heads * stride}, args->q.device));
    if (args->k.dtype != args->q.dtype || args->p.dtype != args->q.dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "key_weights: q is %s, k is %s and p is %s: all of one type",
                          carry_dtype_name(args->q.dtype), carry_dtype_name(args->k.dtype),
                          carry_dtype_name(args->p.dtype));
    }
    if (carry_is_here(&args->w)) {
        CARRY_TRY(carry_expect_f32(ctx, "w", &args->w, 1, &n, args->q.device));
    }
    return operators->key_weights(ctx, args);
}

carry_status carry_cpu_key_weights(carry_ctx *ctx, const carry_key_weights_args *args) {
    job j = {.args = args};
    carry_parallel(ctx, args->q.shape[0], 1, weigh_range, &j);
    return CARRY_OK;
}
