/* One chunk of the forward pass, for all value heads of a group. */
#include "delta/forward.h"

#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "ops/product/triangle.h"

#define OUTPUT_ORDER 1 /* order of products by terms whose results are rounded to 16 bits: error 2^-16 */

typedef carry_delta_unit unit;

/* Describes rows of a tensor that are read or written soon, restricted to this panel's columns. The current product
   prefetches them. They are short and a page apart, so hardware prefetchers do not find them, and a store to memory
   outside of the caches has to wait. */
static carry_rows_ahead ahead(const unit *u, const carry_tensor *x, int64_t head, int64_t from, int64_t to,
                              int64_t first, int64_t columns) {
    int64_t size = (int64_t)carry_dtype_size(x->dtype);
    to = to < u->sequence->length ? to : u->sequence->length;
    if (to <= from) {
        return (carry_rows_ahead){0};
    }
    const char *row = carry_delta_place(x, u->sequence->batch, u->sequence->start + from, head);
    return (carry_rows_ahead){
        .at = row + first * size, .row = x->stride[1] * size, .rows = to - from, .size = columns * size};
}

/* Describes columns of q or k of the next chunk. Every panel of every value head prefetches a part of them. */
static carry_rows_ahead ahead_keys(const unit *u, const carry_tensor *x, int64_t t, int64_t tokens) {
    int64_t K = u->run->plan->problem.key;
    int64_t whole = u->run->plan->group * u->whole;
    int64_t done = u->member * u->whole + u->at;
    int64_t first = K * done / whole;
    return ahead(u, x, u->head, t + tokens, t + 2 * tokens, first, K * (done + u->columns) / whole - first);
}

/* c[t] = by[t] (a[t] S) + base_by[t] base[t] for all tokens t; `base` may be NULL. If the scratch has bf16 terms
   (exact), the packed rows `panels` replace `a`, and the factors `norm_by` replace `by`. */
static void state_product(const unit *u, int64_t tokens, const float *a, const uint16_t *panels, int order,
                          const float *S, const float *by, const float *norm_by, const float *base, ptrdiff_t base_row,
                          const float *base_by, float *c, carry_rows_ahead soon) {
    int64_t K = u->run->plan->problem.key;
    if (u->scratch->exact) {
        carry_delta_terms_multiply(u->run->plan, carry_delta_rows_panels(panels), u->scratch->state,
                                   (carry_bf16_terms){.m = tokens,
                                                      .n = u->columns,
                                                      .k = K,
                                                      .order = order,
                                                      .by = norm_by,
                                                      .base = base,
                                                      .base_by = base_by,
                                                      .c = c,
                                                      .base_row = base_row,
                                                      .c_row = u->columns,
                                                      .ahead = soon});
        return;
    }
    u->run->plan->kernels->product(&(carry_product){.m = tokens,
                                                    .n = u->columns,
                                                    .k = K,
                                                    .count = 1,
                                                    .a = a,
                                                    .b = S,
                                                    .base = base,
                                                    .c = c,
                                                    .a_row = K,
                                                    .b_row = u->columns,
                                                    .base_row = base_row,
                                                    .c_row = u->columns,
                                                    .by = by,
                                                    .base_by = base_by,
                                                    .ahead = soon});
}

