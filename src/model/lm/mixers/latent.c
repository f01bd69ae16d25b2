/* Latent attention: parameters, memory and forward. */
#include "model/lm/mixers/latent.h"

#include <math.h>

#include "attention/attention.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/mixer.h"
#include "ops/experts.h"
#include "ops/video.h"

static const char *const names[CARRY_LM_LATENT_SLOTS] = {"self_attn.q_proj.weight",
                                                         "self_attn.q_a_proj.weight",
                                                         "self_attn.q_a_layernorm.weight",
                                                         "self_attn.q_b_proj.weight",
                                                         "self_attn.kv_a_proj_with_mqa.weight",
                                                         "self_attn.kv_a_layernorm.weight",
                                                         "self_attn.kv_b_proj.weight",
                                                         "self_attn.o_proj.weight",
                                                         "self_attn.g_proj.weight",
                                                         "self_attn.q_a_proj.bias",
                                                         "self_attn.kv_a_proj_with_mqa.bias",
                                                         "self_attn.o_proj.bias"};

static carry_status check(carry_ctx *ctx, carry_lm_config *c) {
    carry_lm_latent_options *l = &c->latent;
    CARRY_TRY(carry_lm_check_size(ctx, "the number of attention heads", l->heads, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "qk_nope_head_dim", l->plain, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "qk_rope_head_dim", l->shared, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "v_head_dim", l->value, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "kv_lora_rank", l->rank, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "q_lora_rank", l->query_rank + 1, CARRY_LM_MAX_WIDTH));
    l->width = l->rank + l->shared;
    CARRY_TRY(carry_lm_check_size(ctx, "kv_lora_rank + qk_rope_head_dim", l->width, CARRY_ATTENTION_DIM));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of all attention heads", l->heads * (l->plain + l->value + l->width),
                                  CARRY_LM_MAX_WIDTH));
    c->attention = (carry_lm_attention_options){
        .heads = l->heads, .kv_heads = 1, .head_dim = l->width, .scale = 1.0 / sqrt((double)(l->plain + l->shared))};
    if (l->rope_theta > 0.0) {
        if (l->shared % 2 != 0) {
            return carry_fail(ctx, CARRY_ESIZE, "qk_rope_head_dim is %lld: turned elements come in pairs",
                              (long long)l->shared);
        }
        c->attention.rotary = l->shared;
        c->attention.rope_theta = l->rope_theta;
    }
    return CARRY_OK;
}

static carry_lm_parameter norm_of(int64_t width) {
    return (carry_lm_parameter){.rank = 1, .shape = {width}, .decays = true, .start = CARRY_LM_ONES};
}

static carry_lm_parameter bias_of(bool there, int64_t width) {
    return (carry_lm_parameter){.rank = there ? 1 : 0, .shape = {width}, .start = CARRY_LM_ZEROS};
}

static carry_lm_parameter describe(const carry_lm_config *c, int slot) {
    const carry_lm_latent_options *l = &c->latent;
    const carry_lm_parameter none = {0};
    const int64_t q_width = l->heads * (l->plain + l->shared);
    const bool low = l->query_rank > 0;
    switch ((carry_lm_latent_slot)slot) {
    case CARRY_LM_LATENT_Q:
        return low ? none : carry_lm_matrix(q_width, c->hidden_size);
    case CARRY_LM_LATENT_Q_A:
        return low ? carry_lm_matrix(l->query_rank, c->hidden_size) : none;
    case CARRY_LM_LATENT_Q_NORM:
        return low ? norm_of(l->query_rank) : none;
    case CARRY_LM_LATENT_Q_B:
        return low ? carry_lm_matrix(q_width, l->query_rank) : none;
    case CARRY_LM_LATENT_KV_A:
        return carry_lm_matrix(l->rank + l->shared, c->hidden_size);
    case CARRY_LM_LATENT_KV_NORM:
        return norm_of(l->rank);
    case CARRY_LM_LATENT_KV_B:
        return carry_lm_matrix(l->heads * (l->plain + l->value), l->rank);
    case CARRY_LM_LATENT_O:
        return carry_lm_matrix(c->hidden_size, l->heads * l->value);
    case CARRY_LM_LATENT_GATE:
        return l->head_gate ? carry_lm_matrix(l->heads, c->hidden_size) : none;
    case CARRY_LM_LATENT_Q_A_BIAS:
        return bias_of(l->bias && low, l->query_rank);
    case CARRY_LM_LATENT_KV_A_BIAS:
        return bias_of(l->bias, l->rank + l->shared);
    case CARRY_LM_LATENT_O_BIAS:
        return bias_of(l->bias, c->hidden_size);
    case CARRY_LM_LATENT_SLOTS:
        break;
    }
    return none;
}

