/* One layer backward: forward's lines in mirror order. What a layer kept is used up: its gate and up become their own
   gradients. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/lm/lm_pass.h"

carry_status carry_lm_project_backward(carry_lm_pass *pass, int64_t layer, int slot, carry_tensor dx, carry_tensor dy,
                                       carry_tensor x, bool accumulate) {
    carry_tensor W = carry_lm_product(pass, layer, slot);
    if (W.data == NULL) {
        return CARRY_OK;
    }
    return carry_linear_backward(pass->ctx, dx, carry_lm_dw(pass, layer, slot), dy, x, W, accumulate);
}

carry_status carry_lm_project_all_backward(carry_lm_pass *pass, int64_t layer, const int *slots, carry_tensor dx,
                                           const carry_tensor *dy, carry_tensor rest, carry_tensor x) {
    carry_merged_linear_backward_args args = {.dx = dx, .x = x};
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = carry_lm_product(pass, layer, slots[i]);
        if (W.data != NULL) {
            args.W[args.maps] = W;
            args.dW[args.maps] = carry_lm_dw(pass, layer, slots[i]);
            args.dy[args.maps++] = dy[slots[i]];
        }
    }
    if (rest.data != NULL) {
        args.W[args.maps] = carry_lm_rest(pass, layer, false);
        args.dW[args.maps] = carry_lm_rest(pass, layer, true);
        args.dy[args.maps++] = rest;
    }
    return carry_merged_linear_backward(pass->ctx, &args);
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

/* Of what comes out of the mixer (0) or the MLP (1), and through the norm after it: back.dh itself, or back.dout. */
static carry_status enter(carry_lm_pass *pass, const carry_lm_layer *l, int which, carry_tensor out,
                          carry_tensor *dout) {
    *dout = l->norms_after ? pass->back.dout : pass->back.dh;
    return l->norms_after ? carry_lm_norm_backward(pass, *dout, carry_lm_gradient(pass->lm, l->norm[which]),
                                                   pass->back.dh, out, carry_lm_weight(pass->lm, l->norm[which]), false)
                          : CARRY_OK;
}

/* Adds back.dx to back.dh: as it is, or through the norm before. */
static carry_status leave(carry_lm_pass *pass, const carry_lm_layer *l, int which, carry_tensor h) {
    return l->norms_after ? carry_elementwise(pass->ctx, pass->back.dh, pass->back.dh, pass->back.dx, CARRY_ADD)
                          : carry_lm_norm_backward(pass, pass->back.dh, carry_lm_gradient(pass->lm, l->norm[which]),
                                                   pass->back.dx, h, carry_lm_weight(pass->lm, l->norm[which]), true);
}

static carry_status linear_backward(carry_lm_pass *pass, int64_t parameter, carry_tensor dx, carry_tensor dy,
                                    carry_tensor x, bool accumulate) {
    return carry_linear_backward(pass->ctx, dx, carry_lm_gradient(pass->lm, parameter), dy, x,
                                 carry_parameters_product(&pass->lm->own, parameter), accumulate);
}

static carry_status backward_mlp(carry_lm_pass *pass, int64_t layer, carry_lm_rows *r) {
    CARRY_SPAN(pass->ctx, "model", "mlp backward");
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_tensor x = l->norms_after ? r->middle : r->x2;
    carry_lm_back *back = &pass->back;
    carry_tensor dout;
    CARRY_TRY(enter(pass, l, 1, r->out2, &dout));
    CARRY_TRY(linear_backward(pass, l->down, back->dmiddle_wide, dout, r->activated, false));
    CARRY_TRY(carry_swiglu_backward(pass->ctx, r->gate, r->up, back->dmiddle_wide, r->gate, r->up));
    const carry_parameters *own = &pass->lm->own;
    CARRY_TRY(carry_merged_linear_backward(
        pass->ctx, &(carry_merged_linear_backward_args){
                       .dx = back->dx,
                       .dW = {carry_lm_gradient(pass->lm, l->gate), carry_lm_gradient(pass->lm, l->up)},
                       .dy = {r->gate, r->up},
                       .x = x,
                       .W = {carry_parameters_product(own, l->gate), carry_parameters_product(own, l->up)},
                       .maps = 2}));
    return leave(pass, l, 1, r->middle);
}

static carry_status backward_mixer(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, carry_lm_rows *r) {
    CARRY_SPAN(pass->ctx, "model", "mixer backward");
    const carry_lm_layer *l = &pass->lm->layer[layer];
    carry_lm_mixer_call call = carry_lm_call(pass, args, layer);
    call.x = l->norms_after ? pass->h[layer] : r->x;
    call.dx = pass->back.dx;
    CARRY_TRY(enter(pass, l, 0, r->out, &call.dout));
    CARRY_TRY(l->mixer->backward(&call));
    return leave(pass, l, 0, pass->h[layer]);
}

carry_status carry_lm_layer_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    carry_lm_rows *r = carry_lm_rows_of(pass, layer);
    if (pass->options.recompute) {
        CARRY_TRY(carry_lm_layer_forward(pass, args, layer, true));
    }
    CARRY_TRY(backward_mlp(pass, layer, r));
    return backward_mixer(pass, args, layer, r);
}
