/* Feed-forward without a gate: out = down(relu(up x)^2). */
#include "carry/ops.h"
#include "core/context.h"
#include "model/lm/feedforward/feedforward.h"
#include "model/lm/lm_pass.h"

enum { UP, UP_BIAS, DOWN, DOWN_BIAS, SLOTS };

typedef struct squared_rows {
    carry_tensor up, active, squared; /* active: relu(up) */
} squared_rows;

typedef struct squared_back {
    carry_tensor dsquared;
} squared_back;

static const char *const names[SLOTS] = {"mlp.up_proj.weight", "mlp.up_proj.bias", "mlp.down_proj.weight",
                                         "mlp.down_proj.bias"};

static carry_status check(carry_ctx *ctx, carry_lm_config *c) {
    return carry_lm_check_size(ctx, "intermediate_size", c->squared.width, CARRY_LM_MAX_WIDTH);
}

static carry_lm_parameter describe(const carry_lm_config *c, int slot) {
    const bool is_up = slot == UP || slot == UP_BIAS;
    if (slot == UP_BIAS || slot == DOWN_BIAS) {
        return (carry_lm_parameter){.rank = c->squared.bias ? 1 : 0,
                                    .shape = {is_up ? c->squared.width : c->hidden_size},
                                    .start = CARRY_LM_ZEROS};
    }
    return is_up ? carry_lm_matrix(c->squared.width, c->hidden_size)
                 : carry_lm_matrix(c->hidden_size, c->squared.width);
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    squared_rows *r = rows;
    (void)opened;
    r->up = carry_lm_take(pass, arena, pass->options.dtype, pass->lm->config.squared.width);
    r->active = carry_lm_take(pass, arena, pass->options.dtype, pass->lm->config.squared.width);
    r->squared = carry_lm_take(pass, arena, pass->options.dtype, pass->lm->config.squared.width);
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *back) {
    (void)opened;
    ((squared_back *)back)->dsquared = carry_lm_take(pass, arena, pass->options.dtype, pass->lm->config.squared.width);
}

static carry_status forward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const squared_rows *r = call->rows;
    const carry_tensor active = carry_slice(r->active, call->first, call->count);
    CARRY_TRY(carry_lm_project(call, UP, carry_slice(r->up, call->first, call->count),
                               carry_slice(call->x, call->first, call->count)));
    CARRY_TRY(carry_lm_add_bias(call, UP_BIAS, carry_slice(r->up, call->first, call->count)));
    CARRY_TRY(carry_activate(ctx, active, carry_slice(r->up, call->first, call->count), CARRY_RELU));
    CARRY_TRY(
        carry_elementwise(ctx, carry_slice(r->squared, call->first, call->count), active, active, CARRY_MULTIPLY));
    CARRY_TRY(carry_lm_project_out(call, DOWN, r->squared));
    return carry_lm_add_bias_out(call, DOWN_BIAS);
}

static carry_status backward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const squared_rows *r = call->rows;
    const squared_back *back = call->back;
    CARRY_TRY(carry_lm_add_bias_backward(call, DOWN_BIAS, call->dout));
    CARRY_TRY(carry_lm_project_out_backward(call, DOWN, back->dsquared, r->squared));
    CARRY_TRY(carry_elementwise(ctx, r->up, back->dsquared, r->active, CARRY_MULTIPLY));
    CARRY_TRY(carry_elementwise(ctx, r->up, r->up, r->up, CARRY_ADD)); /* 2 relu(up) */
    CARRY_TRY(carry_lm_add_bias_backward(call, UP_BIAS, r->up));
    return carry_lm_project_backward(call, UP, call->dx, r->up, call->x, false);
}

const carry_lm_part carry_lm_feedforward_squared = {
    .name = "squared",
    .about = "a map, relu squared, and a map back",
    .check = check,
    .slots = SLOTS,
    .names = names,
    .describe = describe,
    .rows_size = sizeof(squared_rows),
    .back_size = sizeof(squared_back),
    .take = take,
    .take_back = take_back,
    .forward = forward,
    .backward = backward,
};
