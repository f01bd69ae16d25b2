/* The backward pass of training: the steps of forward in reverse order. For each block, back.dx has the gradient of its
   output and becomes that of its input. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/dit/dit_pass_rows.h"

static const carry_tensor absent = {.data = NULL};

/* dx (+)= dy W, dW += dy^T x, db += sum of dy, by the indices of W and b. */
static carry_status affine_backward(const carry_dit_pass *pass, int64_t weight, int64_t bias, carry_tensor dx,
                                    carry_tensor dy, carry_tensor x, bool accumulate) {
    const carry_dit *dit = pass->dit;
    CARRY_TRY(carry_linear_backward(pass->ctx, dx, carry_dit_view(dit, dit->own.gradients, weight), dy, x,
                                    carry_dit_product(dit, weight, x.dtype), accumulate));
    return carry_add_bias_backward(pass->ctx, carry_dit_view(dit, dit->own.gradients, bias), dy);
}

static carry_status linear_backward(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot, carry_tensor dx,
                                    carry_tensor dy, carry_tensor x, bool accumulate) {
    const int64_t *index = pass->dit->block[block];
    return affine_backward(pass, index[slot], index[carry_dit_bias(slot)], dx, dy, x, accumulate);
}

static carry_status outer_backward(const carry_dit_pass *pass, carry_dit_outer slot, carry_tensor dx, carry_tensor dy,
                                   carry_tensor x) {
    return affine_backward(pass, pass->dit->outer[slot], pass->dit->outer[slot + 1], dx, dy, x, false);
}

static carry_tensor gradient_of(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot) {
    return carry_dit_view(pass->dit, pass->dit->own.gradients, pass->dit->block[block][slot]);
}

/* dx += the layer norm's gradient from dy; the gradients of shift and scale go to dm. */
typedef struct modulation {
    carry_tensor dx, dy, x, m, dm;
    int64_t shift, scale;
    float eps;
    bool accumulate;
} modulation;

static carry_status modulate_unit(const carry_dit_call *call, const void *user, int64_t unit, void *scratch) {
    const modulation *m = user;
    return carry_layer_norm_backward(
        call->dit->ctx,
        &(carry_layer_norm_backward_args){.dx = carry_dit_group_rows(call, m->dx, unit),
                                          .dw = carry_dit_group_part(call, m->dm, unit, m->scale),
                                          .db = carry_dit_group_part(call, m->dm, unit, m->shift),
                                          .dy = carry_dit_group_rows(call, m->dy, unit),
                                          .x = carry_dit_group_rows(call, m->x, unit),
                                          .w = carry_dit_group_part(call, m->m, unit, m->scale),
                                          .plus = 1.0f,
                                          .eps = m->eps,
                                          .accumulate = m->accumulate},
        scratch, call->scratch_bytes);
}

/* dy = gate dx; the gradient of the gate goes to dm. */
typedef struct residual {
    carry_tensor dy, dx, y, m, dm;
    int64_t gate;
} residual;

static carry_status gate_unit(const carry_dit_call *call, const void *user, int64_t unit, void *scratch) {
    const residual *r = user;
    (void)scratch;
    return carry_gated_add_backward(call->dit->ctx, carry_dit_group_rows(call, r->dy, unit),
                                    carry_dit_group_part(call, r->dm, unit, r->gate),
                                    carry_dit_group_rows(call, r->dx, unit), carry_dit_group_rows(call, r->y, unit),
                                    carry_dit_group_part(call, r->m, unit, r->gate));
}

/* Arguments of the backward pass of attention: computes dq from d_o, and sums dk and dv over the units of a video. On
   the CPU, heads and videos are split over threads; a GPU processes all heads at once. */
typedef struct attending {
    const carry_dit_rows *rows;
    carry_tensor dq, dk, dv, d_o;
    bool is_cross;
    int64_t heads; /* of one call */
} attending;

/* A view of `count` heads of rows [T, H, D]. */
static carry_tensor heads_of(carry_tensor rows, int64_t first, int64_t count) {
    rows.data = (unsigned char *)rows.data + (size_t)(first * rows.stride[1]) * carry_dtype_size(rows.dtype);
    rows.shape[1] = count;
    return rows;
}

/* The view of `gradient` at the same offset that `view` has in `rows`. */
static carry_tensor beside(carry_tensor view, carry_tensor gradient, carry_tensor rows) {
    view.data = (unsigned char *)gradient.data + ((unsigned char *)view.data - (unsigned char *)rows.data);
    return view;
}

