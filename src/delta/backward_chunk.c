/* One chunk of the backward pass: exact reverse mode of the chunk form.

   dS is the gradient of the state that leaves the chunk, S the state that entered it, and V' was kept by the forward
   pass:

       dV' = P^T dO + (left K) dS            dR = (I + A)^-T dV'           dV = beta dR
       d(-A) = dR V'^T                       dP = dO V'^T
       dS <- e^{G[C]} dS + (scale fade Q)^T dO - (beta fade K)^T dR

   The gradients of q, k, beta and the gate through the state come from dR S^T, dO S^T and V' dS^T, those inside the
   chunk from d(-A) and dP. The gradient of the gate is a sum of gradient times value, since e^x is its own
   derivative. */
#include "delta/backward.h"

#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "ops/product/triangle.h"

#define BLOCK CARRY_DELTA_BLOCK

typedef carry_delta_back_unit unit;

static void product(const carry_delta_plan *plan, carry_product p) {
    p.count = 1;
    plan->kernels->product(&p);
}

/* Computes a product in which the columns of a from `first` on form a square lower triangle, or an upper one if a is
   transposed. finite: b is known to be finite. */
static void triangle_product(const carry_delta_plan *plan, carry_product p, float *b, int64_t first, bool finite) {
    p.b = b;
    if (finite) {
        product(plan, p);
        return;
    }
    p.count = 1;
    carry_triangle_product(plan->kernels, &p, b, first, p.a_transposed);
}

/* Loads the inputs and the kept data for a chunk of one value head. */
static void load_chunk(const unit *u, int64_t t, int64_t tokens, int64_t value_head) {
    const carry_delta_plan *plan = u->back->plan;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(plan->ctx, "delta", "backward load");
    carry_delta_back_scratch *s = u->s;
    int64_t first = u->sequence->start + t;
    float *dO = s->gradients + tokens * p->value;
    carry_delta_head_load(plan, &u->back->in, u->sequence->batch, first, value_head, &s->rows, &s->heads);
    carry_delta_load(plan, dO, &u->back->args->d_o, u->sequence->batch, first, value_head, tokens, 0, p->value);
    s->exact = carry_delta_back_terms_load(u, t, tokens, value_head);
    if (u->back->states_only) {
        return;
    }
    carry_delta_load(plan, s->v, u->back->in.v, u->sequence->batch, first, value_head, tokens, 0, p->value);
    for (int64_t i = 0; i < tokens; i++) {
        int64_t token = u->sequence->batch * p->tokens + first + i;
        memcpy(s->values + i * p->value, carry_delta_kept_values(plan, u->back->kept, token, value_head),
               (size_t)p->value * sizeof(float));
    }
}

/* dV' = P^T dO + (left K) dS, by blocks since P is a triangle, then solves for dR. */
static void solve_back(const unit *u, int64_t tokens, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    float *dR = s->gradients;
    float *dO = dR + tokens * V;
    CARRY_SPAN(plan->ctx, "delta", "backward solve");
    bool done = carry_delta_back_terms_solve(u, tokens, dS);
    if (!done) {
        carry_delta_scale_rows(plan, s->left_k, s->rows.k, s->heads.left, NULL, 1.0f, tokens);
        product(plan,
                (carry_product){
                    .m = tokens, .n = V, .k = K, .a = s->left_k, .b = dS, .c = dR, .a_row = K, .b_row = V, .c_row = V});
    }
    for (int64_t j = 0; !done && j < tokens; j += BLOCK) {
        int64_t m = tokens - j < BLOCK ? tokens - j : BLOCK;
        triangle_product(plan,
                         (carry_product){.m = m,
                                         .n = V,
                                         .k = tokens - j,
                                         .a = s->heads.P + j * plan->chunk + j,
                                         .base = dR + j * V,
                                         .c = dR + j * V,
                                         .a_row = plan->chunk,
                                         .b_row = V,
                                         .base_row = V,
                                         .c_row = V,
                                         .a_transposed = true},
                         dO + j * V, 0, false);
    }
    carry_delta_solve_transposed(plan, &s->heads, tokens, dR, V, s->beside);
}

