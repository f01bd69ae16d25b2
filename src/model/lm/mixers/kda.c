/* KDA: parameters, memory and forward. */
#include "model/lm/mixers/kda.h"

#include <stdlib.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/delta.h"
#include "model/lm/mixers/mixer.h"
#include "model/lm/places.h"
#include "model/lm/wide_states.h"
#include "ops/decay.h"

#define MAX_CONV 16

static const char *const names[CARRY_LM_KDA_SLOTS] = {"self_attn.q_proj.weight",
                                                      "self_attn.k_proj.weight",
                                                      "self_attn.v_proj.weight",
                                                      "self_attn.forget_gate.f_a_proj.weight",
                                                      "self_attn.forget_gate.f_b_proj.weight",
                                                      "self_attn.b_proj.weight",
                                                      "self_attn.g_a_proj.weight",
                                                      "self_attn.g_b_proj.weight",
                                                      "self_attn.forget_gate.A_log",
                                                      "self_attn.forget_gate.dt_bias",
                                                      "self_attn.conv1d.weight",
                                                      "self_attn.conv1d.weight",
                                                      "self_attn.conv1d.weight",
                                                      "self_attn.o_norm.weight",
                                                      "self_attn.o_proj.weight"};

static carry_status check(carry_ctx *ctx, carry_lm_config *c) {
    carry_lm_kda_options *k = &c->kda;
    CARRY_TRY(carry_lm_check_size(ctx, "the number of KDA heads", k->heads, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of a KDA head", k->head_dim, CARRY_MAX_DELTA_DIM));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of KDA's convolution", k->conv_size, MAX_CONV));
    CARRY_TRY(carry_lm_check_number(ctx, "the eps of KDA's norm", k->norm_eps, 1.0));
    k->width = k->heads * k->head_dim;
    return carry_lm_check_size(ctx, "the width of all KDA heads", k->width, CARRY_LM_MAX_WIDTH / 3);
}

static carry_lm_parameter describe(const carry_lm_config *c, int slot) {
    const carry_lm_kda_options *k = &c->kda;
    switch ((carry_lm_kda_slot)slot) {
    case CARRY_LM_KDA_Q:
    case CARRY_LM_KDA_K:
    case CARRY_LM_KDA_V:
        return carry_lm_matrix(k->width, c->hidden_size);
    case CARRY_LM_KDA_F_A:
    case CARRY_LM_KDA_G_A:
        if (k->whole_gates) {
            return (carry_lm_parameter){0};
        }
        return carry_lm_matrix(k->head_dim, c->hidden_size);
    case CARRY_LM_KDA_F_B:
    case CARRY_LM_KDA_G_B:
        return carry_lm_matrix(k->width, k->whole_gates ? c->hidden_size : k->head_dim);
    case CARRY_LM_KDA_BETA:
        return carry_lm_matrix(k->heads, c->hidden_size);
    case CARRY_LM_KDA_A_LOG:
        return k->whole_gates
                   ? (carry_lm_parameter){.rank = 1, .shape = {k->heads}, .start = CARRY_LM_DECAY_RATE}
                   : (carry_lm_parameter){.rank = 4, .shape = {1, 1, k->heads, 1}, .start = CARRY_LM_DECAY_RATE};
    case CARRY_LM_KDA_DT_BIAS:
        return (carry_lm_parameter){.rank = 1, .shape = {k->width}, .start = CARRY_LM_STEP_BIAS};
    case CARRY_LM_KDA_Q_CONV:
    case CARRY_LM_KDA_K_CONV:
    case CARRY_LM_KDA_V_CONV:
        return (carry_lm_parameter){.rank = 3, .shape = {k->width, 1, k->conv_size}, .decays = true};
    case CARRY_LM_KDA_NORM:
        return (carry_lm_parameter){.rank = 1, .shape = {k->head_dim}, .decays = true, .start = CARRY_LM_ONES};
    case CARRY_LM_KDA_O:
        return carry_lm_matrix(c->hidden_size, k->width);
    case CARRY_LM_KDA_SLOTS:
        break;
    }
    return (carry_lm_parameter){0};
}

