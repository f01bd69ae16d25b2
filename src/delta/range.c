/* The effect of a range of tokens on a state, S -> M S + L: L is the final state from a zero initial state, and M
   the final state from the identity with zero values. One walk without output computes both, the columns of L and M
   side by side. */
#include "delta/forward.h"

carry_status carry_delta_cpu_range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                                   const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes) {
    const carry_delta_problem *p = &plan->problem;
    carry_delta_run run = {.in = carry_delta_inputs_of(inputs), .final_state = L, .maps = M->data, .chunks_only = true};
    run.in.initial_state = NULL;
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_run_take(plan, &arena, &run, p->value + p->key, true);
    carry_delta_run_all(&run);
    return CARRY_OK;
}
