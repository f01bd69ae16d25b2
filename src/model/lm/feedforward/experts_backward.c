/* The backward pass of experts: the steps of forward in reverse order. The gradients of the experts' outputs, and later
   those of their inputs, overwrite the outputs. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/feedforward/experts.h"

/* Overwrites up and gate with their gradients. */
static carry_status activate_backward(const carry_lm_call *call, const carry_lm_units *u, carry_tensor dactive) {
    carry_ctx *ctx = call->pass->ctx;
    if (u->gate.data != NULL) {
        return carry_swiglu_backward(ctx, u->gate, u->up, dactive, u->gate, u->up);
    }
    /* the derivative of relu(up)^2 is 2 relu(up) */
    CARRY_TRY(carry_elementwise(ctx, u->up, dactive, u->active, CARRY_MULTIPLY));
    return carry_elementwise(ctx, u->up, u->up, u->up, CARRY_ADD);
}

/* dx is written. */
static carry_status shared_backward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_experts_rows *r = call->rows;
    const carry_lm_experts_back *back = call->back;
    const carry_lm_units *u = &r->shared;
    const bool scaled = r->scale.data != NULL;
    if (scaled) {
        CARRY_TRY(carry_row_gate_backward(ctx, back->dout, back->dscale, call->dout, r->shared_out, r->scale));
    }
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_EXPERTS_SHARED_DOWN_BIAS, call->dout));
    CARRY_TRY(carry_lm_project_backward(call, CARRY_LM_EXPERTS_SHARED_DOWN, back->dshared,
                                        scaled ? back->dout : call->dout, u->squared, false));
    CARRY_TRY(activate_backward(call, u, back->dshared));
    carry_tensor maps[CARRY_LM_EXPERTS_SLOTS] = {0};
    maps[CARRY_LM_EXPERTS_SHARED_GATE] = u->gate;
    maps[CARRY_LM_EXPERTS_SHARED_UP] = u->up;
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_EXPERTS_SHARED_UP_BIAS, u->up));
    CARRY_TRY(
        carry_lm_project_all_backward(call, carry_lm_experts_shared(u), call->dx, maps, (carry_tensor){0}, call->x));
    return scaled
               ? carry_lm_project_backward(call, CARRY_LM_EXPERTS_SHARED_SCALE, call->dx, back->dscale, call->x, true)
               : CARRY_OK;
}

/* Computes the gradients of the router's weights and, in r->y, of the experts' inputs. dsum: the gradient of the
   weighted sum of the experts' outputs. */
static carry_status experts_backward(const carry_lm_call *call, carry_tensor dsum) {
    carry_ctx *ctx = call->pass->ctx;
    const int64_t width = call->pass->lm->config.experts.width;
    const carry_lm_experts_rows *r = call->rows;
    const carry_lm_experts_back *back = call->back;
    const carry_lm_units *u = &r->own;
    const carry_tensor W = carry_lm_product(call, CARRY_LM_EXPERTS_UP);
    const carry_tensor dW = carry_lm_dw(call, CARRY_LM_EXPERTS_UP);
    CARRY_TRY(carry_combine_pairs_backward(ctx, back->dweights, dsum, r->y, r->place));
    CARRY_TRY(carry_gather_pairs(ctx, r->y, dsum, r->pair, r->weights));
    CARRY_TRY(carry_grouped_linear_backward(ctx, back->dactive, carry_lm_dw(call, CARRY_LM_EXPERTS_DOWN), r->y,
                                            u->squared, carry_lm_product(call, CARRY_LM_EXPERTS_DOWN), r->offsets,
                                            false));
    CARRY_TRY(activate_backward(call, u, back->dactive));
    if (u->both.data != NULL || u->gate.data == NULL) {
        const carry_tensor dy = u->both.data != NULL ? u->both : u->up;
        return carry_grouped_linear_backward(ctx, r->y, dW, dy, r->x, W, r->offsets, false);
    }
    CARRY_TRY(carry_grouped_linear_backward(ctx, r->y, carry_lm_experts_half(dW, width, 0), u->gate, r->x,
                                            carry_lm_experts_half(W, width, 0), r->offsets, false));
    return carry_grouped_linear_backward(ctx, r->y, carry_lm_experts_half(dW, width, 1), u->up, r->x,
                                         carry_lm_experts_half(W, width, 1), r->offsets, true);
}

carry_status carry_lm_experts_backward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_experts_rows *r = call->rows;
    const carry_lm_experts_back *back = call->back;
    const carry_tensor absent = {0};
    const bool shared = r->shared.up.data != NULL;
    const bool latent = r->latent.data != NULL;
    if (shared) {
        CARRY_TRY(shared_backward(call));
    }
    if (latent) {
        CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_EXPERTS_LATENT_OUT_BIAS, call->dout));
        CARRY_TRY(carry_lm_project_backward(call, CARRY_LM_EXPERTS_LATENT_OUT, back->dsum, call->dout, r->sum, false));
    }
    CARRY_TRY(experts_backward(call, latent ? back->dsum : call->dout));
    if (latent) {
        CARRY_TRY(carry_combine_pairs(ctx, back->dlatent, absent, r->y, r->place, absent));
        CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_EXPERTS_LATENT_IN_BIAS, back->dlatent));
        CARRY_TRY(
            carry_lm_project_backward(call, CARRY_LM_EXPERTS_LATENT_IN, call->dx, back->dlatent, call->x, shared));
    } else {
        CARRY_TRY(carry_combine_pairs(ctx, call->dx, shared ? call->dx : absent, r->y, r->place, absent));
    }
    CARRY_TRY(carry_route_backward(ctx, back->dlogits, back->dweights, r->logits, r->chosen,
                                   &call->pass->lm->config.experts.router));
    return carry_lm_project_backward(call, CARRY_LM_EXPERTS_ROUTER, call->dx, back->dlogits, call->x, true);
}
