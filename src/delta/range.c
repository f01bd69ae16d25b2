/* What a range of tokens does to a state, S -> M S + L: L is where it takes the zero state, and M where it takes the
   identity when no values come in. One walk without output makes both, the columns of L and of M beside each other. */
#include <inttypes.h>

#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "delta/forward.h"

static carry_status check_pair(carry_ctx *ctx, const carry_delta_problem *p, const char *name,
                               const carry_tensor *tensor, int64_t columns) {
    const int64_t shape[] = {p->batch, p->value_heads, p->key, columns};
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, 4, shape));
    if (tensor->dtype != CARRY_F32 || !carry_tensor_is_packed(tensor, 0) || tensor->device != 0) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s must be packed f32 on the CPU", name);
    }
    return CARRY_OK;
}

carry_status carry_delta_range(carry_delta_plan *plan, carry_tensor M, carry_tensor L,
                               const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(ctx, "delta", "range");
    carry_delta_inputs in = carry_delta_inputs_of(inputs);
    in.initial_state = NULL;
    if (p->sequences != 0 || p->state_transposed) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "a range is of sequences that are not packed, with states K x V");
    }
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &in));
    CARRY_TRY(check_pair(ctx, p, "M", &M, p->key));
    CARRY_TRY(check_pair(ctx, p, "L", &L, p->value));
    CARRY_TRY(carry_delta_check_workspace(ctx, workspace, workspace_bytes, plan->range_workspace));
    carry_delta_run run = {.in = in, .final_state = &L, .maps = M.data, .chunks_only = true};
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_run_take(plan, &arena, &run, p->value + p->key, true);
    carry_delta_run_all(&run);
    return CARRY_OK;
}