/* Computes the lower triangles of dR V'^T and dO V'^T. */
static void multiply_values(const unit *u, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t V = plan->problem.value;
    for (int64_t i = 0; i < 2 * tokens; i += tokens) {
        for (int64_t j = 0; j < tokens; j += BLOCK) {
            int64_t n = tokens - j < BLOCK ? tokens - j : BLOCK;
            product(plan, (carry_product){.m = tokens - j,
                                          .n = n,
                                          .k = V,
                                          .a = s->gradients + (i + j) * V,
                                          .b = s->values + j * V,
                                          .c = s->by_values + (i + j) * plan->chunk + j,
                                          .a_row = V,
                                          .b_row = V,
                                          .c_row = plan->chunk,
                                          .b_transposed = true});
        }
    }
}

/* Computes the five products with dR and dO, which lie one below the other. */
static void spread_gradients(const unit *u, int64_t tokens, const float *S, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    CARRY_SPAN(plan->ctx, "delta", "backward products");
    int done = carry_delta_back_terms_spread(u, tokens, S, dS);
    if ((done & CARRY_DELTA_BY_VALUES) == 0) {
        multiply_values(u, tokens);
    }
    if ((done & CARRY_DELTA_BY_STATE) == 0) {
        product(plan, (carry_product){.m = 2 * tokens,
                                      .n = K,
                                      .k = V,
                                      .a = s->gradients,
                                      .b = S,
                                      .c = s->by_state,
                                      .a_row = V,
                                      .b_row = V,
                                      .c_row = K,
                                      .b_transposed = true});
    }
    if ((done & CARRY_DELTA_BY_END) == 0) {
        product(plan, (carry_product){.m = tokens,
                                      .n = K,
                                      .k = V,
                                      .a = s->values,
                                      .b = dS,
                                      .c = s->by_end,
                                      .a_row = V,
                                      .b_row = V,
                                      .c_row = K,
                                      .b_transposed = true});
    }
}

/* Computes dS of the state that entered. */
static void pass_on(const unit *u, int64_t tokens, float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    CARRY_SPAN(plan->ctx, "delta", "backward state");
    if (carry_delta_back_terms_pass_on(u, tokens, dS)) {
        return;
    }
    carry_delta_scale_rows(plan, s->weighed, s->rows.k, s->heads.fade, s->heads.beta, -1.0f, tokens);
    carry_delta_scale_rows(plan, s->weighed + tokens * K, s->rows.q, s->heads.fade, NULL, plan->scale, tokens);
    for (int64_t i = 0; i < K; i++) {
        plan->kernels->rows->scale(dS + i * V, s->heads.end[i], V);
    }
    product(plan, (carry_product){.m = K,
                                  .n = V,
                                  .k = 2 * tokens,
                                  .a = s->weighed,
                                  .b = s->gradients,
                                  .base = dS,
                                  .c = dS,
                                  .a_row = K,
                                  .b_row = V,
                                  .base_row = V,
                                  .c_row = V,
                                  .a_transposed = true});
}

/* The parts of the gradients of q, k, beta and G that come through the states.

   dG is double. Every pair of tokens i > j adds to dG[i] and subtracts the same number from dG[j], and dg[t] is the sum
   of dG from t on, so pairs with both tokens at or after t cancel. In f32 their rounding errors would remain, and these
   terms are up to 100 times larger than dg and grow with the chunk (docs/attempts/hardening.md). In double the error is
   1e-16 of them. */
