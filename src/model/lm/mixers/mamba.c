/* Layers of Mamba-2: parameters, memory and forward. */
#include "model/lm/mixers/mamba.h"

#include <inttypes.h>
#include <math.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/mixer.h"
#include "model/lm/places.h"
#include "model/lm/wide_states.h"
#include "ops/video.h"

#define MAX_CONV 16

static const char *const names[CARRY_LM_MAMBA_SLOTS] = {"mixer.in_proj.weight",
                                                        "mixer.in_proj.weight",
                                                        "mixer.in_proj.weight",
                                                        "mixer.in_proj.bias",
                                                        "mixer.in_proj.bias",
                                                        "mixer.in_proj.bias",
                                                        "mixer.conv1d.weight",
                                                        "mixer.conv1d.bias",
                                                        "mixer.dt_bias",
                                                        "mixer.A_log",
                                                        "mixer.D",
                                                        "mixer.norm.weight",
                                                        "mixer.out_proj.weight",
                                                        "mixer.out_proj.bias"};

static carry_status check(carry_ctx *ctx, carry_lm_config *c) {
    carry_lm_mamba_options *m = &c->mamba;
    CARRY_TRY(carry_lm_check_size(ctx, "the number of Mamba heads", m->heads, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of a Mamba head", m->head_dim, CARRY_SSM_MAX_DIM));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of a Mamba state", m->state, CARRY_SSM_MAX_DIM));
    CARRY_TRY(carry_lm_check_size(ctx, "the number of Mamba groups", m->groups, m->heads));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of Mamba's convolution", m->conv_size, MAX_CONV));
    CARRY_TRY(carry_lm_check_number(ctx, "the eps of Mamba's norm", m->norm_eps, 1.0));
    if (m->heads % m->groups != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "Mamba layers have %" PRId64 " heads and %" PRId64 " groups, which must divide them",
                          m->heads, m->groups);
    }
    if (!(m->step_min >= 0.0 && m->step_min <= m->step_max)) {
        return carry_fail(ctx, CARRY_ESIZE, "the limits of Mamba's steps are %g and %g: expected 0 or more, ascending",
                          m->step_min, m->step_max);
    }
    m->width = m->heads * m->head_dim;
    m->channels = m->width + 2 * m->groups * m->state;
    return carry_lm_check_size(ctx, "the width of Mamba's layers", m->channels, CARRY_LM_MAX_WIDTH);
}

static carry_lm_parameter row_of(bool is_here, int64_t count, carry_lm_start start) {
    return (carry_lm_parameter){.rank = is_here ? 1 : 0, .shape = {count}, .start = (int)start};
}

static carry_lm_parameter describe(const carry_lm_config *c, int slot) {
    const carry_lm_mamba_options *m = &c->mamba;
    switch ((carry_lm_mamba_slot)slot) {
    case CARRY_LM_MAMBA_Z:
        return carry_lm_matrix(m->width, c->hidden_size);
    case CARRY_LM_MAMBA_XBC:
        return carry_lm_matrix(m->channels, c->hidden_size);
    case CARRY_LM_MAMBA_DT:
        return carry_lm_matrix(m->heads, c->hidden_size);
    case CARRY_LM_MAMBA_Z_BIAS:
        return row_of(m->proj_bias, m->width, CARRY_LM_ZEROS);
    case CARRY_LM_MAMBA_XBC_BIAS:
        return row_of(m->proj_bias, m->channels, CARRY_LM_ZEROS);
    case CARRY_LM_MAMBA_DT_PROJ_BIAS:
        return row_of(m->proj_bias, m->heads, CARRY_LM_ZEROS);
    case CARRY_LM_MAMBA_CONV:
        return (carry_lm_parameter){.rank = 3, .shape = {m->channels, 1, m->conv_size}, .decays = true};
    case CARRY_LM_MAMBA_CONV_BIAS:
        return row_of(m->conv_bias, m->channels, CARRY_LM_ZEROS);
    case CARRY_LM_MAMBA_DT_BIAS:
        return row_of(true, m->heads, CARRY_LM_STEP_BIAS);
    case CARRY_LM_MAMBA_A_LOG:
        return row_of(true, m->heads, CARRY_LM_DECAY_RATE);
    case CARRY_LM_MAMBA_D:
        return row_of(true, m->heads, CARRY_LM_ONES);
    case CARRY_LM_MAMBA_NORM:
        return (carry_lm_parameter){.rank = 1, .shape = {m->width}, .decays = true, .start = CARRY_LM_ONES};
    case CARRY_LM_MAMBA_OUT:
        return carry_lm_matrix(c->hidden_size, m->width);
    case CARRY_LM_MAMBA_OUT_BIAS:
        return row_of(m->proj_bias, c->hidden_size, CARRY_LM_ZEROS);
    case CARRY_LM_MAMBA_SLOTS:
        break;
    }
    return (carry_lm_parameter){0};
}

