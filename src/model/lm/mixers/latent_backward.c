/* The backward pass of latent attention: the steps of forward in reverse order. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/latent.h"
#include "ops/experts.h"

static carry_status norm_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor dy,
                                  carry_tensor x) {
    carry_lm_pass *pass = call->pass;
    return carry_rms_norm_backward(pass->ctx,
                                   &(carry_rms_norm_backward_args){.dx = dx,
                                                                   .dw = carry_lm_dw(call, slot),
                                                                   .dy = dy,
                                                                   .x = x,
                                                                   .w = carry_lm_w(call, slot),
                                                                   .eps = CARRY_LM_LATENT_EPS},
                                   pass->scratch, pass->scratch_bytes);
}

/* Computes the gradients of V and of attention's output from dy. */
static carry_status values_backward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_latent_options *l = &call->pass->lm->config.latent;
    const carry_lm_latent_rows *r = call->rows;
    const carry_lm_latent_back *back = call->back;
    const carry_tensor W = carry_lm_product(call, CARRY_LM_LATENT_KV_B);
    const carry_tensor dW = carry_lm_dw(call, CARRY_LM_LATENT_KV_B);
    CARRY_TRY(carry_zero(ctx, back->attention.d_o)); /* nothing reads its shared columns */
    for (int64_t h = 0; h < l->heads; h++) {
        CARRY_TRY(carry_copy_columns(ctx, r->value, 0, back->dy, h * l->value, l->value));
        CARRY_TRY(carry_copy_columns(ctx, r->wide, 0, r->attention.o, h * l->width, l->rank));
        CARRY_TRY(carry_linear_backward(ctx, back->wide, carry_lm_latent_values(call, dW, h), r->value, r->wide,
                                        carry_lm_latent_values(call, W, h), false));
        CARRY_TRY(carry_copy_columns(ctx, back->attention.d_o, h * l->width, back->wide, 0, l->rank));
    }
    return CARRY_OK;
}

/* Computes the gradients of K and q from the gradient of q K. */
static carry_status keys_backward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_latent_options *l = &call->pass->lm->config.latent;
    const carry_lm_latent_rows *r = call->rows;
    const carry_lm_latent_back *back = call->back;
    const carry_tensor W = carry_lm_product(call, CARRY_LM_LATENT_KV_B);
    const carry_tensor dW = carry_lm_dw(call, CARRY_LM_LATENT_KV_B);
    const carry_tensor absent = {0};
    const int64_t d = l->plain + l->shared;
    const bool turns = l->rope_theta > 0.0;
    CARRY_TRY(turns ? carry_lm_latent_turn(call, back->attention.dq, l->rank, l->width, l->heads, true) : CARRY_OK);
    for (int64_t h = 0; h < l->heads; h++) {
        const carry_tensor K = carry_lm_latent_keys(call, W, h);
        CARRY_TRY(carry_copy_columns(ctx, r->part, 0, r->q, h * d, l->plain));
        CARRY_TRY(carry_copy_columns(ctx, r->wide, 0, back->attention.dq, h * l->width, l->rank));
        CARRY_TRY(carry_linear_backward(ctx, absent, carry_lm_latent_keys(call, dW, h), r->part, r->wide, K, false));
        CARRY_TRY(carry_linear(ctx, r->part, r->wide, K, false));
        CARRY_TRY(carry_copy_columns(ctx, back->dq, h * d, r->part, 0, l->plain));
        const carry_tensor from = turns ? r->turned : back->attention.dq;
        CARRY_TRY(carry_copy_columns(ctx, back->dq, h * d + l->plain, from,
                                     turns ? h * l->shared : h * l->width + l->rank, l->shared));
    }
    return CARRY_OK;
}

/* Computes dx from the gradient of q; dx is overwritten. */
static carry_status queries_backward(const carry_lm_call *call) {
    const carry_lm_latent_rows *r = call->rows;
    const carry_lm_latent_back *back = call->back;
    if (call->pass->lm->config.latent.query_rank == 0) {
        return carry_lm_project_backward(call, CARRY_LM_LATENT_Q, call->dx, back->dq, call->x, false);
    }
    CARRY_TRY(carry_lm_project_backward(call, CARRY_LM_LATENT_Q_B, back->dq_low, back->dq, r->q_low, false));
    CARRY_TRY(norm_backward(call, CARRY_LM_LATENT_Q_NORM, back->dq_low_in, back->dq_low, r->q_low_in));
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_LATENT_Q_A_BIAS, back->dq_low_in));
    return carry_lm_project_backward(call, CARRY_LM_LATENT_Q_A, call->dx, back->dq_low_in, call->x, false);
}

/* Computes the gradients of y and of the gate from the gradient of the layer's output. */
static carry_status output_backward(const carry_lm_call *call) {
    const carry_lm_latent_rows *r = call->rows;
    const carry_lm_latent_back *back = call->back;
    if (!call->pass->lm->config.latent.head_gate) {
        return carry_lm_project_out_backward(call, CARRY_LM_LATENT_O, back->dy, r->y);
    }
    CARRY_TRY(carry_lm_project_out_backward(call, CARRY_LM_LATENT_O, back->dopened, r->opened));
    return carry_row_gate_backward(call->pass->ctx, carry_lm_latent_by_head(call, back->dy),
                                   carry_lm_latent_by_head(call, back->dgate),
                                   carry_lm_latent_by_head(call, back->dopened), carry_lm_latent_by_head(call, r->y),
                                   carry_lm_latent_by_head(call, r->gate));
}

carry_status carry_lm_latent_backward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_latent_options *l = &call->pass->lm->config.latent;
    const carry_lm_latent_rows *r = call->rows;
    const carry_lm_latent_back *back = call->back;
    const carry_lm_attention_back *a = &back->attention;
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_LATENT_O_BIAS, call->dout));
    CARRY_TRY(output_backward(call));
    CARRY_TRY(values_backward(call));
    CARRY_TRY(carry_lm_attend_backward(call));
    CARRY_TRY(keys_backward(call));
    CARRY_TRY(carry_elementwise(ctx, a->dk, a->dk, a->dv, CARRY_ADD));
    CARRY_TRY(carry_copy_columns(ctx, back->dc, 0, a->dk, 0, l->rank));
    CARRY_TRY(norm_backward(call, CARRY_LM_LATENT_KV_NORM, back->dc_in, back->dc, r->c_in));
    CARRY_TRY(carry_copy_columns(ctx, back->dboth, 0, back->dc_in, 0, l->rank));
    if (l->rope_theta > 0.0) {
        CARRY_TRY(carry_lm_latent_turn(call, a->dk, l->rank, 0, 1, true));
        CARRY_TRY(
            carry_copy_columns(ctx, back->dboth, l->rank, carry_lm_latent_first(r->turned, l->shared), 0, l->shared));
    } else {
        CARRY_TRY(carry_copy_columns(ctx, back->dboth, l->rank, a->dk, l->rank, l->shared));
    }
    CARRY_TRY(queries_backward(call));
    CARRY_TRY(l->head_gate ? carry_lm_project_backward(call, CARRY_LM_LATENT_GATE, call->dx, back->dgate, call->x, true)
                           : CARRY_OK);
    CARRY_TRY(carry_lm_add_bias_backward(call, CARRY_LM_LATENT_KV_A_BIAS, back->dboth));
    return carry_lm_project_backward(call, CARRY_LM_LATENT_KV_A, call->dx, back->dboth, call->x, true);
}
