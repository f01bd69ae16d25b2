/* One chunk of the forward pass, for all value heads of a group. */
#include "delta/forward.h"

#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "ops/product/triangle.h"

typedef carry_delta_unit unit;

#define LINE 64 /* bytes that a cache fetches at once */
#define STEP 32 /* rows of a product between which rows of the next chunk are asked for */

static void product(const carry_delta_plan *plan, int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                    const float *b, const float *base, float *c) {
    plan->kernels->product(&(carry_product){.m = m,
                                            .n = n,
                                            .k = k,
                                            .count = 1,
                                            .a = a,
                                            .b = b,
                                            .base = base,
                                            .c = c,
                                            .a_row = a_row,
                                            .b_row = n,
                                            .base_row = n,
                                            .c_row = n});
}

/* Rows from..to of the next chunk, some columns of them: asked for between products, so that no load waits for them.
   They are short and a page apart, which processors do not foresee. */
static void fetch(const unit *u, const carry_tensor *x, int64_t head, int64_t from, int64_t to, int64_t first,
                  int64_t columns) {
    int64_t size = (int64_t)carry_dtype_size(x->dtype);
    to = to < u->sequence->length ? to : u->sequence->length;
    for (int64_t t = from; t < to; t++) {
        const char *row = (const char *)carry_delta_place(x, u->sequence->batch, u->sequence->start + t, head);
        for (int64_t at = first * size; at < (first + columns) * size; at += LINE) {
            __builtin_prefetch(row + at, 0, 2);
        }
    }
}

/* Rows of the output that are written soon: a store to memory that no cache holds waits for it. */
static void fetch_output(const unit *u, int64_t from, int64_t to) {
    const carry_tensor *o = u->run->o;
    int64_t head = u->head * u->run->plan->group + u->member;
    int64_t size = (int64_t)carry_dtype_size(o->dtype);
    for (int64_t t = from; t < to; t++) {
        const char *row = (const char *)carry_delta_place(o, u->sequence->batch, u->sequence->start + t, head);
        for (int64_t at = u->first * size; at < (u->first + u->columns) * size; at += LINE) {
            __builtin_prefetch(row + at, 1, 2);
        }
    }
}

/* c = a S + base of all tokens, some at a time, and with them this panel's share of the next chunk's rows. */
static void state_product(const unit *u, int64_t t, int64_t tokens, const float *a, const float *S, const float *base,
                          float *c, const carry_tensor *next) {
    int64_t K = u->run->plan->problem.key;
    int64_t whole = u->run->plan->group * u->whole;
    int64_t done = u->member * u->whole + u->at;
    for (int64_t i = 0; i < tokens; i += STEP) {
        int64_t m = tokens - i < STEP ? tokens - i : STEP;
        fetch(u, next, u->head, t + tokens + i + m * done / whole, t + tokens + i + m * (done + u->columns) / whole, 0,
              K);
        if (u->run->o != NULL && base != NULL) {
            fetch_output(u, t + i, t + i + m);
        }
        product(u->run->plan, m, u->columns, K, a + i * K, K, S, base != NULL ? base + i * u->columns : NULL,
                c + i * u->columns);
    }
}

/* R into X: beta v, less what the state already holds for k. */
static void residual(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    carry_delta_scratch *s = u->scratch;
    CARRY_SPAN(plan->ctx, "delta", "residual");
    const carry_tensor *v = run->in.v;
    int64_t first = u->sequence->start + t;
    const float *from = s->O; /* it is free */
    ptrdiff_t row = u->values;
    if (u->values > 0 && v->dtype == CARRY_F32) {
        from = (const float *)carry_delta_place(v, u->sequence->batch, first, value_head) + u->first;
        row = v->stride[1];
    } else if (u->values > 0) {
        carry_delta_load(plan, s->O, v, u->sequence->batch, first, value_head, tokens, u->first, u->values);
    }
    plan->kernels->rows->scale_rows(s->X, u->columns, from, row, s->heads.beta, tokens, u->values);
    for (int64_t i = 0; i < tokens && u->values < u->columns; i++) {
        memset(s->X + i * u->columns + u->values, 0, (size_t)(u->columns - u->values) * sizeof *s->X);
    }
    state_product(u, t, tokens, s->fade_k, S, s->X, s->X, run->in.k);
}

