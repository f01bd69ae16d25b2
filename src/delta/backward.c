/* The backward pass: exact reverse mode of the chunk form, from the last chunk to the first. A unit of work is one head
   of one sequence, so that dq and dk sum over the group's value heads in one place and in one order.

   With dS the gradient of the state that leaves the chunk, S the state that entered it and V' as kept:

       dV' = P^T dO + (left K) dS            dR = (I + A)^-T dV'           dV = beta dR
       d(-A) = dR V'^T                       dP = dO V'^T
       dS <- e^{G[C]} dS + (scale fade Q)^T dO - (beta fade K)^T dR

   dR S^T, dO S^T and V' dS^T give what reaches q, k, beta and the gate through the state; d(-A) and dP what reaches
   them inside the chunk. The gate gets sums of gradient times value: e^x is its own derivative. */
#include "delta/backward.h"

#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "delta/forward.h"

#define BLOCK CARRY_DELTA_BLOCK

typedef struct unit {
    const carry_delta_back *back;
    carry_delta_back_scratch *s;
    const carry_delta_sequence *sequence;
    int64_t head;
    bool pauses; /* it runs in the thread that called */
} unit;

static void product(const carry_delta_plan *plan, carry_product p) {
    p.count = 1;
    plan->kernels->product(&p);
}

