/* The specification of attention: plain loops in float64, one query at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "core/context.h"
#include "core/tensor.h"

static double element(const carry_tensor *tensor, int64_t row, int64_t head, int64_t d) {
    return carry_tensor_at(tensor, row * tensor->stride[0] + head * tensor->stride[1] + d);
}

static double dot(const carry_tensor *x, int64_t x_row, int64_t x_head, const carry_tensor *y, int64_t y_row,
                  int64_t y_head) {
    double sum = 0.0;
    for (int64_t d = 0; d < x->shape[2]; d++) {
        sum += element(x, x_row, x_head, d) * element(y, y_row, y_head, d);
    }
    return sum;
}

/* Computes p[j] for every row j of the keys, zero for rows that are not seen. Returns lse relative to the largest
   bias. */
static double probabilities(double *p, const carry_attention_args *args, int64_t t, int64_t head) {
    carry_key_run seen[CARRY_MAX_KEY_RUNS];
    int runs = carry_attention_runs(args, seen);
    double scale = args->scale != 0.0f ? (double)args->scale : 1.0 / sqrt((double)args->q.shape[2]);
    double most = -INFINITY;
    double sum = 0.0;
    int64_t first;
    int64_t end;
    carry_attention_span(args, t, &first, &end);
    for (int i = 0; i < runs; i++) {
        for (int64_t j = seen[i].first; j < seen[i].first + seen[i].count; j++) {
            p[j] = scale * dot(&args->q, t, head, &args->k, j, carry_attention_key_head(args, head)) +
                   (double)seen[i].bias;
            p[j] = j >= first && j < end ? p[j] : -INFINITY;
            most = p[j] > most ? p[j] : most; /* GCC 12 at -O3 fails on fmax here */
        }
    }
    double minus = most > -INFINITY ? most : 0.0; /* with 0, exp gives zeros, or NaN for NaN */
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < runs; i++) {
            for (int64_t j = seen[i].first; j < seen[i].first + seen[i].count; j++) {
                p[j] = pass == 0 ? exp(p[j] - minus) : p[j] / (sum != 0.0 ? sum : 1.0);
                sum += pass == 0 ? p[j] : 0.0;
            }
        }
    }
    return sum != 0.0 ? minus + log(sum) : -INFINITY;
}

carry_status carry_attention_reference(carry_ctx *ctx, double *o, double *lse, const carry_attention_args *args) {
    CARRY_TRY(carry_attention_check(ctx, args));
    int64_t T = args->q.shape[0];
    int64_t H = args->q.shape[1];
    int64_t D = args->q.shape[2];
    int64_t S = args->k.shape[0];
    double *p = calloc((size_t)S + 1, sizeof *p);
    if (p == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
    }
    for (int64_t t = 0; t < T; t++) {
        for (int64_t h = 0; h < H; h++) {
            double logarithm = probabilities(p, args, t, h);
            if (lse != NULL) {
                lse[h * T + t] = logarithm;
            }
            for (int64_t d = 0; d < D; d++) {
                double sum = 0.0;
                for (int64_t j = 0; j < S; j++) { /* rows that are not seen may hold NaN */
                    sum += p[j] != 0.0 ? p[j] * element(&args->v, j, carry_attention_key_head(args, h), d) : 0.0;
                }
                o[(t * H + h) * D + d] = sum;
            }
        }
    }
    free(p);
    return CARRY_OK;
}

/* With P and dO given: dP[j] = dO.v[j], dS[j] = P[j] (dP[j] - sum_l P[l] dP[l]); dq = scale sum_j dS[j] k[j], dk[j] +=
   scale dS[j] q, dv[j] += P[j] dO. */
static void one_query(const carry_attention_backward_args *args, double *dq, double *dk, double *dv, const double *p,
                      int64_t t, int64_t h) {
    const carry_attention_args *f = &args->forward;
    int64_t H = f->q.shape[1];
    int64_t D = f->q.shape[2];
    int64_t S = f->k.shape[0];
    double scale = f->scale != 0.0f ? (double)f->scale : 1.0 / sqrt((double)D);
    double mean = 0.0;
    int64_t HK = f->k.shape[1];
    int64_t hk = carry_attention_key_head(f, h);
    for (int64_t j = 0; j < S; j++) {
        mean += p[j] != 0.0 ? p[j] * dot(&args->d_o, t, h, &f->v, j, hk) : 0.0;
    }
    for (int64_t j = 0; j < S; j++) {
        if (p[j] == 0.0) {
            continue;
        }
        double score = p[j] * (dot(&args->d_o, t, h, &f->v, j, hk) - mean);
        for (int64_t d = 0; d < D; d++) {
            dq[(t * H + h) * D + d] += scale * score * element(&f->k, j, hk, d);
            dk[(j * HK + hk) * D + d] += scale * score * element(&f->q, t, h, d);
            dv[(j * HK + hk) * D + d] += p[j] * element(&args->d_o, t, h, d);
        }
    }
}

carry_status carry_attention_reference_backward(carry_ctx *ctx, double *dq, double *dk, double *dv,
                                                const carry_attention_backward_args *args) {
    const carry_attention_args *f = &args->forward;
    CARRY_TRY(carry_attention_check(ctx, f));
    size_t row = (size_t)(f->q.shape[1] * f->q.shape[2]);
    double *p = calloc((size_t)f->k.shape[0] + 1, sizeof *p);
    if (p == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
    }
    memset(dq, 0, (size_t)f->q.shape[0] * row * sizeof *dq);
    size_t key_row = (size_t)(f->k.shape[1] * f->k.shape[2]);
    memset(dk, 0, (size_t)f->k.shape[0] * key_row * sizeof *dk);
    memset(dv, 0, (size_t)f->k.shape[0] * key_row * sizeof *dv);
    for (int64_t t = 0; t < f->q.shape[0]; t++) {
        for (int64_t h = 0; h < f->q.shape[1]; h++) {
            (void)probabilities(p, f, t, h);
            one_query(args, dq, dk, dv, p, t, h);
        }
    }
    free(p);
    return CARRY_OK;
}