static carry_status attend_heads(const carry_dit_call *call, const void *user, int64_t index, void *scratch) {
    const carry_dit_pass *pass = call->owner;
    const attending *a = user;
    const carry_dit_rows *r = a->rows;
    const int64_t parts = pass->dit->config.num_heads / a->heads;
    const int64_t head = index % parts * a->heads;
    for (int64_t u = 0; u < pass->units_of; u++) {
        const int64_t unit = index / parts * pass->units_of + u;
        carry_key_run runs[2];
        carry_attention_args f = (a->is_cross ? carry_dit_pass_cross : carry_dit_pass_self)(call, 0, r, unit, runs);
        f.q = heads_of(f.q, head, a->heads);
        f.k = heads_of(f.k, head, a->heads);
        f.v = heads_of(f.v, head, a->heads);
        f.o = heads_of(f.o, head, a->heads);
        f.lse = carry_slice(f.lse, head, a->heads);
        const carry_attention_backward_args back = {.dq = beside(f.q, a->dq, a->is_cross ? r->cq : r->q),
                                                    .dk = beside(f.k, a->dk, a->is_cross ? r->ck : r->k),
                                                    .dv = beside(f.v, a->dv, a->is_cross ? r->cv : r->v),
                                                    .d_o = beside(f.o, a->d_o, a->is_cross ? r->co : r->o),
                                                    .forward = f};
        CARRY_TRY(carry_attention_backward(pass->ctx, &back, scratch, call->scratch_bytes));
    }
    return CARRY_OK;
}

static carry_status attend_backward(carry_dit_pass *pass, attending a) {
    const int64_t heads = pass->dit->config.num_heads;
    a.heads = pass->dit->own.device == 0 ? 1 : heads;
    CARRY_TRY(carry_zero(pass->ctx, a.dk));
    CARRY_TRY(carry_zero(pass->ctx, a.dv));
    return carry_dit_each(&pass->call, pass->options.videos * (heads / a.heads), attend_heads, &a);
}

static carry_status norm_backward(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot, carry_tensor dx,
                                  carry_tensor dy, carry_tensor x) {
    return carry_rms_norm_backward(pass->ctx,
                                   &(carry_rms_norm_backward_args){.dx = dx,
                                                                   .dw = gradient_of(pass, block, slot),
                                                                   .dy = dy,
                                                                   .x = x,
                                                                   .w = carry_dit_block_weight(pass->dit, block, slot),
                                                                   .eps = (float)pass->dit->config.eps},
                                   pass->whole, pass->whole_bytes);
}

static carry_status turn_back(const carry_dit_pass *pass, carry_tensor rows) {
    const carry_tensor heads = carry_dit_heads(pass->dit, rows, 0, pass->rows);
    return carry_rotary(pass->ctx, heads, heads, pass->in.table, true);
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
    CARRY_TRY(carry_dit_each(&pass->call, pass->units, gate_unit, &gate));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_FFN_DOWN, b->dwide, b->dy, r->wide, false));
    CARRY_TRY(carry_activate_backward(pass->ctx, b->dwide, b->dwide, r->up, CARRY_GELU));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_FFN_UP, b->dh, b->dwide, r->h2, false));
    return carry_dit_each(&pass->call, pass->units, modulate_unit, &norm);
}

static carry_status backward_cross(carry_dit_pass *pass, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "cross-attention backward");
    const carry_dit_rows *r = &pass->block[block];
    carry_dit_back *b = &pass->back;
    const attending cross = {.rows = r, .dq = b->dq, .dk = b->dck, .dv = b->dcv, .d_o = b->dy, .is_cross = true};
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_O, b->dy, b->dx, r->co, false));
    CARRY_TRY(attend_backward(pass, cross));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_CROSS_NORM_K, b->dck_in, b->dck, r->ck_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_K, b->dtext, b->dck_in, pass->text, true));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_V, b->dtext, b->dcv, pass->text, true));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_CROSS_NORM_Q, b->dh, b->dq, r->cq_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_CROSS_Q, b->dy, b->dh, r->h3, false));
    return carry_layer_norm_backward(
        pass->ctx,
        &(carry_layer_norm_backward_args){.dx = b->dx,
                                          .dw = gradient_of(pass, block, CARRY_DIT_NORM3),
                                          .db = gradient_of(pass, block, CARRY_DIT_NORM3_BIAS),
                                          .dy = b->dy,
                                          .x = r->x1,
                                          .w = carry_dit_block_weight(pass->dit, block, CARRY_DIT_NORM3),
                                          .plus = 0.0f,
                                          .eps = (float)pass->dit->config.eps,
                                          .accumulate = true},
        pass->whole, pass->whole_bytes);
}

static carry_status backward_self(carry_dit_pass *pass, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "self-attention backward");
    const carry_dit_rows *r = &pass->block[block];
    carry_dit_back *b = &pass->back;
    const residual gate = {.dy = b->dy, .dx = b->dx, .y = r->y, .m = r->m, .dm = b->dm, .gate = 2};
    const attending self = {.rows = r, .dq = b->dq, .dk = b->dk, .dv = b->dv, .d_o = b->dh};
    const modulation norm = {.dx = b->dx,
                             .dy = b->dh,
                             .x = r->x,
                             .m = r->m,
                             .dm = b->dm,
                             .shift = 0,
                             .scale = 1,
                             .eps = (float)pass->dit->config.eps,
                             .accumulate = true};
    CARRY_TRY(carry_dit_each(&pass->call, pass->units, gate_unit, &gate));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_O, b->dh, b->dy, r->o, false));
    CARRY_TRY(attend_backward(pass, self));
    CARRY_TRY(turn_back(pass, b->dq));
    CARRY_TRY(turn_back(pass, b->dk));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_V, b->dh, b->dv, r->h1, false));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_NORM_Q, b->dy, b->dq, r->q_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_Q, b->dh, b->dy, r->h1, true));
    CARRY_TRY(norm_backward(pass, block, CARRY_DIT_NORM_K, b->dy, b->dk, r->k_in));
    CARRY_TRY(linear_backward(pass, block, CARRY_DIT_K, b->dh, b->dy, r->h1, true));
    return carry_dit_each(&pass->call, pass->units, modulate_unit, &norm);
}

