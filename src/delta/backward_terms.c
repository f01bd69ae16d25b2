/* Products of a backward chunk by terms (terms.h). dO is exact in bf16, as q and k are; dR, V', S and dS are split
   into terms. dS and dR, which further products read, are computed with the accuracy of f32; gradients that
   are stored in 16 bits are computed from operands of two terms. */
#include "core/span.h"
#include "delta/backward.h"
#include "ops/product/triangle.h"

#define STATE_TERMS 3
#define STATE_ORDER 2
#define END_TERMS 2
#define END_ORDER 1

typedef carry_delta_back_unit unit;

bool carry_delta_back_terms_load(const unit *u, int64_t t, int64_t tokens, int64_t value_head) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    const int64_t V = plan->problem.value;
    if (!s->rows.exact || !carry_all_finite(s->gradients + tokens * V, tokens * V)) {
        return false;
    }
    const carry_tensor *d_o = &u->back->args->d_o;
    const uint16_t *from = carry_delta_place(d_o, u->sequence->batch, u->sequence->start + t, value_head);
    carry_delta_terms_pack(plan, true, s->out_a, from, d_o->stride[1], false, tokens, V);
    carry_delta_terms_pack(plan, false, s->out_b, from, d_o->stride[1], true, V, tokens);
    for (int64_t i = 0; i < tokens; i++) {
        s->norm_k[i] = -s->heads.beta[i] * s->heads.fade[i] * s->rows.k_norm[i];
        s->norm_q[i] = plan->scale * s->heads.fade[i] * s->rows.q_norm[i];
        s->norm_left[i] = s->heads.left[i] * s->rows.k_norm[i];
    }
    return true;
}

bool carry_delta_back_terms_solve(const unit *u, int64_t tokens, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    const int64_t K = plan->problem.key;
    const int64_t V = plan->problem.value;
    const carry_bf16_split state = {.lines = V, .k = K, .from = dS, .row = V, .across = true, .terms = STATE_TERMS};
    const carry_bf16_split P = {.lines = tokens,
                                .k = tokens,
                                .from = s->heads.P,
                                .row = plan->chunk,
                                .across = true,
                                .triangle = CARRY_BF16_UPPER,
                                .terms = STATE_TERMS};
    if (!s->exact || !carry_delta_terms_b(plan, &s->state_b, state) ||
        !carry_delta_terms_a(plan, &s->triangles[0], P)) {
        return false;
    }
    carry_bf16_terms p = {.m = tokens, .n = V, .order = STATE_ORDER, .c = s->gradients, .base_row = V, .c_row = V};
    p.k = K;
    p.by = s->norm_left;
    carry_delta_terms_multiply(plan, carry_delta_rows_panels(s->rows.panels.k), s->state_b, p);
    p.k = tokens;
    p.by = NULL;
    p.base = p.c;
    p.triangle = CARRY_BF16_UPPER;
    carry_delta_terms_multiply(plan, s->triangles[0], carry_delta_rows_panels(s->out_b), p);
    return true;
}

/* Splits rows of tokens into terms, as the left operand of products over V. */
static bool split_rows(const unit *u, int64_t tokens, const float *from) {
    const int64_t V = u->back->plan->problem.value;
    return carry_delta_terms_a(u->back->plan, &u->s->rows_a,
                               (carry_bf16_split){.lines = tokens, .k = V, .from = from, .row = V, .terms = END_TERMS});
}

/* Splits a transposed state into terms, as the right operand. */
static bool split_state(const unit *u, const float *S) {
    const int64_t V = u->back->plan->problem.value;
    return carry_delta_terms_b(
        u->back->plan, &u->s->state_b,
        (carry_bf16_split){.lines = u->back->plan->problem.key, .k = V, .from = S, .row = V, .terms = END_TERMS});
}

static void rows_times(const unit *u, int64_t tokens, carry_delta_terms rows, carry_delta_terms b, int64_t n, float *c,
                       int64_t c_row) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_terms_multiply(
        plan, rows, b,
        (carry_bf16_terms){.m = tokens, .n = n, .k = plan->problem.value, .order = END_ORDER, .c = c, .c_row = c_row});
}

int carry_delta_back_terms_spread(const unit *u, int64_t tokens, const float *S, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    const int64_t K = plan->problem.key;
    const int64_t V = plan->problem.value;
    const carry_delta_terms out = carry_delta_rows_panels(s->out_a);
    int done = 0;
    if (!s->exact || !split_rows(u, tokens, s->gradients)) {
        return 0;
    }
    const carry_bf16_split values = {.lines = tokens, .k = V, .from = s->values, .row = V, .terms = END_TERMS};
    if (carry_delta_terms_b(plan, &s->values_b, values)) {
        rows_times(u, tokens, s->rows_a, s->values_b, tokens, s->by_values, plan->chunk);
        rows_times(u, tokens, out, s->values_b, tokens, s->by_values + tokens * plan->chunk, plan->chunk);
        done |= CARRY_DELTA_BY_VALUES;
    }
    if (split_state(u, S)) {
        rows_times(u, tokens, s->rows_a, s->state_b, K, s->by_state, K);
        rows_times(u, tokens, out, s->state_b, K, s->by_state + tokens * K, K);
        done |= CARRY_DELTA_BY_STATE;
    }
    if (split_state(u, dS) && split_rows(u, tokens, s->values)) {
        rows_times(u, tokens, s->rows_a, s->state_b, K, s->by_end, K);
        done |= CARRY_DELTA_BY_END;
    }
    return done;
}