/* O = scale fade Q S + P V', the second by blocks of rows since P is a triangle; in f32 straight to where it goes. */
static void output(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S) {
    const carry_delta_plan *plan = u->run->plan;
    const carry_tensor *o = u->run->o;
    carry_delta_scratch *s = u->scratch;
    CARRY_SPAN(plan->ctx, "delta", "output");
    state_product(u, t, tokens, s->fade_q, S, NULL, s->O, u->run->in.q);
    bool direct = o->dtype == CARRY_F32;
    float *to = s->made;
    ptrdiff_t row = u->columns;
    if (direct) {
        to = (float *)carry_delta_place(o, u->sequence->batch, u->sequence->start + t, value_head) + u->first;
        row = o->stride[1];
    }
    for (int64_t i = 0; i < tokens; i += CARRY_DELTA_BLOCK) {
        int64_t m = tokens - i < CARRY_DELTA_BLOCK ? tokens - i : CARRY_DELTA_BLOCK;
        fetch(u, u->run->in.v, value_head, t + tokens + i, t + tokens + i + m, u->first, u->columns);
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
                                                .c_row = row},
                               s->X, i, false);
    }
    if (!direct) {
        carry_delta_store(plan, o, s->made, u->sequence->batch, u->sequence->start + t, value_head, tokens, u->first,
                          u->columns);
    }
}

/* S <- e^{G[C]} S + (left K)^T V'. */
static void advance(const unit *u, int64_t tokens, float *S) {
    const carry_delta_plan *plan = u->run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "state");
    if (plan->problem.gate != CARRY_DELTA_NO_GATE) {
        plan->kernels->rows->scale_rows(S, u->columns, S, u->columns, s->heads.end, K, u->columns);
    }
    plan->kernels->product(&(carry_product){.m = K,
                                            .n = u->columns,
                                            .k = tokens,
                                            .count = 1,
                                            .a = s->left_k,
                                            .b = s->X,
                                            .base = S,
                                            .c = S,
                                            .a_row = K,
                                            .b_row = u->columns,
                                            .base_row = u->columns,
                                            .c_row = u->columns,
                                            .a_transposed = true});
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

/* Rows of a chunk times the decays of one value head. */
static void weigh(const carry_delta_run *run, carry_delta_scratch *s, int64_t tokens) {
    const carry_delta_plan *plan = run->plan;
    carry_delta_scale_rows(plan, s->fade_k, s->rows.k, s->heads.fade, s->heads.beta, -1.0f, tokens);
    carry_delta_scale_rows(plan, s->left_k, s->rows.k, s->heads.left, NULL, 1.0f, tokens);
    if (run->o != NULL) {
        carry_delta_scale_rows(plan, s->fade_q, s->rows.q, s->heads.fade, NULL, plan->scale, tokens);
    }
}

/* A chunk of some columns of a value head. */
static void panel_chunk(const unit *u, int64_t t, int64_t tokens) {
    const carry_delta_run *run = u->run;
    int64_t value_head = u->head * run->plan->group + u->member;
    float *S = carry_delta_state_of(u, u->member);
    if (run->kept != NULL) {
        keep(u, t, tokens, value_head, S, false);
    }
    residual(u, t, tokens, value_head, S);
    carry_delta_solve(run->plan, &u->scratch->heads, tokens, u->scratch->X, u->columns, u->scratch->beside);
    if (run->kept != NULL) {
        keep(u, t, tokens, value_head, S, true);
    }
    if (run->o != NULL) {
        output(u, t, tokens, value_head, S);
    }
    advance(u, tokens, S);
}

void carry_delta_forward_chunk(const carry_delta_unit *u, int64_t t, int64_t end) {
    const carry_delta_run *run = u->run;
    const carry_delta_plan *plan = run->plan;
    carry_delta_scratch *s = u->scratch;
    int64_t tokens = end - t;
    int64_t first = u->sequence->start + t;
    s->rows.with_q = run->o != NULL;
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
