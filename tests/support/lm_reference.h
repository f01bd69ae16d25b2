/* A language model in float64, token by token and as plainly as possible: the reference of the model's tests. Weights
   are doubles in the layout of the model's flat buffer. One sequence at a time. */
#ifndef CARRY_TESTS_LM_REFERENCE_H
#define CARRY_TESTS_LM_REFERENCE_H

#include <math.h>

#include "support.h"

#include "model/lm/families/family.h"
#include "model/lm/mixers/delta.h"

typedef struct reference {
    const carry_lm *lm;
    const double *weights;
} reference;

static inline SUPPORT_UNWATCHED const double *reference_parameter(const reference *r, int64_t index) {
    return index >= 0 ? r->weights + r->lm->own.parameter[index].offset : NULL;
}

static inline SUPPORT_UNWATCHED const double *reference_weight(const reference *r, int64_t layer, int slot) {
    return reference_parameter(r, r->lm->layer[layer].mixer.slot[slot].parameter);
}

static inline SUPPORT_UNWATCHED double *reference_new(int64_t count) {
    double *made = calloc((size_t)count + 1, sizeof *made);
    assert_non_null(made);
    return made;
}

static inline SUPPORT_UNWATCHED double reference_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static inline SUPPORT_UNWATCHED double reference_activate(double x, carry_activation activation) {
    switch (activation) {
    case CARRY_SILU:
        return x * reference_sigmoid(x);
    case CARRY_RELU:
        return x > 0.0 ? x : 0.0;
    case CARRY_ELU:
        return (x > 0.0 ? x : expm1(x)) + 1.0; /* flash-linear-attention's */
    case CARRY_SIGMOID:
        return reference_sigmoid(x);
    case CARRY_GELU: /* no language model's */
    case CARRY_NO_ACTIVATION:
        break;
    }
    return x;
}

/* y[t] = W x[t] */
static inline SUPPORT_UNWATCHED double *reference_linear(const double *W, const double *x, int64_t T, int64_t out,
                                                         int64_t in) {
    double *y = reference_new(T * out);
    for (int64_t t = 0; W != NULL && t < T; t++) {
        for (int64_t o = 0; o < out; o++) {
            for (int64_t i = 0; i < in; i++) {
                y[t * out + o] += W[o * in + i] * x[t * in + i];
            }
        }
    }
    return y;
}

static inline SUPPORT_UNWATCHED void reference_norm(double *y, const double *x, const double *w, const double *z,
                                                    int64_t rows, int64_t n, double eps) {
    for (int64_t t = 0; t < rows; t++) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++) {
            sum += x[t * n + i] * x[t * n + i];
        }
        double factor = 1.0 / sqrt(sum / (double)n + eps);
        for (int64_t i = 0; i < n; i++) {
            double gate = z != NULL ? reference_activate(z[t * n + i], CARRY_SILU) : 1.0;
            y[t * n + i] = x[t * n + i] * factor * w[i] * gate;
        }
    }
}

/* Convolves in place; without weights, only the activation. */
static inline SUPPORT_UNWATCHED void reference_conv(double *x, const double *w, int64_t T, int64_t C, int64_t W,
                                                    carry_activation activation) {
    for (int64_t t = T - 1; t >= 0; t--) {
        for (int64_t c = 0; c < C; c++) {
            double sum = w != NULL ? 0.0 : x[t * C + c];
            for (int64_t i = 0; w != NULL && i < W; i++) {
                int64_t from = t - (W - 1) + i;
                sum += from >= 0 ? w[c * W + i] * x[from * C + c] : 0.0;
            }
            x[t * C + c] = reference_activate(sum, activation);
        }
    }
}

static inline SUPPORT_UNWATCHED void reference_l2norm(double *x, int64_t rows, int64_t n) {
    for (int64_t t = 0; t < rows; t++) {
        double sum = 1e-6;
        for (int64_t i = 0; i < n; i++) {
            sum += x[t * n + i] * x[t * n + i];
        }
        for (int64_t i = 0; i < n; i++) {
            x[t * n + i] /= sqrt(sum);
        }
    }
}

/* S <- e^g S;  u = beta (v - S^T k);  S <- S + k u^T;  o = K^-0.5 S^T q */
static inline SUPPORT_UNWATCHED void reference_token(double *S, double *o, const double *q, const double *k,
                                                     const double *v, double beta, double g, int64_t K, int64_t V) {
    for (int64_t j = 0; j < V; j++) {
        double seen = 0.0;
        for (int64_t i = 0; i < K; i++) {
            S[i * V + j] *= exp(g);
            seen += S[i * V + j] * k[i];
        }
        double u = beta * (v[j] - seen);
        o[j] = 0.0;
        for (int64_t i = 0; i < K; i++) {
            S[i * V + j] += k[i] * u;
            o[j] += S[i * V + j] * q[i] / sqrt((double)K);
        }
    }
}

