/* Layers with the delta rule: memory and forward. */
#include "model/lm/mixers/delta.h"

#include <stdio.h>
#include <stdlib.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/places.h"
#include "model/lm/wide_states.h"

/* A view of rows as [B, T, ...]; the row stride may be larger than the row. */
static carry_tensor by_token(const carry_lm_pass *pass, carry_tensor rows, int rank, const int64_t *shape) {
    carry_tensor view = carry_reshape(rows, rank, shape);
    if (rows.data != NULL && !carry_tensor_is_packed(&rows, 0)) {
        view.stride[1] = rows.stride[0];
        view.stride[0] = rows.stride[0] * pass->options.tokens;
    }
    return view;
}

carry_tensor carry_lm_heads(const carry_lm_pass *pass, carry_tensor rows, int64_t heads, int64_t width) {
    const int64_t shape[] = {pass->options.batch, pass->options.tokens, heads, width};
    return by_token(pass, rows, width > 0 ? 4 : 3, shape);
}

carry_tensor carry_lm_channels(const carry_lm_pass *pass, carry_tensor rows) {
    const int64_t shape[] = {pass->options.batch, pass->options.tokens, rows.shape[1]};
    return by_token(pass, rows, 3, shape);
}

carry_tensor carry_lm_by_head(const carry_lm_pass *pass, carry_tensor rows) {
    const carry_lm_config *c = &pass->lm->config;
    carry_tensor view = carry_reshape_2d(rows, pass->tokens * c->delta.value_heads, c->delta.value);
    if (rows.data != NULL && !carry_tensor_is_packed(&rows, 0)) {
        view = carry_reshape_3d(rows, pass->tokens, c->delta.value_heads, c->delta.value);
        view.stride[0] = rows.stride[0];
    }
    return view;
}

/* True if one product computes all maps of x, as columns of one array: on a GPU, without an adapter, and with a method
   and convolutions that accept rows with a larger stride. */
static bool joins(const carry_lm_pass *pass, const carry_lm_delta *o) {
    return carry_lm_joins(pass) && pass->lm->config.delta.use_short_conv && o->method == &carry_lm_recurrence_chunk;
}

static const int together[] = {
    CARRY_LM_Q_PROJ, CARRY_LM_K_PROJ, CARRY_LM_V_PROJ, CARRY_LM_G_PROJ, CARRY_LM_A_PROJ, CARRY_LM_B_PROJ, -1};

const int *carry_lm_delta_maps(const carry_lm_pass *pass) {
    static const int listed[] = {
        CARRY_LM_Q_PROJ, CARRY_LM_K_PROJ, CARRY_LM_V_PROJ, CARRY_LM_A_PROJ, CARRY_LM_B_PROJ, CARRY_LM_G_PROJ, -1};
    return pass->lm->own.device != 0 ? together : listed;
}

carry_activation carry_lm_activation(const carry_lm_pass *pass, int slot) {
    return slot == CARRY_LM_V_CONV ? CARRY_SILU : pass->lm->config.delta.qk_activation;
}

static carry_delta_problem problem_of(const carry_lm *lm, const carry_lm_pass_options *o) {
    const carry_lm_config *c = &lm->config;
    bool logits = c->delta.gated || c->delta.use_beta;
    return (carry_delta_problem){.batch = o->batch,
                                 .tokens = o->tokens,
                                 .heads = c->delta.heads,
                                 .value_heads = c->delta.value_heads,
                                 .key = c->delta.key,
                                 .value = c->delta.value,
                                 .sequences = o->sequences,
                                 .dtype = o->dtype,
                                 .gate = c->delta.gated ? CARRY_DELTA_HEAD_GATE : CARRY_DELTA_NO_GATE,
                                 .l2norm = true,
                                 .gate_inside = c->delta.gated,
                                 .beta_sigmoid = logits,
                                 .beta_factor = logits && c->delta.allow_neg_eigval ? 2.0f : 1.0f,
                                 .device = lm->own.device};
}

