/* Gradients of a scan (formulas in carry/scan.h). l[T-1] = dh[T-1], and the other l are a scan in reverse,

       l[t] = A[t+1]^T l[t+1] + dh[t],   t = T-2..0,

   with T - 1 steps from the state l[T-1], over transposed transitions. It runs in f32 throughout, so that dA is
   computed from unrounded sums. */
#include <string.h>

#include "core/context.h"
#include "core/launching.h"
#include "core/limit.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "scan/check.h"
#include "scan/cuda/cuda.h"
#include "scan/plan.h"

typedef struct pass {
    carry_scan_plan *plan;
    const carry_scan_backward_args *given;
    int64_t batch, steps, n, width, A_size, b_size;
    float *l;       /* [batch, T, n, w] in the order of time */
    float *scratch; /* for each thread: h[t-1], A[t] or dA[t] */
    int64_t scratch_floats;
} pass;

static void *place(const carry_tensor *tensor, int64_t item, int64_t t) {
    ptrdiff_t elements = item * tensor->stride[0] + t * tensor->stride[1];
    return (char *)tensor->data + elements * (ptrdiff_t)carry_dtype_size(tensor->dtype);
}

static float *l_at(const pass *p, int64_t item, int64_t t) {
    return p->l + (item * p->steps + t) * p->b_size;
}

/* Loads dh into l, in f32. */
static void load_steps(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const pass *p = argument;
    for (int64_t i = begin; i < end; i++) {
        int64_t item = i / p->steps;
        int64_t t = i % p->steps;
        carry_widen(p->plan->kernels, l_at(p, item, t), place(&p->given->dh, item, t), p->given->dh.dtype, p->b_size);
    }
}

/* dA[t] = l[t] h[t-1]^T, or its diagonal. */
static void outer(const pass *p, float *dA, const float *l, const float *before) {
    if (p->plan->problem.kind == CARRY_SCAN_DENSE) {
        p->plan->kernels->product(&(carry_product){.m = p->n,
                                                   .n = p->n,
                                                   .k = p->width,
                                                   .count = 1,
                                                   .a = l,
                                                   .b = before,
                                                   .c = dA,
                                                   .a_row = p->width,
                                                   .b_row = p->width,
                                                   .c_row = p->n,
                                                   .b_transposed = true});
        return;
    }
    for (int64_t r = 0; r < p->n; r++) {
        float sum = 0.0f;
        for (int64_t j = 0; j < p->width; j++) {
            sum += l[r * p->width + j] * before[r * p->width + j];
        }
        dA[r] = sum;
    }
}

/* Loads the state before step t: h of the previous step, or h0. Returns false at the first step if there is no h0. */
static bool state_before(const pass *p, int64_t item, int64_t t, float *state) {
    const carry_scan_backward_args *given = p->given;
    int64_t neighbour = p->plan->problem.reversed ? t + 1 : t - 1;
    if (neighbour >= 0 && neighbour < p->steps) {
        carry_widen(p->plan->kernels, state, place(&given->h, item, neighbour), given->h.dtype, p->b_size);
        return true;
    }
    if (given->h0.data != NULL) {
        const char *from = (const char *)given->h0.data;
        from += (size_t)(item * given->h0.stride[0]) * carry_dtype_size(given->h0.dtype);
        carry_widen(p->plan->kernels, state, from, given->h0.dtype, p->b_size);
        return true;
    }
    return false;
}

static void store_steps(void *argument, int64_t begin, int64_t end, int worker) {
    const pass *p = argument;
    float *state = p->scratch + worker * p->scratch_floats;
    float *dA = state + p->b_size;
    for (int64_t i = begin; i < end; i++) {
        int64_t item = i / p->steps;
        int64_t t = i % p->steps;
        const float *l = l_at(p, item, t);
        if (p->given->dA.data != NULL) {
            if (state_before(p, item, t, state)) {
                outer(p, dA, l, state);
            } else {
                memset(dA, 0, (size_t)p->A_size * sizeof *dA);
            }
            carry_narrow(p->plan->kernels, place(&p->given->dA, item, t), dA, p->given->dA.dtype, p->A_size);
        }
        carry_narrow(p->plan->kernels, place(&p->given->db, item, t), l, p->given->db.dtype, p->b_size);
    }
}