bool carry_delta_back_terms_pass_on(const unit *u, int64_t tokens, float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    const int64_t V = plan->problem.value;
    carry_bf16_split split = {
        .lines = V, .k = tokens, .from = s->gradients, .row = V, .across = true, .by = s->norm_k, .terms = STATE_TERMS};
    if (!s->exact || !carry_delta_terms_b(plan, &s->values_b, split)) {
        return false;
    }
    split.from = s->gradients + tokens * V;
    split.by = s->norm_q;
    if (!carry_delta_terms_b(plan, &s->state_b, split)) {
        return false;
    }
    carry_bf16_terms p = {.m = plan->problem.key,
                          .n = V,
                          .k = tokens,
                          .order = STATE_ORDER,
                          .base = dS,
                          .base_by = s->heads.end,
                          .c = dS,
                          .base_row = V,
                          .c_row = V};
    carry_delta_terms_multiply(plan, carry_delta_rows_panels(s->rows.panels.k_across), s->values_b, p);
    p.base_by = NULL;
    carry_delta_terms_multiply(plan, carry_delta_rows_panels(s->rows.panels.q_across), s->state_b, p);
    return true;
}

/* One of the four products through which kk and qk affect q and k: to += triangle (norms rows). */
typedef struct part {
    const float *triangle;
    bool transposed;
    const uint16_t *rows;
    const float *norms;
    float *to;
} part;

static carry_bf16_triangle shape_of(const part *p) {
    return p->transposed ? CARRY_BF16_UPPER : CARRY_BF16_LOWER;
}

static bool split_part(const unit *u, int64_t tokens, const part *p, carry_delta_terms *to) {
    const carry_delta_plan *plan = u->back->plan;
    return carry_delta_terms_a(plan, to,
                               (carry_bf16_split){.lines = tokens,
                                                  .k = tokens,
                                                  .from = p->triangle,
                                                  .row = plan->chunk,
                                                  .across = p->transposed,
                                                  .triangle = shape_of(p),
                                                  .by = p->norms,
                                                  .terms = END_TERMS});
}

static void add_part(const unit *u, int64_t tokens, const part *p, carry_delta_terms triangle) {
    const int64_t K = u->back->plan->problem.key;
    carry_delta_terms_multiply(u->back->plan, triangle, carry_delta_rows_panels(p->rows),
                               (carry_bf16_terms){.m = tokens,
                                                  .n = K,
                                                  .k = tokens,
                                                  .order = END_ORDER,
                                                  .triangle = shape_of(p),
                                                  .base = p->to,
                                                  .c = p->to,
                                                  .base_row = K,
                                                  .c_row = K});
}

bool carry_delta_back_terms_rows(const unit *u, int64_t t, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    const carry_delta_rows *rows = &s->rows;
    const int64_t K = plan->problem.key;
    const int64_t first = u->sequence->start + t;
    if (!rows->exact) {
        return false;
    }
    /* The memory of the panels for products with states is free now: it is reused here. */
    const carry_tensor *k = u->back->in.k;
    const carry_tensor *q = u->back->in.q;
    uint16_t *k_rows = rows->panels.k_across;
    uint16_t *q_rows = rows->panels.q_across;
    const part parts[] = {{s->on_qk, false, k_rows, rows->k_norm, s->dq},
                          {s->on_kk, false, k_rows, rows->k_norm, s->dk},
                          {s->on_qk, true, q_rows, rows->q_norm, s->dk},
                          {s->on_kk, true, k_rows, rows->k_norm, s->dk}};
    bool finite = true;
    for (int i = 0; finite && i < CARRY_DELTA_TRIANGLES; i++) { /* all are split before the first product is added */
        finite = split_part(u, tokens, &parts[i], &s->triangles[i]);
    }
    if (!finite) {
        return false;
    }
    carry_delta_terms_pack(plan, false, k_rows, carry_delta_place(k, u->sequence->batch, first, u->head), k->stride[1],
                           true, K, tokens);
    carry_delta_terms_pack(plan, false, q_rows, carry_delta_place(q, u->sequence->batch, first, u->head), q->stride[1],
                           true, K, tokens);
    for (int i = 0; i < CARRY_DELTA_TRIANGLES; i++) {
        add_part(u, tokens, &parts[i], s->triangles[i]);
    }
    return true;
}
