/* Layers with a product of delta rules: each token has num_householder steps of the delta rule, each with its own key,
   value and beta. The state decays before the first step of a token, and q reads it after the last.

   The delta rule sees each step as a row: k_proj's output [tokens, steps H K] is the same memory as [tokens steps, H
   K]. q is zero except in the last step, and the gate input a is so small in all steps except the first that e^g is
   1. */
#include <stdio.h>
#include <stdlib.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/deltaproduct.h"
#include "model/lm/places.h"

#define MAX_STEPS 64
#define CLOSED (-1e4) /* its softplus is 0 in every type */

typedef carry_lm_deltaproduct product;
typedef carry_lm_deltaproduct_rows product_rows;

typedef struct product_back {
    carry_tensor dy, dout, dz, dq, dk, dv, dq_in, dk_in, dv_in, da, db;
    carry_tensor dq_wide, da_wide, dout_wide;
    carry_tensor dA_log, ddt_bias;
} product_back;

static carry_status check(carry_ctx *ctx, carry_lm_config *c) {
    CARRY_TRY(carry_lm_check_size(ctx, "num_householder", c->delta.steps, MAX_STEPS));
    return carry_lm_delta_check(ctx, c);
}

static carry_lm_parameter describe(const carry_lm_config *c, int slot) {
    carry_lm_parameter p = carry_lm_delta_describe(c, slot);
    if (slot == CARRY_LM_K_PROJ || slot == CARRY_LM_V_PROJ || slot == CARRY_LM_K_CONV || slot == CARRY_LM_V_CONV ||
        slot == CARRY_LM_B_PROJ) {
        p.shape[0] *= c->delta.steps;
    }
    return p;
}

static int state(const carry_lm_config *c, carry_lm_state_part *parts) {
    const int count = carry_lm_delta_state(c, parts);
    parts[1].shape[1] *= c->delta.steps;
    parts[2].shape[1] *= c->delta.steps;
    return count;
}

static double multiplications(const carry_lm_config *c) {
    return (double)c->delta.steps * carry_lm_delta_multiplications(c);
}

static void close_product(void *opened) {
    product *o = opened;
    if (o != NULL) {
        if (o->recurrence != NULL) {
            o->method->close(o->recurrence);
        }
        free(o->cuts);
        free(o);
    }
}

static carry_status open_product(carry_lm_pass *pass, void **opened) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_pass_options *options = &pass->options;
    *opened = NULL;
    if (options->recurrence != NULL && options->recurrence != &carry_lm_recurrence_chunk) {
        return carry_fail(pass->ctx, CARRY_EUNSUPPORTED, "the method %s does not support gated_deltaproduct: use chunk",
                          options->recurrence->name);
    }
    product *o = calloc(1, sizeof *o);
    if (o == NULL) {
        return carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    o->steps = c->delta.steps;
    o->method = &carry_lm_recurrence_chunk;
    o->cuts = calloc((size_t)options->sequences + 1, sizeof *o->cuts);
    carry_delta_problem problem = {.batch = options->batch,
                                   .tokens = options->tokens * o->steps,
                                   .heads = c->delta.heads,
                                   .value_heads = c->delta.value_heads,
                                   .key = c->delta.key,
                                   .value = c->delta.value,
                                   .sequences = options->sequences,
                                   .dtype = options->dtype,
                                   .gate = c->delta.gated ? CARRY_DELTA_HEAD_GATE : CARRY_DELTA_NO_GATE,
                                   .l2norm = true,
                                   .gate_inside = c->delta.gated,
                                   .beta_sigmoid = true,
                                   .beta_factor = c->delta.allow_neg_eigval ? 2.0f : 1.0f,
                                   .device = pass->lm->own.device};
    carry_status status = CARRY_OK;
    if (o->cuts == NULL) {
        status = carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: a pass");
    } else {
        status = carry_lm_open_recurrence(pass, &o->recurrence, o->method, &problem);
    }
    if (status != CARRY_OK) {
        close_product(o);
        return status;
    }
    (void)snprintf(o->about, sizeof o->about, "%s: %.120s", o->method->name, o->method->plan(o->recurrence));
    *opened = o;
    return CARRY_OK;
}