/* dh0 = A[0]^T l[0]. */
static void store_dh0(void *argument, int64_t begin, int64_t end, int worker) {
    const pass *p = argument;
    const carry_scan_backward_args *given = p->given;
    float *dh0 = p->scratch + worker * p->scratch_floats;
    float *A = dh0 + p->b_size;
    int64_t t = p->plan->problem.reversed ? p->steps - 1 : 0;
    for (int64_t item = begin; item < end; item++) {
        carry_widen(p->plan->kernels, A, place(&given->A, item, t), given->A.dtype, p->A_size);
        const float *l = l_at(p, item, t);
        if (p->plan->problem.kind == CARRY_SCAN_DENSE) {
            p->plan->kernels->product(&(carry_product){.m = p->n,
                                                       .n = p->width,
                                                       .k = p->n,
                                                       .count = 1,
                                                       .a = A,
                                                       .b = l,
                                                       .c = dh0,
                                                       .a_row = p->n,
                                                       .b_row = p->width,
                                                       .c_row = p->width,
                                                       .a_transposed = true});
        } else {
            for (int64_t r = 0; r < p->n; r++) {
                for (int64_t j = 0; j < p->width; j++) {
                    dh0[r * p->width + j] = A[r] * l[r * p->width + j];
                }
            }
        }
        void *to = (char *)given->dh0.data + (size_t)(item * given->dh0.stride[0]) * carry_dtype_size(given->dh0.dtype);
        carry_narrow(p->plan->kernels, to, dh0, given->dh0.dtype, p->b_size);
    }
}

/* Runs the scan over l in place. */
static carry_status scan_l(pass *p, void *workspace, size_t workspace_bytes) {
    const carry_scan_problem *problem = &p->plan->problem;
    if (p->steps == 1) {
        return CARRY_OK;
    }
    CARRY_SPAN_OF(p->plan->ctx, &p->plan->algorithm->span);
    carry_scan_work work = carry_scan_plan_shape(p->plan, p->plan->algorithm);
    /* From the last step to the first, or the other way if the problem itself is reversed. */
    int64_t start = problem->reversed ? 0 : p->steps - 1;
    int64_t way = problem->reversed ? 1 : -1;
    const carry_tensor *A = &p->given->A;
    work.A = (carry_scan_array){
        .data = place(A, 0, start), .dtype = A->dtype, .item = A->stride[0], .step = way * A->stride[1]};
    work.b = (carry_scan_array){
        .data = l_at(p, 0, start + way), .dtype = CARRY_F32, .item = p->steps * p->b_size, .step = way * p->b_size};
    work.h = work.b;
    work.h0 = (carry_scan_array){.data = l_at(p, 0, start), .dtype = CARRY_F32, .item = p->steps * p->b_size};
    work.workspace = workspace;
    work.workspace_bytes = workspace_bytes;
    carry_status status = p->plan->algorithm->run(&work);
    p->plan->products = work.products;
    p->plan->flops += work.flops;
    return status;
}

static void load_all(pass *p, int64_t grain) {
    CARRY_SPAN(p->plan->ctx, "scan", "load gradients");
    carry_parallel(p->plan->ctx, p->batch * p->steps, grain, load_steps, p);
}

static void store_all(pass *p, int64_t grain) {
    CARRY_SPAN(p->plan->ctx, "scan", "store gradients");
    carry_parallel(p->plan->ctx, p->batch * p->steps, grain, store_steps, p);
    if (p->given->dh0.data != NULL) {
        carry_parallel(p->plan->ctx, p->batch, 1, store_dh0, p);
    }
}