/* Computes R into X: beta times the difference between v and the value that the state already holds for k. */
static void residual(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    carry_delta_scratch *s = u->scratch;
    CARRY_SPAN(plan->ctx, "delta", "residual");
    const carry_tensor *v = run->in.v;
    int64_t first = u->sequence->start + t;
    const float *from = s->O; /* O is free here */
    const float *beta = s->heads.beta;
    ptrdiff_t row = u->values;
    if (u->values > 0 && v->dtype == CARRY_F32) {
        from = (const float *)carry_delta_place(v, u->sequence->batch, first, value_head) + u->first;
        row = v->stride[1];
    } else if (u->values > 0) {
        carry_delta_load(plan, s->O, v, u->sequence->batch, first, value_head, tokens, u->first, u->values);
    }
    if (u->values < u->columns) { /* columns of M have no v */
        plan->kernels->rows->scale_rows(s->X, u->columns, from, row, beta, tokens, u->values);
        for (int64_t i = 0; i < tokens; i++) {
            memset(s->X + i * u->columns + u->values, 0, (size_t)(u->columns - u->values) * sizeof *s->X);
        }
        from = s->X;
        row = u->columns;
        beta = NULL;
    }
    carry_rows_ahead soon = {0};
    if (run->o != NULL) {
        soon = ahead(u, run->o, value_head, t, t + tokens, u->first, u->columns);
    }
    state_product(u, tokens, s->faded.k, s->rows.panels.k, 2, S, s->faded.by_k, s->norm_k, from, row, beta, s->X, soon);
}

/* to = O + P V' by terms. Returns false and does nothing if a number is not finite. */
static bool output_by_terms(const unit *u, int64_t t, int64_t tokens, int64_t value_head, float *to, ptrdiff_t row) {
    const carry_delta_plan *plan = u->run->plan;
    carry_delta_scratch *s = u->scratch;
    if (!carry_delta_terms_a(plan, &s->triangle,
                             (carry_bf16_split){.lines = tokens,
                                                .k = tokens,
                                                .from = s->heads.P,
                                                .row = plan->chunk,
                                                .triangle = CARRY_BF16_LOWER,
                                                .terms = 2}) ||
        !carry_delta_terms_b(
            plan, &s->values,
            (carry_bf16_split){
                .lines = u->columns, .k = tokens, .from = s->X, .row = u->columns, .across = true, .terms = 2})) {
        return false;
    }
    carry_delta_terms_multiply(plan, s->triangle, s->values,
                               (carry_bf16_terms){.m = tokens,
                                                  .n = u->columns,
                                                  .k = tokens,
                                                  .order = OUTPUT_ORDER,
                                                  .triangle = CARRY_BF16_LOWER,
                                                  .base = s->O,
                                                  .c = to,
                                                  .base_row = u->columns,
                                                  .c_row = row,
                                                  .ahead = ahead(u, u->run->in.v, value_head, t + tokens,
                                                                 t + 2 * tokens, u->first, u->columns)});
    return true;
}

/* O = scale fade Q S + P V'. The second product goes by blocks of rows since P is a triangle. f32 outputs are written
   directly to o. */
static void output(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S) {
    const carry_delta_plan *plan = u->run->plan;
    const carry_tensor *o = u->run->o;
    carry_delta_scratch *s = u->scratch;
    CARRY_SPAN(plan->ctx, "delta", "output");
    state_product(u, tokens, s->faded.q, s->rows.panels.q, OUTPUT_ORDER, S, s->faded.by_q, s->norm_q, NULL, 0, NULL,
                  s->O, ahead_keys(u, u->run->in.q, t, tokens));
    bool direct = o->dtype == CARRY_F32;
    float *to = s->made;
    ptrdiff_t row = u->columns;
    if (direct) {
        to = (float *)carry_delta_place(o, u->sequence->batch, u->sequence->start + t, value_head) + u->first;
        row = o->stride[1];
    }
    bool done = s->exact && output_by_terms(u, t, tokens, value_head, to, row);
    for (int64_t i = 0; !done && i < tokens; i += CARRY_DELTA_BLOCK) {
        int64_t m = tokens - i < CARRY_DELTA_BLOCK ? tokens - i : CARRY_DELTA_BLOCK;
        carry_triangle_product(plan->kernels,
                               &(carry_product){.m = m,
                                                .n = u->columns,
                                                .k = i + m,
                                                .count = 1,
                                                .a = s->heads.P + i * plan->chunk,
                                                .b = s->X,
                                                .base = s->O + i * u->columns,
                                                .c = to + i * row,
                                                .a_row = plan->chunk,
                                                .b_row = u->columns,
                                                .base_row = u->columns,
                                                .c_row = row,
                                                .ahead = ahead(u, u->run->in.v, value_head, t + tokens + i,
                                                               t + tokens + i + m, u->first, u->columns)},
                               s->X, i, false);
    }
    if (!direct) {
        carry_delta_store(plan, o, s->made, u->sequence->batch, u->sequence->start + t, value_head, tokens, u->first,
                          u->columns);
    }
}

