/* dg of the tokens up to the first whose V' is not finite.

   The recurrence S[t] = (I - beta k k^T) e^{g[t]} S[t-1] + beta k v^T is linear in S, so the gradient of a state does
   not depend on v. dg[t] is computed from that gradient and S[t-1], so a NaN in v[s] may affect dg[t] for t > s only.
   The sums over G (backward_chunk.c) contain every pair of tokens twice with opposite signs, and a NaN does not cancel.
   This file adds up only the pairs that gate t separates. The later member is a token i >= t or the state that leaves
   the chunk, the earlier one a token j < t or the state that entered. This is slow, and used only for chunks that have
   such a token and entered with a finite state. */
#include <math.h>

#include "delta/backward.h"
#include "ops/product/triangle.h"

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

int64_t carry_delta_back_first_bad(const carry_delta_back_unit *u, int64_t tokens, const float *S) {
    const carry_delta_problem *p = &u->back->plan->problem;
    const carry_delta_back_scratch *s = u->s;
    if (carry_all_finite(s->values, tokens * p->value) || !carry_all_finite(S, p->key * p->value)) {
        return -1;
    }
    int64_t first = 0;
    while (carry_all_finite(s->values + first * p->value, p->value)) {
        first++;
    }
    return first;
}

/* The gradient of gate t (of its channel c with a key gate). */
static double between(const carry_delta_back_unit *u, int64_t t, int64_t tokens, int64_t c, const float *S,
                      const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    const carry_delta_back_scratch *s = u->s;
    const int64_t K = plan->problem.key, V = plan->problem.value, C = plan->chunk;
    const bool by_key = plan->problem.gate == CARRY_DELTA_KEY_GATE;
    const int64_t size = by_key ? K : 1;
    const double *G = s->heads.G + (by_key ? c : 0);
    const double last = G[(tokens - 1) * size];
    double sum = exp(last) * dot(S + c * V, dS + c * V, V);
    for (int64_t i = t; i < tokens; i++) {
        const double q = (double)plan->scale * (double)s->rows.q[i * K + c];
        const double k = (double)s->heads.beta[i] * (double)s->rows.k[i * K + c];
        sum += exp(G[i * size]) *
               (q * dot(S + c * V, s->gradients + (tokens + i) * V, V) - k * dot(S + c * V, s->gradients + i * V, V));
        for (int64_t j = 0; j < t; j++) {
            sum += exp(G[i * size] - G[j * size]) * (double)s->rows.k[j * K + c] *
                   (q * (double)s->by_values[(tokens + i) * C + j] - k * (double)s->by_values[i * C + j]);
        }
    }
    for (int64_t j = 0; j < t; j++) {
        sum += exp(last - G[j * size]) * (double)s->rows.k[j * K + c] * dot(dS + c * V, s->values + j * V, V);
    }
    return sum;
}

void carry_delta_back_gate_between(const carry_delta_back_unit *u, int64_t t, int64_t tokens, const float *S,
                                   const float *dS, double *dg) {
    const carry_delta_problem *p = &u->back->plan->problem;
    double all = 0.0;
    for (int64_t c = 0; c < p->key; c++) {
        const double one = between(u, t, tokens, c, S, dS);
        all += one;
        dg[p->gate == CARRY_DELTA_KEY_GATE ? c : 0] = p->gate == CARRY_DELTA_KEY_GATE ? one : all;
    }
}