static int state(const carry_lm_config *c, carry_lm_state_part *parts) {
    const carry_lm_mamba_options *m = &c->mamba;
    parts[0] = (carry_lm_state_part){.rank = 2, .shape = {m->conv_size - 1, m->channels}, .slices = 1};
    parts[1] =
        (carry_lm_state_part){.rank = 3, .shape = {m->heads, m->head_dim, m->state}, .slices = 1, .narrows = true};
    return 2;
}

/* For each head and token: the outer product that is added to S, and S C. */
static double multiplications(const carry_lm_config *c) {
    return 2.0 * (double)c->mamba.width * (double)c->mamba.state;
}

carry_tensor carry_lm_mamba_groups(const carry_lm_pass *pass, carry_tensor rows) {
    const int64_t groups = pass->lm->config.mamba.groups;
    return carry_reshape_2d(rows, rows.shape[0] * groups, rows.shape[1] / groups);
}

carry_tensor carry_lm_mamba_tokens(const carry_lm_pass *pass, carry_tensor rows) {
    return carry_reshape_3d(rows, pass->options.batch, pass->options.tokens, rows.shape[1]);
}

/* The arguments with shapes only, to compute workspaces. */
static carry_ssm_args shapes_of(const carry_lm_pass *pass) {
    const carry_lm_mamba_options *m = &pass->lm->config.mamba;
    const int64_t shape[] = {pass->options.batch, pass->options.tokens, m->channels};
    return (carry_ssm_args){.xbc = carry_view_on(pass->lm->own.device, NULL, pass->options.dtype, 3, shape),
                            .heads = m->heads,
                            .groups = m->groups,
                            .state = m->state,
                            .least = (float)m->step_min,
                            .most = isinf(m->step_max) ? INFINITY : (float)m->step_max};
}

carry_ssm_args carry_lm_mamba_ssm(const carry_lm_call *call) {
    const carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_rows *r = call->rows;
    carry_ssm_args ssm = shapes_of(pass);
    ssm.y = carry_lm_mamba_tokens(pass, r->y);
    ssm.xbc = carry_lm_mamba_tokens(pass, r->xbc);
    ssm.dt = carry_lm_mamba_tokens(pass, r->dt);
    ssm.A_log = carry_lm_w(call, CARRY_LM_MAMBA_A_LOG);
    ssm.dt_bias = carry_lm_w(call, CARRY_LM_MAMBA_DT_BIAS);
    ssm.D = carry_lm_w(call, CARRY_LM_MAMBA_D);
    ssm.cu_seqlens = call->args->cu_seqlens.data != NULL ? pass->cuts : (carry_tensor){0};
    if (call->args->state != NULL) {
        ssm.initial = ssm.final = call->args->state->part[call->layer][1];
    }
    return ssm;
}

static carry_status open_mamba(carry_lm_pass *pass, void **opened) {
    *opened = NULL;
    return pass->options.recurrence == &carry_lm_recurrence_ranks
               ? carry_fail(pass->ctx, CARRY_EUNSUPPORTED,
                            "Mamba layers cannot be split over ranks: let ranks share the batch")
               : CARRY_OK;
}

static void close_mamba(void *opened) {
    (void)opened;
}

static const char *plan_line(const void *opened) {
    (void)opened;
    return "Mamba-2 by chunks of 64 tokens";
}