/* A model must be run with the kind of recurrence that it was trained with. */
static carry_status check_method(carry_ctx *ctx, const carry_lm *lm, const carry_lm_recurrence *method) {
    const carry_lm_config *config = &lm->config;
    const carry_lm_recurrence *wanted =
        method != NULL || config->delta.use_delta_rule ? method : &carry_lm_recurrence_linear;
    if (lm->own.device != 0 && wanted == &carry_lm_recurrence_linear) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "the method %s works on the CPU only: use --device cpu",
                          wanted->name);
    }
    if (method == NULL || (method == &carry_lm_recurrence_linear) == !config->delta.use_delta_rule) {
        return CARRY_OK;
    }
    return config->delta.use_delta_rule
               ? carry_fail(ctx, CARRY_EUNSUPPORTED,
                            "the method linear needs a model without the delta rule: use_delta_rule is "
                            "not false in its config")
               : carry_fail(ctx, CARRY_EUNSUPPORTED,
                            "the method %s needs a model with the delta rule, but use_delta_rule is "
                            "false in its config: use linear",
                            method->name);
}

static void close_delta(void *opened) {
    carry_lm_delta *o = opened;
    if (o != NULL) {
        if (o->recurrence != NULL) {
            o->method->close(o->recurrence);
        }
        free(o);
    }
}