static carry_status backward_block(carry_dit_pass *pass, int64_t block) {
    carry_dit_back *b = &pass->back;
    const carry_tensor own = gradient_of(pass, block, CARRY_DIT_MODULATION);
    CARRY_TRY(carry_zero(pass->ctx, b->dm));
    CARRY_TRY(backward_ffn(pass, block));
    CARRY_TRY(backward_cross(pass, block));
    CARRY_TRY(backward_self(pass, block));
    CARRY_TRY(carry_add_bias_backward(pass->ctx, carry_reshape_1d(own, b->dm.shape[1]), b->dm));
    return carry_elementwise(pass->ctx, b->de0, b->de0, b->dm, CARRY_ADD);
}

static carry_status backward_head(carry_dit_pass *pass) {
    carry_dit_back *b = &pass->back;
    const int64_t d = pass->dit->config.dim;
    const carry_tensor own =
        carry_dit_view(pass->dit, pass->dit->own.gradients, pass->dit->outer[CARRY_DIT_HEAD_MODULATION]);
    const modulation norm = {.dx = b->dx,
                             .dy = b->dh,
                             .x = pass->block[pass->dit->config.num_layers - 1].next,
                             .m = pass->shifts,
                             .dm = b->dhead,
                             .shift = 0,
                             .scale = 1,
                             .eps = (float)pass->dit->config.eps};
    CARRY_TRY(outer_backward(pass, CARRY_DIT_HEAD, b->dh, pass->dout, pass->head_in));
    CARRY_TRY(carry_zero(pass->ctx, b->dhead));
    CARRY_TRY(carry_dit_each(&pass->call, pass->units, modulate_unit, &norm));
    CARRY_TRY(carry_add_bias_backward(pass->ctx, carry_reshape_1d(own, 2 * d), b->dhead));
    for (int64_t u = 0; u < pass->units; u++) { /* shift and scale both contain e */
        CARRY_TRY(carry_elementwise(pass->ctx, carry_reshape_1d(carry_slice(b->de, u, 1), d),
                                    carry_dit_group_part(&pass->call, b->dhead, u, 0),
                                    carry_dit_group_part(&pass->call, b->dhead, u, 1), CARRY_ADD));
    }
    return CARRY_OK;
}

/* Backward of the inputs: from de0 and de through the MLP of the time, from dtext through that of the text, from dx to
   the patches. */
static carry_status backward_inputs(carry_dit_pass *pass) {
    carry_ctx *ctx = pass->ctx;
    carry_dit_back *b = &pass->back;
    CARRY_TRY(outer_backward(pass, CARRY_DIT_PROJECTION, b->dsilu, b->de0, pass->e1));
    CARRY_TRY(carry_activate_backward(ctx, b->dsilu, b->dsilu, pass->e, CARRY_SILU));
    CARRY_TRY(carry_elementwise(ctx, b->de, b->de, b->dsilu, CARRY_ADD));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TIME_2, b->dsilu, b->de, pass->time_1));
    CARRY_TRY(carry_activate_backward(ctx, b->dsilu, b->dsilu, pass->time_0, CARRY_SILU));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TIME_0, absent, b->dsilu, pass->in.sinusoid));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TEXT_2, b->dck, b->dtext, pass->text_1));
    CARRY_TRY(carry_activate_backward(ctx, b->dck, b->dck, pass->text_0, CARRY_GELU));
    CARRY_TRY(outer_backward(pass, CARRY_DIT_TEXT_0, absent, b->dck, pass->text_in));
    return outer_backward(pass, CARRY_DIT_PATCH, absent, b->dx, pass->narrow);
}

carry_status carry_dit_pass_backward(carry_dit_pass *pass) {
    const carry_dit_pass_args *args = pass->args;
    CARRY_TRY(carry_zero(pass->ctx, pass->back.de0));
    CARRY_TRY(carry_zero(pass->ctx, pass->back.dtext));
    CARRY_TRY(backward_head(pass));
    for (int64_t i = pass->dit->config.num_layers - 1; i >= 0; i--) {
        CARRY_TRY(backward_block(pass, i));
    }
    CARRY_TRY(backward_inputs(pass));
    return args->ready != NULL ? args->ready(args->user, 0, pass->dit->own.count) : CARRY_OK;
}