static void through_states(const unit *u, int64_t tokens, const float *S, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    CARRY_SPAN(plan->ctx, "delta", "through states");
    if (s->exact) { /* rounds differently from the code below, which keeps the results of f32 problems bit for bit */
        const double at_last = plan->kernels->rows->delta_states(&(carry_delta_states){.tokens = tokens,
                                                                                       .key = K,
                                                                                       .value = V,
                                                                                       .on_R = s->by_state,
                                                                                       .on_O = s->by_state + tokens * K,
                                                                                       .on_end = s->by_end,
                                                                                       .q = s->rows.q,
                                                                                       .k = s->rows.k,
                                                                                       .dR = s->gradients,
                                                                                       .v = s->v,
                                                                                       .S = S,
                                                                                       .dS = dS,
                                                                                       .fade = s->heads.fade,
                                                                                       .left = s->heads.left,
                                                                                       .beta = s->heads.beta,
                                                                                       .scale = plan->scale,
                                                                                       .end = s->heads.end[0],
                                                                                       .dq = s->dq,
                                                                                       .dk = s->dk,
                                                                                       .dbeta = s->dbeta,
                                                                                       .dG = s->dG});
        s->dG[tokens - 1] += at_last;
        return;
    }
    double at_end = 0.0;
    for (int64_t i = 0; i < K; i++) {
        at_end += (double)(s->heads.end[0] * carry_delta_dot(S + i * V, dS + i * V, V));
    }
    for (int64_t i = 0; i < tokens; i++) {
        const float *on_R = s->by_state + i * K;
        const float *on_O = s->by_state + (tokens + i) * K;
        const float *on_end = s->by_end + i * K;
        const float *q = s->rows.q + i * K;
        const float *k = s->rows.k + i * K;
        float fade = s->heads.fade[i];
        float beta = s->heads.beta[i];
        float left = s->heads.left[i];
        float seen = fade * carry_delta_dot(k, on_R, K);
        float kept = left * carry_delta_dot(k, on_end, K);
        s->dbeta[i] = carry_delta_dot(s->gradients + i * V, s->v + i * V, V) - seen;
        /* The last token's own term has the factor e^{G[C] - G[C]} = 1. If it were subtracted and added again, rounding
           would lose the rest of the sum at deep decay. */
        float beyond = i < tokens - 1 ? kept : 0.0f;
        s->dG[i] = (double)(plan->scale * fade * carry_delta_dot(q, on_O, K) - beta * seen) - (double)beyond;
        at_end += (double)beyond;
        for (int64_t j = 0; j < K; j++) {
            s->dq[i * K + j] += plan->scale * fade * on_O[j];
            s->dk[i * K + j] += left * on_end[j] - beta * fade * on_R[j];
        }
    }
    s->dG[tokens - 1] += at_end;
}

/* The parts of the gradients of beta, G, kk and qk that come from inside the chunk. */
static void through_triangles(const unit *u, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t C = plan->chunk;
    bool gated = plan->problem.gate != CARRY_DELTA_NO_GATE;
    CARRY_SPAN(plan->ctx, "delta", "through triangles");
    if (s->exact) { /* without a gate, all decays D are 1 */
        plan->kernels->rows->delta_triangles(&(carry_delta_triangles){.tokens = tokens,
                                                                      .stride = C,
                                                                      .dnA = s->by_values,
                                                                      .dP = s->by_values + tokens * C,
                                                                      .nA = s->heads.nA,
                                                                      .P = s->heads.P,
                                                                      .D = s->heads.D,
                                                                      .kk = s->rows.kk,
                                                                      .beta = s->heads.beta,
                                                                      .scale = plan->scale,
                                                                      .on_kk = s->on_kk,
                                                                      .on_qk = s->on_qk,
                                                                      .dG = s->dG,
                                                                      .dbeta = s->dbeta});
        return;
    }
    for (int64_t i = 0; i < tokens; i++) {
        const float *dnA = s->by_values + i * C;
        const float *dP = s->by_values + (tokens + i) * C;
        const float *nA = s->heads.nA + i * C;
        const float *P = s->heads.P + i * C;
        const float *D = s->heads.D + i * C;
        const float *kk = s->rows.kk + i * C;
        float *on_kk = s->on_kk + i * C;
        float *on_qk = s->on_qk + i * C;
        double row = 0.0;
        float on_beta = 0.0f;
        for (int64_t j = 0; j < i; j++) {
            float decay = gated ? D[j] : 1.0f;
            double both = (double)(dP[j] * P[j] + dnA[j] * nA[j]);
            row += both;
            s->dG[j] -= both;
            on_beta -= dnA[j] * decay * kk[j];
            on_kk[j] -= dnA[j] * s->heads.beta[i] * decay;
            on_qk[j] += dP[j] * plan->scale * decay;
        }
        on_qk[i] += dP[i] * plan->scale;
        s->dG[i] += row;
        s->dbeta[i] += on_beta;
    }
}

