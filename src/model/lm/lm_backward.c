/* The backward pass of one layer: the steps of forward in reverse order. A part may overwrite the activations it
   kept. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/lm/lm_pass.h"

carry_status carry_lm_project_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor dy,
                                       carry_tensor x, bool accumulate) {
    carry_tensor W = carry_lm_product(call, slot);
    if (W.data == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_linear_backward(call->pass->ctx, dx, carry_lm_dw(call, slot), dy, x, W, accumulate));
    return carry_lm_adapt_backward(call, slot, dx, dy, x);
}

carry_status carry_lm_project_out_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor x) {
    const carry_tensor W = carry_lm_product(call, slot);
    const carry_tensor absent = {0};
    bool done;
    if (W.data == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_lm_fp8_linear_dx(call, true, dx, call->dout, W, &done));
    CARRY_TRY(
        carry_linear_backward(call->pass->ctx, done ? absent : dx, carry_lm_dw(call, slot), call->dout, x, W, false));
    return carry_lm_adapt_backward(call, slot, dx, call->dout, x);
}

carry_status carry_lm_project_all_backward(const carry_lm_call *call, const int *slots, carry_tensor dx,
                                           const carry_tensor *dy, carry_tensor rest, carry_tensor x) {
    carry_merged_linear_backward_args args = {.x = x};
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = carry_lm_product(call, slots[i]);
        if (W.data != NULL) {
            args.W[args.maps] = W;
            args.dW[args.maps] = carry_lm_dw(call, slots[i]);
            args.dy[args.maps++] = dy[slots[i]];
        }
    }
    if (rest.data != NULL) {
        args.W[args.maps] = carry_lm_rest(call, false);
        args.dW[args.maps] = call->pass->lm->own.gradients != NULL ? carry_lm_rest(call, true) : (carry_tensor){0};
        args.dy[args.maps++] = rest;
    }
    carry_tensor all_dy;
    carry_tensor all_W;
    bool done = false;
    if (call->pass->options.fp8 != NULL && carry_lm_fp8_join(args.dy, args.W, args.maps, &all_dy, &all_W)) {
        CARRY_TRY(carry_lm_fp8_linear_dx(call, false, dx, all_dy, all_W, &done));
    }
    if (!done) {
        args.dx = dx;
    }
    CARRY_TRY(carry_merged_linear_backward(call->pass->ctx, &args));
    for (int i = 0; call->pass->lm->adapter != NULL && slots[i] >= 0; i++) {
        CARRY_TRY(carry_lm_adapt_backward(call, slots[i], dx, dy[slots[i]], x));
    }
    return CARRY_OK;
}

carry_status carry_lm_norm_backward(carry_lm_pass *pass, carry_tensor dx, carry_tensor dw, carry_tensor dy,
                                    carry_tensor x, carry_tensor w, bool accumulate) {
    const float eps = (float)pass->lm->config.norm_eps;
    if (pass->lm->config.norm_plus_one) {
        const carry_tensor factor = carry_slice(pass->factor, 0, w.shape[0]);
        CARRY_TRY(carry_elementwise(pass->ctx, factor, carry_slice(pass->ones, 0, w.shape[0]), w, CARRY_ADD));
        w = factor;
    }
    return carry_rms_norm_backward(
        pass->ctx,
        &(carry_rms_norm_backward_args){
            .dx = dx, .dw = dw, .dy = dy, .x = x, .w = w, .eps = eps, .accumulate = accumulate},
        pass->scratch, pass->scratch_bytes);
}

/* The backward pass of a part and its norm. On entry back.dh is the gradient of h after the part, on return that of h
   before it. out: the part's output, if the norm comes after it. */
static carry_status backward_part(carry_lm_call *call, bool norm_after, carry_tensor h, carry_tensor out) {
    carry_lm_pass *pass = call->pass;
    carry_lm_back *back = &pass->back;
    const bool scales = !norm_after && pass->residual_factor.data != NULL;
    if (call->own->norm < 0) {
        return CARRY_OK; /* the part does not change h */
    }
    const carry_tensor w = carry_lm_weight(pass->lm, call->own->norm);
    const carry_tensor dw = carry_lm_gradient(pass->lm, call->own->norm);
    call->dout = norm_after || scales ? back->dout : back->dh;
    if (scales) {
        CARRY_TRY(carry_lm_scale(pass, back->dout, back->dh, pass->residual_factor));
    }
    call->dx = back->dx;
    if (norm_after) {
        CARRY_TRY(carry_lm_norm_backward(pass, back->dout, dw, back->dh, out, w, false));
    }
    CARRY_TRY(call->own->part->backward(call));
    return norm_after ? carry_elementwise(pass->ctx, back->dh, back->dh, back->dx, CARRY_ADD)
                      : carry_lm_norm_backward(pass, back->dh, dw, back->dx, h, w, true);
}

static carry_status backward_feedforward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    CARRY_SPAN(pass->ctx, "model", "mlp backward");
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_lm_rows *r = &pass->layer[layer];
    carry_lm_call call = carry_lm_call_of(pass, args, layer, &l->feedforward);
    call.x = l->norms_after ? r->middle : r->x2;
    return backward_part(&call, l->norms_after, r->middle, r->out2);
}

static carry_status backward_mixer(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    CARRY_SPAN(pass->ctx, "model", "mixer backward");
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_lm_rows *r = &pass->layer[layer];
    carry_lm_call call = carry_lm_call_of(pass, args, layer, &l->mixer);
    call.x = l->norms_after ? pass->h[layer] : r->x;
    return backward_part(&call, l->norms_after, pass->h[layer], r->out);
}

carry_status carry_lm_layer_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    if (pass->options.recompute) {
        CARRY_TRY(carry_lm_layer_forward(pass, args, layer, true));
    }
    CARRY_TRY(backward_feedforward(pass, args, layer));
    return backward_mixer(pass, args, layer);
}
