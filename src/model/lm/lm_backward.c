/* One layer backward: forward's lines in mirror order. What a layer kept is used up: its gate and up become their own
   gradients. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/lm/lm_pass.h"

static carry_status norm_backward(carry_lm_pass *pass, carry_tensor dh, carry_tensor dw, carry_tensor dy,
                                  carry_tensor h, carry_tensor w) {
    float eps = (float)pass->lm->config.norm_eps;
    return carry_rms_norm_backward(pass->ctx, dh, dw, (carry_tensor){0}, dy, h, w, (carry_tensor){0}, eps, true,
                                   pass->scratch, pass->scratch_bytes);
}

/* dx (+)= dy W, dW += dy^T x. */
static carry_status project_backward(carry_lm_pass *pass, int64_t layer, carry_lm_slot slot, carry_tensor dx,
                                     carry_tensor dy, carry_tensor x, bool accumulate) {
    carry_tensor W = carry_lm_product(pass, layer, slot);
    if (W.data == NULL) {
        return CARRY_OK;
    }
    return carry_linear_backward(pass->ctx, dx, carry_lm_dw(pass, layer, slot), dy, x, W, accumulate);
}

static carry_status backward_mlp(carry_lm_pass *pass, int64_t layer, carry_lm_rows *r) {
    CARRY_SPAN(pass->ctx, "model", "mlp backward");
    carry_lm_back *back = &pass->back;
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_DOWN_PROJ, back->dmiddle_wide, back->dh, r->activated, false));
    CARRY_TRY(carry_swiglu_backward(pass->ctx, r->gate, r->up, back->dmiddle_wide, r->gate, r->up));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_GATE_PROJ, back->dx, r->gate, r->x2, false));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_UP_PROJ, back->dx, r->up, r->x2, true));
    return norm_backward(pass, back->dh, carry_lm_dw(pass, layer, CARRY_LM_MLP_NORM), back->dx, r->middle,
                         carry_lm_w(pass, layer, CARRY_LM_MLP_NORM));
}

static carry_status add_to(carry_lm_pass *pass, carry_tensor to, carry_tensor from) {
    return to.data != NULL ? carry_elementwise(pass->ctx, CARRY_ADD, to, to, from) : CARRY_OK;
}

static carry_status mix_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, carry_lm_rows *r) {
    const carry_lm_config *c = &pass->lm->config;
    carry_lm_back *back = &pass->back;
    carry_tensor g = carry_lm_heads(pass, r->a, c->value_heads, 0);
    carry_tensor dg = carry_lm_heads(pass, back->da, c->value_heads, 0);
    carry_tensor A_log = carry_lm_w(pass, layer, CARRY_LM_A_LOG);
    carry_tensor dt_bias = carry_lm_w(pass, layer, CARRY_LM_DT_BIAS);
    bool gated = A_log.data != NULL;
    const carry_delta_backward_args delta = {
        .dq = carry_lm_heads(pass, back->dq, c->num_heads, c->key),
        .dk = carry_lm_heads(pass, back->dk, c->num_heads, c->key),
        .dv = carry_lm_heads(pass, back->dv, c->value_heads, c->value),
        .dbeta = carry_lm_heads(pass, back->db, c->value_heads, 0),
        .dg = gated ? &dg : NULL,
        .dA_log = gated ? &back->dA_log : NULL,
        .ddt_bias = gated ? &back->ddt_bias : NULL,
        .grad_o = carry_lm_heads(pass, back->dout, c->value_heads, c->value),
        .kept = r->kept,
        .q = carry_lm_heads(pass, r->q, c->num_heads, c->key),
        .k = carry_lm_heads(pass, r->k, c->num_heads, c->key),
        .v = carry_lm_heads(pass, r->v, c->value_heads, c->value),
        .beta = carry_lm_heads(pass, r->b, c->value_heads, 0),
        .g = gated ? &g : NULL,
        .cu_seqlens = args->cu_seqlens.data != NULL ? &args->cu_seqlens : NULL,
        .A_log = gated ? &A_log : NULL,
        .dt_bias = gated ? &dt_bias : NULL,
    };
    CARRY_TRY(pass->mixer->backward(pass->mixing, &delta, pass->scratch, pass->scratch_bytes));
    CARRY_TRY(add_to(pass, carry_lm_dw(pass, layer, CARRY_LM_A_LOG), back->dA_log));
    return add_to(pass, carry_lm_dw(pass, layer, CARRY_LM_DT_BIAS), back->ddt_bias);
}

