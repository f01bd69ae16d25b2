/* One layer forward. Every line is an operator; the shapes are those of lm_pass.h. Norms come before the mixer and the
   MLP, h += f(norm(h)), or after them, h += norm(f(h)). */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/lm/lm_pass.h"

static carry_tensor rows_of(carry_tensor whole, const carry_lm_slot *slot) {
    return slot->rows > 0 ? carry_slice(whole, slot->first, slot->rows) : whole;
}

carry_tensor carry_lm_w(const carry_lm_pass *pass, int64_t layer, int slot) {
    const carry_lm_slot *at = &pass->lm->layer[layer].slot[slot];
    return at->parameter >= 0 ? rows_of(carry_lm_weight(pass->lm, at->parameter), at) : (carry_tensor){0};
}

carry_tensor carry_lm_product(const carry_lm_pass *pass, int64_t layer, int slot) {
    const carry_lm_slot *at = &pass->lm->layer[layer].slot[slot];
    return at->parameter >= 0 ? rows_of(carry_parameters_product(&pass->lm->own, at->parameter), at)
                              : (carry_tensor){0};
}

carry_tensor carry_lm_dw(const carry_lm_pass *pass, int64_t layer, int slot) {
    const carry_lm_slot *at = &pass->lm->layer[layer].slot[slot];
    return at->parameter >= 0 ? rows_of(carry_lm_gradient(pass->lm, at->parameter), at) : (carry_tensor){0};
}

carry_status carry_lm_project(carry_lm_pass *pass, int64_t layer, int slot, carry_tensor y, carry_tensor x) {
    carry_tensor W = carry_lm_product(pass, layer, slot);
    return W.data != NULL ? carry_linear(pass->ctx, y, x, W, false) : CARRY_OK;
}

carry_tensor carry_lm_rest(const carry_lm_pass *pass, int64_t layer, bool gradient) {
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_parameters *own = &pass->lm->own;
    const int64_t count = l->rest_rows * pass->lm->config.hidden_size;
    const carry_tensor flat =
        !gradient && own->low != NULL
            ? carry_parameters_low(own, l->rest, count)
            : carry_parameters_flat(own, gradient ? own->gradients : own->weights, l->rest, count);
    return carry_reshape_2d(flat, l->rest_rows, pass->lm->config.hidden_size);
}

carry_status carry_lm_project_all(carry_lm_pass *pass, int64_t layer, const int *slots, const carry_tensor *y,
                                  carry_tensor rest, carry_tensor x) {
    carry_merged_linear_args args = {.x = x};
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = carry_lm_product(pass, layer, slots[i]);
        if (W.data != NULL) {
            args.W[args.maps] = W;
            args.y[args.maps++] = y[slots[i]];
        }
    }
    if (rest.data != NULL) {
        args.W[args.maps] = carry_lm_rest(pass, layer, false);
        args.y[args.maps++] = rest;
    }
    return carry_merged_linear(pass->ctx, &args);
}

/* Rows [*first, *first + *count) of what leaves a layer are read; those before them are not, in the last layer of a
   prompt of which only the last logits are wanted, or none. A few more than that one row are computed: products of
   READ_ROWS rows have the bits of those of all rows, and one row would not. */
#define READ_ROWS 64

static void rows_read(const carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, int64_t *first,
                      int64_t *count) {
    const bool ends = layer == pass->lm->config.num_hidden_layers - 1 && pass->options.forward_only;
    const bool whole = !ends || pass->lm->own.device != 0 || pass->options.batch > 1 || pass->options.sequences > 0 ||
                       args->labels.data != NULL || !args->last_logits;
    *count = whole ? pass->tokens : args->logits.data == NULL ? 0 : pass->tokens < READ_ROWS ? pass->tokens : READ_ROWS;
    *first = pass->tokens - *count;
}

carry_status carry_lm_project_out(const carry_lm_mixer_call *call, int slot, carry_tensor y) {
    const carry_tensor W = carry_lm_product(call->pass, call->layer, slot);
    carry_ctx *ctx = call->pass->ctx;
    int64_t first;
    int64_t count;
    rows_read(call->pass, call->args, call->layer, &first, &count);
    if (count == 0) {
        return CARRY_OK;
    }
    const carry_tensor out = carry_slice(call->out, first, count);
    const carry_tensor from = carry_slice(y, first, count);
    return call->base.data != NULL ? carry_linear_add(ctx, out, from, W, carry_slice(call->base, first, count))
                                   : carry_linear(ctx, out, from, W, false);
}

carry_lm_rows *carry_lm_rows_of(const carry_lm_pass *pass, int64_t layer) {
    return &pass->layer[pass->shares ? pass->lm->config.layer[layer] : layer];
}