static int state(const carry_lm_config *c, carry_lm_state_part *parts) {
    const int64_t width = c->latent.rank + c->latent.shared;
    parts[0] = (carry_lm_state_part){.rank = 3, .shape = {0, 1, width}, .slices = 1, .grows = true};
    return 1;
}

static const char *plan_line(const void *opened) {
    (void)opened;
    return "latent attention: one head of keys, which are the values too";
}

static size_t scratch(const carry_lm_pass *pass, const void *opened) {
    const carry_lm_latent_options *l = &pass->lm->config.latent;
    const int64_t widest = l->rank > l->query_rank ? l->rank : l->query_rank;
    const size_t attention = ((const carry_lm_attention *)opened)->scratch;
    const size_t norm = pass->options.forward_only ? 0 : carry_rms_norm_backward_workspace(pass->tokens, widest);
    return attention > norm ? attention : norm;
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const carry_lm_latent_options *l = &pass->lm->config.latent;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    carry_lm_latent_rows *r = rows;
    carry_lm_attention_rows *a = &r->attention;
    const bool low = l->query_rank > 0;
    (void)opened;
    *a = (carry_lm_attention_rows){0};
    a->q = carry_lm_take(pass, arena, dtype, l->heads * l->width);
    a->k = a->v = carry_lm_take(pass, arena, dtype, l->width);
    a->o = carry_lm_take(pass, arena, dtype, l->heads * l->width);
    a->lse = pass->options.forward_only ? absent : carry_lm_take(pass, arena, CARRY_F32, l->heads);
    r->q_low_in = low ? carry_lm_take(pass, arena, dtype, l->query_rank) : absent;
    r->q_low = low ? carry_lm_take(pass, arena, dtype, l->query_rank) : absent;
    r->q = carry_lm_take(pass, arena, dtype, l->heads * (l->plain + l->shared));
    r->both = carry_lm_take(pass, arena, dtype, l->width);
    r->c_in = carry_lm_take(pass, arena, dtype, l->rank);
    r->c = carry_lm_take(pass, arena, dtype, l->rank);
    r->y = carry_lm_take(pass, arena, dtype, l->heads * l->value);
    r->part = carry_lm_take(pass, arena, dtype, l->plain);
    r->wide = carry_lm_take(pass, arena, dtype, l->rank);
    r->value = carry_lm_take(pass, arena, dtype, l->value);
    r->turned = l->rope_theta > 0.0 ? carry_lm_take(pass, arena, dtype, l->heads * l->shared) : absent;
    r->gate = l->head_gate ? carry_lm_take(pass, arena, dtype, l->heads) : absent;
    r->opened = l->head_gate ? carry_lm_take(pass, arena, dtype, l->heads * l->value) : absent;
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *given) {
    const carry_lm_latent_options *l = &pass->lm->config.latent;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    carry_lm_latent_back *back = given;
    const bool low = l->query_rank > 0;
    (void)opened;
    back->attention = (carry_lm_attention_back){0};
    back->attention.d_o = carry_lm_take(pass, arena, dtype, l->heads * l->width);
    back->attention.dq = carry_lm_take(pass, arena, dtype, l->heads * l->width);
    back->attention.dk = carry_lm_take(pass, arena, dtype, l->width);
    back->attention.dv = carry_lm_take(pass, arena, dtype, l->width);
    back->dy = carry_lm_take(pass, arena, dtype, l->heads * l->value);
    back->dq = carry_lm_take(pass, arena, dtype, l->heads * (l->plain + l->shared));
    back->dq_low = low ? carry_lm_take(pass, arena, dtype, l->query_rank) : absent;
    back->dq_low_in = low ? carry_lm_take(pass, arena, dtype, l->query_rank) : absent;
    back->dboth = carry_lm_take(pass, arena, dtype, l->width);
    back->dc = carry_lm_take(pass, arena, dtype, l->rank);
    back->dc_in = carry_lm_take(pass, arena, dtype, l->rank);
    back->wide = carry_lm_take(pass, arena, dtype, l->rank);
    back->dgate = l->head_gate ? carry_lm_take(pass, arena, dtype, l->heads) : absent;
    back->dopened = l->head_gate ? carry_lm_take(pass, arena, dtype, l->heads * l->value) : absent;
}

