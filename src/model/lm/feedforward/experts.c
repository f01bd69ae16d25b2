/* Experts: parameters, memory and forward. */
#include "model/lm/feedforward/experts.h"

#include <inttypes.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"

static const char *const names[CARRY_LM_EXPERTS_SLOTS] = {"mlp.gate.weight",
                                                          "mlp.gate.e_score_correction_bias",
                                                          "mlp.experts.gate_up_proj",
                                                          "mlp.experts.down_proj",
                                                          "mlp.shared_expert.gate_proj.weight",
                                                          "mlp.shared_expert.up_proj.weight",
                                                          "mlp.shared_expert.down_proj.weight",
                                                          "mlp.shared_expert_gate.weight",
                                                          "mlp.fc1_latent_proj.weight",
                                                          "mlp.fc2_latent_proj.weight",
                                                          "mlp.shared_expert.up_proj.bias",
                                                          "mlp.shared_expert.down_proj.bias",
                                                          "mlp.fc1_latent_proj.bias",
                                                          "mlp.fc2_latent_proj.bias"};

static carry_status check(carry_ctx *ctx, carry_lm_config *c) {
    const carry_lm_experts_options *e = &c->experts;
    CARRY_TRY(carry_lm_check_size(ctx, "the number of experts", e->count, CARRY_MAX_EXPERTS));
    CARRY_TRY(carry_lm_check_size(ctx, "the number of experts of a token", e->chosen, e->count));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of an expert", e->width, CARRY_LM_MAX_WIDTH / 2));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of the shared expert", e->shared_width + 1, CARRY_LM_MAX_WIDTH / 2));
    CARRY_TRY(carry_lm_check_size(ctx, "the latent width of experts", e->latent + 1, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_number(ctx, "the factor of the experts' weights", e->router.scale, 1e6));
    if (e->map_bias && (e->gated || e->shared_gate)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "a bias in the maps of experts with a gate is not supported");
    }
    const int64_t groups = e->router.groups;
    if (groups > 1 && (e->count % groups != 0 || e->router.kept_groups < 1 || e->router.kept_groups > groups ||
                       e->chosen > e->count / groups * e->router.kept_groups)) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "%" PRId64 " experts in %" PRId64 " groups, of which %" PRId64
                          " remain: groups must have equal size, and the remaining ones %" PRId64 " experts",
                          e->count, groups, e->router.kept_groups, e->chosen);
    }
    return CARRY_OK;
}

/* The width of the experts' inputs and outputs. */
static int64_t inner(const carry_lm_config *c) {
    return c->experts.latent > 0 ? c->experts.latent : c->hidden_size;
}

static carry_lm_parameter matrices(const carry_lm_config *c, int64_t out, int64_t in) {
    return (carry_lm_parameter){.rank = 3,
                                .shape = {c->experts.count, out, in},
                                .decays = true,
                                .may_be_narrow = true,
                                .start = CARRY_LM_NORMAL};
}

static carry_lm_parameter bias_of(const carry_lm_config *c, bool there, int64_t width) {
    return (carry_lm_parameter){
        .rank = c->experts.map_bias && there ? 1 : 0, .shape = {width}, .start = CARRY_LM_ZEROS};
}