/* Loads q and k in f32, which a product in f32 needs. */
static void rows_in_f32(const unit *u, int64_t t) {
    carry_delta_rows_in_f32(u->run->plan, &u->run->in, u->sequence->batch, u->sequence->start + t, u->head,
                            &u->scratch->rows);
}

/* S <- e^{G[C]} S + (left K)^T V'. With one gate for each token, V' is multiplied by left in place. */
static void advance(const unit *u, int64_t t, int64_t tokens, float *S) {
    const carry_delta_plan *plan = u->run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "state");
    const float *end = plan->problem.gate != CARRY_DELTA_NO_GATE ? s->heads.end : NULL;
    carry_rows_ahead soon = ahead_keys(u, u->run->in.k, t, tokens);
    if (s->exact && carry_delta_terms_b(plan, &s->values,
                                        (carry_bf16_split){.lines = u->columns,
                                                           .k = tokens,
                                                           .from = s->X,
                                                           .row = u->columns,
                                                           .across = true,
                                                           .by = s->norm_v,
                                                           .terms = 3})) {
        carry_delta_terms_multiply(plan, carry_delta_rows_panels(s->rows.panels.k_across), s->values,
                                   (carry_bf16_terms){.m = K,
                                                      .n = u->columns,
                                                      .k = tokens,
                                                      .order = 2,
                                                      .base = S,
                                                      .base_by = end,
                                                      .c = S,
                                                      .base_row = u->columns,
                                                      .c_row = u->columns,
                                                      .ahead = soon});
        return;
    }
    rows_in_f32(u, t);
    if (s->faded.by_v != NULL) {
        plan->kernels->rows->scale_rows(s->X, u->columns, s->X, u->columns, s->faded.by_v, tokens, u->columns);
    }
    plan->kernels->product(&(carry_product){.m = K,
                                            .n = u->columns,
                                            .k = tokens,
                                            .count = 1,
                                            .a = s->faded.left_k,
                                            .b = s->X,
                                            .base = S,
                                            .c = S,
                                            .a_row = K,
                                            .b_row = u->columns,
                                            .base_row = u->columns,
                                            .c_row = u->columns,
                                            .a_transposed = true,
                                            .base_by = end,
                                            .ahead = soon});
}

static void keep(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S, bool values) {
    const carry_delta_plan *plan = u->run->plan;
    const carry_delta_problem *p = &plan->problem;
    if (!values) {
        float *to = carry_delta_kept_state(plan, u->run->kept, u->sequence->chunk_start + t / plan->chunk, value_head);
        for (int64_t i = 0; i < p->key; i++) {
            memcpy(to + i * p->value + u->first, S + i * u->columns, (size_t)u->columns * sizeof *S);
        }
        return;
    }
    for (int64_t i = 0; i < tokens; i++) {
        int64_t token = u->sequence->batch * p->tokens + u->sequence->start + t + i;
        memcpy(carry_delta_kept_values(plan, u->run->kept, token, value_head) + u->first,
               u->scratch->X + i * u->columns, (size_t)u->columns * sizeof *S);
    }
}

/* Computes the decays of one value head. With one gate for each token, they multiply the rows of the results, which
   saves writing the rows of the chunk three times. With a key gate there is one number for each channel, and the rows
   are multiplied before the products. */
