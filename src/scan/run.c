/* Runs a plan: checks, brings arrays into the order of the recurrence, and calls the algorithm. */
#include "core/context.h"
#include "core/launching.h"
#include "core/limit.h"
#include "core/span.h"
#include "scan/check.h"
#include "scan/plan.h"

/* A tensor of steps as an array in the order of the recurrence. */
static carry_scan_array in_order(const carry_tensor *tensor, bool reversed) {
    size_t item = carry_dtype_size(tensor->dtype);
    int64_t last = reversed ? (tensor->shape[1] - 1) * tensor->stride[1] : 0;
    return (carry_scan_array){.data = (char *)tensor->data + last * (int64_t)item,
                              .dtype = tensor->dtype,
                              .item = tensor->stride[0],
                              .step = reversed ? -tensor->stride[1] : tensor->stride[1]};
}

static carry_status check_run(carry_scan_plan *plan, const carry_tensor *h, const carry_tensor *A,
                              const carry_tensor *b, const carry_tensor *h0, const void *workspace,
                              size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_scan_problem *problem = &plan->problem;
    if (problem->backward) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "this plan was made for carry_scan_backward: make one without backward");
    }
    CARRY_TRY(carry_scan_check_inputs(ctx, problem, A, b, h0));
    CARRY_TRY(carry_scan_check_steps(ctx, problem, "h", h, false, problem->f32_result));
    if (problem->f32_result && h->dtype != CARRY_F32) {
        return carry_fail(ctx, CARRY_EDTYPE, "h is %s and the plan's result is f32", carry_dtype_name(h->dtype));
    }
    CARRY_TRY(carry_scan_check_output(ctx, "h", h, 2));
    CARRY_TRY(carry_scan_check_apart(ctx, "h", h, "b", b, true));
    CARRY_TRY(carry_scan_check_apart(ctx, "h", h, "A", A, false));
    if (h0 != NULL) {
        CARRY_TRY(carry_scan_check_apart(ctx, "h", h, "h0", h0, false));
    }
    return carry_scan_check_workspace(plan->ctx, workspace, workspace_bytes, plan->workspace, problem->device);
}

carry_status carry_scan_run(carry_scan_plan *plan, const carry_scan_args *args, void *workspace,
                            size_t workspace_bytes) {
    const carry_tensor *h0 = args->h0.data != NULL ? &args->h0 : NULL;
    CARRY_TRY(check_run(plan, &args->h, &args->A, &args->b, h0, workspace, workspace_bytes));
    carry_scan_work work = carry_scan_plan_shape(plan, plan->algorithm);
    work.A = in_order(&args->A, plan->problem.reversed);
    work.b = in_order(&args->b, plan->problem.reversed);
    work.h = in_order(&args->h, plan->problem.reversed);
    if (h0 != NULL) {
        work.h0 = (carry_scan_array){.data = h0->data, .dtype = h0->dtype, .item = h0->stride[0]};
    }
    work.workspace = workspace;
    work.workspace_bytes = workspace_bytes;
    carry_launching_set("scan");
    carry_track *const track = carry_span_begin(plan->ctx, &plan->algorithm->span);
    const int threads = carry_limit_threads(plan->ctx, carry_scan_plan_threads(plan));
    carry_status status = plan->algorithm->run(&work);
    (void)carry_limit_threads(plan->ctx, threads);
    plan->products = work.products;
    plan->flops = work.flops;
    carry_span_end_work(&track, work.flops, 0.0);
    return status;
}
