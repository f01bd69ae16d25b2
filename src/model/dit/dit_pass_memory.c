/* Memory layout of a training pass of the video transformer. The same code counts the bytes and assigns the
   addresses. */
#include "model/dit/dit_pass_rows.h"

static carry_tensor take(const carry_dit_pass *p, carry_arena *arena, carry_dtype dtype, int64_t rows, int64_t width) {
    return carry_arena_tensor(arena, p->dit->own.device, dtype, 2, (const int64_t[]){rows, width});
}

/* Places the rows of a block. The output of a block is the input of the next. */
static void take_block(const carry_dit_pass *p, carry_arena *arena, carry_dit_rows *r) {
    const int64_t n = p->rows;
    const carry_dit_config *c = &p->dit->config;
    const carry_dtype dtype = p->options.dtype;
    carry_tensor *const narrow[] = {&r->x,  &r->h1, &r->q_in,  &r->k_in, &r->v,  &r->q,  &r->k,  &r->o, &r->y,
                                    &r->x1, &r->h3, &r->cq_in, &r->cq,   &r->co, &r->x2, &r->h2, &r->f};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        *narrow[i] = take(p, arena, dtype, n, c->dim);
    }
    r->up = take(p, arena, dtype, n, c->ffn_dim);
    r->wide = take(p, arena, dtype, n, c->ffn_dim);
    r->lse = take(p, arena, CARRY_F32, p->units, c->num_heads * p->tokens);
    r->clse = take(p, arena, CARRY_F32, p->units, c->num_heads * p->tokens);
    r->ck_in = take(p, arena, dtype, p->text_rows, c->dim);
    r->ck = take(p, arena, dtype, p->text_rows, c->dim);
    r->cv = take(p, arena, dtype, p->text_rows, c->dim);
    r->m = take(p, arena, CARRY_F32, p->units, CARRY_DIT_SHIFTS * c->dim);
}

static void take_back(carry_dit_pass *p, carry_arena *arena) {
    const int64_t d = p->dit->config.dim;
    const carry_dtype dtype = p->options.dtype;
    carry_dit_back *b = &p->back;
    carry_tensor *const narrow[] = {&b->dx, &b->dh, &b->dy, &b->dq, &b->dk, &b->dv};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        *narrow[i] = take(p, arena, dtype, p->rows, d);
    }
    b->dwide = take(p, arena, dtype, p->rows, p->dit->config.ffn_dim);
    b->dck = take(p, arena, dtype, p->text_rows, d);
    b->dcv = take(p, arena, dtype, p->text_rows, d);
    b->dck_in = take(p, arena, dtype, p->text_rows, d);
    b->dtext = take(p, arena, dtype, p->text_rows, d);
    b->dm = take(p, arena, CARRY_F32, p->units, CARRY_DIT_SHIFTS * d);
    b->de0 = take(p, arena, CARRY_F32, p->units, CARRY_DIT_SHIFTS * d);
    b->de = take(p, arena, CARRY_F32, p->units, d);
    b->dsilu = take(p, arena, CARRY_F32, p->units, d);
    b->dhead = take(p, arena, CARRY_F32, p->units, 2 * d);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* The largest workspace of an operator on one unit; the last unit of a video attends to the most keys. */
static size_t unit_scratch(const carry_dit_pass *p) {
    carry_key_run runs[3];
    const carry_attention_args calls[] = {carry_dit_pass_self(&p->call, 0, &p->block[0], p->units_of - 1, runs),
                                          carry_dit_pass_cross(&p->call, 0, &p->block[0], 0, &runs[2])};
    size_t bytes = carry_layer_norm_backward_workspace(p->tokens, p->dit->config.dim);
    for (int i = 0; i < 2; i++) {
        const carry_attention_backward_args back = {
            .dq = calls[i].q, .dk = calls[i].k, .dv = calls[i].v, .d_o = calls[i].o, .forward = calls[i]};
        bytes = larger(bytes, carry_attention_workspace(&calls[i]));
        bytes = larger(bytes, carry_attention_backward_workspace(&back));
    }
    return bytes;
}

static size_t whole_scratch(const carry_dit_pass *p) {
    const int64_t d = p->dit->config.dim;
    size_t bytes = carry_rms_norm_backward_workspace(p->rows, d);
    bytes = larger(bytes, carry_rms_norm_backward_workspace(p->text_rows, d));
    return larger(bytes, carry_layer_norm_backward_workspace(p->rows, d));
}