static int state(const carry_lm_config *c, carry_lm_state_part *parts) {
    const carry_lm_kda_options *k = &c->kda;
    for (int i = 0; i < 3; i++) {
        parts[i] = (carry_lm_state_part){.rank = 2, .shape = {k->conv_size - 1, k->width}, .slices = 1};
    }
    parts[3] =
        (carry_lm_state_part){.rank = 3, .shape = {k->heads, k->head_dim, k->head_dim}, .slices = 1, .narrows = true};
    return 4;
}

/* For each head and token: k^T S, the outer product that is added to S, and q^T S. */
static double multiplications(const carry_lm_config *c) {
    return 3.0 * (double)c->kda.width * (double)c->kda.head_dim;
}

carry_tensor carry_lm_kda_heads(const carry_lm_pass *pass, carry_tensor rows, bool wide) {
    const carry_lm_kda_options *k = &pass->lm->config.kda;
    const int64_t shape[] = {pass->options.batch, pass->options.tokens, k->heads, k->head_dim};
    return carry_reshape(rows, wide ? 4 : 3, shape);
}

carry_tensor carry_lm_kda_channels(const carry_lm_pass *pass, carry_tensor rows) {
    return carry_reshape_3d(rows, pass->options.batch, pass->options.tokens, rows.shape[1]);
}

carry_tensor carry_lm_kda_by_head(const carry_lm_pass *pass, carry_tensor rows) {
    const carry_lm_kda_options *k = &pass->lm->config.kda;
    return carry_reshape_2d(rows, pass->tokens * k->heads, k->head_dim);
}

carry_tensor carry_lm_kda_rates(carry_tensor A_log) {
    return A_log.data != NULL ? carry_reshape_1d(A_log, A_log.shape[A_log.rank == 4 ? 2 : 0]) : A_log;
}

static void close_kda(void *opened) {
    carry_lm_kda *o = opened;
    if (o != NULL) {
        if (o->recurrence != NULL) {
            carry_lm_recurrence_chunk.close(o->recurrence);
        }
        free(o);
    }
}