static carry_status open_delta(carry_lm_pass *pass, void **opened) {
    const carry_lm_pass_options *options = &pass->options;
    *opened = NULL;
    CARRY_TRY(check_method(pass->ctx, pass->lm, options->recurrence));
    carry_lm_delta *o = calloc(1, sizeof *o);
    if (o == NULL) {
        return carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    o->problem = problem_of(pass->lm, options);
    o->method = options->recurrence != NULL             ? options->recurrence
                : pass->lm->config.delta.use_delta_rule ? &carry_lm_recurrence_chunk
                                                        : &carry_lm_recurrence_linear;
    carry_status status = carry_lm_open_recurrence(pass, &o->recurrence, o->method, &o->problem);
    if (status != CARRY_OK) {
        close_delta(o);
        return status;
    }
    (void)snprintf(o->about, sizeof o->about, "%s: %.400s", o->method->name, o->method->plan(o->recurrence));
    *opened = o;
    return CARRY_OK;
}

static const char *plan_line(const void *opened) {
    return ((const carry_lm_delta *)opened)->about;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t scratch(const carry_lm_pass *pass, const void *opened) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_pass_options *options = &pass->options;
    const carry_lm_delta *o = opened;
    size_t bytes = o->method->workspace(o->recurrence);
    if (!options->forward_only) {
        bytes = larger(bytes, carry_rms_norm_backward_workspace(pass->tokens * c->delta.value_heads, c->delta.value));
        if (c->delta.use_short_conv) {
            int64_t widest = c->delta.key_width > c->delta.value_width ? c->delta.key_width : c->delta.value_width;
            bytes = larger(bytes,
                           carry_conv_backward_workspace(options->batch, options->tokens, widest, c->delta.conv_size));
        }
    }
    return bytes;
}

static carry_tensor take_before(const carry_lm_pass *pass, const carry_lm_delta *o, carry_arena *arena,
                                int64_t channels) {
    const carry_lm_config *c = &pass->lm->config;
    if (o->method->halo == NULL || !c->delta.use_short_conv || c->delta.conv_size < 2) {
        return (carry_tensor){0};
    }
    const int64_t shape[] = {pass->options.batch, c->delta.conv_size - 1, channels};
    return carry_arena_tensor(arena, pass->lm->own.device, CARRY_F32, 3, shape);
}

static void take_once(const carry_lm_pass *pass, void *opened, carry_arena *arena) {
    const carry_lm_config *c = &pass->lm->config;
    carry_lm_delta *o = opened;
    const bool constant = !c->delta.gated && !c->delta.use_beta;
    o->beta = constant ? carry_lm_take(pass, arena, CARRY_F32, c->delta.value_heads) : (carry_tensor){0};
    o->ones = c->delta.qk_activation == CARRY_ELU ? carry_lm_take(pass, arena, pass->options.dtype, c->delta.key_width)
                                                  : (carry_tensor){0};
}

#define MAPS 7

/* The number of padding rows after the projections, which is the same in all layers. */
static int64_t rest_of(const carry_lm_pass *pass, const carry_lm_delta *o) {
    int64_t rows = 0;
    for (int64_t i = 0; joins(pass, o) && rows == 0 && i < pass->lm->config.num_hidden_layers; i++) {
        rows = pass->lm->layer[i].mixer.rest_rows;
    }
    return rows;
}

/* Allocates the projections of x, or their gradients, in the order of `together`. third false: all except the third. */
static void take_maps(const carry_lm_pass *pass, const carry_lm_delta *o, carry_arena *arena, bool third,
                      carry_tensor *const maps[MAPS]) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t width[MAPS] = {c->delta.key_width,
                                 c->delta.key_width,
                                 third ? c->delta.value_width : 0,
                                 c->delta.use_gate ? c->delta.value_width : 0,
                                 c->delta.gated ? c->delta.value_heads : 0,
                                 c->delta.gated || c->delta.use_beta ? c->delta.value_heads : 0,
                                 rest_of(pass, o)};
    carry_lm_take_columns(pass, arena, joins(pass, o), MAPS, width, maps);
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_delta *o = opened;
    carry_lm_delta_rows *r = rows;
    const carry_dtype dtype = pass->options.dtype;
    carry_tensor *const maps[MAPS] = {&r->q_in, &r->k_in, &r->v_in, &r->z, &r->a, &r->b, &r->rest};
    take_maps(pass, o, arena, true, maps);
    r->before[0] = take_before(pass, o, arena, c->delta.key_width);
    r->before[1] = take_before(pass, o, arena, c->delta.key_width);
    r->before[2] = take_before(pass, o, arena, c->delta.value_width);
    r->q = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    r->k = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    r->v = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    r->b = c->delta.gated || c->delta.use_beta ? r->b : o->beta;
    r->o = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    r->y = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    r->kept = pass->options.forward_only ? NULL : carry_arena_take(arena, o->method->kept(o->recurrence), 1);
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *given) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_delta *o = opened;
    carry_lm_delta_back *back = given;
    const carry_dtype dtype = pass->options.dtype;
    const int device = pass->lm->own.device;
    back->dy = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    back->dout = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    carry_tensor *const maps[MAPS] = {&back->dq_in, &back->dk_in, &back->dv_in, &back->dz,
                                      &back->da,    &back->db,    &back->rest};
    take_maps(pass, o, arena, joins(pass, o), maps);
    back->dv_in = joins(pass, o) ? back->dv_in : back->dy; /* dy is no longer needed when dv_in is written */
    back->dq = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    back->dk = carry_lm_take(pass, arena, dtype, c->delta.key_width);
    back->dv = carry_lm_take(pass, arena, dtype, c->delta.value_width);
    back->db = back->db.rank > 0 ? back->db
                                 : carry_lm_take(pass, arena, dtype, c->delta.value_heads); /* written but not read */
    back->zeros = back->rest.rank > 0 ? carry_lm_take(pass, arena, dtype, back->rest.shape[1]) : (carry_tensor){0};
    back->dbefore_key = take_before(pass, o, arena, c->delta.key_width);
    back->dbefore_value = take_before(pass, o, arena, c->delta.value_width);
    back->dA_log = carry_arena_tensor(arena, device, CARRY_F32, 1, &c->delta.value_heads);
    back->ddt_bias = carry_arena_tensor(arena, device, CARRY_F32, 1, &c->delta.value_heads);
}

/* Zeroes the gradients of the padding columns. */
static carry_status clear_rest(const carry_lm_pass *pass, const carry_lm_delta_back *back) {
    const carry_tensor *q = &back->dq_in;
    const int64_t into = ((char *)back->rest.data - (char *)q->data) / (int64_t)carry_dtype_size(q->dtype);
    CARRY_TRY(carry_zero(pass->ctx, back->zeros));
    return carry_copy_columns(pass->ctx, carry_reshape_2d(*q, pass->tokens, q->stride[0]), into, back->zeros, 0,
                              back->zeros.shape[1]);
}

