/* The backward pass of layers with the delta rule: the steps of forward in reverse order. */
#include "carry/ops.h"
#include "core/context.h"
#include "model/lm/mixers/delta.h"

static carry_status add_to(carry_lm_pass *pass, carry_tensor to, carry_tensor from) {
    return to.data != NULL ? carry_elementwise(pass->ctx, to, to, from, CARRY_ADD) : CARRY_OK;
}

static carry_status mix_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_delta *o = call->opened;
    const carry_lm_delta_rows *r = call->rows;
    carry_lm_delta_back *back = call->back;
    carry_tensor g = carry_lm_heads(pass, r->a, c->delta.value_heads, 0);
    carry_tensor dg = carry_lm_heads(pass, back->da, c->delta.value_heads, 0);
    carry_tensor A_log = carry_lm_w(call, CARRY_LM_A_LOG);
    carry_tensor dt_bias = carry_lm_w(call, CARRY_LM_DT_BIAS);
    bool gated = A_log.data != NULL;
    const carry_delta_backward_args delta = {
        .dq = carry_lm_heads(pass, back->dq, c->delta.heads, c->delta.key),
        .dk = carry_lm_heads(pass, back->dk, c->delta.heads, c->delta.key),
        .dv = carry_lm_heads(pass, back->dv, c->delta.value_heads, c->delta.value),
        .dbeta = carry_lm_heads(pass, back->db, c->delta.value_heads, 0),
        .dg = gated ? dg : (carry_tensor){0},
        .dA_log = gated ? back->dA_log : (carry_tensor){0},
        .ddt_bias = gated ? back->ddt_bias : (carry_tensor){0},
        .d_o = carry_lm_heads(pass, back->dout, c->delta.value_heads, c->delta.value),
        .kept = r->kept,
        .q = carry_lm_heads(pass, r->q, c->delta.heads, c->delta.key),
        .k = carry_lm_heads(pass, r->k, c->delta.heads, c->delta.key),
        .v = carry_lm_heads(pass, r->v, c->delta.value_heads, c->delta.value),
        .beta = carry_lm_heads(pass, r->b, c->delta.value_heads, 0),
        .g = gated ? g : (carry_tensor){0},
        .cu_seqlens = call->args->cu_seqlens.data != NULL ? call->args->cu_seqlens : (carry_tensor){0},
        .A_log = gated ? A_log : (carry_tensor){0},
        .dt_bias = gated ? dt_bias : (carry_tensor){0},
    };
    CARRY_TRY(o->method->backward(o->recurrence, &delta, pass->scratch, pass->scratch_bytes));
    CARRY_TRY(add_to(pass, carry_lm_dw(call, CARRY_LM_A_LOG), back->dA_log));
    return add_to(pass, carry_lm_dw(call, CARRY_LM_DT_BIAS), back->ddt_bias);
}

static carry_status convolve_backward(const carry_lm_call *call, int which, carry_tensor dx, carry_tensor dy,
                                      carry_tensor x) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_delta *o = call->opened;
    const carry_lm_delta_rows *r = call->rows;
    carry_lm_delta_back *back = call->back;
    const int slot = CARRY_LM_Q_CONV + which;
    carry_activation activation = carry_lm_activation(pass, slot);
    if (!pass->lm->config.delta.use_short_conv) {
        return carry_activate_backward(pass->ctx, dx, dy, x, activation);
    }
    carry_conv_backward_args conv = {.dx = carry_lm_channels(pass, dx),
                                     .dw = carry_lm_dw(call, slot),
                                     .dy = carry_lm_channels(pass, dy),
                                     .x = carry_lm_channels(pass, x),
                                     .w = carry_lm_w(call, slot),
                                     .cu_seqlens = pass->cuts,
                                     .activation = activation};
    bool halo = o->method->halo != NULL && r->before[which].data != NULL;
    if (halo) {
        conv.before = r->before[which];
        conv.dbefore = which == 2 ? back->dbefore_value : back->dbefore_key;
    }
    CARRY_TRY(carry_conv_backward(pass->ctx, &conv, pass->scratch, pass->scratch_bytes));
    return halo ? o->method->halo_backward(o->recurrence, conv.dx, conv.dbefore, call->args->cu_seqlens) : CARRY_OK;
}

carry_status carry_lm_delta_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_delta_rows *r = call->rows;
    carry_lm_delta_back *back = call->back;
    const carry_tensor absent = {0};
    bool gate = r->z.data != NULL;
    CARRY_TRY(carry_lm_project_out_backward(call, CARRY_LM_O_PROJ, back->dy, r->y));
    CARRY_TRY(
        carry_rms_norm_backward(pass->ctx,
                                &(carry_rms_norm_backward_args){.dx = carry_lm_by_head(pass, back->dout),
                                                                .dw = carry_lm_dw(call, CARRY_LM_O_NORM),
                                                                .dz = gate ? carry_lm_by_head(pass, back->dz) : absent,
                                                                .dy = carry_lm_by_head(pass, back->dy),
                                                                .x = carry_lm_by_head(pass, r->o),
                                                                .w = carry_lm_w(call, CARRY_LM_O_NORM),
                                                                .z = gate ? carry_lm_by_head(pass, r->z) : absent,
                                                                .eps = (float)pass->lm->config.delta.norm_eps},
                                pass->scratch, pass->scratch_bytes));
    CARRY_TRY(mix_backward(call));
    CARRY_TRY(convolve_backward(call, 0, back->dq_in, back->dq, r->q_in));
    CARRY_TRY(convolve_backward(call, 1, back->dk_in, back->dk, r->k_in));
    CARRY_TRY(convolve_backward(call, 2, back->dv_in, back->dv, r->v_in));
    const carry_tensor maps[] = {
        [CARRY_LM_Q_PROJ] = back->dq_in, [CARRY_LM_K_PROJ] = back->dk_in, [CARRY_LM_V_PROJ] = back->dv_in,
        [CARRY_LM_A_PROJ] = back->da,    [CARRY_LM_B_PROJ] = back->db,    [CARRY_LM_G_PROJ] = back->dz};
    return carry_lm_project_all_backward(call, carry_lm_delta_maps(pass), call->dx, maps, back->rest, call->x);
}