static carry_status open_kda(carry_lm_pass *pass, void **opened) {
    const carry_lm_kda_options *k = &pass->lm->config.kda;
    const carry_lm_pass_options *options = &pass->options;
    *opened = NULL;
    if (options->recurrence != NULL && options->recurrence != &carry_lm_recurrence_chunk) {
        return carry_fail(pass->ctx, CARRY_EUNSUPPORTED, "KDA layers have the method chunk only, not %s",
                          options->recurrence->name);
    }
    carry_lm_kda *o = calloc(1, sizeof *o);
    if (o == NULL) {
        return carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    o->problem = (carry_delta_problem){.batch = options->batch,
                                       .tokens = options->tokens,
                                       .heads = k->heads,
                                       .value_heads = k->heads,
                                       .key = k->head_dim,
                                       .value = k->head_dim,
                                       .sequences = options->sequences,
                                       .dtype = options->dtype,
                                       .gate = CARRY_DELTA_KEY_GATE,
                                       .l2norm = true,
                                       .beta_sigmoid = true,
                                       .beta_factor = 1.0f,
                                       .device = pass->lm->own.device};
    const carry_status status = carry_lm_open_recurrence(pass, &o->recurrence, &carry_lm_recurrence_chunk, &o->problem);
    if (status != CARRY_OK) {
        close_kda(o);
        return status;
    }
    *opened = o;
    return CARRY_OK;
}

static const char *plan_line(const void *opened) {
    return carry_lm_recurrence_chunk.plan(((const carry_lm_kda *)opened)->recurrence);
}

static size_t scratch(const carry_lm_pass *pass, const void *opened) {
    const carry_lm_kda_options *k = &pass->lm->config.kda;
    size_t most = carry_lm_recurrence_chunk.workspace(((const carry_lm_kda *)opened)->recurrence);
    if (!pass->options.forward_only) {
        const size_t others[] = {
            carry_rms_norm_backward_workspace(pass->tokens * k->heads, k->head_dim),
            carry_conv_backward_workspace(pass->options.batch, pass->options.tokens, k->width, k->conv_size)};
        for (int i = 0; i < 2; i++) {
            most = others[i] > most ? others[i] : most;
        }
    }
    return most;
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const carry_lm_kda_options *k = &pass->lm->config.kda;
    const carry_lm_kda *o = opened;
    const carry_dtype dtype = pass->options.dtype;
    carry_lm_kda_rows *r = rows;
    *r = (carry_lm_kda_rows){0};
    for (int i = 0; i < 3; i++) {
        r->in[i] = carry_lm_take(pass, arena, dtype, k->width);
        r->qkv[i] = carry_lm_take(pass, arena, dtype, k->width);
    }
    if (!k->whole_gates) {
        r->f_low = carry_lm_take(pass, arena, dtype, k->head_dim);
        r->gate_low = carry_lm_take(pass, arena, dtype, k->head_dim);
    }
    r->f = carry_lm_take(pass, arena, dtype, k->width);
    r->g = carry_lm_take(pass, arena, CARRY_F32, k->width);
    r->beta = carry_lm_take(pass, arena, dtype, k->heads);
    carry_tensor *const wide[] = {&r->gate, &r->open, &r->o, &r->normed, &r->y};
    for (int i = 0; i < 5; i++) {
        *wide[i] = carry_lm_take(pass, arena, dtype, k->width);
    }
    r->kept =
        pass->options.forward_only ? NULL : carry_arena_take(arena, carry_lm_recurrence_chunk.kept(o->recurrence), 1);
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *given) {
    const carry_lm_kda_options *k = &pass->lm->config.kda;
    const carry_dtype dtype = pass->options.dtype;
    carry_lm_kda_back *back = given;
    (void)opened;
    carry_tensor *const wide[] = {&back->dy,      &back->dnormed, &back->dout,   &back->dqkv[0],
                                  &back->dqkv[1], &back->dqkv[2], &back->din[0], &back->din[1],
                                  &back->din[2],  &back->df,      &back->dgate};
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        *wide[i] = carry_lm_take(pass, arena, dtype, k->width);
    }
    back->dg = carry_lm_take(pass, arena, CARRY_F32, k->width);
    back->dbeta = carry_lm_take(pass, arena, dtype, k->heads);
    back->df_low = carry_lm_take(pass, arena, dtype, k->head_dim);
    back->dgate_low = carry_lm_take(pass, arena, dtype, k->head_dim);
}

static carry_status convolve(const carry_lm_call *call) {
    const carry_lm_kda_rows *r = call->rows;
    carry_lm_conv convs[3];
    for (int i = 0; i < 3; i++) {
        convs[i] = (carry_lm_conv){
            .y = r->qkv[i], .x = r->in[i], .w = carry_lm_w(call, CARRY_LM_KDA_Q_CONV + i), .activation = CARRY_SILU};
    }
    return carry_lm_convolve(call, convs, 3);
}