static carry_lm_parameter describe(const carry_lm_config *c, int slot) {
    const carry_lm_experts_options *e = &c->experts;
    const carry_lm_parameter none = {0};
    const bool shared = e->shared_width > 0;
    switch ((carry_lm_experts_slot)slot) {
    case CARRY_LM_EXPERTS_ROUTER:
        return carry_lm_matrix(e->count, c->hidden_size);
    case CARRY_LM_EXPERTS_BIAS:
        return (carry_lm_parameter){.rank = e->bias ? 1 : 0, .shape = {e->count}, .start = CARRY_LM_ZEROS};
    case CARRY_LM_EXPERTS_UP:
        return matrices(c, e->gated ? 2 * e->width : e->width, inner(c));
    case CARRY_LM_EXPERTS_DOWN:
        return matrices(c, inner(c), e->width);
    case CARRY_LM_EXPERTS_SHARED_GATE:
        return shared && e->gated ? carry_lm_matrix(e->shared_width, c->hidden_size) : none;
    case CARRY_LM_EXPERTS_SHARED_UP:
        return shared ? carry_lm_matrix(e->shared_width, c->hidden_size) : none;
    case CARRY_LM_EXPERTS_SHARED_DOWN:
        return shared ? carry_lm_matrix(c->hidden_size, e->shared_width) : none;
    case CARRY_LM_EXPERTS_SHARED_SCALE:
        return shared && e->shared_gate ? carry_lm_matrix(1, c->hidden_size) : none;
    case CARRY_LM_EXPERTS_LATENT_IN:
        return e->latent > 0 ? carry_lm_matrix(e->latent, c->hidden_size) : none;
    case CARRY_LM_EXPERTS_LATENT_OUT:
        return e->latent > 0 ? carry_lm_matrix(c->hidden_size, e->latent) : none;
    case CARRY_LM_EXPERTS_SHARED_UP_BIAS:
        return bias_of(c, shared, e->shared_width);
    case CARRY_LM_EXPERTS_SHARED_DOWN_BIAS:
        return bias_of(c, shared, c->hidden_size);
    case CARRY_LM_EXPERTS_LATENT_IN_BIAS:
        return bias_of(c, e->latent > 0, e->latent);
    case CARRY_LM_EXPERTS_LATENT_OUT_BIAS:
        return bias_of(c, e->latent > 0, c->hidden_size);
    case CARRY_LM_EXPERTS_SLOTS:
        break;
    }
    return none;
}

static double multiplications(const carry_lm_config *c) {
    const carry_lm_experts_options *e = &c->experts;
    return (double)e->chosen * (e->gated ? 3.0 : 2.0) * (double)e->width * (double)inner(c);
}

static carry_tensor take_rows(const carry_lm_pass *pass, carry_arena *arena, carry_dtype dtype, int64_t rows,
                              int64_t width) {
    return carry_arena_tensor(arena, pass->lm->own.device, dtype, 2, (const int64_t[]){rows, width});
}

static carry_tensor take_numbers(const carry_lm_pass *pass, carry_arena *arena, int64_t count) {
    return carry_arena_tensor(arena, pass->lm->own.device, CARRY_I64, 1, &count);
}

/* A view of `width` columns of an array, starting at column `first`. */
static carry_tensor columns_of(carry_tensor both, int64_t first, int64_t width) {
    both.shape[1] = width;
    if (both.data != NULL) {
        both.data = (unsigned char *)both.data + (size_t)first * carry_dtype_size(both.dtype);
    }
    return both;
}

