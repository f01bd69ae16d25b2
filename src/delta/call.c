/* The public calls: each checks its arguments, then calls the entry of the plan's method. */
#include "core/context.h"
#include "core/launching.h"
#include "core/span.h"
#include "delta/backward.h"
#include "delta/forward.h"

static carry_status check_workspace(const carry_delta_plan *plan, const void *workspace, size_t bytes, size_t needed) {
    CARRY_TRY(carry_delta_check_workspace(plan->ctx, workspace, bytes, needed));
    return plan->problem.device != 0
               ? carry_device_check_pointer(plan->ctx, "the workspace", workspace, plan->problem.device)
               : CARRY_OK;
}

static carry_status missing(const carry_delta_plan *plan, const char *entry) {
    return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "the delta-rule method %s has no %s on device %d",
                      plan->method->name, entry, plan->problem.device);
}

carry_status carry_delta_forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *workspace,
                                 size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(ctx, "delta", "forward");
    carry_launching_set("delta forward");
    const carry_delta_inputs in = carry_delta_inputs_of(args);
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &in));
    CARRY_TRY(carry_delta_check_written(ctx, p, "o", &args->o, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_outputs(ctx, plan, args));
    CARRY_TRY(check_workspace(plan, workspace, workspace_bytes, plan->forward_workspace));
    return plan->method->forward != NULL ? plan->method->forward(plan, args, workspace, workspace_bytes)
                                         : missing(plan, "forward pass");
}

carry_status carry_delta_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *workspace,
                                  size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(ctx, "delta", "backward");
    carry_launching_set("delta backward");
    const carry_delta_inputs in = carry_delta_back_inputs_of(args);
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &in));
    CARRY_TRY(carry_delta_check_gradients(ctx, p, args));
    CARRY_TRY(carry_delta_check_state_gradients(ctx, p, args));
    CARRY_TRY(carry_delta_check_kept(ctx, p, args->kept));
    CARRY_TRY(check_workspace(plan, workspace, workspace_bytes, plan->backward_workspace));
    return plan->method->backward != NULL ? plan->method->backward(plan, args, workspace, workspace_bytes)
                                          : missing(plan, "backward pass");
}

static carry_status step(carry_delta_plan *plan, carry_tensor o, carry_tensor state, const int32_t *slots,
                         const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(ctx, "delta", "step");
    carry_launching_set("delta step");
    carry_delta_inputs in = carry_delta_inputs_of(inputs);
    in.initial_state = NULL;
    if (p->tokens != 1 || p->sequences != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a step takes one token for each of batch sequences; this plan has %lld%s",
                          (long long)p->tokens, p->sequences != 0 ? ", packed" : "");
    }
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &in));
    CARRY_TRY(carry_delta_check_written(ctx, p, "o", &o, p->value_heads, p->value));
    carry_tensor rows = state;
    rows.shape[0] = slots != NULL ? p->batch : state.shape[0]; /* a pool may have any number of rows */
    CARRY_TRY(carry_delta_check_state(ctx, p, "state", &rows));
    CARRY_TRY(check_workspace(plan, workspace, workspace_bytes, plan->forward_workspace));
    return plan->method->step != NULL ? plan->method->step(plan, &o, &state, slots, inputs, workspace, workspace_bytes)
                                      : missing(plan, "step");
}

carry_status carry_delta_step(carry_delta_plan *plan, carry_tensor o, carry_tensor state,
                              const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes) {
    return step(plan, o, state, NULL, inputs, workspace, workspace_bytes);
}

carry_status carry_delta_step_slots(carry_delta_plan *plan, carry_tensor o, carry_tensor pool, const int32_t *slots,
                                    const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes) {
    return step(plan, o, pool, slots, inputs, workspace, workspace_bytes);
}

carry_status carry_delta_range(carry_delta_plan *plan, carry_tensor M, carry_tensor L,
                               const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(ctx, "delta", "range");
    carry_launching_set("delta range");
    carry_delta_inputs in = carry_delta_inputs_of(inputs);
    in.initial_state = NULL;
    if (p->sequences != 0 || p->state_transposed) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "carry_delta_range does not support packed sequences or transposed states");
    }
    const int64_t maps[] = {p->batch, p->value_heads, p->key, p->key};
    const int64_t states[] = {p->batch, p->value_heads, p->key, p->value};
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &in));
    CARRY_TRY(carry_delta_check_f32(ctx, p, "M", &M, 4, maps));
    CARRY_TRY(carry_delta_check_f32(ctx, p, "L", &L, 4, states));
    CARRY_TRY(check_workspace(plan, workspace, workspace_bytes, plan->range_workspace));
    return plan->method->range != NULL ? plan->method->range(plan, &M, &L, inputs, workspace, workspace_bytes)
                                       : missing(plan, "range");
}