carry_tensor carry_lm_latent_by_head(const carry_lm_call *call, carry_tensor rows) {
    const int64_t heads = call->pass->lm->config.latent.heads;
    return carry_reshape_2d(rows, rows.shape[0] * heads, rows.shape[1] / heads);
}

carry_status carry_lm_latent_turn(const carry_lm_call *call, carry_tensor from, int64_t first, int64_t next,
                                  int64_t heads, bool inverse) {
    carry_ctx *ctx = call->pass->ctx;
    const int64_t shared = call->pass->lm->config.latent.shared;
    const carry_lm_latent_rows *r = call->rows;
    const carry_tensor rows = carry_lm_latent_first(r->turned, heads * shared);
    for (int64_t h = 0; h < heads; h++) {
        CARRY_TRY(carry_copy_columns(ctx, rows, h * shared, from, first + h * next, shared));
    }
    const carry_tensor turned = carry_reshape_3d(rows, from.shape[0], heads, shared);
    return carry_rotary(ctx, turned, turned, ((const carry_lm_attention *)call->opened)->table, inverse);
}

carry_tensor carry_lm_latent_keys(const carry_lm_call *call, carry_tensor kv_b, int64_t head) {
    const carry_lm_latent_options *l = &call->pass->lm->config.latent;
    return kv_b.data != NULL ? carry_slice(kv_b, head * (l->plain + l->value), l->plain) : kv_b;
}

carry_tensor carry_lm_latent_values(const carry_lm_call *call, carry_tensor kv_b, int64_t head) {
    const carry_lm_latent_options *l = &call->pass->lm->config.latent;
    return kv_b.data != NULL ? carry_slice(kv_b, head * (l->plain + l->value) + l->plain, l->value) : kv_b;
}

carry_tensor carry_lm_latent_first(carry_tensor rows, int64_t width) {
    const int64_t tokens = rows.shape[0];
    return carry_reshape_2d(carry_slice(carry_reshape_1d(rows, carry_tensor_count(&rows)), 0, tokens * width), tokens,
                            width);
}

/* Computes q of all heads and the cached latent. With positions, rotates the shared columns of q. */
static carry_status project(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_latent_options *l = &call->pass->lm->config.latent;
    const carry_lm_latent_rows *r = call->rows;
    const carry_tensor absent = {0};
    if (l->query_rank > 0) {
        CARRY_TRY(carry_lm_project(call, CARRY_LM_LATENT_Q_A, r->q_low_in, call->x));
        CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_LATENT_Q_A_BIAS, r->q_low_in));
        CARRY_TRY(carry_rms_norm(ctx, r->q_low, r->q_low_in, carry_lm_w(call, CARRY_LM_LATENT_Q_NORM), absent,
                                 CARRY_LM_LATENT_EPS));
        CARRY_TRY(carry_lm_project(call, CARRY_LM_LATENT_Q_B, r->q, r->q_low));
    } else {
        CARRY_TRY(carry_lm_project(call, CARRY_LM_LATENT_Q, r->q, call->x));
    }
    CARRY_TRY(carry_lm_project(call, CARRY_LM_LATENT_KV_A, r->both, call->x));
    CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_LATENT_KV_A_BIAS, r->both));
    CARRY_TRY(carry_copy_columns(ctx, r->c_in, 0, r->both, 0, l->rank));
    CARRY_TRY(
        carry_rms_norm(ctx, r->c, r->c_in, carry_lm_w(call, CARRY_LM_LATENT_KV_NORM), absent, CARRY_LM_LATENT_EPS));
    CARRY_TRY(carry_copy_columns(ctx, r->attention.k, 0, r->c, 0, l->rank));
    if (l->rope_theta > 0.0) {
        CARRY_TRY(carry_lm_latent_turn(call, r->both, l->rank, 0, 1, false));
        const carry_tensor turned = carry_lm_latent_first(r->turned, l->shared);
        CARRY_TRY(carry_copy_columns(ctx, r->attention.k, l->rank, turned, 0, l->shared));
        return carry_lm_latent_turn(call, r->q, l->plain, l->plain + l->shared, l->heads, false);
    }
    return carry_copy_columns(ctx, r->attention.k, l->rank, r->both, l->rank, l->shared);
}