static carry_status begin(carry_lm_pass *pass, void *opened, const carry_lm_args *args) {
    const carry_lm_delta *o = opened;
    const carry_lm_delta_back *back = pass->part[CARRY_LM_MIXER_DELTA].back;
    if (args->backward && back->rest.data != NULL) {
        CARRY_TRY(clear_rest(pass, back));
    }
    if (o->beta.data != NULL) {
        CARRY_TRY(carry_fill(pass->ctx, o->beta, pass->lm->config.delta.allow_neg_eigval ? 2.0 : 1.0));
    }
    return o->ones.data != NULL ? carry_fill(pass->ctx, o->ones, 1.0) : CARRY_OK;
}

/* y = conv(x) for tokens that are split over ranks; `which` is 0, 1, 2 for q, k, v. */
static carry_status convolve_split(const carry_lm_call *call, int which, const carry_lm_conv *c) {
    const carry_lm_pass *pass = call->pass;
    const carry_lm_delta *o = call->opened;
    const carry_conv_args conv = {.y = carry_lm_channels(pass, c->y),
                                  .x = carry_lm_channels(pass, c->x),
                                  .w = c->w,
                                  .before = ((carry_lm_delta_rows *)call->rows)->before[which],
                                  .cu_seqlens = pass->cuts,
                                  .activation = c->activation};
    if (conv.before.data != NULL) {
        CARRY_TRY(o->method->halo(o->recurrence, conv.before, conv.x, call->args->cu_seqlens));
    }
    return carry_conv(pass->ctx, &conv);
}

/* q, k, v = activation(conv(x)), or activation(x) without convolutions. */
static carry_status convolve(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_delta *o = call->opened;
    const carry_lm_delta_rows *r = call->rows;
    carry_lm_conv convs[] = {{.y = r->q, .x = r->q_in}, {.y = r->k, .x = r->k_in}, {.y = r->v, .x = r->v_in}};
    const bool all = pass->lm->config.delta.use_short_conv && o->method->halo == NULL;
    for (int i = 0; i < 3; i++) {
        convs[i].w = carry_lm_w(call, CARRY_LM_Q_CONV + i);
        convs[i].activation = carry_lm_activation(pass, CARRY_LM_Q_CONV + i);
    }
    CARRY_TRY(all ? carry_lm_convolve(call, convs, 3) : CARRY_OK);
    for (int i = 0; i < 3 && !all; i++) {
        CARRY_TRY(pass->lm->config.delta.use_short_conv
                      ? convolve_split(call, i, &convs[i])
                      : carry_activate(pass->ctx, convs[i].y, convs[i].x, convs[i].activation));
    }
    for (int i = 0; i < 3; i++) {
        if (convs[i].activation == CARRY_ELU) { /* for the delta rule it is elu(x) + 1 */
            CARRY_TRY(carry_elementwise(pass->ctx, convs[i].y, convs[i].y, o->ones, CARRY_ADD));
        }
    }
    return CARRY_OK;
}

/* A view of a group's rows as the delta rule needs them: [batch, tokens, heads, width], without the last index if width
   is 0. */
static carry_tensor heads_of(const carry_lm_group *group, carry_tensor rows, int64_t heads, int64_t width) {
    const int64_t shape[] = {heads, width};
    return carry_lm_group_rows(group, rows, width > 0 ? 2 : 1, shape);
}

