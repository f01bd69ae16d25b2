/* The forward pass of one layer. Norms come before the mixer and the feed-forward, h += f(norm(h)), or after them, h +=
   norm(f(h)). */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/lm/lm_heads.h"
#include "model/lm/lm_pass.h"
#include "ops/video.h"

static carry_tensor rows_of(carry_tensor whole, const carry_lm_slot *slot) {
    return slot->rows > 0 ? carry_slice(whole, slot->first, slot->rows) : whole;
}

carry_tensor carry_lm_w(const carry_lm_call *call, int slot) {
    const carry_lm_slot *at = &call->own->slot[slot];
    return at->parameter >= 0 ? rows_of(carry_lm_weight(call->pass->lm, at->parameter), at) : (carry_tensor){0};
}

carry_tensor carry_lm_product(const carry_lm_call *call, int slot) {
    const carry_lm_slot *at = &call->own->slot[slot];
    return at->parameter >= 0 ? rows_of(carry_parameters_product(&call->pass->lm->own, at->parameter), at)
                              : (carry_tensor){0};
}

carry_tensor carry_lm_dw(const carry_lm_call *call, int slot) {
    const carry_lm_slot *at = &call->own->slot[slot];
    const carry_tensor whole =
        at->parameter >= 0 ? carry_lm_gradient(call->pass->lm, at->parameter) : (carry_tensor){0};
    return whole.data != NULL ? rows_of(whole, at) : whole;
}

carry_tensor carry_lm_dw_always(const carry_lm_call *call, int slot) {
    const carry_lm_slot *at = &call->own->slot[slot];
    if (at->parameter < 0 || call->pass->lm->own.gradients != NULL) {
        return carry_lm_dw(call, slot);
    }
    const carry_parameter *p = &call->pass->lm->own.parameter[at->parameter];
    carry_tensor view = carry_view(carry_slice(call->pass->unread, slot, 1).data, CARRY_F32, p->rank, p->shape);
    view.device = call->pass->unread.device;
    return view;
}

carry_status carry_lm_project(const carry_lm_call *call, int slot, carry_tensor y, carry_tensor x) {
    carry_tensor W = carry_lm_product(call, slot);
    if (W.data == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_linear(call->pass->ctx, y, x, W, false));
    return carry_lm_adapt(call, slot, y, x);
}

carry_tensor carry_lm_rest(const carry_lm_call *call, bool gradient) {
    const carry_lm_sublayer *s = call->own;
    const carry_parameters *own = &call->pass->lm->own;
    const int64_t width = call->pass->lm->config.hidden_size;
    const int64_t count = s->rest_rows * width;
    const carry_tensor flat =
        !gradient && own->low != NULL
            ? carry_parameters_low(own, s->rest, count)
            : carry_parameters_flat(own, gradient ? own->gradients : own->weights, s->rest, count);
    return carry_reshape_2d(flat, s->rest_rows, width);
}

static carry_status merged_linear(const carry_lm_call *call, const carry_merged_linear_args *args) {
    carry_tensor y;
    carry_tensor W;
    bool done = false;
    if (call->pass->options.fp8 != NULL && carry_lm_fp8_join(args->y, args->W, args->maps, &y, &W)) {
        CARRY_TRY(carry_lm_fp8_linear(call, false, y, args->x, W, (carry_tensor){0}, &done));
    }
    return done ? CARRY_OK : carry_merged_linear(call->pass->ctx, args);
}

carry_status carry_lm_project_all(const carry_lm_call *call, const int *slots, const carry_tensor *y, carry_tensor rest,
                                  carry_tensor x) {
    carry_merged_linear_args args = {.x = x};
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = carry_lm_product(call, slots[i]);
        if (W.data != NULL) {
            args.W[args.maps] = W;
            args.y[args.maps++] = y[slots[i]];
        }
    }
    if (rest.data != NULL) {
        args.W[args.maps] = carry_lm_rest(call, false);
        args.y[args.maps++] = rest;
    }
    CARRY_TRY(merged_linear(call, &args));
    for (int i = 0; call->pass->lm->adapter != NULL && slots[i] >= 0; i++) {
        CARRY_TRY(carry_lm_adapt(call, slots[i], y[slots[i]], x));
    }
    return CARRY_OK;
}

/* Finds the rows [*first, *first + *count) of a layer's output that are needed. These are all rows, with two
   exceptions. Multi-token heads without results need none. In a forward-only pass over one sequence on the CPU, with
   last_logits and without labels, the last layer needs only the last READ_ROWS rows, or none if logits are absent. One
   row would do, but a product of a single row would have other bits than a product of all rows. */
