/* Backward of a training pass: forward's lines in mirror order. back.dx holds the gradient of the rows that leave a
   block and becomes that of the rows which enter it. */
#include <string.h>

#include "carry/nn.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/dit/dit_pass_rows.h"

static const carry_tensor absent = {.data = NULL};

static void zero(carry_tensor t) {
    memset(t.data, 0, (size_t)(t.shape[0] * t.shape[1]) * sizeof(float));
}

/* dx (+)= dy W, dW += dy^T x, db += sum of dy. */
static carry_status linear_backward(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot, carry_tensor dx,
                                    carry_tensor dy, carry_tensor x, bool accumulate) {
    const carry_dit_slot bias = (carry_dit_slot)(slot + 1); /* every product's bias stands behind it */
    CARRY_TRY(carry_linear_backward(pass->ctx, dx, carry_dit_pass_dw(pass, block, slot), dy, x,
                                    carry_dit_pass_w(pass, block, slot), accumulate));
    return carry_add_bias_backward(pass->ctx, carry_dit_pass_dw(pass, block, bias), dy);
}

static carry_status outer_backward(const carry_dit_pass *pass, carry_dit_outer slot, carry_tensor dx, carry_tensor dy,
                                   carry_tensor x) {
    carry_tensor W = carry_dit_pass_outer(pass, slot);
    carry_tensor dW = carry_dit_pass_douter(pass, slot);
    W = carry_view_2d(W.data, CARRY_F32, dy.shape[1], x.shape[1]); /* the patch embedding's is a convolution's */
    dW = carry_view_2d(dW.data, CARRY_F32, dy.shape[1], x.shape[1]);
    CARRY_TRY(carry_linear_backward(pass->ctx, dx, dW, dy, x, W, false));
    return carry_add_bias_backward(pass->ctx, carry_dit_pass_douter(pass, (carry_dit_outer)(slot + 1)), dy);
}

/* dx += layer norm's gradient from dy; the shift's and scale's into dm. */
typedef struct modulation {
    carry_tensor dx, dy, x, m, dm;
    int64_t shift, scale;
    float eps;
    bool accumulate;
} modulation;

static carry_status modulate_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const modulation *m = user;
    return carry_layer_norm_backward(
        pass->ctx, carry_dit_pass_unit(pass, m->dx, unit), carry_dit_pass_part(pass, m->dm, unit, m->scale),
        carry_dit_pass_part(pass, m->dm, unit, m->shift), carry_dit_pass_unit(pass, m->dy, unit),
        carry_dit_pass_unit(pass, m->x, unit), carry_dit_pass_part(pass, m->m, unit, m->scale), 1.0f, m->eps,
        m->accumulate, scratch, pass->scratch_bytes);
}

/* dy = gate dx, and the gate's gradient into dm. */
typedef struct residual {
    carry_tensor dy, dx, y, m, dm;
    int64_t gate;
} residual;

static carry_status gate_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const residual *r = user;
    (void)scratch;
    return carry_gated_add_backward(pass->ctx, carry_dit_pass_unit(pass, r->dy, unit),
                                    carry_dit_pass_part(pass, r->dm, unit, r->gate),
                                    carry_dit_pass_unit(pass, r->dx, unit), carry_dit_pass_unit(pass, r->y, unit),
                                    carry_dit_pass_part(pass, r->m, unit, r->gate));
}

/* Gradients of q from d_o, and of keys and values added up over the units of a video: heads and videos are what threads
   can do side by side. */
typedef struct attending {
    const carry_dit_rows *rows;
    const carry_dit_pass_args *args;
    carry_tensor dq, dk, dv, d_o;
    bool is_cross;
} attending;

/* One head of rows [T, H, D]. */
static carry_tensor head_of(carry_tensor rows, int64_t head) {
    rows.data = (float *)rows.data + head * rows.stride[1];
    rows.shape[1] = 1;
    return rows;
}

/* The place in `gradient` that `view` has in `rows`. */
static carry_tensor beside(carry_tensor view, carry_tensor gradient, carry_tensor rows) {
    view.data = (float *)gradient.data + ((float *)view.data - (float *)rows.data);
    return view;
}

