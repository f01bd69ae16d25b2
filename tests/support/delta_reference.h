/* The delta rule forward and backward, token by token. In float64 it is the reference for results; with every operation
   rounded to f32 it shows the error of the recurrence itself. beta is used as given. */
#ifndef CARRY_TESTS_DELTA_REFERENCE_H
#define CARRY_TESTS_DELTA_REFERENCE_H

#include "delta_ranks_support.h"

enum { REFERENCED = 8 }; /* o, final_state, dq, dk, dv, dbeta, dinitial, dg; dA and ddt follow with gate_inside */

typedef struct recurrence {
    const whole *w;
    bool single; /* every operation is rounded to f32 */
    double *to[RESULTS];
    double *S; /* [T + 1, K, V]: states of one sequence and value head */
} recurrence;

static inline SUPPORT_UNWATCHED double rounded(const recurrence *r, double x) {
    return r->single ? (double)(float)x : x;
}

/* y = x / sqrt(sum of squares + 1e-6); returns the inverse norm. */
static inline SUPPORT_UNWATCHED double read_row(const recurrence *r, double *y, const float *x) {
    const carry_delta_problem *p = &r->w->p;
    double sum = p->l2norm ? 1e-6 : 1.0;
    for (int64_t c = 0; p->l2norm && c < p->key; c++) {
        sum = rounded(r, sum + rounded(r, (double)x[c] * (double)x[c]));
    }
    double inverse = rounded(r, 1.0 / sqrt(sum));
    for (int64_t c = 0; c < p->key; c++) {
        y[c] = rounded(r, inverse * (double)x[c]);
    }
    return inverse;
}

/* dx += (dy - y (y . dy)) inverse. */
static inline SUPPORT_UNWATCHED void add_row(const recurrence *r, double *dx, double *dy, const double *y,
                                             double inverse) {
    const carry_delta_problem *p = &r->w->p;
    double along = 0.0;
    for (int64_t c = 0; p->l2norm && c < p->key; c++) {
        along = rounded(r, along + rounded(r, y[c] * dy[c]));
    }
    for (int64_t c = 0; c < p->key; c++) {
        dx[c] = rounded(r, dx[c] + rounded(r, inverse * rounded(r, dy[c] - rounded(r, along * y[c]))));
    }
}

/* The gate of a token and value head; with gate_inside, *slope gets its derivative with respect to a. */
static inline SUPPORT_UNWATCHED double gate_of(const recurrence *r, int64_t at, int64_t value_head, double *slope) {
    const whole *w = r->w;
    if (!w->p.gate_inside) {
        return (double)w->g[at];
    }
    double rate = rounded(r, -exp((double)w->A_log[value_head]));
    double x = rounded(r, (double)w->g[at] + (double)w->dt_bias[value_head]);
    *slope = rounded(r, rate * rounded(r, 1.0 / (1.0 + exp(-x))));
    return rounded(r, rate * rounded(r, x > 30.0 ? x : log1p(exp(x))));
}

typedef struct recurrence_token {
    int64_t head, value_head; /* row indices into [B T, H] and [B T, HV] */
    double q[CARRY_MAX_DELTA_DIM], k[CARRY_MAX_DELTA_DIM], decay[CARRY_MAX_DELTA_DIM];
    double q_norm, k_norm, beta, scale;
} recurrence_token;

static inline SUPPORT_UNWATCHED recurrence_token token_of(const recurrence *r, int64_t token, int64_t value_head) {
    const whole *w = r->w;
    const carry_delta_problem *p = &w->p;
    recurrence_token t = {.head = token * p->heads + value_head / (p->value_heads / p->heads),
                          .value_head = token * p->value_heads + value_head};
    t.q_norm = read_row(r, t.q, w->q + t.head * p->key);
    t.k_norm = read_row(r, t.k, w->k + t.head * p->key);
    double slope;
    for (int64_t c = 0; c < p->key; c++) {
        double g = p->gate == CARRY_DELTA_NO_GATE    ? 0.0
                   : p->gate == CARRY_DELTA_KEY_GATE ? (double)w->g[t.value_head * p->key + c]
                                                     : gate_of(r, t.value_head, value_head, &slope);
        t.decay[c] = rounded(r, exp(g));
    }
    t.beta = (double)w->beta[t.value_head];
    t.scale = p->scale != 0.0f ? (double)p->scale : rounded(r, 1.0 / sqrt((double)p->key));
    return t;
}