#define READ_ROWS 64

static void rows_read(const carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, int64_t *first,
                      int64_t *count) {
    if (carry_lm_is_heads(pass->lm) && args->logits.data == NULL && args->normed.data == NULL) {
        *first = *count = 0;
        return;
    }
    const bool ends = layer == pass->lm->config.num_hidden_layers - 1 && pass->options.forward_only;
    const bool whole = !ends || pass->lm->own.device != 0 || pass->options.batch > 1 || pass->options.sequences > 0 ||
                       pass->options.pooled > 0 || args->labels.data != NULL || !args->last_logits;
    *count = whole ? pass->tokens : args->logits.data == NULL ? 0 : pass->tokens < READ_ROWS ? pass->tokens : READ_ROWS;
    *first = pass->tokens - *count;
}

carry_status carry_lm_project_out(const carry_lm_call *call, int slot, carry_tensor y) {
    const carry_tensor W = carry_lm_product(call, slot);
    carry_ctx *ctx = call->pass->ctx;
    if (call->count == 0 || call->out.data == NULL) {
        return CARRY_OK;
    }
    const carry_tensor out = carry_slice(call->out, call->first, call->count);
    const carry_tensor from = carry_slice(y, call->first, call->count);
    const bool adds = call->base.data != NULL;
    const carry_tensor base = adds ? carry_slice(call->base, call->first, call->count) : call->base;
    bool done;
    CARRY_TRY(carry_lm_fp8_linear(call, true, out, from, W, base, &done));
    if (!done) {
        CARRY_TRY(adds ? carry_linear_add(ctx, out, from, W, base) : carry_linear(ctx, out, from, W, false));
    }
    return carry_lm_adapt(call, slot, out, from);
}

carry_status carry_lm_add_bias(const carry_lm_call *call, int slot, carry_tensor y) {
    const carry_tensor b = carry_lm_w(call, slot);
    return b.data != NULL && y.data != NULL ? carry_add_bias(call->pass->ctx, y, b) : CARRY_OK;
}

carry_status carry_lm_add_bias_out(const carry_lm_call *call, int slot) {
    const bool adds = call->out.data != NULL && call->count > 0;
    return adds ? carry_lm_add_bias(call, slot, carry_slice(call->out, call->first, call->count)) : CARRY_OK;
}

carry_status carry_lm_add_bias_backward(const carry_lm_call *call, int slot, carry_tensor dy) {
    const carry_tensor db = carry_lm_dw(call, slot);
    return db.data != NULL ? carry_add_bias_backward(call->pass->ctx, db, dy) : CARRY_OK;
}

carry_lm_call carry_lm_call_of(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer,
                               const carry_lm_sublayer *own) {
    const carry_lm_opened *part = &pass->part[own->kind];
    const carry_lm_rows *rows = &pass->layer[layer];
    carry_lm_call call = {.pass = pass,
                          .args = args,
                          .layer = layer,
                          .own = own,
                          .opened = part->opened,
                          .rows = own == &pass->lm->layer[layer].mixer ? rows->mixer : rows->feedforward,
                          .back = part->back};
    rows_read(pass, args, layer, &call.first, &call.count);
    pass->fp8.ready = NULL; /* layers may share the memory of their activations */
    return call;
}

carry_status carry_lm_norm(carry_lm_pass *pass, carry_tensor y, carry_tensor x, carry_tensor w) {
    const float eps = (float)pass->lm->config.norm_eps;
    if (pass->lm->config.norm_plus_one) {
        carry_tensor factor;
        CARRY_TRY(carry_lm_factor(pass, w, &factor));
        w = factor;
    }
    return carry_rms_norm(pass->ctx, y, x, w, (carry_tensor){0}, eps);
}

carry_status carry_lm_scale(carry_lm_pass *pass, carry_tensor y, carry_tensor x, carry_tensor factor) {
    const carry_tensor absent = {0};
    return factor.data != NULL ? carry_gated_add_backward(pass->ctx, y, absent, x, absent, factor) : CARRY_OK;
}

