/* The specification: the recurrence in float64, token by token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "delta/forward.h"

/* Reads one token's row of a [B, T, heads, size] tensor in float64, divided by its norm if l2norm is set. */
static void row_of(double *to, const carry_tensor *from, int64_t batch, int64_t token, int64_t head, int64_t size,
                   bool l2norm) {
    double sum = 1e-6;
    for (int64_t i = 0; i < size; i++) {
        carry_tensor one = *from;
        one.data = (char *)from->data + (size_t)i * carry_dtype_size(from->dtype);
        to[i] = carry_delta_scalar(&one, batch, token, head);
        sum += to[i] * to[i];
    }
    for (int64_t i = 0; l2norm && i < size; i++) {
        to[i] /= sqrt(sum);
    }
}

static double beta_of(const carry_delta_problem *p, const carry_delta_inputs *in, int64_t batch, int64_t token,
                      int64_t head) {
    double beta = carry_delta_scalar(in->beta, batch, token, head);
    double factor = p->beta_factor != 0.0f ? (double)p->beta_factor : 1.0;
    return p->beta_sigmoid ? factor / (1.0 + exp(-beta)) : beta;
}

static void decays_of(double *decay, const carry_delta_problem *p, const carry_delta_inputs *in, int64_t batch,
                      int64_t token, int64_t head) {
    if (p->gate == CARRY_DELTA_KEY_GATE) {
        row_of(decay, in->g, batch, token, head, p->key, false);
    }
    for (int64_t i = 0; i < p->key; i++) {
        double g = 0.0;
        if (p->gate == CARRY_DELTA_KEY_GATE) {
            g = decay[i];
        } else if (p->gate == CARRY_DELTA_HEAD_GATE) {
            g = carry_delta_scalar(in->g, batch, token, head);
        }
        if (p->gate_inside) {
            double x = g + (double)((const float *)in->dt_bias->data)[head];
            double softplus = x > 30.0 ? x : log1p(exp(x));
            g = -exp((double)((const float *)in->A_log->data)[head]) * softplus;
        }
        decay[i] = exp(g);
    }
}

/* Applies one token to a state S [K, V]. */
static void one_token(double *S, double *o, const carry_delta_problem *p, const double *q, const double *k,
                      const double *v, const double *decay, double beta, double scale) {
    for (int64_t j = 0; j < p->value; j++) {
        double seen = 0.0;
        for (int64_t i = 0; i < p->key; i++) {
            S[i * p->value + j] *= decay[i];
            seen += S[i * p->value + j] * k[i];
        }
        double u = beta * (v[j] - seen);
        double sum = 0.0;
        for (int64_t i = 0; i < p->key; i++) {
            S[i * p->value + j] += k[i] * u;
            sum += S[i * p->value + j] * q[i];
        }
        o[j] = scale * sum;
    }
}

static void start_state(double *S, const carry_delta_problem *p, const carry_tensor *states, int64_t at) {
    for (int64_t i = 0; i < p->key * p->value; i++) {
        int64_t row = i / p->value;
        int64_t column = i % p->value;
        int64_t from = p->state_transposed ? column * p->key + row : i;
        S[i] = states != NULL ? (double)((const float *)states->data)[at * p->key * p->value + from] : 0.0;
    }
}

carry_status carry_delta_reference(carry_ctx *ctx, double *o, double *final_state, const carry_delta_problem *problem,
                                   const carry_delta_forward_args *inputs) {
    const carry_delta_problem *p = problem;
    carry_delta_inputs in = carry_delta_inputs_of(inputs);
    CARRY_TRY(carry_delta_check_problem(ctx, p));
    CARRY_TRY(carry_delta_check_inputs(ctx, p, &in));
    double *S = calloc((size_t)(p->key * p->value), sizeof *S);
    if (S == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a state");
    }
    double q[CARRY_MAX_DELTA_DIM];
    double k[CARRY_MAX_DELTA_DIM];
    double v[CARRY_MAX_DELTA_VALUE];
    double decay[CARRY_MAX_DELTA_DIM];
    double scale = p->scale != 0.0f ? (double)p->scale : 1.0 / sqrt((double)p->key);
    int64_t sequences = p->sequences > 0 ? p->sequences : p->batch;
    for (int64_t unit = 0; unit < sequences * p->value_heads; unit++) {
        int64_t sequence = unit / p->value_heads;
        int64_t head = unit % p->value_heads;
        int64_t from = p->sequences > 0 ? ((const int64_t *)in.cu_seqlens->data)[sequence] : 0;
        int64_t to = p->sequences > 0 ? ((const int64_t *)in.cu_seqlens->data)[sequence + 1] : p->tokens;
        int64_t batch = p->sequences > 0 ? 0 : sequence;
        int64_t shared = head / (p->value_heads / p->heads);
        start_state(S, p, in.initial_state, unit);
        for (int64_t t = from; t < to; t++) {
            row_of(q, in.q, batch, t, shared, p->key, p->l2norm);
            row_of(k, in.k, batch, t, shared, p->key, p->l2norm);
            row_of(v, in.v, batch, t, head, p->value, false);
            decays_of(decay, p, &in, batch, t, head);
            one_token(S, o + ((batch * p->tokens + t) * p->value_heads + head) * p->value, p, q, k, v, decay,
                      beta_of(p, &in, batch, t, head), scale);
        }
        if (final_state != NULL) {
            memcpy(final_state + unit * p->key * p->value, S, (size_t)(p->key * p->value) * sizeof *S);
        }
    }
    free(S);
    return CARRY_OK;
}