static carry_status mix_group(const carry_lm_call *call, const carry_lm_group *group) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_args *args = call->args;
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_delta *o = call->opened;
    const carry_lm_delta_rows *r = call->rows;
    carry_tensor A_log = carry_lm_w(call, CARRY_LM_A_LOG);
    carry_tensor dt_bias = carry_lm_w(call, CARRY_LM_DT_BIAS);
    bool gated = A_log.data != NULL;
    const carry_tensor *kept = args->state != NULL ? &args->state->part[call->layer][3] : NULL;
    const carry_delta_forward_args delta = {
        .o = heads_of(group, r->o, c->delta.value_heads, c->delta.value),
        .final_state = kept != NULL ? *kept : (carry_tensor){0},
        .kept = args->backward ? r->kept : NULL,
        .q = heads_of(group, r->q, c->delta.heads, c->delta.key),
        .k = heads_of(group, r->k, c->delta.heads, c->delta.key),
        .v = heads_of(group, r->v, c->delta.value_heads, c->delta.value),
        .beta = heads_of(group, r->b, c->delta.value_heads, 0),
        .g = gated ? heads_of(group, r->a, c->delta.value_heads, 0) : (carry_tensor){0},
        .initial_state = kept != NULL ? *kept : (carry_tensor){0},
        .cu_seqlens = args->cu_seqlens.data != NULL ? args->cu_seqlens : (carry_tensor){0},
        .A_log = gated ? A_log : (carry_tensor){0},
        .dt_bias = gated ? dt_bias : (carry_tensor){0},
    };
    if (args->places != NULL) {
        carry_lm_pooled_call pooled;
        CARRY_TRY(carry_lm_follow(call, group, 3));
        CARRY_TRY(carry_lm_take_wide(call, group, 3, &pooled));
        CARRY_TRY(o->method->pooled(o->recurrence, &pooled, &delta, pass->scratch, pass->scratch_bytes));
        return carry_lm_put_wide(call, group, 3);
    }
    return o->method->forward(o->recurrence, &delta, pass->scratch, pass->scratch_bytes);
}

static carry_status mix(const carry_lm_call *call) {
    const carry_lm_delta *o = call->opened;
    carry_lm_group group;
    bool is_last = false;
    for (int64_t i = 0; !is_last && carry_lm_group_at(call->pass, call->args, i, &group); i++) {
        is_last =
            o->method->packs != NULL && o->method->packs(o->recurrence) && carry_lm_group_pack(call->args, &group);
        CARRY_TRY(carry_lm_run_group(call, &group, mix_group));
    }
    return CARRY_OK;
}

static carry_status forward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_delta_rows *r = call->rows;
    const carry_tensor maps[] = {[CARRY_LM_Q_PROJ] = r->q_in, [CARRY_LM_K_PROJ] = r->k_in, [CARRY_LM_V_PROJ] = r->v_in,
                                 [CARRY_LM_A_PROJ] = r->a,    [CARRY_LM_B_PROJ] = r->b,    [CARRY_LM_G_PROJ] = r->z};
    CARRY_TRY(carry_lm_project_all(call, carry_lm_delta_maps(pass), maps, r->rest, call->x));
    CARRY_TRY(convolve(call));
    CARRY_TRY(mix(call));
    carry_tensor z = r->z.data != NULL ? carry_lm_by_head(pass, r->z) : (carry_tensor){0};
    CARRY_TRY(carry_rms_norm(pass->ctx, carry_lm_by_head(pass, r->y), carry_lm_by_head(pass, r->o),
                             carry_lm_w(call, CARRY_LM_O_NORM), z, (float)pass->lm->config.delta.norm_eps));
    return carry_lm_project_out(call, CARRY_LM_O_PROJ, r->y);
}

const carry_lm_part carry_lm_mixer_delta = {
    .name = "delta",
    .about = "the delta rule, gated or not",
    .check = carry_lm_delta_check,
    .slots = CARRY_LM_DELTA_SLOTS,
    .names = carry_lm_delta_names,
    .describe = carry_lm_delta_describe,
    .together = together,
    .state = carry_lm_delta_state,
    .multiplications = carry_lm_delta_multiplications,
    .open = open_delta,
    .close = close_delta,
    .plan = plan_line,
    .scratch = scratch,
    .rows_size = sizeof(carry_lm_delta_rows),
    .back_size = sizeof(carry_lm_delta_back),
    .take = take,
    .take_back = take_back,
    .take_once = take_once,
    .begin = begin,
    .forward = forward,
    .backward = carry_lm_delta_backward,
};
