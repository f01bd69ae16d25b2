/* Decays of KDA on the CPU; threads take heads. */
#include "ops/decay.h"

#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/nn.h"

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor g, a, A_log, dt_bias;
    carry_tensor da, dA_log, ddt_bias; /* backward: g is dg */
    int64_t tokens, width, each;       /* width: columns of all heads; each: of one head */
    double bound;
} job;

static carry_status check(carry_ctx *ctx, const carry_tensor *g, const carry_tensor *a, const carry_tensor *A_log,
                          const carry_tensor *dt_bias) {
    CARRY_TRY(carry_expect_rank(ctx, "a", a, 2));
    CARRY_TRY(carry_expect_like(ctx, "a", a, a));
    CARRY_TRY(carry_expect_f32(ctx, "g", g, 2, a->shape, a->device));
    CARRY_TRY(carry_expect_rank(ctx, "A_log", A_log, 1));
    CARRY_TRY(carry_expect_f32(ctx, "A_log", A_log, 1, A_log->shape, a->device));
    CARRY_TRY(carry_expect_f32(ctx, "dt_bias", dt_bias, 1, &a->shape[1], a->device));
    return A_log->shape[0] > 0 && a->shape[1] % A_log->shape[0] == 0
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ESHAPE, "a has %lld columns and A_log %lld heads, which must divide them",
                            (long long)a->shape[1], (long long)A_log->shape[0]);
}

static double softplus(double x) {
    return x > 40.0 ? x : log1p(exp(x));
}

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static void forward_heads(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    (void)worker;
    for (int64_t h = begin; h < end; h++) {
        const double rate = -exp((double)((const float *)j->A_log.data)[h]);
        for (int64_t t = 0; t < j->tokens; t++) {
            for (int64_t c = h * j->each; c < (h + 1) * j->each; c++) {
                const double x = carry_tensor_at(&j->a, t * j->width + c);
                const double in = x + (double)((const float *)j->dt_bias.data)[c];
                ((float *)j->g.data)[t * j->width + c] =
                    (float)(j->bound != 0.0 ? j->bound * sigmoid(-rate * in) : rate * softplus(in));
            }
        }
    }
}

static void backward_heads(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    (void)worker;
    for (int64_t h = begin; h < end; h++) {
        const double rate = -exp((double)((const float *)j->A_log.data)[h]);
        double dA = 0.0;
        for (int64_t c = h * j->each; c < (h + 1) * j->each; c++) {
            double dbias = 0.0;
            for (int64_t t = 0; t < j->tokens; t++) {
                const int64_t at = t * j->width + c;
                const double x = carry_tensor_at(&j->a, at) + (double)((const float *)j->dt_bias.data)[c];
                const double dg = (double)((const float *)j->g.data)[at];
                const double s = sigmoid(j->bound != 0.0 ? -rate * x : x);
                const double da = j->bound != 0.0 ? -dg * j->bound * s * (1.0 - s) * rate : dg * rate * s;
                dA += j->bound != 0.0 ? da * x : dg * rate * softplus(x);
                dbias += da;
                const float rounded = (float)da;
                carry_narrow(j->kernels, (unsigned char *)j->da.data + (size_t)at * carry_dtype_size(j->da.dtype),
                             &rounded, j->da.dtype, 1);
            }
            ((float *)j->ddt_bias.data)[c] += (float)dbias;
        }
        ((float *)j->dA_log.data)[h] += (float)dA;
    }
}

static job job_of(carry_tensor g, carry_tensor a, carry_tensor A_log, carry_tensor dt_bias) {
    return (job){.g = g,
                 .a = a,
                 .A_log = A_log,
                 .dt_bias = dt_bias,
                 .tokens = a.shape[0],
                 .width = a.shape[1],
                 .each = a.shape[1] / A_log.shape[0]};
}

carry_status carry_decay_gate(carry_ctx *ctx, carry_tensor g, carry_tensor a, carry_tensor A_log, carry_tensor dt_bias,
                              float bound) {
    CARRY_OPERATOR(ctx, operators, decay_gate, &a)
    CARRY_TRY(check(ctx, &g, &a, &A_log, &dt_bias));
    return operators->decay_gate(ctx, g, a, A_log, dt_bias, bound);
}

carry_status carry_cpu_decay_gate(carry_ctx *ctx, carry_tensor g, carry_tensor a, carry_tensor A_log,
                                  carry_tensor dt_bias, float bound) {
    job j = job_of(g, a, A_log, dt_bias);
    j.bound = bound;
    carry_parallel(ctx, A_log.shape[0], 1, forward_heads, &j);
    return CARRY_OK;
}

carry_status carry_decay_gate_backward(carry_ctx *ctx, const carry_decay_gate_backward_args *args) {
    CARRY_OPERATOR(ctx, operators, decay_gate_backward, &args->a)
    CARRY_TRY(check(ctx, &args->dg, &args->a, &args->A_log, &args->dt_bias));
    CARRY_TRY(carry_expect_like(ctx, "da", &args->da, &args->a));
    CARRY_TRY(carry_expect_f32(ctx, "dA_log", &args->dA_log, 1, args->A_log.shape, args->a.device));
    CARRY_TRY(carry_expect_f32(ctx, "ddt_bias", &args->ddt_bias, 1, args->dt_bias.shape, args->a.device));
    return operators->decay_gate_backward(ctx, args);
}

carry_status carry_cpu_decay_gate_backward(carry_ctx *ctx, const carry_decay_gate_backward_args *args) {
    job j = job_of(args->dg, args->a, args->A_log, args->dt_bias);
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    j.bound = args->bound;
    j.da = args->da;
    j.dA_log = args->dA_log;
    j.ddt_bias = args->ddt_bias;
    carry_parallel(ctx, args->A_log.shape[0], 1, backward_heads, &j);
    return CARRY_OK;
}