static int64_t patch_width(const carry_dit_config *c, int64_t channels) {
    return channels * c->patch[0] * c->patch[1] * c->patch[2];
}

static carry_dit_inputs take_inputs(const carry_dit_pass *p, carry_arena *arena, int device) {
    const carry_dit_config *c = &p->dit->config;
    const int64_t head = carry_dit_head(p->dit);
    const int64_t patches[] = {p->rows, patch_width(c, c->in_dim)};
    const int64_t target[] = {p->rows, patch_width(c, c->out_dim)};
    return (carry_dit_inputs){
        .patches = carry_arena_tensor(arena, device, CARRY_F32, 2, patches),
        .target = carry_arena_tensor(arena, device, CARRY_F32, 2, target),
        .table = carry_arena_tensor(arena, device, CARRY_F32, 3, (const int64_t[]){p->rows, head / 2, 2}),
        .sinusoid = carry_arena_tensor(arena, device, CARRY_F32, 2, (const int64_t[]){p->units, c->freq_dim}),
        .weight = carry_arena_tensor(arena, device, CARRY_F32, 1, &p->units)};
}

void carry_dit_pass_lay_out_host(carry_dit_pass *p, carry_arena *arena) {
    p->host = take_inputs(p, arena, 0);
}

void carry_dit_pass_lay_out(carry_dit_pass *p, carry_arena *arena) {
    const carry_dit_config *c = &p->dit->config;
    const carry_dtype dtype = p->options.dtype;
    const int device = p->dit->own.device;
    const bool is_wide = dtype == CARRY_F32;
    for (int64_t i = 0; i < c->num_layers; i++) {
        take_block(p, arena, &p->block[i]);
        p->block[i > 0 ? i - 1 : 0].next = p->block[i].x;
    }
    p->block[c->num_layers - 1].next = take(p, arena, dtype, p->rows, c->dim);
    p->in = take_inputs(p, arena, device);
    if (device == 0) {
        p->host = p->in;
    }
    p->narrow = is_wide ? p->in.patches : take(p, arena, dtype, p->rows, p->in.patches.shape[1]);
    if (device != 0) {
        p->text_wide = take(p, arena, CARRY_F32, p->text_rows, c->text_dim);
    }
    p->text_in = is_wide ? p->text_wide : take(p, arena, dtype, p->text_rows, c->text_dim);
    p->text_0 = take(p, arena, dtype, p->text_rows, c->dim);
    p->text_1 = take(p, arena, dtype, p->text_rows, c->dim);
    p->text = take(p, arena, dtype, p->text_rows, c->dim);
    p->time_0 = take(p, arena, CARRY_F32, p->units, c->dim);
    p->time_1 = take(p, arena, CARRY_F32, p->units, c->dim);
    p->e = take(p, arena, CARRY_F32, p->units, c->dim);
    p->e1 = take(p, arena, CARRY_F32, p->units, c->dim);
    p->e0 = take(p, arena, CARRY_F32, p->units, CARRY_DIT_SHIFTS * c->dim);
    p->shifts = take(p, arena, CARRY_F32, p->units, 2 * c->dim);
    p->head_in = take(p, arena, dtype, p->rows, c->dim);
    p->out = take(p, arena, dtype, p->rows, p->in.target.shape[1]);
    p->wide_out = is_wide ? p->out : take(p, arena, CARRY_F32, p->rows, p->in.target.shape[1]);
    p->dout = take(p, arena, dtype, p->rows, p->in.target.shape[1]);
    p->losses = carry_arena_tensor(arena, device, CARRY_F64, 1, &p->units);
    p->total = carry_arena_tensor(arena, device, CARRY_F64, 1, (const int64_t[]){1});
    take_back(p, arena);
    p->call.e0 = p->e0;
    p->call.table = p->in.table;
    p->call.scratch_bytes = (unit_scratch(p) + CARRY_ALIGN - 1) / CARRY_ALIGN * CARRY_ALIGN;
    p->call.scratch = carry_arena_take(arena, (size_t)carry_dit_call_threads(p->dit, true), p->call.scratch_bytes);
    p->whole_bytes = whole_scratch(p);
    p->whole = carry_arena_take(arena, p->whole_bytes, 1);
}