static carry_status forward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_latent_options *l = &call->pass->lm->config.latent;
    const carry_lm_latent_rows *r = call->rows;
    const carry_tensor kv_b = carry_lm_product(call, CARRY_LM_LATENT_KV_B);
    const carry_tensor absent = {0};
    const int64_t d = l->plain + l->shared;
    const bool turns = l->rope_theta > 0.0;
    CARRY_TRY(project(call));
    for (int64_t h = 0; h < l->heads; h++) { /* q K, computed as the input gradient of a product, which multiplies by K
                                                instead of K^T */
        CARRY_TRY(carry_copy_columns(ctx, r->part, 0, r->q, h * d, l->plain));
        CARRY_TRY(
            carry_linear_backward(ctx, r->wide, absent, r->part, r->c, carry_lm_latent_keys(call, kv_b, h), false));
        CARRY_TRY(carry_copy_columns(ctx, r->attention.q, h * l->width, r->wide, 0, l->rank));
        const carry_tensor from = turns ? r->turned : r->q;
        CARRY_TRY(carry_copy_columns(ctx, r->attention.q, h * l->width + l->rank, from,
                                     turns ? h * l->shared : h * d + l->plain, l->shared));
    }
    CARRY_TRY(carry_lm_attend(call));
    for (int64_t h = 0; h < l->heads; h++) {
        CARRY_TRY(carry_copy_columns(ctx, r->wide, 0, r->attention.o, h * l->width, l->rank));
        CARRY_TRY(carry_linear(ctx, r->value, r->wide, carry_lm_latent_values(call, kv_b, h), false));
        CARRY_TRY(carry_copy_columns(ctx, r->y, h * l->value, r->value, 0, l->value));
    }
    if (!l->head_gate) {
        CARRY_TRY(carry_lm_project_out(call, CARRY_LM_LATENT_O, r->y));
        return carry_lm_add_bias_out(call, CARRY_LM_LATENT_O_BIAS);
    }
    CARRY_TRY(carry_lm_project(call, CARRY_LM_LATENT_GATE, r->gate, call->x));
    CARRY_TRY(carry_row_gate(ctx, carry_lm_latent_by_head(call, r->opened), absent, carry_lm_latent_by_head(call, r->y),
                             carry_lm_latent_by_head(call, r->gate)));
    CARRY_TRY(carry_lm_project_out(call, CARRY_LM_LATENT_O, r->opened));
    return carry_lm_add_bias_out(call, CARRY_LM_LATENT_O_BIAS);
}

const carry_lm_part carry_lm_mixer_latent = {
    .name = "latent",
    .about = "attention to latents of keys and values (MLA)",
    .check = check,
    .slots = CARRY_LM_LATENT_SLOTS,
    .names = names,
    .describe = describe,
    .state = state,
    .open = carry_lm_attention_open,
    .close = carry_lm_attention_close,
    .plan = plan_line,
    .scratch = scratch,
    .rows_size = sizeof(carry_lm_latent_rows),
    .back_size = sizeof(carry_lm_latent_back),
    .take_once = carry_lm_attention_take_once,
    .begin = carry_lm_attention_begin,
    .take = take,
    .take_back = take_back,
    .forward = forward,
    .backward = carry_lm_latent_backward,
};
