/* The backward pass of KDA layers: the steps of forward in reverse order. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/kda.h"
#include "ops/decay.h"

/* y = norm(o) sigmoid(gate). */
static carry_status output_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_kda_rows *r = call->rows;
    const carry_lm_kda_back *back = call->back;
    CARRY_TRY(carry_elementwise(pass->ctx, back->dnormed, back->dy, r->open, CARRY_MULTIPLY));
    CARRY_TRY(carry_elementwise(pass->ctx, back->dy, back->dy, r->normed, CARRY_MULTIPLY));
    CARRY_TRY(carry_activate_backward(pass->ctx, back->dgate, back->dy, r->gate, CARRY_SIGMOID));
    return carry_rms_norm_backward(pass->ctx,
                                   &(carry_rms_norm_backward_args){.dx = carry_lm_kda_by_head(pass, back->dout),
                                                                   .dw = carry_lm_dw(call, CARRY_LM_KDA_NORM),
                                                                   .dy = carry_lm_kda_by_head(pass, back->dnormed),
                                                                   .x = carry_lm_kda_by_head(pass, r->o),
                                                                   .w = carry_lm_w(call, CARRY_LM_KDA_NORM),
                                                                   .eps = (float)pass->lm->config.kda.norm_eps},
                                   pass->scratch, pass->scratch_bytes);
}

static carry_status mix_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_kda_rows *r = call->rows;
    const carry_lm_kda_back *back = call->back;
    const carry_delta_backward_args delta = {
        .dq = carry_lm_kda_heads(pass, back->dqkv[0], true),
        .dk = carry_lm_kda_heads(pass, back->dqkv[1], true),
        .dv = carry_lm_kda_heads(pass, back->dqkv[2], true),
        .dbeta = carry_lm_kda_heads(pass, back->dbeta, false),
        .dg = carry_lm_kda_heads(pass, back->dg, true),
        .d_o = carry_lm_kda_heads(pass, back->dout, true),
        .kept = r->kept,
        .q = carry_lm_kda_heads(pass, r->qkv[0], true),
        .k = carry_lm_kda_heads(pass, r->qkv[1], true),
        .v = carry_lm_kda_heads(pass, r->qkv[2], true),
        .beta = carry_lm_kda_heads(pass, r->beta, false),
        .g = carry_lm_kda_heads(pass, r->g, true),
        .cu_seqlens = call->args->cu_seqlens.data != NULL ? call->args->cu_seqlens : (carry_tensor){0},
    };
    CARRY_TRY(carry_lm_recurrence_chunk.backward(((const carry_lm_kda *)call->opened)->recurrence, &delta,
                                                 pass->scratch, pass->scratch_bytes));
    return carry_decay_gate_backward(
        pass->ctx,
        &(carry_decay_gate_backward_args){.da = back->df,
                                          .dA_log = carry_lm_kda_rates(carry_lm_dw_always(call, CARRY_LM_KDA_A_LOG)),
                                          .ddt_bias = carry_lm_dw_always(call, CARRY_LM_KDA_DT_BIAS),
                                          .dg = back->dg,
                                          .a = r->f,
                                          .A_log = carry_lm_kda_rates(carry_lm_w(call, CARRY_LM_KDA_A_LOG)),
                                          .dt_bias = carry_lm_w(call, CARRY_LM_KDA_DT_BIAS),
                                          .bound = (float)pass->lm->config.kda.bound});
}

static carry_status convolve_backward(const carry_lm_call *call, int which) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_kda_rows *r = call->rows;
    const carry_lm_kda_back *back = call->back;
    const int slot = CARRY_LM_KDA_Q_CONV + which;
    return carry_conv_backward(pass->ctx,
                               &(carry_conv_backward_args){.dx = carry_lm_kda_channels(pass, back->din[which]),
                                                           .dw = carry_lm_dw(call, slot),
                                                           .dy = carry_lm_kda_channels(pass, back->dqkv[which]),
                                                           .x = carry_lm_kda_channels(pass, r->in[which]),
                                                           .w = carry_lm_w(call, slot),
                                                           .cu_seqlens = pass->cuts,
                                                           .activation = CARRY_SILU},
                               pass->scratch, pass->scratch_bytes);
}

carry_status carry_lm_kda_backward(const carry_lm_call *call) {
    const carry_lm_kda_rows *r = call->rows;
    const carry_lm_kda_back *back = call->back;
    CARRY_TRY(carry_lm_project_out_backward(call, CARRY_LM_KDA_O, back->dy, r->y));
    CARRY_TRY(output_backward(call));
    CARRY_TRY(mix_backward(call));
    for (int i = 0; i < 3; i++) {
        CARRY_TRY(convolve_backward(call, i));
    }
    const bool whole = call->pass->lm->config.kda.whole_gates;
    if (!whole) {
        CARRY_TRY(carry_lm_project_backward(call, CARRY_LM_KDA_F_B, back->df_low, back->df, r->f_low, false));
        CARRY_TRY(carry_lm_project_backward(call, CARRY_LM_KDA_G_B, back->dgate_low, back->dgate, r->gate_low, false));
    }
    const struct {
        int slot;
        carry_tensor dy;
    } maps[] = {{CARRY_LM_KDA_Q, back->din[0]},
                {CARRY_LM_KDA_K, back->din[1]},
                {CARRY_LM_KDA_V, back->din[2]},
                {whole ? CARRY_LM_KDA_F_B : CARRY_LM_KDA_F_A, whole ? back->df : back->df_low},
                {CARRY_LM_KDA_BETA, back->dbeta},
                {whole ? CARRY_LM_KDA_G_B : CARRY_LM_KDA_G_A, whole ? back->dgate : back->dgate_low}};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        CARRY_TRY(carry_lm_project_backward(call, maps[i].slot, call->dx, maps[i].dy, call->x, i > 0));
    }
    return CARRY_OK;
}
