/* One block of a training pass, forward: dit.h's equations over all rows. */
#include "carry/nn.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "model/dit/dit_pass_rows.h"

static const carry_tensor absent = {.data = NULL};

/* A norm with the shift and scale of each unit. */
typedef struct modulation {
    carry_tensor y, x, m;
    int64_t shift, scale; /* parts of m */
    float eps;
} modulation;

static carry_status modulate_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const modulation *m = user;
    (void)scratch;
    return carry_layer_norm(pass->ctx, carry_dit_pass_unit(pass, m->y, unit), carry_dit_pass_unit(pass, m->x, unit),
                            carry_dit_pass_part(pass, m->m, unit, m->scale),
                            carry_dit_pass_part(pass, m->m, unit, m->shift), 1.0f, m->eps);
}

/* Residuals through a gate: x = from + gate y. */
typedef struct residual {
    carry_tensor x, y, m;
    int64_t gate;
} residual;

static carry_status gate_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const residual *r = user;
    (void)scratch;
    return carry_gated_add(pass->ctx, carry_dit_pass_unit(pass, r->x, unit), carry_dit_pass_unit(pass, r->y, unit),
                           carry_dit_pass_part(pass, r->m, unit, r->gate));
}

typedef struct attending {
    const carry_dit_rows *rows;
    const carry_dit_pass_args *args;
} attending;

static carry_status attend_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const attending *a = user;
    carry_key_run runs[2];
    const carry_attention_args call = carry_dit_pass_self(pass, a->rows, unit, runs);
    return carry_attention(pass->ctx, &call, scratch, pass->scratch_bytes);
}

static carry_status cross_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const attending *a = user;
    carry_key_run run;
    const carry_attention_args call = carry_dit_pass_cross(pass, a->rows, a->args, unit, &run);
    return carry_attention(pass->ctx, &call, scratch, pass->scratch_bytes);
}

static carry_tensor heads(const carry_dit_pass *pass, carry_tensor rows) {
    return carry_view_3d(rows.data, CARRY_F32, rows.shape[0], pass->dit->config.num_heads, pass->head);
}

static carry_status turn(const carry_dit_pass *pass, carry_tensor rows) {
    const carry_tensor table = carry_view_3d(pass->table.data, CARRY_F32, pass->rows, pass->head / 2, 2);
    return carry_rotary(pass->ctx, heads(pass, rows), heads(pass, rows), table, false);
}

static carry_status forward_self(carry_dit_pass *pass, const carry_dit_pass_args *args, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "self-attention");
    carry_dit_rows *r = &pass->block[block];
    const float eps = (float)pass->dit->config.eps;
    const modulation norm = {.y = r->h1, .x = r->x, .m = r->m, .shift = 0, .scale = 1, .eps = eps};
    CARRY_TRY(carry_dit_pass_units(pass, modulate_unit, &norm));
    CARRY_TRY(carry_dit_pass_linear(pass, r->q_in, r->h1, carry_dit_pass_w(pass, block, CARRY_DIT_Q),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_Q_BIAS)));
    CARRY_TRY(carry_dit_pass_linear(pass, r->k_in, r->h1, carry_dit_pass_w(pass, block, CARRY_DIT_K),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_K_BIAS)));
    CARRY_TRY(carry_dit_pass_linear(pass, r->v, r->h1, carry_dit_pass_w(pass, block, CARRY_DIT_V),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_V_BIAS)));
    CARRY_TRY(carry_rms_norm(pass->ctx, r->q, r->q_in, carry_dit_pass_w(pass, block, CARRY_DIT_NORM_Q), absent, eps));
    CARRY_TRY(carry_rms_norm(pass->ctx, r->k, r->k_in, carry_dit_pass_w(pass, block, CARRY_DIT_NORM_K), absent, eps));
    CARRY_TRY(turn(pass, r->q));
    CARRY_TRY(turn(pass, r->k));
    CARRY_TRY(carry_dit_pass_units(pass, attend_unit, &(attending){.rows = r, .args = args}));
    CARRY_TRY(carry_dit_pass_linear(pass, r->y, r->o, carry_dit_pass_w(pass, block, CARRY_DIT_O),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_O_BIAS)));
    CARRY_TRY(carry_convert(pass->ctx, r->x1, r->x));
    return carry_dit_pass_units(pass, gate_unit, &(residual){.x = r->x1, .y = r->y, .m = r->m, .gate = 2});
}