static float sigmoid(float x) {
    return x >= 0.0f ? 1.0f / (1.0f + expf(-x)) : expf(x) / (1.0f + expf(x));
}

/* Stores the gradients of beta and the gate inputs, from those of the values used. */
static void store_beta(const unit *u, int64_t t, int64_t tokens, int64_t value_head) {
    const carry_delta_problem *p = &u->back->plan->problem;
    carry_delta_back_scratch *s = u->s;
    float factor = p->beta_factor != 0.0f ? p->beta_factor : 1.0f;
    for (int64_t i = 0; i < tokens; i++) {
        float dbeta = s->dbeta[i];
        if (p->beta_sigmoid) {
            dbeta *= s->heads.beta[i] * (1.0f - s->heads.beta[i] / factor);
        }
        carry_delta_scalar_store(&u->back->args->dbeta, u->sequence->batch, u->sequence->start + t + i, value_head,
                                 dbeta);
    }
}

static void store_gate(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S, const float *dS) {
    const carry_delta_back *back = u->back;
    const carry_delta_problem *p = &back->plan->problem;
    carry_delta_back_scratch *s = u->s;
    int64_t first = u->sequence->start + t;
    double dg = 0.0;
    const int64_t bad = p->gate != CARRY_DELTA_NO_GATE ? carry_delta_back_first_bad(u, tokens, S) : -1;
    for (int64_t i = tokens - 1; i >= 0; i--) {
        dg += s->dG[i]; /* G[i] holds the gates of all tokens up to i */
        if (i <= bad) {
            carry_delta_back_gate_between(u, i, tokens, S, dS, &dg);
        }
        bool erases = expf(s->heads.g[i]) == 0.0f; /* no token before i affects i or later tokens */
        dg = erases ? 0.0 : dg;
        double given = dg;
        if (p->gate_inside) {
            float rate = -expf(((const float *)back->in.A_log->data)[value_head]);
            float bias = ((const float *)back->in.dt_bias->data)[value_head];
            float a = carry_delta_scalar(back->in.g, u->sequence->batch, first + i, value_head);
            given = erases ? 0.0 : dg * (double)(rate * sigmoid(a + bias));
            int64_t at = (u->sequence - back->sequences) * p->value_heads + value_head;
            back->on_A_log[at] += erases ? 0.0 : dg * (double)s->heads.g[i];
            back->on_dt_bias[at] += given;
        }
        if (back->args->dg.data != NULL) {
            carry_delta_scalar_store(&back->args->dg, u->sequence->batch, first + i, value_head, (float)given);
        }
    }
}

/* Stores the gradients of q, k, beta and the gate. */
static void store_gradients(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S,
                            const float *dS) {
    if (u->back->plan->problem.gate == CARRY_DELTA_KEY_GATE) {
        carry_delta_back_keys_states(u, tokens, S, dS);
        carry_delta_back_keys_triangles(u, tokens);
        carry_delta_back_keys_store(u, t, tokens, value_head, S, dS);
    } else {
        through_states(u, tokens, S, dS);
        through_triangles(u, tokens);
        store_gate(u, t, tokens, value_head, S, dS);
    }
    store_beta(u, t, tokens, value_head);
}

static void value_head_chunk(const unit *u, int64_t t, int64_t tokens, int64_t member) {
    const carry_delta_plan *plan = u->back->plan;
    const carry_delta_problem *p = &plan->problem;
    carry_delta_back_scratch *s = u->s;
    int64_t value_head = u->head * plan->group + member;
    float *dS = s->dS + member * p->key * p->value;
    load_chunk(u, t, tokens, value_head);
    solve_back(u, tokens, dS);
    if (u->back->states_only) {
        pass_on(u, tokens, dS);
        return;
    }
    const float *S =
        carry_delta_kept_state(plan, u->back->kept, u->sequence->chunk_start + t / plan->chunk, value_head);
    spread_gradients(u, tokens, S, dS);
    store_gradients(u, t, tokens, value_head, S, dS);
    pass_on(u, tokens, dS);
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t j = 0; j < p->value; j++) {
            s->v[i * p->value + j] = s->heads.beta[i] * s->gradients[i * p->value + j];
        }
    }
    carry_delta_store(plan, &u->back->args->dv, s->v, u->sequence->batch, u->sequence->start + t, value_head, tokens, 0,
                      p->value);
}

