/* One layer forward. Every line is an operator; the shapes are those of lm_pass.h. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/lm/lm_pass.h"

carry_tensor carry_lm_heads(const carry_lm_pass *pass, carry_tensor rows, int64_t heads, int64_t width) {
    const int64_t shape[] = {pass->options.batch, pass->options.tokens, heads, width};
    return carry_reshape(rows, width > 0 ? 4 : 3, shape);
}

carry_tensor carry_lm_channels(const carry_lm_pass *pass, carry_tensor rows) {
    return carry_reshape_3d(rows, pass->options.batch, pass->options.tokens, rows.shape[1]);
}

carry_tensor carry_lm_by_head(const carry_lm_pass *pass, carry_tensor rows) {
    const carry_lm_config *c = &pass->lm->config;
    return carry_reshape_2d(rows, pass->tokens * c->value_heads, c->value);
}

carry_tensor carry_lm_w(const carry_lm_pass *pass, int64_t layer, carry_lm_slot slot) {
    int64_t index = pass->lm->layer[layer][slot];
    return index >= 0 ? carry_lm_weight(pass->lm, index) : (carry_tensor){0};
}

carry_tensor carry_lm_product(const carry_lm_pass *pass, int64_t layer, carry_lm_slot slot) {
    int64_t index = pass->lm->layer[layer][slot];
    return index >= 0 ? carry_parameters_product(&pass->lm->own, index) : (carry_tensor){0};
}

carry_tensor carry_lm_dw(const carry_lm_pass *pass, int64_t layer, carry_lm_slot slot) {
    int64_t index = pass->lm->layer[layer][slot];
    return index >= 0 ? carry_lm_gradient(pass->lm, index) : (carry_tensor){0};
}

carry_activation carry_lm_activation(const carry_lm_pass *pass, carry_lm_slot slot) {
    return slot == CARRY_LM_V_CONV ? CARRY_SILU : pass->lm->config.qk_activation;
}

/* y = activation(conv(x)), or activation(x) without convolutions. `which` is 0, 1, 2 for q, k, v. */
static carry_status convolve(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, int which, carry_tensor y,
                             carry_tensor x) {
    carry_ctx *ctx = pass->ctx;
    carry_lm_slot slot = (carry_lm_slot)(CARRY_LM_Q_CONV + which);
    carry_activation activation = carry_lm_activation(pass, slot);
    if (!pass->lm->config.use_short_conv) {
        CARRY_TRY(carry_activate(ctx, y, x, activation));
    } else {
        carry_conv_args conv = {.y = carry_lm_channels(pass, y),
                                .x = carry_lm_channels(pass, x),
                                .w = carry_lm_w(pass, layer, slot),
                                .cu_seqlens = pass->cuts,
                                .activation = activation};
        if (args->state != NULL) {
            conv.before = conv.after = args->state->conv[layer][which];
        } else if (pass->mixer->halo != NULL) {
            conv.before = carry_lm_rows_of(pass, layer)->before[which];
            if (conv.before.data != NULL) {
                CARRY_TRY(pass->mixer->halo(pass->mixing, conv.before, conv.x, args->cu_seqlens));
            }
        }
        CARRY_TRY(carry_conv(ctx, &conv));
    }
    if (activation == CARRY_ELU) { /* there it is elu(x) + 1 */
        return carry_elementwise(ctx, CARRY_ADD, y, y, pass->ones);
    }
    return CARRY_OK;
}

static carry_status mix(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, carry_lm_rows *r) {
    const carry_lm_config *c = &pass->lm->config;
    carry_tensor g = carry_lm_heads(pass, r->a, c->value_heads, 0);
    carry_tensor A_log = carry_lm_w(pass, layer, CARRY_LM_A_LOG);
    carry_tensor dt_bias = carry_lm_w(pass, layer, CARRY_LM_DT_BIAS);
    bool gated = A_log.data != NULL;
    const carry_tensor *state = args->state != NULL ? &args->state->delta[layer] : NULL;
    const carry_delta_forward_args delta = {
        .o = carry_lm_heads(pass, r->o, c->value_heads, c->value),
        .final_state = state,
        .kept = args->backward ? r->kept : NULL,
        .q = carry_lm_heads(pass, r->q, c->num_heads, c->key),
        .k = carry_lm_heads(pass, r->k, c->num_heads, c->key),
        .v = carry_lm_heads(pass, r->v, c->value_heads, c->value),
        .beta = carry_lm_heads(pass, r->b, c->value_heads, 0),
        .g = gated ? &g : NULL,
        .initial_state = state,
        .cu_seqlens = args->cu_seqlens.data != NULL ? &args->cu_seqlens : NULL,
        .A_log = gated ? &A_log : NULL,
        .dt_bias = gated ? &dt_bias : NULL,
    };
    return pass->mixer->forward(pass->mixing, &delta, pass->scratch, pass->scratch_bytes);
}