static const char *plan_line(const void *opened) {
    return ((const product *)opened)->about;
}

static size_t scratch(const carry_lm_pass *pass, const void *opened) {
    const carry_lm_config *c = &pass->lm->config;
    const product *o = opened;
    size_t bytes = o->method->workspace(o->recurrence);
    if (!pass->options.forward_only) {
        const int64_t widest =
            o->steps * (c->delta.key_width > c->delta.value_width ? c->delta.key_width : c->delta.value_width);
        const size_t norm = carry_rms_norm_backward_workspace(pass->tokens * c->delta.value_heads, c->delta.value);
        const size_t conv =
            carry_conv_backward_workspace(pass->options.batch, pass->options.tokens, widest, c->delta.conv_size);
        bytes = norm > bytes ? norm : bytes;
        bytes = c->delta.use_short_conv && conv > bytes ? conv : bytes;
    }
    return bytes;
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const carry_lm_config *c = &pass->lm->config;
    const product *o = opened;
    product_rows *r = rows;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    const int64_t n = o->steps;
    r->q_in = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    r->k_in = carry_lm_take(pass, arena, dtype, n * c->delta.key_width);
    r->v_in = carry_lm_take(pass, arena, dtype, n * c->delta.value_width);
    r->q = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    r->k = carry_lm_take(pass, arena, dtype, n * c->delta.key_width);
    r->v = carry_lm_take(pass, arena, dtype, n * c->delta.value_width);
    r->a = c->delta.gated ? carry_lm_take(pass, arena, dtype, c->delta.value_heads) : absent;
    r->b = carry_lm_take(pass, arena, dtype, n * c->delta.value_heads);
    r->z = c->delta.use_gate ? carry_lm_take(pass, arena, dtype, c->delta.value_width) : absent;
    r->q_wide = carry_lm_take(pass, arena, dtype, n * c->delta.key_width);
    r->a_wide = c->delta.gated ? carry_lm_take(pass, arena, dtype, n * c->delta.value_heads) : absent;
    r->o_wide = carry_lm_take(pass, arena, dtype, n * c->delta.value_width);
    r->o = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    r->y = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    r->kept = pass->options.forward_only ? NULL : carry_arena_take(arena, o->method->kept(o->recurrence), 1);
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *given) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    const int64_t n = ((const product *)opened)->steps;
    product_back *b = given;
    b->dy = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    b->dout = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    b->dz = c->delta.use_gate ? carry_lm_take(pass, arena, dtype, c->delta.value_width) : absent;
    b->dq = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    b->dk = carry_lm_take(pass, arena, dtype, n * c->delta.key_width);
    b->dv = carry_lm_take(pass, arena, dtype, n * c->delta.value_width);
    b->dq_in = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    b->dk_in = carry_lm_take(pass, arena, dtype, n * c->delta.key_width);
    b->dv_in = carry_lm_take(pass, arena, dtype, n * c->delta.value_width);
    b->da = carry_lm_take(pass, arena, dtype, c->delta.value_heads);
    b->db = carry_lm_take(pass, arena, dtype, n * c->delta.value_heads);
    b->dq_wide = carry_lm_take(pass, arena, dtype, n * c->delta.key_width);
    b->da_wide = carry_lm_take(pass, arena, dtype, n * c->delta.value_heads);
    b->dout_wide = carry_lm_take(pass, arena, dtype, n * c->delta.value_width);
    b->dA_log = carry_arena_tensor(arena, pass->lm->own.device, CARRY_F32, 1, &c->delta.value_heads);
    b->ddt_bias = carry_arena_tensor(arena, pass->lm->own.device, CARRY_F32, 1, &c->delta.value_heads);
}