static carry_status mix_group(const carry_lm_call *call, const carry_lm_group *group) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_args *args = call->args;
    const carry_lm_kda *o = call->opened;
    const carry_lm_kda_rows *r = call->rows;
    const int64_t heads[] = {pass->lm->config.kda.heads, pass->lm->config.kda.head_dim};
    const carry_tensor kept = args->state != NULL ? args->state->part[call->layer][3] : (carry_tensor){0};
    const carry_delta_forward_args delta = {
        .o = carry_lm_group_rows(group, r->o, 2, heads),
        .final_state = kept,
        .kept = args->backward ? r->kept : NULL,
        .q = carry_lm_group_rows(group, r->qkv[0], 2, heads),
        .k = carry_lm_group_rows(group, r->qkv[1], 2, heads),
        .v = carry_lm_group_rows(group, r->qkv[2], 2, heads),
        .beta = carry_lm_group_rows(group, r->beta, 1, heads),
        .g = carry_lm_group_rows(group, r->g, 2, heads),
        .initial_state = kept,
        .cu_seqlens = args->cu_seqlens.data != NULL ? args->cu_seqlens : (carry_tensor){0},
    };
    if (args->places != NULL) {
        carry_lm_pooled_call pooled;
        CARRY_TRY(carry_lm_follow(call, group, 3));
        CARRY_TRY(carry_lm_take_wide(call, group, 3, &pooled));
        CARRY_TRY(carry_lm_recurrence_chunk.pooled(o->recurrence, &pooled, &delta, pass->scratch, pass->scratch_bytes));
        return carry_lm_put_wide(call, group, 3);
    }
    return carry_lm_recurrence_chunk.forward(o->recurrence, &delta, pass->scratch, pass->scratch_bytes);
}

static carry_status forward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    carry_ctx *ctx = pass->ctx;
    const carry_lm_kda_rows *r = call->rows;
    carry_lm_group group;
    const struct {
        int slot;
        carry_tensor y, x;
    } maps[] = {{CARRY_LM_KDA_Q, r->in[0], call->x},      {CARRY_LM_KDA_K, r->in[1], call->x},
                {CARRY_LM_KDA_V, r->in[2], call->x},      {CARRY_LM_KDA_F_A, r->f_low, call->x},
                {CARRY_LM_KDA_F_B, r->f, r->f_low},       {CARRY_LM_KDA_BETA, r->beta, call->x},
                {CARRY_LM_KDA_G_A, r->gate_low, call->x}, {CARRY_LM_KDA_G_B, r->gate, r->gate_low}};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        const carry_tensor x = maps[i].x.data != NULL ? maps[i].x : call->x; /* whole gates read x itself */
        CARRY_TRY(maps[i].y.data != NULL ? carry_lm_project(call, maps[i].slot, maps[i].y, x) : CARRY_OK);
    }
    CARRY_TRY(carry_decay_gate(ctx, r->g, r->f, carry_lm_kda_rates(carry_lm_w(call, CARRY_LM_KDA_A_LOG)),
                               carry_lm_w(call, CARRY_LM_KDA_DT_BIAS), (float)pass->lm->config.kda.bound));
    CARRY_TRY(convolve(call));
    for (int64_t i = 0; carry_lm_group_at(pass, call->args, i, &group); i++) {
        CARRY_TRY(carry_lm_run_group(call, &group, mix_group));
    }
    CARRY_TRY(carry_rms_norm(ctx, carry_lm_kda_by_head(pass, r->normed), carry_lm_kda_by_head(pass, r->o),
                             carry_lm_w(call, CARRY_LM_KDA_NORM), (carry_tensor){0},
                             (float)pass->lm->config.kda.norm_eps));
    CARRY_TRY(carry_activate(ctx, r->open, r->gate, CARRY_SIGMOID));
    CARRY_TRY(carry_elementwise(ctx, r->y, r->normed, r->open, CARRY_MULTIPLY));
    return carry_lm_project_out(call, CARRY_LM_KDA_O, r->y);
}

const carry_lm_part carry_lm_mixer_kda = {
    .name = "kda",
    .about = "the delta rule with a decay for each channel of a key",
    .check = check,
    .slots = CARRY_LM_KDA_SLOTS,
    .names = names,
    .describe = describe,
    .state = state,
    .multiplications = multiplications,
    .open = open_kda,
    .close = close_kda,
    .plan = plan_line,
    .scratch = scratch,
    .rows_size = sizeof(carry_lm_kda_rows),
    .back_size = sizeof(carry_lm_kda_back),
    .take = take,
    .take_back = take_back,
    .forward = forward,
    .backward = carry_lm_kda_backward,
};