/* y = norm(x) for the maps of the part's input, and its codes if they are in 8-bit floats. */
static carry_status norm_before(const carry_lm_call *call, carry_tensor y, carry_tensor x, carry_tensor w) {
    carry_lm_pass *pass = call->pass;
    const carry_fp8 codes = carry_lm_fp8_wanted(call, false, CARRY_LM_FP8_X, y.shape[1]);
    if (codes.codes == NULL || pass->lm->config.norm_plus_one) {
        return carry_lm_norm(pass, y, x, w);
    }
    CARRY_TRY(carry_fp8_rms_norm(pass->ctx, y, codes, x, w, (float)pass->lm->config.norm_eps));
    carry_lm_fp8_wrote(call, y);
    return CARRY_OK;
}

/* to = from + factor out, for the rows that are read. */
static carry_status add_scaled(const carry_lm_call *call, carry_tensor to, carry_tensor from, carry_tensor out) {
    if (call->count == 0) {
        return CARRY_OK;
    }
    to = carry_slice(to, call->first, call->count);
    CARRY_TRY(carry_copy(call->pass->ctx, to, carry_slice(from, call->first, call->count)));
    return carry_gated_add(call->pass->ctx, to, carry_slice(out, call->first, call->count),
                           call->pass->residual_factor);
}

static carry_status forward_mixer(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    carry_ctx *ctx = pass->ctx;
    CARRY_SPAN(ctx, "model", "mixer");
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_lm_rows *r = &pass->layer[layer];
    const carry_tensor h = pass->h[layer];
    if (l->mixer.norm < 0) {
        return carry_copy(ctx, r->middle, h);
    }
    const carry_tensor w = carry_lm_weight(pass->lm, l->mixer.norm);
    carry_lm_call call = carry_lm_call_of(pass, args, layer, &l->mixer);
    const bool scales = pass->residual_factor.data != NULL;
    if (l->norms_after) {
        call.x = h;
        call.out = r->out;
        CARRY_TRY(l->mixer.part->forward(&call));
        if (call.count == 0) {
            return CARRY_OK;
        }
        const carry_tensor middle = carry_slice(r->middle, call.first, call.count);
        CARRY_TRY(carry_lm_norm(pass, middle, carry_slice(r->out, call.first, call.count), w));
        return carry_elementwise(ctx, middle, carry_slice(h, call.first, call.count), middle, CARRY_ADD);
    }
    CARRY_TRY(norm_before(&call, r->x, h, w));
    call.x = r->x;
    call.out = scales ? r->out : r->middle;
    call.base = scales ? call.base : h;
    CARRY_TRY(l->mixer.part->forward(&call));
    return scales ? add_scaled(&call, r->middle, h, r->out) : CARRY_OK;
}

static carry_status forward_feedforward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again) {
    carry_ctx *ctx = pass->ctx;
    const carry_lm_layer *l = &pass->lm->layer[layer];
    const carry_lm_rows *r = &pass->layer[layer];
    carry_lm_call call = carry_lm_call_of(pass, args, layer, &l->feedforward);
    if (call.count == 0) {
        return CARRY_OK;
    }
    CARRY_SPAN(ctx, "model", "mlp");
    const carry_tensor middle = carry_slice(r->middle, call.first, call.count);
    const bool scales = pass->residual_factor.data != NULL;
    if (l->feedforward.norm < 0) {
        return again ? CARRY_OK : carry_copy(ctx, carry_slice(pass->h[layer + 1], call.first, call.count), middle);
    }
    const carry_tensor w = carry_lm_weight(pass->lm, l->feedforward.norm);
    if (l->norms_after) {
        call.x = r->middle;
        call.out = r->out2;
        CARRY_TRY(l->feedforward.part->forward(&call));
        if (again) {
            return CARRY_OK;
        }
        const carry_tensor h = carry_slice(pass->h[layer + 1], call.first, call.count);
        CARRY_TRY(carry_lm_norm(pass, h, carry_slice(r->out2, call.first, call.count), w));
        return carry_elementwise(ctx, h, middle, h, CARRY_ADD);
    }
    CARRY_TRY(norm_before(&call, carry_slice(r->x2, call.first, call.count), middle, w));
    call.x = r->x2;
    const carry_tensor absent = {0};
    call.out = again ? absent : scales ? r->out2 : pass->h[layer + 1];
    call.base = scales ? absent : r->middle;
    CARRY_TRY(l->feedforward.part->forward(&call));
    return scales && !again ? add_scaled(&call, pass->h[layer + 1], r->middle, r->out2) : CARRY_OK;
}

carry_status carry_lm_layer_forward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again) {
    CARRY_TRY(forward_mixer(pass, args, layer));
    return forward_feedforward(pass, args, layer, again);
}