static carry_status check_backward(carry_scan_plan *plan, const carry_scan_backward_args *given, const void *workspace,
                                   size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_scan_problem *problem = &plan->problem;
    if (!problem->backward) {
        return carry_fail(ctx, CARRY_EARGUMENT, "this plan was made for carry_scan_run: make one with backward set");
    }
    CARRY_TRY(carry_scan_check_steps(ctx, problem, "A", &given->A, true, false));
    CARRY_TRY(carry_scan_check_steps(ctx, problem, "h", &given->h, false, true));
    CARRY_TRY(carry_scan_check_steps(ctx, problem, "dh", &given->dh, false, true));
    CARRY_TRY(carry_scan_check_steps(ctx, problem, "db", &given->db, false, true));
    CARRY_TRY(carry_scan_check_output(ctx, "db", &given->db, 2));
    CARRY_TRY(carry_scan_check_apart(ctx, "db", &given->db, "A", &given->A, false));
    CARRY_TRY(carry_scan_check_apart(ctx, "db", &given->db, "h", &given->h, false));
    CARRY_TRY(carry_scan_check_apart(ctx, "db", &given->db, "dh", &given->dh, true));
    if (given->dA.data != NULL) {
        CARRY_TRY(carry_scan_check_steps(ctx, problem, "dA", &given->dA, true, true));
        CARRY_TRY(carry_scan_check_output(ctx, "dA", &given->dA, 2));
        CARRY_TRY(carry_scan_check_apart(ctx, "dA", &given->dA, "A", &given->A, false));
        CARRY_TRY(carry_scan_check_apart(ctx, "dA", &given->dA, "h", &given->h, false));
        CARRY_TRY(carry_scan_check_apart(ctx, "dA", &given->dA, "db", &given->db, false));
    }
    if (given->dh0.data != NULL) {
        CARRY_TRY(carry_scan_check_state(ctx, problem, "dh0", &given->dh0, true));
        CARRY_TRY(carry_scan_check_output(ctx, "dh0", &given->dh0, 1));
        CARRY_TRY(carry_scan_check_apart(ctx, "dh0", &given->dh0, "A", &given->A, false));
        CARRY_TRY(carry_scan_check_apart(ctx, "dh0", &given->dh0, "db", &given->db, false));
        if (given->dA.data != NULL) {
            CARRY_TRY(carry_scan_check_apart(ctx, "dh0", &given->dh0, "dA", &given->dA, false));
        }
    }
    if (given->h0.data != NULL) { /* h0 is read while db and dA are written */
        CARRY_TRY(carry_scan_check_state(ctx, problem, "h0", &given->h0, true));
        CARRY_TRY(carry_scan_check_apart(ctx, "db", &given->db, "h0", &given->h0, false));
        if (given->dA.data != NULL) {
            CARRY_TRY(carry_scan_check_apart(ctx, "dA", &given->dA, "h0", &given->h0, false));
        }
    }
    return carry_scan_check_workspace(ctx, workspace, workspace_bytes, plan->workspace, problem->device);
}

static bool lay_out(const carry_scan_problem *problem, int threads, carry_arena *arena, pass *p) {
    carry_scan_shape shape = carry_scan_shape_of(problem);
    p->batch = problem->batch;
    p->steps = problem->steps;
    p->n = problem->n;
    p->width = problem->width;
    p->A_size = carry_scan_A_size(&shape);
    p->b_size = carry_scan_b_size(&shape);
    p->scratch_floats = p->A_size + p->b_size;
    p->l = carry_arena_take(arena, (size_t)(p->batch * p->steps) * (size_t)p->b_size, sizeof(float));
    p->scratch = carry_arena_take(arena, (size_t)threads, (size_t)p->scratch_floats * sizeof(float));
    return !arena->overflowed;
}

bool carry_scan_backward_extra(const carry_scan_problem *problem, int threads, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    pass p;
    return lay_out(problem, threads, &arena, &p) && carry_arena_total(&arena, bytes);
}

/* A tensor as an array, in the order of the recurrence or of time. */
static carry_scan_array array_of(const carry_tensor *tensor, bool reversed) {
    return (carry_scan_array){.data = place(tensor, 0, reversed ? tensor->shape[1] - 1 : 0),
                              .dtype = tensor->dtype,
                              .item = tensor->stride[0],
                              .step = reversed ? -tensor->stride[1] : tensor->stride[1]};
}

