/* Element by element, in f32, in pieces that stay in the first-level cache. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"

#define PIECE 16384
#define BESIDE 1024

typedef struct job {
    const carry_kernels *kernels;
    carry_elementwise_op op;
    carry_tensor to, x, y;
} job;

static void combine(carry_elementwise_op op, float *x, const float *y, int64_t count) {
    switch (op) {
    case CARRY_ADD:
        for (int64_t i = 0; i < count; i++) {
            x[i] += y[i];
        }
        return;
    case CARRY_SUBTRACT:
        for (int64_t i = 0; i < count; i++) {
            x[i] -= y[i];
        }
        return;
    case CARRY_MULTIPLY:
        for (int64_t i = 0; i < count; i++) {
            x[i] *= y[i];
        }
        return;
    }
}

static void combine_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float x[BESIDE];
    float y[BESIDE];
    size_t size = carry_dtype_size(j->x.dtype);
    size_t to_size = carry_dtype_size(j->to.dtype);
    for (int64_t at = begin; at < end; at += BESIDE) {
        int64_t count = end - at < BESIDE ? end - at : BESIDE;
        carry_widen(j->kernels, x, (const char *)j->x.data + (size_t)at * size, j->x.dtype, count);
        carry_widen(j->kernels, y, (const char *)j->y.data + (size_t)at * size, j->y.dtype, count);
        combine(j->op, x, y, count);
        carry_narrow(j->kernels, (char *)j->to.data + (size_t)at * to_size, x, j->to.dtype, count);
    }
}

carry_status carry_elementwise(carry_ctx *ctx, carry_tensor to, carry_tensor x, carry_tensor y,
                               carry_elementwise_op op) {
    CARRY_OPERATOR(ctx, operators, elementwise, &x)
    if ((unsigned)op > CARRY_MULTIPLY) {
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no element-wise operator number %d", (int)op);
    }
    CARRY_TRY(carry_expect_packed(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_packed(ctx, "y", &y, &x));
    CARRY_TRY(carry_expect_packed(ctx, "to", &to, &x));
    if (x.dtype != y.dtype) {
        return carry_fail(ctx, CARRY_EDTYPE, "x is %s and y is %s: they must be of one type", carry_dtype_name(x.dtype),
                          carry_dtype_name(y.dtype));
    }
    return operators->elementwise(ctx, op, to, x, y);
}

carry_status carry_cpu_elementwise(carry_ctx *ctx, carry_elementwise_op op, carry_tensor to, carry_tensor x,
                                   carry_tensor y) {
    job j = {.op = op, .to = to, .x = x, .y = y};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, carry_tensor_count(&x), PIECE, combine_range, &j);
    return CARRY_OK;
}