static void weigh(const carry_delta_run *run, carry_delta_scratch *s, int64_t tokens) {
    const carry_delta_plan *plan = run->plan;
    if (plan->problem.gate == CARRY_DELTA_KEY_GATE) {
        carry_delta_scale_rows(plan, s->fade_k, s->rows.k, s->heads.fade, s->heads.beta, -1.0f, tokens);
        carry_delta_scale_rows(plan, s->left_k, s->rows.k, s->heads.left, NULL, 1.0f, tokens);
        if (run->o != NULL) {
            carry_delta_scale_rows(plan, s->fade_q, s->rows.q, s->heads.fade, NULL, plan->scale, tokens);
        }
        s->faded = (carry_delta_faded){.k = s->fade_k, .q = s->fade_q, .left_k = s->left_k};
        return;
    }
    s->faded = (carry_delta_faded){.k = s->rows.k,
                                   .q = s->rows.q,
                                   .left_k = s->rows.k,
                                   .by_k = s->by_k,
                                   .by_q = s->by_q,
                                   .by_v = plan->problem.gate != CARRY_DELTA_NO_GATE ? s->heads.left : NULL};
    for (int64_t i = 0; i < tokens; i++) {
        s->by_k[i] = -s->heads.beta[i] * s->heads.fade[i];
        s->by_q[i] = plan->scale * s->heads.fade[i];
    }
    for (int64_t i = 0; s->rows.exact && i < tokens; i++) {
        s->norm_k[i] = s->by_k[i] * s->rows.k_norm[i];
        s->norm_v[i] = s->heads.left[i] * s->rows.k_norm[i];
        s->norm_q[i] = s->rows.with_q ? s->by_q[i] * s->rows.q_norm[i] : 0.0f;
    }
}

/* Splits the state that enters into terms. */
static bool split_state(const unit *u, const float *S) {
    const carry_delta_plan *plan = u->run->plan;
    CARRY_SPAN(plan->ctx, "delta", "split");
    return carry_delta_terms_b(
        plan, &u->scratch->state,
        (carry_bf16_split){
            .lines = u->columns, .k = plan->problem.key, .from = S, .row = u->columns, .across = true, .terms = 3});
}

/* Processes a chunk for some columns of a value head. */
static void panel_chunk(const unit *u, int64_t t, int64_t tokens) {
    const carry_delta_run *run = u->run;
    int64_t value_head = u->head * run->plan->group + u->member;
    float *S = carry_delta_state_of(u, u->member);
    if (run->kept != NULL) {
        keep(u, t, tokens, value_head, S, false);
    }
    u->scratch->exact = u->scratch->rows.exact && split_state(u, S);
    if (!u->scratch->exact) {
        rows_in_f32(u, t);
    }
    residual(u, t, tokens, value_head, S);
    carry_delta_solve(run->plan, &u->scratch->heads, tokens, u->scratch->X, u->columns, u->scratch->beside);
    if (run->kept != NULL) {
        keep(u, t, tokens, value_head, S, true);
    }
    if (run->o != NULL) {
        output(u, t, tokens, value_head, S);
    }
    advance(u, t, tokens, S);
}

void carry_delta_forward_chunk(const carry_delta_unit *u, int64_t t, int64_t end) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t tokens = end - t;
    int64_t first = u->sequence->start + t;
    s->rows.with_q = run->o != NULL;
    s->rows.with_q_across = false;
    s->rows.norms_suffice = true;
    carry_delta_rows_load(plan, &run->in, u->sequence->batch, first, u->head, tokens, &s->rows);
    for (int64_t member = 0; member < plan->group; member++) {
        carry_delta_head_load(plan, &run->in, u->sequence->batch, first, u->head * plan->group + member, &s->rows,
                              &s->heads);
        weigh(run, s, tokens);
        for (int64_t at = 0; at < u->columns; at += u->panel) {
            unit part = carry_delta_panel_of(u, at);
            part.member = member;
            panel_chunk(&part, t, tokens);
        }
    }
}