static size_t scratch(const carry_lm_pass *pass, const void *opened) {
    const carry_lm_mamba_options *m = &pass->lm->config.mamba;
    const carry_ssm_args ssm = shapes_of(pass);
    size_t most = carry_ssm_workspace(pass->ctx, &ssm);
    (void)opened;
    if (!pass->options.forward_only) {
        const size_t others[] = {
            carry_ssm_backward_workspace(pass->ctx, &ssm),
            carry_conv_backward_workspace(pass->options.batch, pass->options.tokens, m->channels, m->conv_size),
            carry_rms_norm_backward_workspace(pass->tokens * m->groups, m->width / m->groups)};
        for (int i = 0; i < 3; i++) {
            most = others[i] > most ? others[i] : most;
        }
    }
    return most;
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const carry_lm_mamba_options *m = &pass->lm->config.mamba;
    const carry_dtype dtype = pass->options.dtype;
    carry_lm_mamba_rows *r = rows;
    (void)opened;
    r->z = carry_lm_take(pass, arena, dtype, m->width);
    r->xbc_in = carry_lm_take(pass, arena, dtype, m->channels);
    r->dt = carry_lm_take(pass, arena, dtype, m->heads);
    r->sum = carry_lm_take(pass, arena, dtype, m->channels);
    r->xbc = carry_lm_take(pass, arena, dtype, m->channels);
    r->y = carry_lm_take(pass, arena, dtype, m->width);
    r->gated = carry_lm_take(pass, arena, dtype, m->width);
    r->normed = carry_lm_take(pass, arena, dtype, m->width);
    r->out = m->groups > 1 ? carry_lm_take(pass, arena, dtype, m->width) : r->normed;
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *given) {
    const carry_lm_mamba_options *m = &pass->lm->config.mamba;
    const carry_dtype dtype = pass->options.dtype;
    carry_lm_mamba_back *back = given;
    (void)opened;
    back->dout = carry_lm_take(pass, arena, dtype, m->width);
    back->dnormed = m->groups > 1 ? carry_lm_take(pass, arena, dtype, m->width) : back->dout;
    back->dgated = carry_lm_take(pass, arena, dtype, m->width);
    back->dy = carry_lm_take(pass, arena, dtype, m->width);
    back->dz = carry_lm_take(pass, arena, dtype, m->width);
    back->dxbc = carry_lm_take(pass, arena, dtype, m->channels);
    back->dxbc_in = carry_lm_take(pass, arena, dtype, m->channels);
    back->ddt = carry_lm_take(pass, arena, dtype, m->heads);
    back->dsum = back->dxbc;
}

/* silu(conv(xbc) + bias). */
static carry_status convolve(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_rows *r = call->rows;
    const carry_lm_conv conv = {
        .y = r->sum, .x = r->xbc_in, .w = carry_lm_w(call, CARRY_LM_MAMBA_CONV), .activation = CARRY_NO_ACTIVATION};
    CARRY_TRY(carry_lm_convolve(call, &conv, 1));
    CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_MAMBA_CONV_BIAS, r->sum));
    return carry_activate(pass->ctx, r->xbc, r->sum, CARRY_SILU);
}

/* A view of `count` rows of a call, starting at `first`, as one sequence. */
static carry_tensor one_sequence(carry_tensor rows, int64_t first, int64_t count) {
    return carry_reshape_3d(carry_slice(rows, first, count), 1, count, rows.shape[1]);
}

/* Runs the first `count` steps: single tokens of different texts whose states are in a pool. */
static carry_status run_steps(const carry_lm_call *call, int64_t count) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_rows *r = call->rows;
    const carry_lm_group group = {.batch = count, .tokens = 1};
    carry_lm_pooled_call pooled;
    carry_ssm_args ssm = carry_lm_mamba_ssm(call);
    const carry_tensor from[] = {r->y, r->xbc, r->dt};
    carry_tensor *to[] = {&ssm.y, &ssm.xbc, &ssm.dt};
    for (int i = 0; i < 3; i++) {
        *to[i] = carry_reshape_3d(carry_slice(from[i], 0, count), count, 1, from[i].shape[1]);
    }
    CARRY_TRY(carry_lm_take_wide(call, &group, 1, &pooled));
    ssm.initial = ssm.final = pooled.pool;
    ssm.slots = pooled.slots;
    CARRY_TRY(carry_ssm(pass->ctx, &ssm, pass->scratch, pass->scratch_bytes));
    return carry_lm_put_wide(call, &group, 1);
}