static carry_status forward_cross(carry_dit_pass *pass, const carry_dit_pass_args *args, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "cross-attention");
    carry_dit_rows *r = &pass->block[block];
    const float eps = (float)pass->dit->config.eps;
    CARRY_TRY(carry_layer_norm(pass->ctx, r->h3, r->x1, carry_dit_pass_w(pass, block, CARRY_DIT_NORM3),
                               carry_dit_pass_w(pass, block, CARRY_DIT_NORM3_BIAS), 0.0f, eps));
    CARRY_TRY(carry_dit_pass_linear(pass, r->cq_in, r->h3, carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_Q),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_Q_BIAS)));
    CARRY_TRY(carry_dit_pass_linear(pass, r->ck_in, pass->text, carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_K),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_K_BIAS)));
    CARRY_TRY(carry_dit_pass_linear(pass, r->cv, pass->text, carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_V),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_V_BIAS)));
    CARRY_TRY(
        carry_rms_norm(pass->ctx, r->cq, r->cq_in, carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_NORM_Q), absent, eps));
    CARRY_TRY(
        carry_rms_norm(pass->ctx, r->ck, r->ck_in, carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_NORM_K), absent, eps));
    CARRY_TRY(carry_dit_pass_units(pass, cross_unit, &(attending){.rows = r, .args = args}));
    CARRY_TRY(carry_convert(pass->ctx, r->x2, r->x1));
    CARRY_TRY(carry_linear(pass->ctx, r->x2, r->co, carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_O), true));
    return carry_add_bias(pass->ctx, r->x2, carry_dit_pass_w(pass, block, CARRY_DIT_CROSS_O_BIAS));
}

static carry_status forward_ffn(carry_dit_pass *pass, int64_t block) {
    CARRY_SPAN(pass->ctx, "model", "ffn");
    carry_dit_rows *r = &pass->block[block];
    const bool is_last = block + 1 == pass->dit->config.num_layers;
    const carry_tensor to = is_last ? pass->last : pass->block[block + 1].x;
    const float eps = (float)pass->dit->config.eps;
    const modulation norm = {.y = r->h2, .x = r->x2, .m = r->m, .shift = 3, .scale = 4, .eps = eps};
    CARRY_TRY(carry_dit_pass_units(pass, modulate_unit, &norm));
    CARRY_TRY(carry_dit_pass_linear(pass, r->up, r->h2, carry_dit_pass_w(pass, block, CARRY_DIT_FFN_UP),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_FFN_UP_BIAS)));
    CARRY_TRY(carry_activate(pass->ctx, r->wide, r->up, CARRY_GELU));
    CARRY_TRY(carry_dit_pass_linear(pass, r->f, r->wide, carry_dit_pass_w(pass, block, CARRY_DIT_FFN_DOWN),
                                    carry_dit_pass_w(pass, block, CARRY_DIT_FFN_DOWN_BIAS)));
    CARRY_TRY(carry_convert(pass->ctx, to, r->x2));
    return carry_dit_pass_units(pass, gate_unit, &(residual){.x = to, .y = r->f, .m = r->m, .gate = 5});
}

carry_status carry_dit_pass_block(carry_dit_pass *pass, const carry_dit_pass_args *args, int64_t block) {
    carry_dit_rows *r = &pass->block[block];
    const carry_tensor own = carry_dit_pass_w(pass, block, CARRY_DIT_MODULATION);
    CARRY_TRY(carry_convert(pass->ctx, r->m, pass->e0));
    CARRY_TRY(carry_add_bias(pass->ctx, r->m, carry_view_1d(own.data, CARRY_F32, r->m.shape[1])));
    CARRY_TRY(forward_self(pass, args, block));
    CARRY_TRY(forward_cross(pass, args, block));
    return forward_ffn(pass, block);
}
