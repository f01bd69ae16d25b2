/* Activations, and the gated unit of feed-forward layers: element by element, in pieces that stay in the first-level
   cache. */
#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN 16384

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor to, to2, x, y, z;
    carry_activation activation;
} job;

static void activate_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float x[CARRY_PIECE];
    float to[CARRY_PIECE];
    for (int64_t at = begin; at < end; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, end);
        j->kernels->rows->activate(carry_piece_out(to, &j->to, at), carry_piece_in(j->kernels, x, &j->x, at, count),
                                   count, j->activation);
        carry_piece_done(j->kernels, to, &j->to, at, count);
    }
}

static void activate_backward_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float x[CARRY_PIECE];
    float dy[CARRY_PIECE];
    float to[CARRY_PIECE];
    for (int64_t at = begin; at < end; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, end);
        j->kernels->rows->activate_backward(carry_piece_out(to, &j->to, at),
                                            carry_piece_in(j->kernels, dy, &j->y, at, count),
                                            carry_piece_in(j->kernels, x, &j->x, at, count), count, j->activation);
        carry_piece_done(j->kernels, to, &j->to, at, count);
    }
}

static void swiglu_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_half_rows *half = carry_half_rows_for(j->kernels, &j->x, &j->y, &j->to);
    if (half != NULL) {
        half->swiglu((uint16_t *)j->to.data + begin, (const uint16_t *)j->x.data + begin,
                     (const uint16_t *)j->y.data + begin, end - begin);
        return;
    }
    float gate[CARRY_PIECE];
    float up[CARRY_PIECE];
    float to[CARRY_PIECE];
    for (int64_t at = begin; at < end; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, end);
        j->kernels->rows->swiglu(carry_piece_out(to, &j->to, at), carry_piece_in(j->kernels, gate, &j->x, at, count),
                                 carry_piece_in(j->kernels, up, &j->y, at, count), count);
        carry_piece_done(j->kernels, to, &j->to, at, count);
    }
}

static void swiglu_backward_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    float gate[CARRY_PIECE];
    float up[CARRY_PIECE];
    float dy[CARRY_PIECE];
    float dgate[CARRY_PIECE];
    float dup[CARRY_PIECE];
    for (int64_t at = begin; at < end; at += CARRY_PIECE) {
        int64_t count = carry_piece(at, end);
        j->kernels->rows->swiglu_backward(carry_piece_out(dgate, &j->to, at), carry_piece_out(dup, &j->to2, at),
                                          carry_piece_in(j->kernels, dy, &j->z, at, count),
                                          carry_piece_in(j->kernels, gate, &j->x, at, count),
                                          carry_piece_in(j->kernels, up, &j->y, at, count), count);
        carry_piece_done(j->kernels, dgate, &j->to, at, count);
        carry_piece_done(j->kernels, dup, &j->to2, at, count);
    }
}

static carry_status expect_known(carry_ctx *ctx, carry_activation activation) {
    if ((unsigned)activation > CARRY_GELU) {
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no activation number %d", (int)activation);
    }
    return CARRY_OK;
}

carry_status carry_activate(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_activation activation) {
    CARRY_OPERATOR(ctx, operators, activate, &x)
    CARRY_TRY(expect_known(ctx, activation));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    return operators->activate(ctx, y, x, activation);
}

carry_status carry_cpu_activate(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_activation activation) {
    job j = {.to = y, .x = x, .activation = activation};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, carry_tensor_count(&x), GRAIN, activate_range, &j);
    return CARRY_OK;
}

carry_status carry_activate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dy, carry_tensor x,
                                     carry_activation activation) {
    CARRY_OPERATOR(ctx, operators, activate_backward, &x)
    CARRY_TRY(expect_known(ctx, activation));
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &x));
    CARRY_TRY(carry_expect_like(ctx, "dx", &dx, &x));
    return operators->activate_backward(ctx, dx, dy, x, activation);
}

carry_status carry_cpu_activate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dy, carry_tensor x,
                                         carry_activation activation) {
    job j = {.to = dx, .y = dy, .x = x, .activation = activation};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, carry_tensor_count(&x), GRAIN, activate_backward_range, &j);
    return CARRY_OK;
}

carry_status carry_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up) {
    CARRY_OPERATOR(ctx, operators, swiglu, &gate)
    CARRY_TRY(carry_expect_rows(ctx, "gate", &gate, &gate));
    CARRY_TRY(carry_expect_rows(ctx, "up", &up, &gate));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &gate));
    return operators->swiglu(ctx, y, gate, up);
}

carry_status carry_cpu_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up) {
    job j = {.to = y, .x = gate, .y = up};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, carry_tensor_count(&gate), GRAIN, swiglu_range, &j);
    return CARRY_OK;
}

carry_status carry_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup, carry_tensor dy,
                                   carry_tensor gate, carry_tensor up) {
    CARRY_OPERATOR(ctx, operators, swiglu_backward, &gate)
    CARRY_TRY(carry_expect_rows(ctx, "gate", &gate, &gate));
    CARRY_TRY(carry_expect_rows(ctx, "up", &up, &gate));
    CARRY_TRY(carry_expect_like(ctx, "dy", &dy, &gate));
    CARRY_TRY(carry_expect_rows(ctx, "dgate", &dgate, &gate));
    CARRY_TRY(carry_expect_rows(ctx, "dup", &dup, &gate));
    return operators->swiglu_backward(ctx, dgate, dup, dy, gate, up);
}

carry_status carry_cpu_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup, carry_tensor dy,
                                       carry_tensor gate, carry_tensor up) {
    job j = {.to = dgate, .to2 = dup, .x = gate, .y = up, .z = dy};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, carry_tensor_count(&gate), GRAIN, swiglu_backward_range, &j);
    return CARRY_OK;
}