static carry_status attend_head(const carry_dit_pass *pass, const void *user, int64_t index, void *scratch) {
    const attending *a = user;
    const carry_dit_rows *r = a->rows;
    const int64_t heads = pass->dit->config.num_heads;
    const int64_t head = index % heads;
    for (int64_t u = 0; u < pass->units_of; u++) {
        const int64_t unit = index / heads * pass->units_of + u;
        carry_key_run runs[2];
        carry_attention_args call =
            a->is_cross ? carry_dit_pass_cross(pass, r, a->args, unit, runs) : carry_dit_pass_self(pass, r, unit, runs);
        call.q = head_of(call.q, head);
        call.k = head_of(call.k, head);
        call.v = head_of(call.v, head);
        call.o = head_of(call.o, head);
        call.lse = carry_view_2d((float *)call.lse.data + head * pass->tokens, CARRY_F32, 1, pass->tokens);
        const carry_attention_backward_args back = {.dq = beside(call.q, a->dq, a->is_cross ? r->cq : r->q),
                                                    .dk = beside(call.k, a->dk, a->is_cross ? r->ck : r->k),
                                                    .dv = beside(call.v, a->dv, a->is_cross ? r->cv : r->v),
                                                    .d_o = beside(call.o, a->d_o, a->is_cross ? r->co : r->o),
                                                    .forward = call};
        CARRY_TRY(carry_attention_backward(pass->ctx, &back, scratch, pass->scratch_bytes));
    }
    return CARRY_OK;
}

static carry_status attend_backward(carry_dit_pass *pass, const attending *a) {
    return carry_dit_pass_each(pass, pass->options.videos * pass->dit->config.num_heads, attend_head, a);
}

static carry_status norm_backward(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot, carry_tensor dx,
                                  carry_tensor dy, carry_tensor x) {
    return carry_rms_norm_backward(pass->ctx, dx, carry_dit_pass_dw(pass, block, slot), absent, dy, x,
                                   carry_dit_pass_w(pass, block, slot), absent, (float)pass->dit->config.eps, false,
                                   pass->whole, pass->whole_bytes);
}

static carry_status turn_back(const carry_dit_pass *pass, carry_tensor rows) {
    const carry_tensor table = carry_view_3d(pass->table.data, CARRY_F32, pass->rows, pass->head / 2, 2);
    const carry_tensor heads = carry_view_3d(rows.data, CARRY_F32, pass->rows, pass->dit->config.num_heads, pass->head);
    return carry_rotary(pass->ctx, heads, heads, table, true);
}

static carry_status backward_ffn(carry_dit_pass *pass, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "ffn backward");
    const carry_dit_rows *r = &pass->block[block];
    carry_dit_back *b = &pass->back;
    const residual gate = {.dy = b->dy, .dx = b->dx, .y = r->f, .m = r->m, .dm = b->dm, .gate = 5};
    const modulation norm = {.dx = b->dx,
                             .dy = b->dh,
                             .x = r->x2,
                             .m = r->m,
                             .dm = b->dm,
                             .shift = 3,
                             .scale = 4,
                             .eps = (float)pass->dit->config.eps,
                             .accumulate = true};
    CARRY_TRY(carry_dit_pass_units(pass, gate_unit, &gate));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_FFN_DOWN, b->dwide, b->dy, r->wide, false));
    CARRY_TRY(carry_activate_backward(pass->ctx, b->dwide, b->dwide, r->up, CARRY_GELU));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_FFN_UP, b->dh, b->dwide, r->h2, false));
    return carry_dit_pass_units(pass, modulate_unit, &norm);
}

static carry_status backward_cross(carry_dit_pass *pass, const carry_dit_pass_args *args, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "cross-attention backward");
    const carry_dit_rows *r = &pass->block[block];
    carry_dit_back *b = &pass->back;
    const attending cross = {
        .rows = r, .args = args, .dq = b->dq, .dk = b->dck, .dv = b->dcv, .d_o = b->dy, .is_cross = true};
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_O, b->dy, b->dx, r->co, false));
    zero(b->dck);
    zero(b->dcv);
    CARRY_TRY(attend_backward(pass, &cross));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_CROSS_NORM_K, b->dck_in, b->dck, r->ck_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_K, b->dtext, b->dck_in, pass->text, true));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_V, b->dtext, b->dcv, pass->text, true));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_CROSS_NORM_Q, b->dh, b->dq, r->cq_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_Q, b->dy, b->dh, r->h3, false));
    return carry_layer_norm_backward(pass->ctx, b->dx, carry_dit_pass_dw(pass, block, CARRY_DIT_NORM3),
                                     carry_dit_pass_dw(pass, block, CARRY_DIT_NORM3_BIAS), b->dy, r->x1,
                                     carry_dit_pass_w(pass, block, CARRY_DIT_NORM3), 0.0f, (float)pass->dit->config.eps,
                                     true, pass->whole, pass->whole_bytes);
}

