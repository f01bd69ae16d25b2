/* The backward pass of Mamba-2 layers: the steps of forward in reverse order. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/mamba.h"
#include "ops/video.h"

/* Computes the gradients of the norm's input and of its weight, from dout. */
static carry_status norm_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_rows *r = call->rows;
    const carry_lm_mamba_back *back = call->back;
    const carry_lm_mamba_options *m = &pass->lm->config.mamba;
    const carry_tensor w = carry_lm_w(call, CARRY_LM_MAMBA_NORM);
    const carry_tensor dw = carry_lm_dw(call, CARRY_LM_MAMBA_NORM);
    const carry_tensor absent = {0};
    const bool one = m->groups == 1;
    if (!one) {
        CARRY_TRY(carry_gated_add_backward(pass->ctx, back->dnormed, dw, back->dout, r->normed, w));
    }
    return carry_rms_norm_backward(pass->ctx,
                                   &(carry_rms_norm_backward_args){.dx = carry_lm_mamba_groups(pass, back->dgated),
                                                                   .dw = one ? dw : absent,
                                                                   .dy = carry_lm_mamba_groups(pass, back->dnormed),
                                                                   .x = carry_lm_mamba_groups(pass, r->gated),
                                                                   .w = one ? w : absent,
                                                                   .eps = (float)m->norm_eps},
                                   pass->scratch, pass->scratch_bytes);
}

static carry_status ssm_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_back *back = call->back;
    const carry_ssm_backward_args ssm = {.dxbc = carry_lm_mamba_tokens(pass, back->dxbc),
                                         .ddt = carry_lm_mamba_tokens(pass, back->ddt),
                                         .dA_log = carry_lm_dw_always(call, CARRY_LM_MAMBA_A_LOG),
                                         .ddt_bias = carry_lm_dw_always(call, CARRY_LM_MAMBA_DT_BIAS),
                                         .dD = carry_lm_dw_always(call, CARRY_LM_MAMBA_D),
                                         .dy = carry_lm_mamba_tokens(pass, back->dy),
                                         .forward = carry_lm_mamba_ssm(call)};
    return carry_ssm_backward(pass->ctx, &ssm, pass->scratch, pass->scratch_bytes);
}

static carry_status convolve_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_rows *r = call->rows;
    const carry_lm_mamba_back *back = call->back;
    CARRY_TRY(carry_activate_backward(pass->ctx, back->dsum, back->dxbc, r->sum, CARRY_SILU));
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_MAMBA_CONV_BIAS, back->dsum));
    return carry_conv_backward(pass->ctx,
                               &(carry_conv_backward_args){.dx = carry_lm_mamba_tokens(pass, back->dxbc_in),
                                                           .dw = carry_lm_dw(call, CARRY_LM_MAMBA_CONV),
                                                           .dy = carry_lm_mamba_tokens(pass, back->dsum),
                                                           .x = carry_lm_mamba_tokens(pass, r->xbc_in),
                                                           .w = carry_lm_w(call, CARRY_LM_MAMBA_CONV),
                                                           .cu_seqlens = pass->cuts,
                                                           .activation = CARRY_NO_ACTIVATION},
                               pass->scratch, pass->scratch_bytes);
}

carry_status carry_lm_mamba_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_rows *r = call->rows;
    const carry_lm_mamba_back *back = call->back;
    static const int slots[] = {CARRY_LM_MAMBA_Z, CARRY_LM_MAMBA_XBC, CARRY_LM_MAMBA_DT, -1};
    const carry_tensor maps[] = {
        [CARRY_LM_MAMBA_Z] = back->dz, [CARRY_LM_MAMBA_XBC] = back->dxbc_in, [CARRY_LM_MAMBA_DT] = back->ddt};
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_MAMBA_OUT_BIAS, call->dout));
    CARRY_TRY(carry_lm_project_out_backward(call, CARRY_LM_MAMBA_OUT, back->dout, r->out));
    CARRY_TRY(norm_backward(call));
    CARRY_TRY(carry_swiglu_backward(pass->ctx, back->dz, back->dy, back->dgated, r->z, r->y));
    CARRY_TRY(ssm_backward(call));
    CARRY_TRY(convolve_backward(call));
    for (int i = 0; i < 3; i++) {
        CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_MAMBA_Z_BIAS + i, maps[i]));
    }
    return carry_lm_project_all_backward(call, slots, call->dx, maps, (carry_tensor){0}, call->x);
}