static carry_status begin(carry_lm_pass *pass, void *opened, const carry_lm_args *args) {
    const product *o = opened;
    const int64_t *starts = args->cu_seqlens.data;
    for (int64_t i = 0; starts != NULL && i <= pass->options.sequences; i++) {
        o->cuts[i] = starts[i] * o->steps;
    }
    return CARRY_OK;
}

/* A view of rows as [B, T steps, heads, width], or without the last index if width is 0. */
static carry_tensor by_step(const carry_lm_call *call, carry_tensor rows, int64_t heads, int64_t width) {
    const carry_lm_pass_options *o = &call->pass->options;
    const int64_t shape[] = {o->batch, o->tokens * ((const product *)call->opened)->steps, heads, width};
    return carry_reshape(rows, width > 0 ? 4 : 3, shape);
}

static carry_status convolve(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const product_rows *r = call->rows;
    carry_lm_conv convs[] = {{.y = r->q, .x = r->q_in}, {.y = r->k, .x = r->k_in}, {.y = r->v, .x = r->v_in}};
    for (int i = 0; i < 3; i++) {
        convs[i].w = carry_lm_w(call, CARRY_LM_Q_CONV + i);
        convs[i].activation = CARRY_SILU;
        if (!pass->lm->config.delta.use_short_conv) {
            CARRY_TRY(carry_activate(pass->ctx, convs[i].y, convs[i].x, CARRY_SILU));
        }
    }
    return pass->lm->config.delta.use_short_conv ? carry_lm_convolve(call, convs, 3) : CARRY_OK;
}

static carry_status convolve_backward(const carry_lm_call *call, int which, carry_tensor dx, carry_tensor dy,
                                      carry_tensor x) {
    carry_lm_pass *pass = call->pass;
    const int slot = CARRY_LM_Q_CONV + which;
    if (!pass->lm->config.delta.use_short_conv) {
        return carry_activate_backward(pass->ctx, dx, dy, x, CARRY_SILU);
    }
    const carry_conv_backward_args conv = {.dx = carry_lm_channels(pass, dx),
                                           .dw = carry_lm_dw(call, slot),
                                           .dy = carry_lm_channels(pass, dy),
                                           .x = carry_lm_channels(pass, x),
                                           .w = carry_lm_w(call, slot),
                                           .cu_seqlens = pass->cuts,
                                           .activation = CARRY_SILU};
    return carry_conv_backward(pass->ctx, &conv, pass->scratch, pass->scratch_bytes);
}

static carry_status mix(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_args *args = call->args;
    const product *o = call->opened;
    const product_rows *r = call->rows;
    const carry_tensor g = by_step(call, r->a_wide, c->delta.value_heads, 0);
    const carry_tensor A_log = carry_lm_w(call, CARRY_LM_A_LOG);
    const carry_tensor dt_bias = carry_lm_w(call, CARRY_LM_DT_BIAS);
    const carry_tensor cuts = carry_view_1d(o->cuts, CARRY_I64, pass->options.sequences + 1);
    const carry_tensor *kept = args->state != NULL ? &args->state->part[call->layer][3] : NULL;
    const int64_t last = o->steps - 1;
    CARRY_TRY(carry_zero(pass->ctx, r->q_wide));
    CARRY_TRY(carry_copy_columns(pass->ctx, r->q_wide, last * c->delta.key_width, r->q, 0, c->delta.key_width));
    if (c->delta.gated) {
        CARRY_TRY(carry_fill(pass->ctx, r->a_wide, CLOSED));
        CARRY_TRY(carry_copy_columns(pass->ctx, r->a_wide, 0, r->a, 0, c->delta.value_heads));
    }
    const carry_delta_forward_args delta = {.o = by_step(call, r->o_wide, c->delta.value_heads, c->delta.value),
                                            .final_state = kept != NULL ? *kept : (carry_tensor){0},
                                            .kept = args->backward ? r->kept : NULL,
                                            .q = by_step(call, r->q_wide, c->delta.heads, c->delta.key),
                                            .k = by_step(call, r->k, c->delta.heads, c->delta.key),
                                            .v = by_step(call, r->v, c->delta.value_heads, c->delta.value),
                                            .beta = by_step(call, r->b, c->delta.value_heads, 0),
                                            .g = c->delta.gated ? g : (carry_tensor){0},
                                            .initial_state = kept != NULL ? *kept : (carry_tensor){0},
                                            .cu_seqlens = args->cu_seqlens.data != NULL ? cuts : (carry_tensor){0},
                                            .A_log = c->delta.gated ? A_log : (carry_tensor){0},
                                            .dt_bias = c->delta.gated ? dt_bias : (carry_tensor){0}};
    CARRY_TRY(args->places != NULL ? carry_lm_deltaproduct_pooled(call)
                                   : o->method->forward(o->recurrence, &delta, pass->scratch, pass->scratch_bytes));
    return carry_copy_columns(pass->ctx, r->o, 0, r->o_wide, last * c->delta.value_width, c->delta.value_width);
}

