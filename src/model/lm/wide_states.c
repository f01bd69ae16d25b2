/* Copies of states in f32. */
#include "model/lm/wide_states.h"

#include "core/context.h"
#include "core/tensor.h"

static bool is_narrow(const carry_lm_call *call, int part) {
    const carry_lm_places *p = call->args->places;
    return p != NULL && p->pool->part[call->layer][part].dtype == CARRY_BF16;
}

static int64_t sequences_of(const carry_lm_group *group) {
    return group->packed > 0 ? group->packed : group->batch;
}

/* The states of a group in f32: [slices][sequences, ...], with the shape of the part. */
static carry_tensor wide_of(const carry_lm_call *call, const carry_lm_group *group, int part) {
    const carry_lm_state *pool = call->args->places->pool;
    const carry_tensor *states = &pool->part[call->layer][part];
    int64_t shape[CARRY_MAX_RANK];
    for (int i = 0; i < states->rank; i++) {
        shape[i] = i == 0 ? sequences_of(group) : states->shape[i];
    }
    return carry_view_on(pool->device, pool->wide, CARRY_F32, states->rank, shape);
}

/* Copies the group's states out of the pool or into it, slice by slice. */
static carry_status move(const carry_lm_call *call, const carry_lm_group *group, int part, bool is_taken) {
    const carry_lm_places *p = call->args->places;
    const carry_tensor *states = &p->pool->part[call->layer][part];
    const carry_lm_state_part *about = &p->pool->about[call->layer][part];
    const carry_tensor wide = wide_of(call, group, part);
    const int32_t *slots = p->there.slots + group->sequence;
    const int64_t slices = about->slices > 0 ? about->slices : 1;
    const int64_t n = carry_tensor_count(states) / states->shape[0] / slices;
    const carry_tensor stored = carry_reshape_2d(*states, slices * states->shape[0], n);
    const carry_tensor rows = carry_reshape_2d(wide, slices * wide.shape[0], n);
    for (int64_t i = 0; i < slices; i++) {
        const carry_tensor from = carry_slice(stored, i * states->shape[0], states->shape[0]);
        const carry_tensor to = carry_slice(rows, i * wide.shape[0], wide.shape[0]);
        CARRY_TRY(is_taken ? carry_take_slots(call->pass->ctx, to, from, slots)
                           : carry_put_slots(call->pass->ctx, from, to, slots));
    }
    return CARRY_OK;
}

carry_status carry_lm_take_wide(const carry_lm_call *call, const carry_lm_group *group, int part,
                                carry_lm_pooled_call *pooled) {
    *pooled = carry_lm_pooled(call, group, part);
    if (!is_narrow(call, part)) {
        return CARRY_OK;
    }
    pooled->pool = wide_of(call, group, part);
    pooled->slots = pooled->slots != NULL ? call->args->places->pool->wide_slots : NULL;
    pooled->slot = 0;
    return move(call, group, part, true);
}

carry_status carry_lm_put_wide(const carry_lm_call *call, const carry_lm_group *group, int part) {
    return is_narrow(call, part) ? move(call, group, part, false) : CARRY_OK;
}

carry_status carry_lm_run_group(const carry_lm_call *call, const carry_lm_group *group,
                                carry_status (*run)(const carry_lm_call *call, const carry_lm_group *group)) {
    const carry_lm_places *p = call->args->places;
    const bool is_piece = p != NULL && group->packed == 0 && !carry_lm_group_is_steps(call->args, group);
    if (!is_piece || !call->pass->options.same_bits || p->pool->types.states == CARRY_F32) {
        return run(call, group);
    }
    for (int64_t t = 0; t < group->tokens; t++) {
        carry_lm_group one = *group;
        one.first += t;
        one.tokens = 1;
        CARRY_TRY(run(call, &one));
    }
    return CARRY_OK;
}