/* may_join: on a GPU, gate and up are columns of one array. */
static void take_units(const carry_lm_pass *pass, carry_arena *arena, int64_t rows, int64_t width, bool may_join,
                       carry_lm_units *u) {
    const carry_dtype dtype = pass->options.dtype;
    const bool gated = pass->lm->config.experts.gated;
    const bool joined = gated && may_join;
    *u = (carry_lm_units){0};
    if (joined) {
        u->both = take_rows(pass, arena, dtype, rows, 2 * width);
        u->gate = columns_of(u->both, 0, width);
        u->up = columns_of(u->both, width, width);
    } else {
        u->gate = gated ? take_rows(pass, arena, dtype, rows, width) : u->gate;
        u->up = take_rows(pass, arena, dtype, rows, width);
    }
    u->active = take_rows(pass, arena, dtype, rows, width);
    u->squared = gated ? u->active : take_rows(pass, arena, dtype, rows, width);
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_experts_options *e = &c->experts;
    const carry_dtype dtype = pass->options.dtype;
    const int64_t pairs = pass->tokens * e->chosen;
    carry_lm_experts_rows *r = rows;
    (void)opened;
    *r = (carry_lm_experts_rows){0};
    r->logits = carry_lm_take(pass, arena, dtype, e->count);
    r->weights = carry_lm_take(pass, arena, CARRY_F32, e->chosen);
    r->chosen = carry_lm_take(pass, arena, CARRY_I64, e->chosen);
    r->pair = take_numbers(pass, arena, pairs);
    r->place = take_numbers(pass, arena, pairs);
    r->offsets = take_numbers(pass, arena, e->count + 1);
    if (e->latent > 0) {
        r->latent = carry_lm_take(pass, arena, dtype, e->latent);
        r->sum = carry_lm_take(pass, arena, dtype, e->latent);
    }
    r->x = take_rows(pass, arena, dtype, pairs, inner(c));
    r->y = take_rows(pass, arena, dtype, pairs, inner(c));
    take_units(pass, arena, pairs, e->width, pass->lm->own.device != 0, &r->own);
    if (e->shared_width > 0) {
        take_units(pass, arena, pass->tokens, e->shared_width, carry_lm_joins(pass), &r->shared);
    }
    if (e->shared_width > 0 && e->shared_gate) {
        r->shared_out = carry_lm_take(pass, arena, dtype, c->hidden_size);
        r->scale = carry_lm_take(pass, arena, dtype, 1);
    }
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *given) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_experts_options *e = &c->experts;
    const carry_dtype dtype = pass->options.dtype;
    carry_lm_experts_back *back = given;
    (void)opened;
    *back = (carry_lm_experts_back){0};
    back->dlogits = carry_lm_take(pass, arena, dtype, e->count);
    back->dweights = carry_lm_take(pass, arena, CARRY_F32, e->chosen);
    back->dactive = take_rows(pass, arena, dtype, pass->tokens * e->chosen, e->width);
    if (e->latent > 0) {
        back->dlatent = carry_lm_take(pass, arena, dtype, e->latent);
        back->dsum = carry_lm_take(pass, arena, dtype, e->latent);
    }
    if (e->shared_width > 0) {
        back->dshared = carry_lm_take(pass, arena, dtype, e->shared_width);
    }
    if (e->shared_width > 0 && e->shared_gate) {
        back->dout = carry_lm_take(pass, arena, dtype, c->hidden_size);
        back->dscale = carry_lm_take(pass, arena, dtype, 1);
    }
}

carry_tensor carry_lm_experts_first(const carry_lm_call *call, carry_tensor rows, bool pairs) {
    return carry_slice(rows, 0, call->count * (pairs ? call->pass->lm->config.experts.chosen : 1));
}

carry_tensor carry_lm_experts_half(carry_tensor W, int64_t width, int which) {
    carry_tensor half = W;
    half.shape[1] = width;
    if (W.data != NULL) {
        half.data = (unsigned char *)W.data + (size_t)(which * width * W.shape[2]) * carry_dtype_size(W.dtype);
    }
    return half;
}

/* Chooses the experts of each token. NaN in the router's output makes all later results of a sequence NaN. On the CPU,
   in a pass without gradients, it is an error that names the layer and the token. In other passes the caller finds that
   logits or a loss are NaN, and asks carry_lm_router_nan for the place: in a pool only the sequence fails, in training
   the step is skipped, and a GPU would have to wait for a copy to the host. */