static inline SUPPORT_UNWATCHED double *reference_mix(const reference *r, int64_t layer, const double *x, int64_t T) {
    const carry_lm_config *c = &r->lm->config;
    bool gated = c->family == &carry_lm_family_gated_deltanet;
    int64_t d = c->hidden_size;
    int64_t K = c->delta.key;
    int64_t V = c->delta.value;
    int64_t HV = c->delta.value_heads;
    double *q = reference_linear(reference_weight(r, layer, CARRY_LM_Q_PROJ), x, T, c->delta.key_width, d);
    double *k = reference_linear(reference_weight(r, layer, CARRY_LM_K_PROJ), x, T, c->delta.key_width, d);
    double *v = reference_linear(reference_weight(r, layer, CARRY_LM_V_PROJ), x, T, c->delta.value_width, d);
    double *a = reference_linear(reference_weight(r, layer, CARRY_LM_A_PROJ), x, T, HV, d);
    double *b = reference_linear(reference_weight(r, layer, CARRY_LM_B_PROJ), x, T, HV, d);
    double *z = reference_linear(reference_weight(r, layer, CARRY_LM_G_PROJ), x, T, c->delta.value_width, d);
    carry_activation activation = gated ? CARRY_SILU : c->delta.qk_activation;
    reference_conv(q, reference_weight(r, layer, CARRY_LM_Q_CONV), T, c->delta.key_width, c->delta.conv_size,
                   activation);
    reference_conv(k, reference_weight(r, layer, CARRY_LM_K_CONV), T, c->delta.key_width, c->delta.conv_size,
                   activation);
    reference_conv(v, reference_weight(r, layer, CARRY_LM_V_CONV), T, c->delta.value_width, c->delta.conv_size,
                   CARRY_SILU);
    reference_l2norm(q, T * c->delta.heads, K);
    reference_l2norm(k, T * c->delta.heads, K);
    double *S = reference_new(HV * K * V);
    double *o = reference_new(T * c->delta.value_width);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t head = 0; head < HV; head++) {
            int64_t row = (t * c->delta.heads + head / (HV / c->delta.heads)) * K;
            double g = 0.0;
            if (gated) {
                double step = a[t * HV + head] + reference_weight(r, layer, CARRY_LM_DT_BIAS)[head];
                g = -exp(reference_weight(r, layer, CARRY_LM_A_LOG)[head]) * log1p(exp(step));
            }
            double beta = gated || c->delta.use_beta ? reference_sigmoid(b[t * HV + head]) : 1.0;
            reference_token(S + head * K * V, o + (t * HV + head) * V, q + row, k + row, v + (t * HV + head) * V,
                            beta * (c->delta.allow_neg_eigval ? 2.0 : 1.0), g, K, V);
        }
    }
    reference_norm(o, o, reference_weight(r, layer, CARRY_LM_O_NORM), c->delta.use_gate ? z : NULL, T * HV, V,
                   c->norm_eps);
    double *out = reference_linear(reference_weight(r, layer, CARRY_LM_O_PROJ), o, T, d, c->delta.value_width);
    double *used[] = {q, k, v, a, b, z, S, o};
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++) {
        free(used[i]);
    }
    return out;
}

static inline SUPPORT_UNWATCHED double *reference_mlp(const reference *r, int64_t layer, const double *x, int64_t T) {
    const carry_lm_config *c = &r->lm->config;
    int64_t I = c->swiglu.width;
    double *gate = reference_linear(reference_parameter(r, r->lm->layer[layer].feedforward.slot[0].parameter), x, T, I,
                                    c->hidden_size);
    double *up = reference_linear(reference_parameter(r, r->lm->layer[layer].feedforward.slot[1].parameter), x, T, I,
                                  c->hidden_size);
    for (int64_t i = 0; i < T * I; i++) {
        up[i] *= reference_activate(gate[i], CARRY_SILU);
    }
    double *out = reference_linear(reference_parameter(r, r->lm->layer[layer].feedforward.slot[2].parameter), up, T,
                                   c->hidden_size, I);
    free(gate);
    free(up);
    return out;
}

static inline SUPPORT_UNWATCHED void reference_add(double *h, double *more, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        h[i] += more[i];
    }
    free(more);
}

/* Logits [T, vocabulary] of one sequence; the caller frees them. */
static inline SUPPORT_UNWATCHED double *reference_logits(const reference *r, const int64_t *ids, int64_t T) {
    const carry_lm *lm = r->lm;
    const carry_lm_config *c = &lm->config;
    int64_t d = c->hidden_size;
    double *h = reference_new(T * d);
    double *x = reference_new(T * d);
    for (int64_t t = 0; t < T; t++) {
        memcpy(h + t * d, r->weights + lm->own.parameter[lm->embeddings].offset + ids[t] * d, (size_t)d * sizeof *h);
    }
    for (int64_t layer = 0; layer < c->num_hidden_layers; layer++) {
        reference_norm(x, h, reference_parameter(r, r->lm->layer[layer].mixer.norm), NULL, T, d, c->norm_eps);
        reference_add(h, reference_mix(r, layer, x, T), T * d);
        reference_norm(x, h, reference_parameter(r, r->lm->layer[layer].feedforward.norm), NULL, T, d, c->norm_eps);
        reference_add(h, reference_mlp(r, layer, x, T), T * d);
    }
    reference_norm(x, h, r->weights + lm->own.parameter[lm->norm].offset, NULL, T, d, c->norm_eps);
    double *logits = reference_linear(r->weights + lm->own.parameter[lm->head].offset, x, T, c->vocab_size, d);
    free(h);
    free(x);
    return logits;
}

/* The sum of losses over the counted tokens of B sequences. */
static inline SUPPORT_UNWATCHED double reference_loss(const reference *r, const int64_t *ids, const int64_t *labels,
                                                      int64_t B, int64_t T) {
    int64_t n = r->lm->config.vocab_size;
    double loss = 0.0;
    for (int64_t b = 0; b < B; b++) {
        double *logits = reference_logits(r, ids + b * T, T);
        for (int64_t t = 0; t < T; t++) {
            int64_t label = labels[b * T + t];
            double sum = 0.0;
            for (int64_t i = 0; i < n; i++) {
                sum += exp(logits[t * n + i]);
            }
            loss += label != -100 ? log(sum) - logits[t * n + label] : 0.0;
        }
        free(logits);
    }
    return loss;
}

#endif
