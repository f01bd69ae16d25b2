/* The specification of a block on a device: one token in float64, plain loops. Nothing is rounded on the way. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "model/dit/dit_device.h"

typedef struct token {
    const carry_dit_device_args *args;
    int64_t t, D, F, H, d;
    double *h, *y, *f;       /* D, D, F */
    double *q, *p, *results; /* D; a score per row of the cache or the text; D */
} token;

/* carry_f32_from_bf16, a hundred million times. */
static double widen(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

/* Rows from..from+out-1 of w. */
static void linear_rows(double *y, const double *x, const carry_tensor *w, const carry_tensor *bias, int64_t from,
                        int64_t out) {
    int64_t in = w->shape[1];
    for (int64_t i = 0; i < out; i++) {
        double sum = carry_tensor_at(bias, from + i);
        const uint16_t *row = (const uint16_t *)w->data + (from + i) * in;
        for (int64_t j = 0; j < in; j++) {
            sum += widen(row[j]) * x[j];
        }
        y[i] = sum;
    }
}

static void linear(double *y, const double *x, const carry_tensor *w, const carry_tensor *bias) {
    linear_rows(y, x, w, bias, 0, w->shape[0]);
}

static void layer_norm(const token *k, double *h, const double *x, const carry_tensor *w, int64_t w_at,
                       const carry_tensor *b, int64_t b_at, double plus) {
    double mean = 0.0;
    double variance = 0.0;
    for (int64_t i = 0; i < k->D; i++) {
        mean += x[i] / (double)k->D;
    }
    for (int64_t i = 0; i < k->D; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)k->D;
    }
    for (int64_t i = 0; i < k->D; i++) {
        h[i] = (x[i] - mean) / sqrt(variance + (double)k->args->eps) * (carry_tensor_at(w, w_at + i) + plus) +
               carry_tensor_at(b, b_at + i);
    }
}

static void rms_norm(const token *k, double *x, const carry_tensor *w) {
    double squares = 0.0;
    for (int64_t i = 0; i < k->D; i++) {
        squares += x[i] * x[i];
    }
    for (int64_t i = 0; i < k->D; i++) {
        x[i] *= carry_tensor_at(w, i) / sqrt(squares / (double)k->D + (double)k->args->eps);
    }
}

static void rotate(const token *k, double *x) {
    for (int64_t i = 0; i < k->D; i += 2) {
        int64_t at = k->t * k->d + i % k->d;
        double c = carry_tensor_at(&k->args->table, at);
        double s = carry_tensor_at(&k->args->table, at + 1);
        double first = x[i];
        x[i] = first * c - x[i + 1] * s;
        x[i + 1] = first * s + x[i + 1] * c;
    }
}

/* Over the rows of the runs; k->results is what comes out. */
static void attend(const token *k, const carry_tensor *keys, const carry_tensor *values, const carry_key_run *run,
                   int runs) {
    const carry_key_run all = {.first = 0, .count = keys->shape[0]};
    for (int64_t h = 0; h < k->H; h++) {
        double most = -INFINITY;
        double sum = 0.0;
        double *o = k->results + h * k->d;
        memset(o, 0, (size_t)k->d * sizeof *o);
        for (int pass = 0; pass < 2; pass++) {
            for (int r = 0; r < (runs > 0 ? runs : 1); r++) {
                const carry_key_run *one = runs > 0 ? &run[r] : &all;
                for (int64_t j = one->first; j < one->first + one->count; j++) {
                    int64_t at = (j * k->H + h) * k->d;
                    if (pass == 0) {
                        double score = 0.0;
                        for (int64_t i = 0; i < k->d; i++) {
                            score += k->q[h * k->d + i] * carry_tensor_at(keys, at + i);
                        }
                        k->p[j] = score / sqrt((double)k->d) + (double)one->bias;
                        most = k->p[j] > most ? k->p[j] : most;
                        continue;
                    }
                    double weight = exp(k->p[j] - most);
                    sum += weight;
                    for (int64_t i = 0; i < k->d && weight > 0.0; i++) {
                        o[i] += weight * carry_tensor_at(values, at + i);
                    }
                }
            }
        }
        for (int64_t i = 0; i < k->d; i++) {
            o[i] /= sum;
        }
    }
}

static void compute(const token *k, double *x, double *keys, double *values) {
    const carry_dit_device_args *a = k->args;
    const carry_dit_device_weights *w = &a->w;
    const carry_tensor *m = &a->modulation;
    int64_t D = k->D;
    for (int64_t i = 0; i < D; i++) {
        x[i] = carry_tensor_at(&a->x, k->t * D + i);
    }
    layer_norm(k, k->h, x, m, D, m, 0, 1.0);
    linear_rows(k->q, k->h, &w->qkv, &w->qkv_bias, 0, D);
    linear_rows(keys, k->h, &w->qkv, &w->qkv_bias, D, D);
    linear_rows(values, k->h, &w->qkv, &w->qkv_bias, 2 * D, D);
    rms_norm(k, k->q, &w->norm_q);
    rms_norm(k, keys, &w->norm_k);
    rotate(k, k->q);
    rotate(k, keys);
    attend(k, &a->k, &a->v, a->run, a->runs);
    linear(k->y, k->results, &w->o, &w->o_bias);
    for (int64_t i = 0; i < D; i++) {
        x[i] += carry_tensor_at(m, 2 * D + i) * k->y[i];
    }
    layer_norm(k, k->h, x, &w->norm3, 0, &w->norm3_bias, 0, 0.0);
    linear(k->q, k->h, &w->cross_q, &w->cross_q_bias);
    rms_norm(k, k->q, &w->cross_norm_q);
    attend(k, &a->text_k, &a->text_v, NULL, 0);
    linear(k->y, k->results, &w->cross_o, &w->cross_o_bias);
    for (int64_t i = 0; i < D; i++) {
        x[i] += k->y[i];
    }
    layer_norm(k, k->h, x, m, 4 * D, m, 3 * D, 1.0);
    linear(k->f, k->h, &w->up, &w->up_bias);
    for (int64_t i = 0; i < k->F; i++) {
        double u = k->f[i];
        k->f[i] = 0.5 * u * (1.0 + tanh(0.7978845608028654 * (u + 0.044715 * u * u * u)));
    }
    linear(k->y, k->f, &w->down, &w->down_bias);
    for (int64_t i = 0; i < D; i++) {
        x[i] += carry_tensor_at(m, 5 * D + i) * k->y[i];
    }
}

carry_status carry_dit_device_reference(carry_ctx *ctx, double *x, double *k, double *v,
                                        const carry_dit_device_args *args, int64_t t) {
    token one = {.args = args,
                 .t = t,
                 .D = args->x.shape[1],
                 .F = args->w.up.shape[0],
                 .H = args->k.shape[1],
                 .d = args->k.shape[2]};
    int64_t rows = args->k.shape[0] > args->text_k.shape[0] ? args->k.shape[0] : args->text_k.shape[0];
    double *memory = calloc((size_t)(4 * one.D + one.F + rows), sizeof *memory);
    if (memory == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for the float64 reference");
    }
    one.h = memory;
    one.y = one.h + one.D;
    one.q = one.y + one.D;
    one.results = one.q + one.D;
    one.f = one.results + one.D;
    one.p = one.f + one.F;
    compute(&one, x, k, v);
    free(memory);
    return CARRY_OK;
}