static carry_status mix_backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_config *c = &pass->lm->config;
    const product *o = call->opened;
    const product_rows *r = call->rows;
    product_back *b = call->back;
    const carry_tensor g = by_step(call, r->a_wide, c->delta.value_heads, 0);
    const carry_tensor dg = by_step(call, b->da_wide, c->delta.value_heads, 0);
    const carry_tensor A_log = carry_lm_w(call, CARRY_LM_A_LOG);
    const carry_tensor dt_bias = carry_lm_w(call, CARRY_LM_DT_BIAS);
    const carry_tensor dA_log = carry_lm_dw(call, CARRY_LM_A_LOG);
    const carry_tensor ddt_bias = carry_lm_dw(call, CARRY_LM_DT_BIAS);
    const carry_tensor cuts = carry_view_1d(o->cuts, CARRY_I64, pass->options.sequences + 1);
    const int64_t last = o->steps - 1;
    CARRY_TRY(carry_zero(pass->ctx, b->dout_wide));
    CARRY_TRY(
        carry_copy_columns(pass->ctx, b->dout_wide, last * c->delta.value_width, b->dout, 0, c->delta.value_width));
    const carry_delta_backward_args delta = {.dq = by_step(call, b->dq_wide, c->delta.heads, c->delta.key),
                                             .dk = by_step(call, b->dk, c->delta.heads, c->delta.key),
                                             .dv = by_step(call, b->dv, c->delta.value_heads, c->delta.value),
                                             .dbeta = by_step(call, b->db, c->delta.value_heads, 0),
                                             .dg = c->delta.gated ? dg : (carry_tensor){0},
                                             .dA_log = c->delta.gated ? b->dA_log : (carry_tensor){0},
                                             .ddt_bias = c->delta.gated ? b->ddt_bias : (carry_tensor){0},
                                             .d_o = by_step(call, b->dout_wide, c->delta.value_heads, c->delta.value),
                                             .kept = r->kept,
                                             .q = by_step(call, r->q_wide, c->delta.heads, c->delta.key),
                                             .k = by_step(call, r->k, c->delta.heads, c->delta.key),
                                             .v = by_step(call, r->v, c->delta.value_heads, c->delta.value),
                                             .beta = by_step(call, r->b, c->delta.value_heads, 0),
                                             .g = c->delta.gated ? g : (carry_tensor){0},
                                             .cu_seqlens =
                                                 call->args->cu_seqlens.data != NULL ? cuts : (carry_tensor){0},
                                             .A_log = c->delta.gated ? A_log : (carry_tensor){0},
                                             .dt_bias = c->delta.gated ? dt_bias : (carry_tensor){0}};
    CARRY_TRY(o->method->backward(o->recurrence, &delta, pass->scratch, pass->scratch_bytes));
    CARRY_TRY(carry_copy_columns(pass->ctx, b->dq, 0, b->dq_wide, last * c->delta.key_width, c->delta.key_width));
    if (!c->delta.gated) {
        return CARRY_OK;
    }
    if (dA_log.data == NULL) { /* the model is frozen */
        return carry_copy_columns(pass->ctx, b->da, 0, b->da_wide, 0, c->delta.value_heads);
    }
    CARRY_TRY(carry_copy_columns(pass->ctx, b->da, 0, b->da_wide, 0, c->delta.value_heads));
    CARRY_TRY(carry_elementwise(pass->ctx, dA_log, dA_log, b->dA_log, CARRY_ADD));
    return carry_elementwise(pass->ctx, ddt_bias, ddt_bias, b->ddt_bias, CARRY_ADD);
}

