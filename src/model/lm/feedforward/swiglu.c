/* Feed-forward with a gate: out = down(silu(gate x) * up x). */
#include "carry/ops.h"
#include "core/context.h"
#include "model/lm/feedforward/feedforward.h"
#include "model/lm/lm_pass.h"

enum {
    GATE = CARRY_LM_SWIGLU_GATE,
    UP = CARRY_LM_SWIGLU_UP,
    DOWN = CARRY_LM_SWIGLU_DOWN,
    SLOTS = CARRY_LM_SWIGLU_SLOTS
};

/* Backward overwrites gate and up with their gradients. */
typedef struct swiglu_rows {
    carry_tensor gate, up, activated;
} swiglu_rows;

typedef struct swiglu_back {
    carry_tensor dactivated;
} swiglu_back;

static const char *const names[SLOTS] = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"};

static carry_status check(carry_ctx *ctx, carry_lm_config *c) {
    return carry_lm_check_size(ctx, "intermediate_size", c->swiglu.width, CARRY_LM_MAX_WIDTH);
}

static carry_lm_parameter describe(const carry_lm_config *c, int slot) {
    return slot == DOWN ? carry_lm_matrix(c->hidden_size, c->swiglu.width)
                        : carry_lm_matrix(c->swiglu.width, c->hidden_size);
}

/* On a GPU gate and up are columns of one array, since one product computes both. */
static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const int64_t width = pass->lm->config.swiglu.width;
    swiglu_rows *r = rows;
    (void)opened;
    carry_lm_take_columns(pass, arena, carry_lm_joins(pass), 2, (const int64_t[]){width, width},
                          (carry_tensor *const[]){&r->gate, &r->up});
    r->activated = carry_lm_take(pass, arena, pass->options.dtype, width);
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *back) {
    (void)opened;
    ((swiglu_back *)back)->dactivated = carry_lm_take(pass, arena, pass->options.dtype, pass->lm->config.swiglu.width);
}

static const int slots[] = {GATE, UP, -1};

static carry_status forward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const swiglu_rows *r = call->rows;
    const carry_tensor gate = carry_slice(r->gate, call->first, call->count);
    const carry_tensor up = carry_slice(r->up, call->first, call->count);
    const carry_tensor maps[] = {[GATE] = gate, [UP] = up};
    CARRY_TRY(
        carry_lm_project_all(call, slots, maps, (carry_tensor){0}, carry_slice(call->x, call->first, call->count)));
    const carry_tensor activated = carry_slice(r->activated, call->first, call->count);
    const carry_fp8 codes = carry_lm_fp8_wanted(call, true, CARRY_LM_FP8_X, activated.shape[1]);
    if (codes.codes != NULL) {
        CARRY_TRY(carry_fp8_swiglu(ctx, activated, codes, gate, up));
        carry_lm_fp8_wrote(call, activated);
    } else {
        CARRY_TRY(carry_swiglu(ctx, activated, gate, up));
    }
    return carry_lm_project_out(call, DOWN, r->activated);
}

static carry_status backward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const swiglu_rows *r = call->rows;
    const swiglu_back *back = call->back;
    CARRY_TRY(carry_lm_project_out_backward(call, DOWN, back->dactivated, r->activated));
    const carry_fp8 codes = carry_lm_fp8_wanted(call, false, CARRY_LM_FP8_DY, 2 * r->gate.shape[1]);
    if (codes.codes != NULL && carry_lm_joins(call->pass)) {
        CARRY_TRY(carry_fp8_swiglu_backward(ctx, r->gate, r->up, codes, back->dactivated, r->gate, r->up));
        carry_lm_fp8_wrote(call, r->gate);
    } else {
        CARRY_TRY(carry_swiglu_backward(ctx, r->gate, r->up, back->dactivated, r->gate, r->up));
    }
    const carry_tensor maps[] = {[GATE] = r->gate, [UP] = r->up};
    return carry_lm_project_all_backward(call, slots, call->dx, maps, (carry_tensor){0}, call->x);
}

const carry_lm_part carry_lm_feedforward_swiglu = {
    .name = "swiglu",
    .about = "two maps, one of them gated by silu, and a map back",
    .check = check,
    .slots = SLOTS,
    .names = names,
    .describe = describe,
    .rows_size = sizeof(swiglu_rows),
    .back_size = sizeof(swiglu_back),
    .take = take,
    .take_back = take_back,
    .forward = forward,
    .backward = backward,
};