/* dx = (dy - y (y . dy)) / norm, for y = x / norm. */
static void through_norm(float *dy, const float *y, const float *inverse, int64_t tokens, int64_t size) {
    for (int64_t i = 0; i < tokens; i++) {
        float along = carry_delta_dot(y + i * size, dy + i * size, size);
        for (int64_t j = 0; j < size; j++) {
            dy[i * size + j] = inverse[i] * (dy[i * size + j] - along * y[i * size + j]);
        }
    }
}

/* Stores dq and dk. kk and qk belong to the whole group, so their gradients are added to q and k once. */
static void store_rows(const unit *u, int64_t t, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "backward rows");
    bool finite = s->rows.exact || (carry_all_finite(s->rows.k, tokens * K) && carry_all_finite(s->rows.q, tokens * K));
    bool shared = plan->problem.gate != CARRY_DELTA_KEY_GATE && !carry_delta_back_terms_rows(u, t, tokens);
    for (int64_t i = 0; shared && i < tokens;
         i += BLOCK) { /* on_qk and on_kk are lower triangles: row i's block ends at i + 16 */
        int64_t m = tokens - i < BLOCK ? tokens - i : BLOCK;
        carry_product p = {.m = m, .n = K, .a_row = plan->chunk, .b_row = K, .base_row = K, .c_row = K};
        p.k = i + m;
        p.a = s->on_qk + i * plan->chunk;
        p.base = p.c = s->dq + i * K;
        triangle_product(plan, p, s->rows.k, i, finite);
        p.a = s->on_kk + i * plan->chunk;
        p.base = p.c = s->dk + i * K;
        triangle_product(plan, p, s->rows.k, i, finite);
        p.k = tokens - i;
        p.a_transposed = true;
        p.a = s->on_qk + i * plan->chunk + i;
        triangle_product(plan, p, s->rows.q + i * K, 0, finite);
        p.a = s->on_kk + i * plan->chunk + i;
        triangle_product(plan, p, s->rows.k + i * K, 0, finite);
    }
    if (plan->problem.l2norm && s->rows.exact) {
        plan->kernels->rows->unit_rows_backward(s->dq, s->rows.q, s->rows.q_norm, tokens, K);
        plan->kernels->rows->unit_rows_backward(s->dk, s->rows.k, s->rows.k_norm, tokens, K);
    } else if (plan->problem.l2norm) {
        through_norm(s->dq, s->rows.q, s->rows.q_norm, tokens, K);
        through_norm(s->dk, s->rows.k, s->rows.k_norm, tokens, K);
    }
    int64_t first = u->sequence->start + t;
    carry_delta_store(plan, &u->back->args->dq, s->dq, u->sequence->batch, first, u->head, tokens, 0, K);
    carry_delta_store(plan, &u->back->args->dk, s->dk, u->sequence->batch, first, u->head, tokens, 0, K);
}

void carry_delta_back_chunk(const carry_delta_back_unit *u, int64_t t, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    size_t square = (size_t)(tokens * plan->chunk) * sizeof(float);
    size_t rows = (size_t)(tokens * plan->problem.key) * sizeof(float);
    s->rows.with_q = s->rows.with_q_across = true;
    s->rows.norms_suffice = false;
    carry_delta_rows_load(plan, &u->back->in, u->sequence->batch, u->sequence->start + t, u->head, tokens, &s->rows);
    if (u->back->states_only) {
        square = rows = 0;
    }
    memset(s->on_kk, 0, square);
    memset(s->on_qk, 0, square);
    memset(s->dq, 0, rows);
    memset(s->dk, 0, rows);
    for (int64_t member = 0; member < plan->group; member++) {
        value_head_chunk(u, t, tokens, member);
    }
    if (!u->back->states_only) {
        store_rows(u, t, tokens);
    }
}