static carry_scan_array state_of(const carry_tensor *tensor) {
    return (carry_scan_array){.data = tensor->data, .dtype = tensor->dtype, .item = tensor->stride[0]};
}

/* The same on a GPU: enqueues all work on the stream and does not wait. */
static carry_status backward_on_gpu(pass *p, void *workspace, size_t workspace_bytes) {
    const carry_scan_backward_args *given = p->given;
    const carry_scan_problem *problem = &p->plan->problem;
    const carry_scan_gpu_steps *gpu = carry_scan_gpu();
    carry_ctx *ctx = p->plan->ctx;
    carry_stream *stream = carry_ctx_stream(ctx, problem->device);
    carry_scan_array l = {.data = p->l, .dtype = CARRY_F32, .item = p->steps * p->b_size, .step = (ptrdiff_t)p->b_size};
    CARRY_TRY(gpu->copy(ctx, p->plan->gpu, stream, l, array_of(&given->dh, false), p->batch, p->steps, p->b_size));
    CARRY_TRY(scan_l(p, workspace, workspace_bytes));
    if (given->dA.data != NULL || given->dh0.data != NULL) {
        carry_cuda_gradients gradients = {.kind = problem->kind,
                                          .batch = p->batch,
                                          .steps = p->steps,
                                          .n = p->n,
                                          .width = p->width,
                                          .l = l,
                                          .h = array_of(&given->h, problem->reversed),
                                          .A = array_of(&given->A, problem->reversed),
                                          .stream = stream,
                                          .device = p->plan->gpu->ordinal};
        if (problem->reversed) {
            gradients.l.data = l_at(p, 0, p->steps - 1);
            gradients.l.step = -l.step;
        }
        if (given->h0.data != NULL) {
            gradients.h0 = state_of(&given->h0);
        }
        if (given->dA.data != NULL) {
            gradients.dA = array_of(&given->dA, problem->reversed);
        }
        if (given->dh0.data != NULL) {
            gradients.dh0 = state_of(&given->dh0);
        }
        CARRY_TRY(gpu->gradients(ctx, &gradients));
    }
    return gpu->copy(ctx, p->plan->gpu, stream, array_of(&given->db, false), l, p->batch, p->steps, p->b_size);
}

static carry_status go_back(carry_scan_plan *plan, const carry_scan_backward_args *gradients, void *workspace,
                            size_t workspace_bytes) {
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    pass p = {.plan = plan, .given = gradients};
    if (!lay_out(&plan->problem, plan->gpu != NULL ? 0 : carry_ctx_threads(plan->ctx), &arena, &p)) {
        return carry_fail(plan->ctx, CARRY_EWORKSPACE, "the workspace has %zu bytes, too few", workspace_bytes);
    }
    int64_t grain = 16384 / (p.A_size + p.b_size) + 1;
    plan->products = 0;
    plan->flops = gradients->dA.data != NULL ? 2.0 * (double)(p.batch * p.steps) * (double)(p.A_size * p.width) : 0.0;
    if (plan->gpu != NULL) {
        return backward_on_gpu(&p, arena.base + arena.used, arena.size - arena.used);
    }
    load_all(&p, grain);
    CARRY_TRY(scan_l(&p, arena.base + arena.used, arena.size - arena.used));
    store_all(&p, grain);
    carry_span_work(plan->ctx, plan->flops, 0.0);
    return CARRY_OK;
}

carry_status carry_scan_backward(carry_scan_plan *plan, const carry_scan_backward_args *gradients, void *workspace,
                                 size_t workspace_bytes) {
    CARRY_SPAN(plan->ctx, "scan", "backward");
    carry_launching_set("scan backward");
    CARRY_TRY(check_backward(plan, gradients, workspace, workspace_bytes));
    const int threads = carry_limit_threads(plan->ctx, carry_scan_plan_threads(plan));
    const carry_status status = go_back(plan, gradients, workspace, workspace_bytes);
    (void)carry_limit_threads(plan->ctx, threads);
    return status;
}