static carry_status convolve_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, int which,
                                      carry_tensor dx, carry_tensor dy, carry_tensor x) {
    carry_lm_slot slot = (carry_lm_slot)(CARRY_LM_Q_CONV + which);
    carry_activation activation = carry_lm_activation(pass, slot);
    if (!pass->lm->config.use_short_conv) {
        return carry_activate_backward(pass->ctx, dx, dy, x, activation);
    }
    carry_conv_backward_args conv = {.dx = carry_lm_channels(pass, dx),
                                     .dw = carry_lm_dw(pass, layer, slot),
                                     .dy = carry_lm_channels(pass, dy),
                                     .x = carry_lm_channels(pass, x),
                                     .w = carry_lm_w(pass, layer, slot),
                                     .cu_seqlens = pass->cuts,
                                     .activation = activation};
    bool halo = pass->mixer->halo != NULL && carry_lm_rows_of(pass, layer)->before[which].data != NULL;
    if (halo) {
        conv.before = carry_lm_rows_of(pass, layer)->before[which];
        conv.dbefore = which == 2 ? pass->back.dbefore_value : pass->back.dbefore_key;
    }
    CARRY_TRY(carry_conv_backward(pass->ctx, &conv, pass->scratch, pass->scratch_bytes));
    return halo ? pass->mixer->halo_backward(pass->mixing, conv.dx, conv.dbefore, args->cu_seqlens) : CARRY_OK;
}

static carry_status backward_mixer(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, carry_lm_rows *r) {
    CARRY_SPAN(pass->ctx, "model", "mixer backward");
    carry_lm_back *back = &pass->back;
    float eps = (float)pass->lm->config.norm_eps;
    carry_tensor absent = {0};
    bool gate = r->z.data != NULL;
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_O_PROJ, back->dy, back->dh, r->y, false));
    CARRY_TRY(carry_rms_norm_backward(
        pass->ctx, carry_lm_by_head(pass, back->dout), carry_lm_dw(pass, layer, CARRY_LM_O_NORM),
        gate ? carry_lm_by_head(pass, back->dz) : absent, carry_lm_by_head(pass, back->dy),
        carry_lm_by_head(pass, r->o), carry_lm_w(pass, layer, CARRY_LM_O_NORM),
        gate ? carry_lm_by_head(pass, r->z) : absent, eps, false, pass->scratch, pass->scratch_bytes));
    CARRY_TRY(mix_backward(pass, args, layer, r));
    CARRY_TRY(convolve_backward(pass, args, layer, 0, back->dq_in, back->dq, r->q_in));
    CARRY_TRY(convolve_backward(pass, args, layer, 1, back->dk_in, back->dk, r->k_in));
    CARRY_TRY(convolve_backward(pass, args, layer, 2, back->dv_in, back->dv, r->v_in));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_Q_PROJ, back->dx, back->dq_in, r->x, false));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_K_PROJ, back->dx, back->dk_in, r->x, true));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_V_PROJ, back->dx, back->dv_in, r->x, true));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_A_PROJ, back->dx, back->da, r->x, true));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_B_PROJ, back->dx, back->db, r->x, true));
    CARRY_TRY(project_backward(pass, layer, CARRY_LM_G_PROJ, back->dx, back->dz, r->x, true));
    return norm_backward(pass, back->dh, carry_lm_dw(pass, layer, CARRY_LM_ATTN_NORM), back->dx, pass->h[layer],
                         carry_lm_w(pass, layer, CARRY_LM_ATTN_NORM));
}

carry_status carry_lm_layer_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    carry_lm_rows *r = carry_lm_rows_of(pass, layer);
    if (pass->options.recompute) {
        CARRY_TRY(carry_lm_layer_forward(pass, args, layer, true));
    }
    CARRY_TRY(backward_mlp(pass, layer, r));
    return backward_mixer(pass, args, layer, r);
}
