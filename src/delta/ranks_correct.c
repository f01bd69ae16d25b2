/* Corrects the outputs of a rank whose entering state arrived after they were computed. */
#include "core/context.h"
#include "delta/ranks.h"

#ifndef CARRY_HAVE_CUDA
carry_status carry_delta_correct(carry_ctx *ctx, int device, const carry_delta_correction *correction) {
    (void)correction;
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "this build cannot work on device %d: it has no CUDA", device);
}
#endif

carry_status carry_delta_ranks_correct(const carry_delta_ranks_plan *plan, void *o, const void *response,
                                       const float *state) {
    const carry_delta_problem *p = &plan->problem;
    const carry_delta_correction correction = {.o = o,
                                               .response = response,
                                               .state = state,
                                               .dtype = (int)p->dtype,
                                               .batch = p->batch,
                                               .tokens = p->tokens,
                                               .heads = p->value_heads,
                                               .key = (int)p->key,
                                               .value = (int)p->value};
    return carry_delta_correct(plan->ctx, p->device, &correction);
}