carry_lm_mixer_call carry_lm_call(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    const carry_lm_opened *mixer = &pass->mixer[pass->lm->config.layer[layer]];
    return (carry_lm_mixer_call){.pass = pass,
                                 .args = args,
                                 .layer = layer,
                                 .opened = mixer->opened,
                                 .rows = carry_lm_rows_of(pass, layer)->mixer,
                                 .back = mixer->back};
}

carry_status carry_lm_norm(carry_lm_pass *pass, carry_tensor y, carry_tensor x, carry_tensor w) {
    const float eps = (float)pass->lm->config.norm_eps;
    if (pass->lm->config.norm_plus_one) {
        const carry_tensor factor = carry_slice(pass->factor, 0, w.shape[0]);
        CARRY_TRY(carry_elementwise(pass->ctx, factor, carry_slice(pass->ones, 0, w.shape[0]), w, CARRY_ADD));
        w = factor;
    }
    return carry_rms_norm(pass->ctx, y, x, w, (carry_tensor){0}, eps);
}

static carry_status forward_mixer(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, carry_lm_rows *r) {
    carry_ctx *ctx = pass->ctx;
    CARRY_SPAN(ctx, "model", "mixer");
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_tensor w = carry_lm_weight(pass->lm, l->norm[0]);
    const carry_tensor h = pass->h[layer];
    carry_lm_mixer_call call = carry_lm_call(pass, args, layer);
    if (l->norms_after) {
        call.x = h;
        call.out = r->out;
        CARRY_TRY(l->mixer->forward(&call));
        int64_t first;
        int64_t count;
        rows_read(pass, args, layer, &first, &count);
        if (count == 0) {
            return CARRY_OK;
        }
        const carry_tensor middle = carry_slice(r->middle, first, count);
        CARRY_TRY(carry_lm_norm(pass, middle, carry_slice(r->out, first, count), w));
        return carry_elementwise(ctx, middle, carry_slice(h, first, count), middle, CARRY_ADD);
    }
    CARRY_TRY(carry_lm_norm(pass, r->x, h, w));
    call.x = r->x;
    call.out = r->middle;
    call.base = h;
    return l->mixer->forward(&call);
}

/* The rows of a layer that its MLP is for. */
static carry_lm_rows rows_from(const carry_lm_rows *r, int64_t first, int64_t count) {
    return (carry_lm_rows){.out2 = carry_slice(r->out2, first, count),
                           .middle = carry_slice(r->middle, first, count),
                           .x2 = carry_slice(r->x2, first, count),
                           .gate = carry_slice(r->gate, first, count),
                           .up = carry_slice(r->up, first, count),
                           .activated = carry_slice(r->activated, first, count)};
}

static carry_status forward_mlp(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again) {
    carry_ctx *ctx = pass->ctx;
    int64_t first;
    int64_t count;
    rows_read(pass, args, layer, &first, &count);
    if (count == 0) {
        return CARRY_OK;
    }
    CARRY_SPAN(ctx, "model", "mlp");
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_parameters *own = &pass->lm->own;
    const carry_lm_rows r = rows_from(carry_lm_rows_of(pass, layer), first, count);
    const carry_tensor w = carry_lm_weight(pass->lm, l->norm[1]);
    const carry_tensor x = l->norms_after ? r.middle : r.x2;
    const carry_tensor h = carry_slice(pass->h[layer + 1], first, count);
    if (!l->norms_after) {
        CARRY_TRY(carry_lm_norm(pass, r.x2, r.middle, w));
    }
    CARRY_TRY(carry_merged_linear(ctx, &(carry_merged_linear_args){.y = {r.gate, r.up},
                                                                   .x = x,
                                                                   .W = {carry_parameters_product(own, l->gate),
                                                                         carry_parameters_product(own, l->up)},
                                                                   .maps = 2}));
    CARRY_TRY(carry_swiglu(ctx, r.activated, r.gate, r.up));
    if (l->norms_after) {
        CARRY_TRY(carry_linear(ctx, r.out2, r.activated, carry_parameters_product(own, l->down), false));
        if (again) {
            return CARRY_OK;
        }
        CARRY_TRY(carry_lm_norm(pass, h, r.out2, w));
        return carry_elementwise(ctx, h, r.middle, h, CARRY_ADD);
    }
    if (again) {
        return CARRY_OK;
    }
    return carry_linear_add(ctx, h, r.activated, carry_parameters_product(own, l->down), r.middle);
}

carry_status carry_lm_layer_forward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again) {
    CARRY_TRY(forward_mixer(pass, args, layer, carry_lm_rows_of(pass, layer)));
    return forward_mlp(pass, args, layer, again);
}
