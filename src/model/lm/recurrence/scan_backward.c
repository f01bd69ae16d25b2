/* The backward pass of a layer as a dense scan. The states are computed again. With G[t] = scale q do^T, the scan
   backwards in time, L[t] = G[t] + A[t+1]^T L[t+1], gives the gradient of the state S[t], which is also db[t]. Then,
   with P = S[t-1] and without the index t:

       dq = scale S do      dv = beta L^T k      dA = L P^T
       dbeta = k^T L v - e^g k^T dA k            dk = beta L v - beta e^g (dA k + dA^T k)
       dg    = e^g (tr dA - beta k^T dA k)

   Without the delta rule A is e^g I, and only the trace of dA is needed.

   dA itself is not stored: dA k = L (P^T k), dA^T k = P (L^T k), and tr dA is the sum of the elementwise product of L
   and P. */
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "delta/backward.h"
#include "model/lm/recurrence/scan.h"
#include "model/lm/recurrence/scan_device.h"

/* G = scale q do^T: the gradient of every state through its own output. */
static void write_gradients(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_recurrence_scan_work *w = argument;
    const carry_delta_problem *p = &w->m->problem;
    carry_recurrence_token *x = &w->token[worker];
    int64_t V = p->value;
    for (int64_t item = begin; item < end; item++) {
        int64_t unit = w->first + item / p->tokens;
        carry_recurrence_scan_load(w, item, x);
        carry_delta_load(w->m->delta, x->o, &w->backward->d_o, unit / p->value_heads, item % p->tokens,
                         unit % p->value_heads, 1, 0, V);
        for (int64_t r = 0; r < p->key; r++) {
            float q = w->m->delta->scale * x->rows.q[r];
            float *G = w->dS + (item * p->key + r) * V;
            for (int64_t j = 0; j < V; j++) {
                G[j] = q * x->o[j];
            }
        }
    }
}

/* Row r of the state before a token, from the first column of the slice on; NULL: the state was zero. */
static const float *row_before(const carry_recurrence_scan_work *w, int64_t item, int64_t sequence, int64_t r,
                               int64_t slice) {
    const carry_recurrence_scan *m = w->m;
    if (sequence < 0) {
        return w->S + ((item - 1) * m->problem.key + r) * m->problem.value + slice * m->slice;
    }
    int64_t unit = w->first + item / m->problem.tokens;
    return w->in.initial_state != NULL
               ? carry_recurrence_scan_state(m, w->in.initial_state, sequence, unit % m->problem.value_heads, r, slice)
               : NULL;
}

static void add_row(float *to, float factor, const float *from, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        to[j] += factor * from[j];
    }
}

static float trace_of(const carry_recurrence_scan_work *w, int64_t item, int64_t sequence) {
    const carry_recurrence_scan *m = w->m;
    const float *L = w->dS + item * m->problem.key * m->problem.value;
    float trace = 0.0f;
    for (int64_t i = 0; i < m->problem.key * m->slices; i++) {
        int64_t r = i / m->slices;
        int64_t slice = i % m->slices;
        trace += carry_delta_dot(L + r * m->problem.value + slice * m->slice, row_before(w, item, sequence, r, slice),
                                 m->slice);
    }
    return trace;
}

/* The contribution of dA: dA k + dA^T k into on_k[1], k^T dA k into *along, tr dA into *trace. */
static void through_transition(const carry_recurrence_scan_work *w, int64_t item, int64_t sequence,
                               const carry_recurrence_token *x, float *along, float *trace) {
    const carry_recurrence_scan *m = w->m;
    int64_t K = m->problem.key;
    const float *L = w->dS + item * K * m->problem.value;
    const float *k = x->rows.k;
    *along = *trace = 0.0f;
    memset(x->on_k[1], 0, (size_t)K * sizeof(float));
    for (int64_t slice = 0; slice < m->slices; slice++) {
        float *P_k = x->sum[0];
        float *L_k = x->sum[1];
        memset(P_k, 0, (size_t)m->slice * sizeof *P_k);
        memset(L_k, 0, (size_t)m->slice * sizeof *L_k);
        for (int64_t r = 0; r < K; r++) {
            const float *P = row_before(w, item, sequence, r, slice);
            const float *row = L + r * m->problem.value + slice * m->slice;
            add_row(P_k, k[r], P, m->slice);
            add_row(L_k, k[r], row, m->slice);
            *trace += carry_delta_dot(row, P, m->slice);
        }
        for (int64_t r = 0; r < K; r++) {
            const float *P = row_before(w, item, sequence, r, slice);
            const float *row = L + r * m->problem.value + slice * m->slice;
            x->on_k[1][r] += carry_delta_dot(row, P_k, m->slice) + carry_delta_dot(P, L_k, m->slice);
        }
        *along += carry_delta_dot(L_k, P_k, m->slice);
    }
}