static carry_status choose(const carry_lm_call *call, carry_tensor x) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_experts_rows *r = call->rows;
    const carry_tensor logits = carry_lm_experts_first(call, r->logits, false);
    const carry_tensor weights = carry_lm_experts_first(call, r->weights, false);
    const carry_tensor chosen = carry_lm_experts_first(call, r->chosen, false);
    const carry_router router = carry_lm_nan_router(call);
    CARRY_TRY(carry_lm_project(call, CARRY_LM_EXPERTS_ROUTER, logits, x));
    CARRY_TRY(carry_route(ctx, weights, chosen, logits, carry_lm_w(call, CARRY_LM_EXPERTS_BIAS), &router));
    if (weights.device == 0 && call->pass->options.forward_only && call->args->places == NULL) {
        CARRY_TRY(carry_lm_router_check(call->pass));
    }
    return carry_sort_experts(ctx, carry_lm_experts_first(call, r->pair, true),
                              carry_lm_experts_first(call, r->place, true), r->offsets, chosen);
}

static carry_status activate(const carry_lm_call *call, const carry_lm_units *u, bool pairs) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_tensor up = carry_lm_experts_first(call, u->up, pairs);
    const carry_tensor active = carry_lm_experts_first(call, u->active, pairs);
    if (u->gate.data != NULL) {
        return carry_swiglu(ctx, active, carry_lm_experts_first(call, u->gate, pairs), up);
    }
    CARRY_TRY(carry_activate(ctx, active, up, CARRY_RELU));
    return carry_elementwise(ctx, carry_lm_experts_first(call, u->squared, pairs), active, active, CARRY_MULTIPLY);
}

/* Computes the output of the expert of every pair. */
static carry_status run_experts(const carry_lm_call *call, carry_tensor x) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_experts_options *e = &call->pass->lm->config.experts;
    const carry_lm_experts_rows *r = call->rows;
    const carry_lm_units *u = &r->own;
    const carry_tensor rows = carry_lm_experts_first(call, r->x, true);
    const carry_tensor W = carry_lm_product(call, CARRY_LM_EXPERTS_UP);
    CARRY_TRY(carry_gather_pairs(ctx, rows, x, carry_lm_experts_first(call, r->pair, true), (carry_tensor){0}));
    if (u->both.data != NULL || u->gate.data == NULL) {
        const carry_tensor to = u->both.data != NULL ? u->both : u->up;
        CARRY_TRY(carry_grouped_linear(ctx, carry_lm_experts_first(call, to, true), rows, W, r->offsets));
    } else {
        CARRY_TRY(carry_grouped_linear(ctx, carry_lm_experts_first(call, u->gate, true), rows,
                                       carry_lm_experts_half(W, e->width, 0), r->offsets));
        CARRY_TRY(carry_grouped_linear(ctx, carry_lm_experts_first(call, u->up, true), rows,
                                       carry_lm_experts_half(W, e->width, 1), r->offsets));
    }
    CARRY_TRY(activate(call, u, true));
    return carry_grouped_linear(ctx, carry_lm_experts_first(call, r->y, true),
                                carry_lm_experts_first(call, u->squared, true),
                                carry_lm_product(call, CARRY_LM_EXPERTS_DOWN), r->offsets);
}

const int *carry_lm_experts_shared(const carry_lm_units *shared) {
    static const int slots[] = {CARRY_LM_EXPERTS_SHARED_GATE, CARRY_LM_EXPERTS_SHARED_UP, -1};
    return shared->gate.data != NULL ? slots : slots + 1;
}