static carry_status backward_self(carry_dit_pass *pass, const carry_dit_pass_args *args, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "self-attention backward");
    const carry_dit_rows *r = &pass->block[block];
    carry_dit_back *b = &pass->back;
    const residual gate = {.dy = b->dy, .dx = b->dx, .y = r->y, .m = r->m, .dm = b->dm, .gate = 2};
    const attending self = {.rows = r, .args = args, .dq = b->dq, .dk = b->dk, .dv = b->dv, .d_o = b->dh};
    const modulation norm = {.dx = b->dx,
                             .dy = b->dh,
                             .x = r->x,
                             .m = r->m,
                             .dm = b->dm,
                             .shift = 0,
                             .scale = 1,
                             .eps = (float)pass->dit->config.eps,
                             .accumulate = true};
    CARRY_TRY(carry_dit_pass_units(pass, gate_unit, &gate));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_O, b->dh, b->dy, r->o, false));
    zero(b->dk);
    zero(b->dv);
    CARRY_TRY(attend_backward(pass, &self));
    CARRY_TRY(turn_back(pass, b->dq));
    CARRY_TRY(turn_back(pass, b->dk));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_V, b->dh, b->dv, r->h1, false));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_NORM_Q, b->dy, b->dq, r->q_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_Q, b->dh, b->dy, r->h1, true));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_NORM_K, b->dy, b->dk, r->k_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_K, b->dh, b->dy, r->h1, true));
    return carry_dit_pass_units(pass, modulate_unit, &norm);
}

static carry_status backward_block(carry_dit_pass *pass, const carry_dit_pass_args *args, int64_t block) {
    carry_dit_back *b = &pass->back;
    const carry_tensor own = carry_dit_pass_dw(pass, block, CARRY_DIT_MODULATION);
    zero(b->dm);
    CARRY_TRY(backward_ffn(pass, block));
    CARRY_TRY(backward_cross(pass, args, block));
    CARRY_TRY(backward_self(pass, args, block));
    CARRY_TRY(carry_add_bias_backward(pass->ctx, carry_view_1d(own.data, CARRY_F32, b->dm.shape[1]), b->dm));
    return carry_elementwise(pass->ctx, CARRY_ADD, b->de0, b->de0, b->dm);
}

static carry_status backward_head(carry_dit_pass *pass) {
    carry_dit_back *b = &pass->back;
    const int64_t d = pass->dit->config.dim;
    const carry_tensor own = carry_dit_pass_douter(pass, CARRY_DIT_HEAD_MODULATION);
    const modulation norm = {.dx = b->dx,
                             .dy = b->dh,
                             .x = pass->last,
                             .m = pass->shifts,
                             .dm = b->dhead,
                             .shift = 0,
                             .scale = 1,
                             .eps = (float)pass->dit->config.eps};
    CARRY_TRY(outer_backward(pass, CARRY_DIT_HEAD, b->dh, pass->dout, pass->head_in));
    zero(b->dhead);
    CARRY_TRY(carry_dit_pass_units(pass, modulate_unit, &norm));
    CARRY_TRY(carry_add_bias_backward(pass->ctx, carry_view_1d(own.data, CARRY_F32, 2 * d), b->dhead));
    for (int64_t u = 0; u < pass->units; u++) { /* shift and scale both have e in them */
        const float *from = (const float *)b->dhead.data + u * 2 * d;
        float *to = (float *)b->de.data + u * d;
        for (int64_t i = 0; i < d; i++) {
            to[i] = from[i] + from[d + i];
        }
    }
    return CARRY_OK;
}

/* From de0 and de to the MLP of the time, from dtext to that of the text, from dx to the patches. */
static carry_status backward_inputs(carry_dit_pass *pass, const carry_dit_pass_args *args) {
    carry_ctx *ctx = pass->ctx;
    carry_dit_back *b = &pass->back;
    const carry_tensor text = carry_view_2d(args->text.data, CARRY_F32, pass->text_rows, pass->dit->config.text_dim);
    CARRY_TRY(outer_backward(pass, CARRY_DIT_PROJECTION, b->dsilu, b->de0, pass->e1));
    CARRY_TRY(carry_activate_backward(ctx, b->dsilu, b->dsilu, pass->e, CARRY_SILU));
    CARRY_TRY(carry_elementwise(ctx, CARRY_ADD, b->de, b->de, b->dsilu));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TIME_2, b->dsilu, b->de, pass->time_1));
    CARRY_TRY(carry_activate_backward(ctx, b->dsilu, b->dsilu, pass->time_0, CARRY_SILU));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TIME_0, absent, b->dsilu, pass->sinusoid));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TEXT_2, b->dck, b->dtext, pass->text_1));
    CARRY_TRY(carry_activate_backward(ctx, b->dck, b->dck, pass->text_0, CARRY_GELU));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TEXT_0, absent, b->dck, text));
    return outer_backward(pass, CARRY_DIT_PATCH, absent, b->dx, pass->patches);
}

carry_status carry_dit_pass_backward(carry_dit_pass *pass, const carry_dit_pass_args *args) {
    zero(pass->back.de0);
    zero(pass->back.dtext);
    CARRY_TRY(backward_head(pass));
    for (int64_t i = pass->dit->config.num_layers - 1; i >= 0; i--) {
        CARRY_TRY(backward_block(pass, args, i));
    }
    CARRY_TRY(backward_inputs(pass, args));
    return args->ready != NULL ? args->ready(args->user, 0, pass->dit->own.count) : CARRY_OK;
}
