/* Products of delta rules for sequences whose states are in a pool. */
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/deltaproduct.h"
#include "model/lm/places.h"
#include "model/lm/wide_states.h"

/* A view of a group's rows as [batch, tokens steps, heads, width], or without the last index if width is 0. step >= 0:
   only this step of each token. */
static carry_tensor steps_of(const carry_lm_call *call, const carry_lm_group *group, carry_tensor rows, int64_t heads,
                             int64_t width, int64_t step) {
    const int64_t shape[] = {group->batch, group->tokens * ((const carry_lm_deltaproduct *)call->opened)->steps, heads,
                             width};
    if (rows.data == NULL) {
        return rows;
    }
    carry_tensor view = carry_reshape(carry_lm_group_flat(group, rows), width > 0 ? 4 : 3, shape);
    if (step >= 0) {
        view.data = (char *)view.data + step * view.stride[1] * (int64_t)carry_dtype_size(view.dtype);
        view.shape[1] = group->tokens;
    }
    return view;
}

/* Runs the delta rule for a group with these states. A single token is one in-place step of the delta rule for
   each step of the product. */
static carry_status mix_pooled(const carry_lm_call *call, const carry_lm_group *group, int64_t step,
                               const carry_lm_pooled_call *states) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_deltaproduct *o = call->opened;
    const carry_lm_deltaproduct_rows *r = call->rows;
    const carry_tensor absent = {0};
    const carry_delta_forward_args delta = {
        .o = steps_of(call, group, r->o_wide, c->delta.value_heads, c->delta.value, step),
        .q = steps_of(call, group, r->q_wide, c->delta.heads, c->delta.key, step),
        .k = steps_of(call, group, r->k, c->delta.heads, c->delta.key, step),
        .v = steps_of(call, group, r->v, c->delta.value_heads, c->delta.value, step),
        .beta = steps_of(call, group, r->b, c->delta.value_heads, 0, step),
        .g = c->delta.gated ? steps_of(call, group, r->a_wide, c->delta.value_heads, 0, step) : absent,
        .A_log = c->delta.gated ? carry_lm_w(call, CARRY_LM_A_LOG) : absent,
        .dt_bias = c->delta.gated ? carry_lm_w(call, CARRY_LM_DT_BIAS) : absent};
    carry_lm_pooled_call pooled = *states;
    pooled.tokens = delta.q.shape[1];
    return o->method->pooled(o->recurrence, &pooled, &delta, pass->scratch, pass->scratch_bytes);
}

static carry_status mix_group(const carry_lm_call *call, const carry_lm_group *group) {
    const int64_t steps = ((const carry_lm_deltaproduct *)call->opened)->steps;
    const bool singles = carry_lm_group_is_steps(call->args, group);
    carry_lm_pooled_call pooled;
    CARRY_TRY(carry_lm_follow(call, group, 3));
    CARRY_TRY(carry_lm_take_wide(call, group, 3, &pooled));
    for (int64_t step = singles ? 0 : -1; step < (singles ? steps : 0); step++) {
        CARRY_TRY(mix_pooled(call, group, step, &pooled));
    }
    return carry_lm_put_wide(call, group, 3);
}

carry_status carry_lm_deltaproduct_pooled(const carry_lm_call *call) {
    carry_lm_group group;
    for (int64_t i = 0; carry_lm_group_at(call->pass, call->args, i, &group); i++) {
        CARRY_TRY(carry_lm_run_group(call, &group, mix_group));
    }
    return CARRY_OK;
}