static carry_status forward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const product_rows *r = call->rows;
    const carry_tensor to[] = {r->q_in, r->k_in, r->v_in, r->a, r->b, r->z};
    for (int slot = CARRY_LM_Q_PROJ; slot <= CARRY_LM_G_PROJ; slot++) {
        CARRY_TRY(carry_lm_project(call, slot, to[slot], call->x));
    }
    CARRY_TRY(convolve(call));
    CARRY_TRY(mix(call));
    const carry_tensor z = r->z.data != NULL ? carry_lm_by_head(pass, r->z) : (carry_tensor){0};
    CARRY_TRY(carry_rms_norm(pass->ctx, carry_lm_by_head(pass, r->y), carry_lm_by_head(pass, r->o),
                             carry_lm_w(call, CARRY_LM_O_NORM), z, (float)pass->lm->config.delta.norm_eps));
    return carry_lm_project_out(call, CARRY_LM_O_PROJ, r->y);
}

static carry_status backward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const product_rows *r = call->rows;
    product_back *b = call->back;
    const carry_tensor absent = {0};
    const bool gate = r->z.data != NULL;
    CARRY_TRY(carry_lm_project_out_backward(call, CARRY_LM_O_PROJ, b->dy, r->y));
    CARRY_TRY(
        carry_rms_norm_backward(pass->ctx,
                                &(carry_rms_norm_backward_args){.dx = carry_lm_by_head(pass, b->dout),
                                                                .dw = carry_lm_dw(call, CARRY_LM_O_NORM),
                                                                .dz = gate ? carry_lm_by_head(pass, b->dz) : absent,
                                                                .dy = carry_lm_by_head(pass, b->dy),
                                                                .x = carry_lm_by_head(pass, r->o),
                                                                .w = carry_lm_w(call, CARRY_LM_O_NORM),
                                                                .z = gate ? carry_lm_by_head(pass, r->z) : absent,
                                                                .eps = (float)pass->lm->config.delta.norm_eps},
                                pass->scratch, pass->scratch_bytes));
    CARRY_TRY(mix_backward(call));
    CARRY_TRY(convolve_backward(call, 0, b->dq_in, b->dq, r->q_in));
    CARRY_TRY(convolve_backward(call, 1, b->dk_in, b->dk, r->k_in));
    CARRY_TRY(convolve_backward(call, 2, b->dv_in, b->dv, r->v_in));
    const carry_tensor from[] = {b->dq_in, b->dk_in, b->dv_in, b->da, b->db, b->dz};
    for (int slot = CARRY_LM_Q_PROJ; slot <= CARRY_LM_G_PROJ; slot++) {
        CARRY_TRY(carry_lm_project_backward(call, slot, call->dx, from[slot], call->x, slot != CARRY_LM_Q_PROJ));
    }
    return CARRY_OK;
}

const carry_lm_part carry_lm_mixer_deltaproduct = {
    .name = "deltaproduct",
    .about = "several steps of the delta rule a token",
    .check = check,
    .slots = CARRY_LM_DELTA_SLOTS,
    .names = carry_lm_delta_names,
    .describe = describe,
    .state = state,
    .multiplications = multiplications,
    .open = open_product,
    .close = close_product,
    .plan = plan_line,
    .scratch = scratch,
    .rows_size = sizeof(product_rows),
    .back_size = sizeof(product_back),
    .take = take,
    .take_back = take_back,
    .begin = begin,
    .forward = forward,
    .backward = backward,
};
