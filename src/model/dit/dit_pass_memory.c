/* Where a training pass of the video transformer keeps things. The same lines count the bytes and carve them. */
#include "carry/nn.h"
#include "model/dit/dit_pass_rows.h"

static carry_tensor take(carry_arena *arena, int64_t rows, int64_t width) {
    const int64_t shape[] = {rows, width};
    size_t count;
    if (!carry_size_product(&count, shape, 2, 1)) {
        arena->overflowed = true;
        return (carry_tensor){0};
    }
    return carry_view(carry_arena_take(arena, count, sizeof(float)), CARRY_F32, 2, shape);
}

static void take_block(const carry_dit_pass *p, carry_arena *arena, carry_dit_rows *r) {
    const int64_t n = p->rows;
    const int64_t d = p->dit->config.dim;
    carry_tensor *const narrow[] = {&r->x,  &r->h1, &r->q_in,  &r->k_in, &r->v,  &r->q,  &r->k,  &r->o, &r->y,
                                    &r->x1, &r->h3, &r->cq_in, &r->cq,   &r->co, &r->x2, &r->h2, &r->f};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        *narrow[i] = take(arena, n, d);
    }
    r->up = take(arena, n, p->dit->config.ffn_dim);
    r->wide = take(arena, n, p->dit->config.ffn_dim);
    r->lse = take(arena, p->units, p->dit->config.num_heads * p->tokens);
    r->clse = take(arena, p->units, p->dit->config.num_heads * p->tokens);
    r->ck_in = take(arena, p->text_rows, d);
    r->ck = take(arena, p->text_rows, d);
    r->cv = take(arena, p->text_rows, d);
    r->m = take(arena, p->units, CARRY_DIT_SHIFTS * d);
}

static void take_back(carry_dit_pass *p, carry_arena *arena) {
    const int64_t d = p->dit->config.dim;
    carry_dit_back *b = &p->back;
    carry_tensor *const narrow[] = {&b->dx, &b->dh, &b->dy, &b->dq, &b->dk, &b->dv};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
        *narrow[i] = take(arena, p->rows, d);
    }
    b->dwide = take(arena, p->rows, p->dit->config.ffn_dim);
    b->dck = take(arena, p->text_rows, d);
    b->dcv = take(arena, p->text_rows, d);
    b->dck_in = take(arena, p->text_rows, d);
    b->dtext = take(arena, p->text_rows, d);
    b->dm = take(arena, p->units, CARRY_DIT_SHIFTS * d);
    b->de0 = take(arena, p->units, CARRY_DIT_SHIFTS * d);
    b->de = take(arena, p->units, d);
    b->dsilu = take(arena, p->units, d);
    b->dhead = take(arena, p->units, 2 * d);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* The most that an operator on one unit asks for; the last unit of a video sees the most keys. */
static size_t unit_scratch(const carry_dit_pass *p) {
    carry_key_run runs[2];
    const carry_dit_pass_args none = {.caption = NULL};
    const carry_attention_args calls[] = {carry_dit_pass_self(p, &p->block[0], p->units_of - 1, runs),
                                          carry_dit_pass_cross(p, &p->block[0], &none, 0, &runs[1])};
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

void carry_dit_pass_lay_out(carry_dit_pass *p, carry_arena *arena) {
    const carry_dit_config *c = &p->dit->config;
    const int64_t patch = c->in_dim * c->patch[0] * c->patch[1] * c->patch[2];
    const int64_t out = c->out_dim * c->patch[0] * c->patch[1] * c->patch[2];
    for (int64_t i = 0; i < c->num_layers; i++) {
        take_block(p, arena, &p->block[i]);
    }
    p->last = take(arena, p->rows, c->dim);
    p->patches = take(arena, p->rows, patch);
    p->table = take(arena, p->rows, p->head);
    p->text_0 = take(arena, p->text_rows, c->dim);
    p->text_1 = take(arena, p->text_rows, c->dim);
    p->text = take(arena, p->text_rows, c->dim);
    p->sinusoid = take(arena, p->units, c->freq_dim);
    p->time_0 = take(arena, p->units, c->dim);
    p->time_1 = take(arena, p->units, c->dim);
    p->e = take(arena, p->units, c->dim);
    p->e1 = take(arena, p->units, c->dim);
    p->e0 = take(arena, p->units, CARRY_DIT_SHIFTS * c->dim);
    p->shifts = take(arena, p->units, 2 * c->dim);
    p->head_in = take(arena, p->rows, c->dim);
    p->out = take(arena, p->rows, out);
    p->dout = take(arena, p->rows, out);
    p->losses = carry_arena_take(arena, (size_t)p->units, sizeof *p->losses);
    take_back(p, arena);
    p->scratch_bytes = (unit_scratch(p) + CARRY_ALIGN - 1) / CARRY_ALIGN * CARRY_ALIGN;
    p->scratch = carry_arena_take(arena, (size_t)carry_ctx_threads(p->ctx), p->scratch_bytes);
    p->whole_bytes = whole_scratch(p);
    p->whole = carry_arena_take(arena, p->whole_bytes, 1);
}