/* v - S^T k with the decayed state, not yet multiplied by beta. */
static inline SUPPORT_UNWATCHED double correction(const recurrence *r, const recurrence_token *t, const double *before,
                                                  int64_t j) {
    const carry_delta_problem *p = &r->w->p;
    double seen = 0.0;
    for (int64_t c = 0; c < p->key; c++) {
        double faded = rounded(r, t->decay[c] * before[c * p->value + j]);
        seen = rounded(r, seen + rounded(r, faded * t->k[c]));
    }
    return rounded(r, (double)r->w->v[t->value_head * p->value + j] - seen);
}

static inline SUPPORT_UNWATCHED void token_forward(const recurrence *r, const recurrence_token *t, const double *before,
                                                   double *after) {
    const carry_delta_problem *p = &r->w->p;
    for (int64_t j = 0; j < p->value; j++) {
        double u = rounded(r, t->beta * correction(r, t, before, j));
        double sum = 0.0;
        for (int64_t c = 0; c < p->key; c++) {
            double faded = rounded(r, t->decay[c] * before[c * p->value + j]);
            after[c * p->value + j] = rounded(r, faded + rounded(r, t->k[c] * u));
            sum = rounded(r, sum + rounded(r, t->q[c] * after[c * p->value + j]));
        }
        r->to[0][t->value_head * p->value + j] = rounded(r, t->scale * sum);
    }
}

/* On entry dS is the gradient of the state after the token, on return of the state before it. A gate of -inf has the
   gradient 0. */
static inline SUPPORT_UNWATCHED void token_backward(const recurrence *r, const recurrence_token *t,
                                                    const double *before, const double *after, double *dS) {
    const whole *w = r->w;
    const carry_delta_problem *p = &w->p;
    double dq[CARRY_MAX_DELTA_DIM] = {0}, dk[CARRY_MAX_DELTA_DIM] = {0};
    double *dg = r->to[7] + t->value_head * (p->gate == CARRY_DELTA_KEY_GATE ? p->key : 1);
    double dbeta = 0.0;
    for (int64_t j = 0; j < p->value; j++) {
        double d_o = rounded(r, t->scale * (double)w->grad_o[t->value_head * p->value + j]);
        double missing = correction(r, t, before, j);
        double u = rounded(r, t->beta * missing);
        double du = 0.0;
        for (int64_t c = 0; c < p->key; c++) {
            int64_t at = c * p->value + j;
            dq[c] = rounded(r, dq[c] + rounded(r, after[at] * d_o));
            dS[at] = rounded(r, dS[at] + rounded(r, t->q[c] * d_o));
            dk[c] = rounded(r, dk[c] + rounded(r, dS[at] * u));
            du = rounded(r, du + rounded(r, dS[at] * t->k[c]));
        }
        double dv = rounded(r, t->beta * du);
        dbeta = rounded(r, dbeta + rounded(r, du * missing));
        r->to[4][t->value_head * p->value + j] = dv;
        for (int64_t c = 0; c < p->key; c++) {
            int64_t at = c * p->value + j;
            double faded = rounded(r, t->decay[c] * before[at]);
            dk[c] = rounded(r, dk[c] - rounded(r, dv * faded));
            double on_faded = rounded(r, dS[at] - rounded(r, dv * t->k[c]));
            double *dgate = dg + (p->gate == CARRY_DELTA_KEY_GATE ? c : 0);
            *dgate = rounded(r, *dgate + rounded(r, on_faded * faded));
            dS[at] = rounded(r, t->decay[c] * on_faded);
        }
    }
    r->to[5][t->value_head] = dbeta;
    add_row(r, r->to[2] + t->head * p->key, dq, t->q, t->q_norm);
    add_row(r, r->to[3] + t->head * p->key, dk, t->k, t->k_norm);
}

