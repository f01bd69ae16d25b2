/* The backward pass of attention layers: the steps of forward in reverse order. */
#include "attention/attention.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/attention.h"

carry_status carry_lm_attend_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_attention_rows *r = call->rows;
    carry_lm_attention_back *back = call->back;
    const carry_tensor starts = call->args->cu_seqlens;
    const bool packed = starts.data != NULL;
    const carry_attention_documents documents = {.starts = packed ? starts.data
                                                                  : ((const carry_lm_attention *)call->opened)->starts,
                                                 .count = packed ? starts.shape[0] - 1 : pass->options.batch};
    const carry_attention_backward_args attention = {
        .dq = carry_lm_attention_heads(pass, back->dq),
        .dk = carry_lm_attention_heads(pass, back->dk),
        .dv = carry_lm_attention_heads(pass, back->dv),
        .d_o = carry_lm_attention_heads(pass, back->d_o),
        .forward = carry_lm_attention_args(pass, r, 0, pass->tokens),
    };
    return carry_attention_backward_documents(pass->ctx, &attention, &documents, pass->scratch, pass->scratch_bytes);
}

/* The backward pass of `prepare`: computes the gradient of `from`. dto is overwritten. */
static carry_status prepare_backward(const carry_lm_call *call, int slot, carry_tensor *dfrom, carry_tensor dto,
                                     carry_tensor from) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_attention *o = call->opened;
    const carry_tensor w = carry_lm_w(call, slot);
    if (o->table.data != NULL) {
        CARRY_TRY(carry_rotary_halves(pass->ctx, carry_lm_attention_heads(pass, dto),
                                      carry_lm_attention_heads(pass, dto), o->table, true));
    }
    if (w.data == NULL) {
        *dfrom = dto;
        return CARRY_OK;
    }
    return carry_lm_norm_backward(pass, carry_lm_attention_norm_rows(pass, *dfrom), carry_lm_dw(call, slot),
                                  carry_lm_attention_norm_rows(pass, dto), carry_lm_attention_norm_rows(pass, from), w,
                                  false);
}

carry_status carry_lm_attention_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    carry_ctx *ctx = pass->ctx;
    const carry_lm_attention_rows *r = call->rows;
    carry_lm_attention_back *back = call->back;
    const int64_t D = pass->lm->config.attention.head_dim;
    const int64_t heads = pass->tokens * pass->lm->config.attention.heads;
    const bool gate = r->gate.data != NULL;
    carry_tensor dq_in = back->dq_in;
    carry_tensor dk_in = back->dk_in;
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_ATTENTION_O_BIAS, call->dout));
    CARRY_TRY(carry_lm_project_out_backward(call, CARRY_LM_ATTENTION_O, back->dy, r->y));
    if (gate) {
        CARRY_TRY(carry_elementwise(ctx, back->d_o, back->dy, r->open, CARRY_MULTIPLY));
        CARRY_TRY(carry_elementwise(ctx, back->dy, back->dy, r->o, CARRY_MULTIPLY));
        CARRY_TRY(carry_activate_backward(ctx, back->dgate, back->dy, r->gate, CARRY_SIGMOID));
    }
    CARRY_TRY(carry_lm_attend_backward(call));
    CARRY_TRY(prepare_backward(call, CARRY_LM_ATTENTION_Q_NORM, &dq_in, back->dq, r->q_in));
    CARRY_TRY(prepare_backward(call, CARRY_LM_ATTENTION_K_NORM, &dk_in, back->dk, r->k_in));
    if (gate) {
        const carry_tensor both = carry_reshape_2d(back->dboth, heads, 2 * D);
        CARRY_TRY(carry_copy_columns(ctx, both, 0, carry_reshape_2d(dq_in, heads, D), 0, D));
        CARRY_TRY(carry_copy_columns(ctx, both, D, carry_reshape_2d(back->dgate, heads, D), 0, D));
        dq_in = back->dboth;
    }
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_ATTENTION_Q_BIAS, dq_in));
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_ATTENTION_K_BIAS, dk_in));
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_ATTENTION_V_BIAS, back->dv));
    CARRY_TRY(carry_lm_project_backward(call, CARRY_LM_ATTENTION_Q, call->dx, dq_in, call->x, false));
    CARRY_TRY(carry_lm_project_backward(call, CARRY_LM_ATTENTION_K, call->dx, dk_in, call->x, true));
    return carry_lm_project_backward(call, CARRY_LM_ATTENTION_V, call->dx, back->dv, call->x, true);
}