static carry_status project(carry_lm_pass *pass, int64_t layer, carry_lm_slot slot, carry_tensor y, carry_tensor x) {
    carry_tensor W = carry_lm_product(pass, layer, slot);
    return W.data != NULL ? carry_linear(pass->ctx, y, x, W, false) : CARRY_OK;
}

static carry_status forward_mixer(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, carry_lm_rows *r) {
    carry_ctx *ctx = pass->ctx;
    CARRY_SPAN(ctx, "model", "mixer");
    float eps = (float)pass->lm->config.norm_eps;
    carry_tensor h = pass->h[layer];
    CARRY_TRY(carry_rms_norm(ctx, r->x, h, carry_lm_w(pass, layer, CARRY_LM_ATTN_NORM), (carry_tensor){0}, eps));
    CARRY_TRY(project(pass, layer, CARRY_LM_Q_PROJ, r->q_in, r->x));
    CARRY_TRY(project(pass, layer, CARRY_LM_K_PROJ, r->k_in, r->x));
    CARRY_TRY(project(pass, layer, CARRY_LM_V_PROJ, r->v_in, r->x));
    CARRY_TRY(project(pass, layer, CARRY_LM_A_PROJ, r->a, r->x));
    CARRY_TRY(project(pass, layer, CARRY_LM_B_PROJ, r->b, r->x));
    CARRY_TRY(project(pass, layer, CARRY_LM_G_PROJ, r->z, r->x));
    CARRY_TRY(convolve(pass, args, layer, 0, r->q, r->q_in));
    CARRY_TRY(convolve(pass, args, layer, 1, r->k, r->k_in));
    CARRY_TRY(convolve(pass, args, layer, 2, r->v, r->v_in));
    CARRY_TRY(mix(pass, args, layer, r));
    carry_tensor z = r->z.data != NULL ? carry_lm_by_head(pass, r->z) : (carry_tensor){0};
    CARRY_TRY(carry_rms_norm(ctx, carry_lm_by_head(pass, r->y), carry_lm_by_head(pass, r->o),
                             carry_lm_w(pass, layer, CARRY_LM_O_NORM), z, eps));
    CARRY_TRY(carry_convert(ctx, r->middle, h));
    return carry_linear(ctx, r->middle, r->y, carry_lm_product(pass, layer, CARRY_LM_O_PROJ), true);
}

static carry_status forward_mlp(carry_lm_pass *pass, int64_t layer, carry_lm_rows *r, bool again) {
    carry_ctx *ctx = pass->ctx;
    CARRY_SPAN(ctx, "model", "mlp");
    float eps = (float)pass->lm->config.norm_eps;
    CARRY_TRY(
        carry_rms_norm(ctx, r->x2, r->middle, carry_lm_w(pass, layer, CARRY_LM_MLP_NORM), (carry_tensor){0}, eps));
    CARRY_TRY(project(pass, layer, CARRY_LM_GATE_PROJ, r->gate, r->x2));
    CARRY_TRY(project(pass, layer, CARRY_LM_UP_PROJ, r->up, r->x2));
    CARRY_TRY(carry_swiglu(ctx, r->activated, r->gate, r->up));
    if (again) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_convert(ctx, pass->h[layer + 1], r->middle));
    return carry_linear(ctx, pass->h[layer + 1], r->activated, carry_lm_product(pass, layer, CARRY_LM_DOWN_PROJ), true);
}

carry_status carry_lm_layer_forward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again) {
    carry_lm_rows *r = carry_lm_rows_of(pass, layer);
    CARRY_TRY(forward_mixer(pass, args, layer, r));
    return forward_mlp(pass, layer, r, again);
}