/* Turns the gradient of the gate into those of a, A_log and dt_bias. */
static inline SUPPORT_UNWATCHED void through_gate(const recurrence *r, int64_t token, int64_t value_head) {
    const int64_t at = token * r->w->p.value_heads + value_head;
    double slope = 0.0;
    const double g = gate_of(r, at, value_head, &slope);
    double *dg = r->to[7] + at, *dA = r->to[8] + value_head, *ddt = r->to[9] + value_head;
    *dA = rounded(r, *dA + rounded(r, *dg * g));
    *dg = rounded(r, *dg * slope);
    *ddt = rounded(r, *ddt + *dg);
}

/* One value head of one sequence, which has the tokens first..first+length-1 of the batch. */
static inline SUPPORT_UNWATCHED void recur(const recurrence *r, int64_t sequence, int64_t value_head, int64_t first,
                                           int64_t length) {
    const whole *w = r->w;
    const carry_delta_problem *p = &w->p;
    int64_t size = p->key * p->value;
    int64_t state = (sequence * p->value_heads + value_head) * size;
    double *dS = r->to[6] + state;
    for (int64_t i = 0; i < size; i++) {
        r->S[i] = (double)w->initial[state + i];
        dS[i] = (double)w->dfinal[state + i];
    }
    for (int64_t t = 0; t < length; t++) {
        recurrence_token token = token_of(r, first + t, value_head);
        token_forward(r, &token, r->S + t * size, r->S + (t + 1) * size);
    }
    memcpy(r->to[1] + state, r->S + length * size, (size_t)size * sizeof(double));
    for (int64_t t = length - 1; t >= 0; t--) {
        recurrence_token token = token_of(r, first + t, value_head);
        token_backward(r, &token, r->S + t * size, r->S + (t + 1) * size, dS);
        if (p->gate_inside) {
            through_gate(r, first + t, value_head);
        }
    }
}

static inline SUPPORT_UNWATCHED recurrence recur_whole(const whole *w, bool single) {
    const carry_delta_problem *p = &w->p;
    recurrence r = {.w = w, .single = single};
    for (int i = 0; i < RESULTS; i++) {
        r.to[i] = calloc((size_t)w->count[i] + 1, sizeof(double));
        assert_non_null(r.to[i]);
    }
    r.S = malloc((size_t)((p->tokens + 1) * p->key * p->value) * sizeof(double));
    assert_non_null(r.S);
    for (int64_t s = 0; s < w->states; s++) {
        int64_t first = w->borders != NULL ? w->borders[s] : s * p->tokens;
        int64_t length = w->borders != NULL ? w->borders[s + 1] - first : p->tokens;
        for (int64_t head = 0; head < p->value_heads; head++) {
            recur(&r, s, head, first, length);
        }
    }
    free(r.S);
    return r;
}

static inline SUPPORT_UNWATCHED void discard_recurrence(recurrence *r) {
    for (int i = 0; i < RESULTS; i++) {
        free(r->to[i]);
    }
}

/* The largest difference of a result from float64, as a fraction of its largest magnitude. */
static inline double error_of(const recurrence *exact, int result, const float *got, const double *also) {
    double largest = 1e-30;
    double off = 0.0;
    for (int64_t i = 0; i < exact->w->count[result]; i++) {
        double x = got != NULL ? (double)got[i] : also[i];
        double d = fabs(x - exact->to[result][i]);
        largest = fmax(largest, fabs(exact->to[result][i]));
        off = d <= off ? off : d; /* NaN passes */
    }
    return off / largest;
}

#endif