static float sigmoid(float x) {
    return x >= 0.0f ? 1.0f / (1.0f + expf(-x)) : expf(x) / (1.0f + expf(x));
}

/* Stores the gradients of the given beta and gate input, from those of the values that the recurrence used. */
static void store_scalars(const carry_recurrence_scan_work *w, int64_t item, const carry_recurrence_token *x,
                          float dbeta, float dg) {
    const carry_delta_problem *p = &w->m->problem;
    int64_t unit = w->first + item / p->tokens;
    int64_t t = item % p->tokens;
    int64_t b = unit / p->value_heads;
    int64_t value_head = unit % p->value_heads;
    float beta = x->head.beta[0];
    if (p->beta_sigmoid) {
        dbeta *= beta * (1.0f - beta / (p->beta_factor != 0.0f ? p->beta_factor : 1.0f));
    }
    carry_delta_scalar_store(&w->backward->dbeta, b, t, value_head, dbeta);
    float given = dg;
    if (p->gate_inside) {
        float rate = -expf(((const float *)w->in.A_log->data)[value_head]);
        float bias = ((const float *)w->in.dt_bias->data)[value_head];
        bool erases = expf(x->head.g[0]) == 0.0f; /* a gate of -inf has no gradient */
        given = erases ? 0.0f : dg * rate * sigmoid(carry_delta_scalar(w->in.g, b, t, value_head) + bias);
        w->dgate[item] = erases ? 0.0f : dg * x->head.g[0];
        w->given[item] = given;
    }
    if (w->backward->dg.data != NULL) {
        carry_delta_scalar_store(&w->backward->dg, b, t, value_head, given);
    }
}

static void one_token(const carry_recurrence_scan_work *w, int64_t unit, int64_t t, carry_recurrence_token *x) {
    const carry_recurrence_scan *m = w->m;
    const carry_delta_problem *p = &m->problem;
    int64_t item = (unit - w->first) * p->tokens + t;
    int64_t b = unit / p->value_heads;
    int64_t value_head = unit % p->value_heads;
    int64_t V = p->value;
    const float *S = w->S + item * p->key * V;
    const float *L = w->dS + item * p->key * V;
    int64_t at = ((b * p->tokens + t) * p->heads + value_head / m->delta->group) * p->key;
    float *dq = w->dq + at;
    float *dk = w->dk + at;
    carry_recurrence_scan_load(w, item, x);
    carry_delta_load(m->delta, x->o, &w->backward->d_o, b, t, value_head, 1, 0, V);
    float beta = x->head.beta[0];
    float decay = x->head.end[0];
    int64_t sequence = carry_recurrence_scan_starts(w, b, t);
    float along = 0.0f;
    float trace = 0.0f;
    const bool is_first = sequence >= 0 && w->in.initial_state == NULL;
    if (!is_first && m->linear) {
        trace = trace_of(w, item, sequence);
    } else if (!is_first) {
        through_transition(w, item, sequence, x, &along, &trace);
        add_row(dk, -decay * beta, x->on_k[1], p->key);
    }
    float *dv = x->sum[0];
    memset(dv, 0, (size_t)V * sizeof *dv);
    for (int64_t r = 0; r < p->key; r++) {
        dq[r] += m->delta->scale * carry_delta_dot(S + r * V, x->o, V);
        x->on_k[0][r] = carry_delta_dot(L + r * V, x->v, V);
        add_row(dv, beta * x->rows.k[r], L + r * V, V);
    }
    add_row(dk, beta, x->on_k[0], p->key);
    carry_delta_store(m->delta, &w->backward->dv, dv, b, t, value_head, 1, 0, V);
    float dbeta = carry_delta_dot(x->rows.k, x->on_k[0], p->key) - decay * along;
    store_scalars(w, item, x, dbeta, decay * (trace - beta * along));
}

/* Each thread takes some tokens, with all units of each, because the units of one group add to the same dq and dk, in a
   fixed order. */
static void read_gradients(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_recurrence_scan_work *w = argument;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t i = 0; i < w->m->together; i++) {
            one_token(w, w->first + i, t, &w->token[worker]);
        }
    }
}

/* dx = (dy - y (y . dy)) / norm, for y = x / norm. */
static void through_norm(float *dy, const float *y, float inverse, int64_t size) {
    float along = carry_delta_dot(y, dy, size);
    for (int64_t j = 0; j < size; j++) {
        dy[j] = inverse * (dy[j] - along * y[j]);
    }
}