/* The inputs and what forward kept of one value head's chunk. */
static void load_chunk(const unit *u, int64_t t, int64_t tokens, int64_t value_head) {
    const carry_delta_plan *plan = u->back->plan;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(plan->ctx, "delta", "backward load");
    carry_delta_back_scratch *s = u->s;
    int64_t first = u->sequence->start + t;
    float *dO = s->gradients + tokens * p->value;
    carry_delta_head_load(plan, &u->back->in, u->sequence->batch, first, value_head, &s->rows, &s->heads);
    carry_delta_load(plan, dO, &u->back->args->grad_o, u->sequence->batch, first, value_head, tokens, 0, p->value);
    carry_delta_scale_rows(plan, s->weighed, s->rows.k, s->heads.fade, s->heads.beta, -1.0f, tokens);
    carry_delta_scale_rows(plan, s->weighed + tokens * p->key, s->rows.q, s->heads.fade, NULL, plan->scale, tokens);
    carry_delta_scale_rows(plan, s->left_k, s->rows.k, s->heads.left, NULL, 1.0f, tokens);
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

/* dV' = P^T dO + (left K) dS, by blocks since P is a triangle; then dR. */
static void solve_back(const unit *u, int64_t tokens, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    float *dR = s->gradients;
    const float *dO = dR + tokens * V;
    CARRY_SPAN(plan->ctx, "delta", "backward solve");
    product(plan,
            (carry_product){
                .m = tokens, .n = V, .k = K, .a = s->left_k, .b = dS, .c = dR, .a_row = K, .b_row = V, .c_row = V});
    for (int64_t j = 0; j < tokens; j += BLOCK) {
        int64_t m = tokens - j < BLOCK ? tokens - j : BLOCK;
        product(plan, (carry_product){.m = m,
                                      .n = V,
                                      .k = tokens - j,
                                      .a = s->heads.P + j * plan->chunk + j,
                                      .b = dO + j * V,
                                      .base = dR + j * V,
                                      .c = dR + j * V,
                                      .a_row = plan->chunk,
                                      .b_row = V,
                                      .base_row = V,
                                      .c_row = V,
                                      .a_transposed = true});
    }
    carry_delta_solve_transposed(plan, &s->heads, tokens, dR, V, s->beside);
}

/* The five products with dR and dO on top of each other. */
static void spread_gradients(const unit *u, int64_t tokens, const float *S, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    CARRY_SPAN(plan->ctx, "delta", "backward products");
    for (int64_t i = 0; i < 2 * tokens; i += tokens) { /* lower triangles of dR V'^T and dO V'^T */
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

/* dS of the state that entered. */
static void pass_on(const unit *u, int64_t tokens, float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    CARRY_SPAN(plan->ctx, "delta", "backward state");
    for (int64_t i = 0; i < K * V; i++) {
        dS[i] *= s->heads.end[0];
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

/* What reaches q, k, beta and G through the states. */
static void through_states(const unit *u, int64_t tokens, const float *S, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    CARRY_SPAN(plan->ctx, "delta", "through states");
    float at_end = s->heads.end[0] * carry_delta_dot(S, dS, K * V);
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
        /* The last token's own term leaves G[C] - G[C]: subtracting and adding it again would drown what is left there
           at deep decay. */
        float beyond = i < tokens - 1 ? kept : 0.0f;
        s->dG[i] = plan->scale * fade * carry_delta_dot(q, on_O, K) - beta * seen - beyond;
        at_end += beyond;
        for (int64_t j = 0; j < K; j++) {
            s->dq[i * K + j] += plan->scale * fade * on_O[j];
            s->dk[i * K + j] += left * on_end[j] - beta * fade * on_R[j];
        }
    }
    s->dG[tokens - 1] += at_end;
}

/* What reaches beta, G, kk and qk inside the chunk. */
static void through_triangles(const unit *u, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t C = plan->chunk;
    bool gated = plan->problem.gate != CARRY_DELTA_NO_GATE;
    CARRY_SPAN(plan->ctx, "delta", "through triangles");
    for (int64_t i = 0; i < tokens; i++) {
        const float *dnA = s->by_values + i * C;
        const float *dP = s->by_values + (tokens + i) * C;
        const float *nA = s->heads.nA + i * C;
        const float *P = s->heads.P + i * C;
        const float *D = s->heads.D + i * C;
        const float *kk = s->rows.kk + i * C;
        float *on_kk = s->on_kk + i * C;
        float *on_qk = s->on_qk + i * C;
        float row = 0.0f;
        float on_beta = 0.0f;
        for (int64_t j = 0; j < i; j++) {
            float decay = gated ? D[j] : 1.0f;
            float both = dP[j] * P[j] + dnA[j] * nA[j];
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

/* beta and the gate: from what was used to what was given. */
static void store_scalars(const unit *u, int64_t t, int64_t tokens, int64_t value_head) {
    const carry_delta_back *back = u->back;
    const carry_delta_problem *p = &back->plan->problem;
    carry_delta_back_scratch *s = u->s;
    int64_t first = u->sequence->start + t;
    float factor = p->beta_factor != 0.0f ? p->beta_factor : 1.0f;
    float dg = 0.0f;
    for (int64_t i = tokens - 1; i >= 0; i--) {
        float dbeta = s->dbeta[i];
        if (p->beta_sigmoid) {
            dbeta *= s->heads.beta[i] * (1.0f - s->heads.beta[i] / factor);
        }
        carry_delta_scalar_store(&back->args->dbeta, u->sequence->batch, first + i, value_head, dbeta);
        dg += s->dG[i]; /* G[i] holds the gates of all tokens up to i */
        float given = dg;
        if (p->gate_inside) {
            float rate = -expf(((const float *)back->in.A_log->data)[value_head]);
            float bias = ((const float *)back->in.dt_bias->data)[value_head];
            float a = carry_delta_scalar(back->in.g, u->sequence->batch, first + i, value_head);
            given = dg * rate * sigmoid(a + bias);
            int64_t at = (u->sequence - back->sequences) * p->value_heads + value_head;
            back->on_A_log[at] += dg * s->heads.g[i];
            back->on_dt_bias[at] += given;
        }
        if (back->args->dg != NULL) {
            carry_delta_scalar_store(back->args->dg, u->sequence->batch, first + i, value_head, given);
        }
    }
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
    through_states(u, tokens, S, dS);
    through_triangles(u, tokens);
    pass_on(u, tokens, dS);
    store_scalars(u, t, tokens, value_head);
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

/* kk and qk belong to the whole group: their gradients reach q and k once. */
static void store_rows(const unit *u, int64_t t, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "backward rows");
    for (int64_t i = 0; i < tokens;
         i += BLOCK) { /* on_qk and on_kk are lower triangles: row i's block ends at i + 16 */
        int64_t m = tokens - i < BLOCK ? tokens - i : BLOCK;
        carry_product p = {.m = m, .n = K, .a_row = plan->chunk, .b_row = K, .base_row = K, .c_row = K};
        p.k = i + m;
        p.b = s->rows.k;
        p.a = s->on_qk + i * plan->chunk;
        p.base = p.c = s->dq + i * K;
        product(plan, p);
        p.a = s->on_kk + i * plan->chunk;
        p.base = p.c = s->dk + i * K;
        product(plan, p);
        p.k = tokens - i;
        p.a_transposed = true;
        p.a = s->on_qk + i * plan->chunk + i;
        p.b = s->rows.q + i * K;
        product(plan, p);
        p.a = s->on_kk + i * plan->chunk + i;
        p.b = s->rows.k + i * K;
        product(plan, p);
    }
    if (plan->problem.l2norm) {
        through_norm(s->dq, s->rows.q, s->rows.q_norm, tokens, K);
        through_norm(s->dk, s->rows.k, s->rows.k_norm, tokens, K);
    }
    int64_t first = u->sequence->start + t;
    carry_delta_store(plan, &u->back->args->dq, s->dq, u->sequence->batch, first, u->head, tokens, 0, K);
    carry_delta_store(plan, &u->back->args->dk, s->dk, u->sequence->batch, first, u->head, tokens, 0, K);
}

static void one_chunk(const unit *u, int64_t t, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    size_t square = (size_t)(tokens * plan->chunk) * sizeof(float);
    size_t rows = (size_t)(tokens * plan->problem.key) * sizeof(float);
    s->rows.with_q = true;
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

/* The gradient of the state that leaves the sequence's last chunk. */
static void start(const unit *u) {
    const carry_delta_back *back = u->back;
    const carry_delta_plan *plan = back->plan;
    const carry_delta_problem *p = &plan->problem;
    for (int64_t member = 0; member < plan->group; member++) {
        float *dS = u->s->dS + member * p->key * p->value;
        int64_t value_head = u->head * plan->group + member;
        if (u->sequence->leaves && back->arriving != NULL) {
            carry_delta_state_load(plan, dS, p->value, back->arriving,
                                   carry_delta_chain_at(plan, &back->part, u->sequence, value_head), 0, p->value);
        } else if (!u->sequence->leaves && back->args->dfinal_state != NULL) {
            carry_delta_state_load(plan, dS, p->value, back->args->dfinal_state->data,
                                   carry_delta_state_at(plan, u->sequence, value_head), 0, p->value);
        } else {
            memset(dS, 0, (size_t)(p->key * p->value) * sizeof *dS);
        }
    }
}

/* The gradient of the state that entered its first chunk. */
static void finish(const unit *u) {
    const carry_delta_back *back = u->back;
    const carry_delta_plan *plan = back->plan;
    const carry_delta_problem *p = &plan->problem;
    for (int64_t member = 0; member < plan->group; member++) {
        const float *dS = u->s->dS + member * p->key * p->value;
        int64_t value_head = u->head * plan->group + member;
        if (u->sequence->enters && back->departing != NULL) {
            carry_delta_state_store(plan, back->departing,
                                    carry_delta_chain_at(plan, &back->part, u->sequence, value_head), dS, p->value, 0,
                                    p->value);
        } else if (!u->sequence->enters && back->args->dinitial_state != NULL) {
            carry_delta_state_store(plan, back->args->dinitial_state->data,
                                    carry_delta_state_at(plan, u->sequence, value_head), dS, p->value, 0, p->value);
        }
    }
}

static void run_unit(const unit *u) {
    const carry_delta_plan *plan = u->back->plan;
    CARRY_SPAN(plan->ctx, "delta", "walk back");
    start(u);
    for (int64_t chunk = (u->sequence->length + plan->chunk - 1) / plan->chunk - 1; chunk >= 0; chunk--) {
        int64_t t = chunk * plan->chunk;
        int64_t rest = u->sequence->length - t;
        one_chunk(u, t, rest < plan->chunk ? rest : plan->chunk);
        if (u->pauses) {
            u->back->part.pause(u->back->part.user);
        }
    }
    finish(u);
}

static void run_units(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_delta_back *back = argument;
    for (int64_t i = begin; i < end; i++) {
        unit u = {.back = back,
                  .s = &back->scratch[worker],
                  .sequence = &back->part.sequences[i / back->part.heads],
                  .head = back->part.first_head + i % back->part.heads,
                  .pauses = worker == 0 && back->part.pause != NULL};
        run_unit(&u);
    }
}

static void take_scratch(const carry_delta_plan *plan, carry_arena *arena, carry_delta_back_scratch *s) {
    size_t C = (size_t)plan->chunk;
    size_t K = (size_t)plan->problem.key;
    size_t V = (size_t)plan->problem.value;
    carry_delta_rows_take(plan, arena, &s->rows);
    carry_delta_head_take(plan, arena, &s->heads);
    struct {
        float **at;
        size_t floats;
    } all[] = {{&s->weighed, 2 * C * K},
               {&s->gradients, 2 * C * V},
               {&s->v, C * V},
               {&s->values, C * V},
               {&s->left_k, C * K},
               {&s->by_state, 2 * C * K},
               {&s->by_end, C * K},
               {&s->by_values, 2 * C * C},
               {&s->on_kk, C * C},
               {&s->on_qk, C * C},
               {&s->dq, C * K},
               {&s->dk, C * K},
               {&s->dG, C},
               {&s->dbeta, C},
               {&s->beside, BLOCK * V}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i].at = carry_arena_take(arena, all[i].floats, sizeof(float));
    }
    s->dS = carry_arena_take(arena, (size_t)plan->group * K, V * sizeof(float));
}

bool carry_delta_back_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_back *back) {
    int threads = carry_ctx_threads(plan->ctx);
    size_t heads = (size_t)(plan->sequences * plan->problem.value_heads);
    back->plan = plan;
    back->sequences = carry_arena_take(arena, (size_t)plan->sequences, sizeof *back->sequences);
    back->part =
        (carry_delta_part){.sequences = back->sequences, .count = plan->sequences, .heads = plan->problem.heads};
    back->on_A_log = carry_arena_take(arena, heads, sizeof(float));
    back->on_dt_bias = carry_arena_take(arena, heads, sizeof(float));
    back->scratch = carry_arena_take(arena, (size_t)threads, sizeof *back->scratch);
    for (int i = 0; i < threads; i++) {
        carry_delta_back_scratch none;
        take_scratch(plan, arena, back->scratch != NULL ? &back->scratch[i] : &none);
    }
    return !arena->overflowed;
}

carry_status carry_delta_check_gradients(carry_ctx *ctx, const carry_delta_problem *p,
                                         const carry_delta_backward_args *args) {
    CARRY_TRY(carry_delta_check_like(ctx, p, "do", &args->grad_o, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_like(ctx, p, "dq", &args->dq, p->heads, p->key));
    CARRY_TRY(carry_delta_check_like(ctx, p, "dk", &args->dk, p->heads, p->key));
    CARRY_TRY(carry_delta_check_like(ctx, p, "dv", &args->dv, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_like(ctx, p, "dbeta", &args->dbeta, p->value_heads, 0));
    return args->dg != NULL ? carry_delta_check_like(ctx, p, "dg", args->dg, p->value_heads, 0) : CARRY_OK;
}

carry_status carry_delta_check_state_gradients(carry_ctx *ctx, const carry_delta_problem *p,
                                               const carry_delta_backward_args *args) {
    if (args->dfinal_state != NULL) {
        CARRY_TRY(carry_delta_check_state(ctx, p, "dfinal_state", args->dfinal_state));
    }
    if (args->dinitial_state != NULL) {
        CARRY_TRY(carry_delta_check_state(ctx, p, "dinitial_state", args->dinitial_state));
    }
    if (args->dA_log != NULL) {
        CARRY_TRY(carry_delta_check_heads(ctx, p, "dA_log", args->dA_log));
    }
    return args->ddt_bias != NULL ? carry_delta_check_heads(ctx, p, "ddt_bias", args->ddt_bias) : CARRY_OK;
}

static carry_status check(carry_delta_plan *plan, const carry_delta_backward_args *args, const carry_delta_inputs *in,
                          const void *workspace, size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    if (p->gate == CARRY_DELTA_KEY_GATE) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "the backward pass has no key gate (KDA) in this build");
    }
    CARRY_TRY(carry_delta_check_inputs(ctx, p, in));
    CARRY_TRY(carry_delta_check_gradients(ctx, p, args));
    CARRY_TRY(carry_delta_check_state_gradients(ctx, p, args));
    return carry_delta_check_workspace(ctx, workspace, workspace_bytes, plan->backward_workspace);
}

/* Nothing was kept: the forward pass again, without output, for what backward needs of it. */
static void make_kept(carry_delta_plan *plan, const carry_delta_inputs *in, carry_arena *arena, void *kept) {
    CARRY_SPAN(plan->ctx, "delta", "forward again");
    carry_delta_run run = {.in = *in, .kept = kept, .chunks_only = true};
    (void)carry_delta_run_take(plan, arena, &run, plan->problem.value, true);
    carry_delta_run_all(&run);
}

/* Sums over sequences in their order, so that threads do not matter. */
static void sum_heads(const carry_delta_plan *plan, const carry_tensor *to, const float *parts) {
    int64_t heads = plan->problem.value_heads;
    for (int64_t head = 0; to != NULL && head < heads; head++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < plan->sequences; i++) {
            sum += parts[i * heads + head];
        }
        ((float *)to->data)[head] = sum;
    }
}

double carry_delta_backward_flops(const carry_delta_plan *plan, bool again) {
    const carry_delta_problem *p = &plan->problem;
    double tokens = (double)(p->batch * p->tokens);
    double C = (double)plan->chunk;
    double triangle = 0.5 * (C + BLOCK);
    double K = (double)p->key;
    double V = (double)p->value;
    double shared = 12.0 * triangle * K;
    double own = 12.0 * K * V + 8.0 * triangle * V;
    double total = tokens * ((double)p->heads * shared + (double)p->value_heads * own);
    return again ? total + carry_delta_forward_flops(plan) : total;
}

void carry_delta_back_start(carry_delta_back *back) {
    size_t heads = (size_t)(back->plan->sequences * back->plan->problem.value_heads);
    memset(back->on_A_log, 0, heads * sizeof(float));
    memset(back->on_dt_bias, 0, heads * sizeof(float));
}

void carry_delta_back_part(carry_delta_back *back) {
    carry_parallel(back->plan->ctx, back->part.count * back->part.heads, 1, run_units, back);
}

void carry_delta_back_finish(carry_delta_back *back) {
    sum_heads(back->plan, back->args->dA_log, back->on_A_log);
    sum_heads(back->plan, back->args->ddt_bias, back->on_dt_bias);
}

carry_delta_inputs carry_delta_back_inputs_of(const carry_delta_backward_args *args) {
    return (carry_delta_inputs){.q = &args->q,
                                .k = &args->k,
                                .v = &args->v,
                                .beta = &args->beta,
                                .g = args->g,
                                .initial_state = args->initial_state,
                                .cu_seqlens = args->cu_seqlens,
                                .A_log = args->A_log,
                                .dt_bias = args->dt_bias};
}

carry_status carry_delta_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *workspace,
                                  size_t workspace_bytes) {
    CARRY_SPAN(plan->ctx, "delta", "backward");
    carry_delta_back back = {.args = args, .in = carry_delta_back_inputs_of(args), .kept = args->kept};
    CARRY_TRY(check(plan, args, &back.in, workspace, workspace_bytes));
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_back_take(plan, &arena, &back);
    if (args->kept == NULL) {
        void *kept = carry_arena_take(&arena, plan->kept, 1);
        make_kept(plan, &back.in, &arena, kept);
        back.kept = kept;
    }
    carry_delta_back_start(&back);
    carry_delta_sequences(plan, &back.in, back.sequences);
    carry_delta_back_part(&back);
    carry_delta_back_finish(&back);
    plan->flops = carry_delta_backward_flops(plan, args->kept == NULL);
    carry_span_work(plan->ctx, plan->flops, (double)(plan->problem.batch * plan->problem.tokens));
    return CARRY_OK;
}