/* out += the shared expert's output. If out is absent, computes only the activations that backward reads. */
static carry_status run_shared(const carry_lm_call *call, carry_tensor x, carry_tensor out) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_experts_rows *r = call->rows;
    const carry_lm_units *u = &r->shared;
    carry_tensor maps[CARRY_LM_EXPERTS_SLOTS] = {0};
    if (u->up.data == NULL) {
        return CARRY_OK;
    }
    maps[CARRY_LM_EXPERTS_SHARED_GATE] = carry_lm_experts_first(call, u->gate, false);
    maps[CARRY_LM_EXPERTS_SHARED_UP] = carry_lm_experts_first(call, u->up, false);
    CARRY_TRY(carry_lm_project_all(call, carry_lm_experts_shared(u), maps, (carry_tensor){0}, x));
    CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_EXPERTS_SHARED_UP_BIAS, maps[CARRY_LM_EXPERTS_SHARED_UP]));
    CARRY_TRY(activate(call, u, false));
    const carry_tensor active = carry_lm_experts_first(call, u->squared, false);
    if (r->scale.data == NULL) {
        const carry_tensor W = carry_lm_product(call, CARRY_LM_EXPERTS_SHARED_DOWN);
        CARRY_TRY(out.data != NULL ? carry_linear_add(ctx, out, active, W, out) : CARRY_OK);
        CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_EXPERTS_SHARED_DOWN_BIAS, out));
        return out.data != NULL ? carry_lm_adapt(call, CARRY_LM_EXPERTS_SHARED_DOWN, out, active) : CARRY_OK;
    }
    const carry_tensor y = carry_lm_experts_first(call, r->shared_out, false);
    const carry_tensor scale = carry_lm_experts_first(call, r->scale, false);
    CARRY_TRY(carry_lm_project(call, CARRY_LM_EXPERTS_SHARED_DOWN, y, active));
    CARRY_TRY(carry_lm_project(call, CARRY_LM_EXPERTS_SHARED_SCALE, scale, x));
    return out.data != NULL ? carry_row_gate(ctx, out, out, y, scale) : CARRY_OK;
}

static carry_status forward(const carry_lm_call *call) {
    carry_ctx *ctx = call->pass->ctx;
    const carry_lm_experts_rows *r = call->rows;
    const carry_tensor x = carry_slice(call->x, call->first, call->count);
    const carry_tensor absent = {0};
    const carry_tensor out = call->out.data != NULL ? carry_slice(call->out, call->first, call->count) : absent;
    const carry_tensor base = call->base.data != NULL ? carry_slice(call->base, call->first, call->count) : absent;
    const carry_tensor weights = carry_lm_experts_first(call, r->weights, false);
    const carry_tensor place = carry_lm_experts_first(call, r->place, true);
    const carry_tensor y = carry_lm_experts_first(call, r->y, true);
    carry_tensor read = x;
    CARRY_TRY(choose(call, x));
    if (r->latent.data != NULL) {
        read = carry_lm_experts_first(call, r->latent, false);
        CARRY_TRY(carry_lm_project(call, CARRY_LM_EXPERTS_LATENT_IN, read, x));
        CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_EXPERTS_LATENT_IN_BIAS, read));
    }
    CARRY_TRY(run_experts(call, read));
    if (r->latent.data != NULL) {
        const carry_tensor sum = carry_lm_experts_first(call, r->sum, false);
        const carry_tensor W = carry_lm_product(call, CARRY_LM_EXPERTS_LATENT_OUT);
        CARRY_TRY(carry_combine_pairs(ctx, sum, absent, y, place, weights));
        if (out.data != NULL) {
            CARRY_TRY(base.data != NULL ? carry_linear_add(ctx, out, sum, W, base)
                                        : carry_linear(ctx, out, sum, W, false));
            CARRY_TRY(carry_lm_adapt(call, CARRY_LM_EXPERTS_LATENT_OUT, out, sum));
            CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_EXPERTS_LATENT_OUT_BIAS, out));
        }
    } else if (out.data != NULL) {
        CARRY_TRY(carry_combine_pairs(ctx, out, base, y, place, weights));
    }
    return run_shared(call, x, out);
}

const carry_lm_part carry_lm_feedforward_experts = {
    .name = "experts",
    .about = "a router that chooses some of many feed-forwards, and a shared one",
    .check = check,
    .slots = CARRY_LM_EXPERTS_SLOTS,
    .names = names,
    .describe = describe,
    .multiplications = multiplications,
    .rows_size = sizeof(carry_lm_experts_rows),
    .back_size = sizeof(carry_lm_experts_back),
    .take = take,
    .take_back = take_back,
    .forward = forward,
    .backward = carry_lm_experts_backward,
};