static void store_rows(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_recurrence_scan_work *w = argument;
    const carry_delta_plan *delta = w->m->delta;
    const carry_delta_problem *p = &w->m->problem;
    carry_recurrence_token *x = &w->token[worker];
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i % p->heads;
        int64_t t = i / p->heads % p->tokens;
        int64_t b = i / p->heads / p->tokens;
        float *dq = w->dq + i * p->key;
        float *dk = w->dk + i * p->key;
        if (p->l2norm) {
            carry_delta_token_load(delta, &w->in, b, t, head, &x->rows);
            through_norm(dq, x->rows.q, x->rows.q_norm[0], p->key);
            through_norm(dk, x->rows.k, x->rows.k_norm[0], p->key);
        }
        carry_delta_store(delta, &w->backward->dq, dq, b, t, head, 1, 0, p->key);
        carry_delta_store(delta, &w->backward->dk, dk, b, t, head, 1, 0, p->key);
    }
}

/* Computes the gradients of the gate's parameters: sums over tokens in a fixed order, so that the result does not
   depend on the number of threads. */
static void add_parameters(const carry_recurrence_scan_work *w) {
    const carry_delta_problem *p = &w->m->problem;
    for (int64_t i = 0; p->gate_inside && i < w->m->together; i++) {
        int64_t value_head = (w->first + i) % p->value_heads;
        float on_A_log = 0.0f;
        float on_dt_bias = 0.0f;
        for (int64_t t = 0; t < p->tokens; t++) {
            on_A_log += w->dgate[i * p->tokens + t];
            on_dt_bias += w->given[i * p->tokens + t];
        }
        if (w->backward->dA_log.data != NULL) {
            ((float *)w->backward->dA_log.data)[value_head] += on_A_log;
        }
        if (w->backward->ddt_bias.data != NULL) {
            ((float *)w->backward->ddt_bias.data)[value_head] += on_dt_bias;
        }
    }
}

static carry_status backward_units(carry_recurrence_scan_work *w) {
    const carry_recurrence_scan *m = w->m;
    const carry_delta_problem *p = &m->problem;
    int64_t grain = 16384 / (p->key * p->value) + 1;
    CARRY_TRY(carry_recurrence_scan_states(w));
    carry_parallel(m->ctx, m->together * p->tokens, grain, write_gradients, w);
    carry_tensor dS = carry_view_4d(w->dS, CARRY_F32, m->together, p->tokens, p->key, p->value);
    const carry_scan_backward_args gradients = {
        .db = dS,
        .A = carry_recurrence_scan_transitions(w),
        .h = carry_view_4d(w->S, CARRY_F32, m->together, p->tokens, p->key, p->value),
        .dh = dS};
    CARRY_TRY(carry_scan_backward(m->backward, &gradients, w->scan, m->scan_bytes));
    CARRY_SPAN(m->ctx, "model", "scan gradients");
    carry_parallel(m->ctx, p->tokens, grain / m->together + 1, read_gradients, w);
    add_parameters(w);
    return CARRY_OK;
}

static carry_status check(const carry_recurrence_scan *m, const carry_delta_backward_args *args,
                          const carry_delta_inputs *in, const void *workspace, size_t bytes) {
    if (args->dinitial_state.data != NULL || args->dfinal_state.data != NULL) {
        return carry_fail(m->ctx, CARRY_EUNSUPPORTED, "a layer has no gradients of states");
    }
    CARRY_TRY(carry_delta_check_inputs(m->ctx, &m->problem, in));
    CARRY_TRY(carry_delta_check_gradients(m->ctx, &m->problem, args));
    CARRY_TRY(carry_delta_check_state_gradients(m->ctx, &m->problem, args));
    return carry_delta_check_workspace(m->ctx, workspace, bytes, m->workspace);
}

static void clear(const carry_tensor *heads, int64_t count) {
    if (heads != NULL) {
        memset(heads->data, 0, (size_t)count * sizeof(float));
    }
}

carry_status carry_recurrence_scan_backward(void *running, const carry_delta_backward_args *args, void *workspace,
                                            size_t bytes) {
    carry_recurrence_scan *m = running;
    if (m->device != NULL) {
        return carry_recurrence_device_backward(m->device, args, workspace, bytes);
    }
    const carry_delta_problem *p = &m->problem;
    carry_recurrence_scan_work w = {.m = m, .in = carry_delta_back_inputs_of(args), .backward = args};
    CARRY_TRY(check(m, args, &w.in, workspace, bytes));
    carry_arena arena = carry_arena_over(workspace, bytes);
    carry_recurrence_scan_take(m, &arena, &w);
    carry_recurrence_scan_start(&w);
    int64_t rows = p->batch * p->tokens * p->heads;
    memset(w.dq, 0, (size_t)(rows * p->key) * sizeof *w.dq);
    memset(w.dk, 0, (size_t)(rows * p->key) * sizeof *w.dk);
    clear(carry_delta_given(&args->dA_log), p->value_heads);
    clear(carry_delta_given(&args->ddt_bias), p->value_heads);
    for (w.first = 0; w.first < m->units; w.first += m->together) {
        CARRY_TRY(backward_units(&w));
    }
    carry_parallel(m->ctx, rows, 4096 / p->key + 1, store_rows, &w);
    return CARRY_OK;
}