/* Runs some tokens of a sequence whose state is in a pool: a guess (places.h) or a part of a piece. */
static carry_status run_group(const carry_lm_call *call, const carry_lm_group *group) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_mamba_rows *r = call->rows;
    carry_lm_pooled_call pooled;
    CARRY_TRY(carry_lm_follow(call, group, 1));
    CARRY_TRY(carry_lm_take_wide(call, group, 1, &pooled));
    carry_ssm_args ssm = carry_lm_mamba_ssm(call);
    ssm.y = one_sequence(r->y, group->first, group->tokens);
    ssm.xbc = one_sequence(r->xbc, group->first, group->tokens);
    ssm.dt = one_sequence(r->dt, group->first, group->tokens);
    ssm.initial = ssm.final = carry_slice(pooled.pool, pooled.slot, 1);
    CARRY_TRY(carry_ssm(pass->ctx, &ssm, pass->scratch, pass->scratch_bytes));
    return carry_lm_put_wide(call, group, 1);
}

/* Runs the sequences of a call whose states are in a pool: first all single tokens together, then guesses (places.h)
   and pieces of prompts one after the other. With same_bits, pieces run token by token, since sums depend on where
   chunks begin. */
static carry_status run_pooled(const carry_lm_call *call) {
    const carry_lm_places *p = call->args->places;
    const int64_t together = p->waves > 1 ? p->wave[1] : p->steps;
    if (together > 0) {
        CARRY_TRY(run_steps(call, together));
    }
    for (int64_t i = together; i < p->sequences; i++) {
        const int64_t count = p->starts[i + 1] - p->starts[i];
        const int64_t each = call->pass->options.same_bits ? 1 : count;
        for (int64_t t = p->starts[i]; t < p->starts[i + 1]; t += each) {
            const carry_lm_group group = {.first = t, .batch = 1, .tokens = each, .sequence = i};
            CARRY_TRY(run_group(call, &group));
        }
    }
    return CARRY_OK;
}

static carry_status run(const carry_lm_call *call) {
    const carry_ssm_args ssm = carry_lm_mamba_ssm(call);
    return call->args->places != NULL
               ? run_pooled(call)
               : carry_ssm(call->pass->ctx, &ssm, call->pass->scratch, call->pass->scratch_bytes);
}

static carry_status forward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    carry_ctx *ctx = pass->ctx;
    const carry_lm_mamba_rows *r = call->rows;
    const carry_lm_mamba_options *m = &pass->lm->config.mamba;
    const carry_tensor w = carry_lm_w(call, CARRY_LM_MAMBA_NORM);
    const carry_tensor maps[] = {
        [CARRY_LM_MAMBA_Z] = r->z, [CARRY_LM_MAMBA_XBC] = r->xbc_in, [CARRY_LM_MAMBA_DT] = r->dt};
    static const int slots[] = {CARRY_LM_MAMBA_Z, CARRY_LM_MAMBA_XBC, CARRY_LM_MAMBA_DT, -1};
    const carry_tensor absent = {0};
    CARRY_TRY(carry_lm_project_all(call, slots, maps, absent, call->x));
    for (int i = 0; i < 3; i++) {
        CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_MAMBA_Z_BIAS + i, maps[i]));
    }
    CARRY_TRY(convolve(call));
    CARRY_TRY(run(call));
    CARRY_TRY(carry_swiglu(ctx, r->gated, r->z, r->y));
    CARRY_TRY(carry_rms_norm(ctx, carry_lm_mamba_groups(pass, r->normed), carry_lm_mamba_groups(pass, r->gated),
                             m->groups > 1 ? absent : w, absent, (float)m->norm_eps));
    if (m->groups > 1) { /* the groups have different weights */
        CARRY_TRY(carry_gated_add_backward(ctx, r->out, absent, r->normed, absent, w));
    }
    CARRY_TRY(carry_lm_project_out(call, CARRY_LM_MAMBA_OUT, r->out));
    return carry_lm_add_bias_out(call, CARRY_LM_MAMBA_OUT_BIAS);
}

const carry_lm_part carry_lm_mixer_mamba = {
    .name = "mamba",
    .about = "the state space layer of Mamba-2",
    .check = check,
    .slots = CARRY_LM_MAMBA_SLOTS,
    .names = names,
    .describe = describe,
    .state = state,
    .multiplications = multiplications,
    .open = open_mamba,
    .close = close_mamba,
    .plan = plan_line,
    .scratch = scratch,
    .rows_size = sizeof(carry_lm_mamba_rows),
    .back_size = sizeof(carry_lm_mamba_back),
    .take = take,
    .take_back = take_back,
    .forward = forward,
    .backward = carry_lm_mamba_backward,
};
