/* The gate of a chunk: its sums, the decays between tokens, and, with a key gate, the triangles that depend on them.

   Only differences of sums are exponentiated. The sums are double, and a gate below DEEPEST counts as DEEPEST:
   e^DEEPEST is 0, and 128 of them leave an ulp of 1e-10, so a gate of -0.001 after one of -1e6 or -inf is as exact as
   without it. */
#include <math.h>
#include <string.h>

#include "delta/chunk.h"

#define BLOCK CARRY_DELTA_BLOCK
#define DEEPEST (-4096.0)

static bool by_key(const carry_delta_plan *plan) {
    return plan->problem.gate == CARRY_DELTA_KEY_GATE;
}

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

void carry_delta_gate_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                           int64_t value_head, int64_t tokens, float *g) {
    const carry_delta_problem *p = &plan->problem;
    int64_t size = by_key(plan) ? p->key : 1;
    if (p->gate == CARRY_DELTA_NO_GATE) {
        memset(g, 0, (size_t)tokens * sizeof *g);
        return;
    }
    if (by_key(plan)) {
        carry_delta_load(plan, g, in->g, batch, first, value_head, tokens, 0, size);
    } else {
        carry_delta_scalars(g, in->g, batch, first, value_head, tokens);
    }
    if (p->gate_inside) {
        float rate = -expf(((const float *)in->A_log->data)[value_head]);
        float bias = ((const float *)in->dt_bias->data)[value_head];
        for (int64_t i = 0; i < tokens * size; i++) {
            g[i] = rate * softplus(g[i] + bias);
        }
    }
}

/* Replaces every x by e^x, with vector instructions, which single calls of expf would not use. */
static void decays(const carry_delta_plan *plan, float *x, int64_t count) {
    (void)plan->kernels->rows->sum_exp(x, x, 0.0f, count);
}

void carry_delta_gate_end(const carry_delta_plan *plan, carry_delta_head *head, const float *g) {
    float all = expf(g[0]);
    for (int64_t j = 0; j < plan->problem.key; j++) {
        head->end[j] = by_key(plan) ? expf(g[j]) : all;
    }
}

void carry_delta_gate_sum(const carry_delta_plan *plan, carry_delta_head *head, int64_t tokens) {
    int64_t size = by_key(plan) ? plan->problem.key : 1;
    for (int64_t i = 0; i < tokens * size; i++) {
        double g = (double)head->g[i];
        head->G[i] = (g < DEEPEST ? DEEPEST : g) + (i >= size ? head->G[i - size] : 0.0); /* NaN stays NaN */
    }
    const double *last = head->G + (tokens - 1) * size;
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t j = 0; j < size; j++) {
            head->fade[i * size + j] = (float)head->G[i * size + j];
            head->left[i * size + j] = (float)(last[j] - head->G[i * size + j]);
        }
    }
    decays(plan, head->fade, tokens * size);
    decays(plan, head->left, tokens * size);
    for (int64_t j = 0; j < plan->problem.key; j++) {
        head->end[j] = head->fade[(tokens - 1) * size + (by_key(plan) ? j : 0)];
    }
}

void carry_delta_key_factors(const carry_delta_plan *plan, const carry_delta_rows *rows, carry_delta_head *head,
                             int64_t block, int64_t size) {
    int64_t K = plan->problem.key;
    const double *from = head->G + block * K;
    for (int64_t j = 0; j < block; j++) {
        for (int64_t c = 0; c < K; c++) {
            head->before[j * K + c] = (float)(from[c] - head->G[j * K + c]);
        }
    }
    decays(plan, head->before, block * K);
    for (int64_t j = 0; j < block * K; j++) {
        head->before_k[j] = head->before[j] * rows->k[j];
    }
    for (int64_t i = 0; i < size; i++) {
        for (int64_t c = 0; c < K; c++) {
            head->after[i * K + c] = (float)(head->G[(block + i) * K + c] - from[c]);
        }
    }
    decays(plan, head->after, size * K);
    for (int64_t i = 0; i < size * K; i++) {
        head->after_k[i] = head->after[i] * rows->k[block * K + i];
        head->after_q[i] = rows->with_q ? head->after[i] * rows->q[block * K + i] : 0.0f;
    }
}

void carry_delta_key_decays(const carry_delta_plan *plan, const carry_delta_head *head, int64_t i, int64_t j,
                            float *to) {
    int64_t K = plan->problem.key;
    for (int64_t c = 0; c < K; c++) {
        to[c] = (float)(head->G[i * K + c] - head->G[j * K + c]);
    }
    decays(plan, to, K);
}

/* Inside a diagonal block the difference itself is exponentiated. */
static void key_corner(const carry_delta_plan *plan, const carry_delta_rows *rows, carry_delta_head *head,
                       int64_t block, int64_t i) {
    int64_t K = plan->problem.key;
    const float *k = rows->k + i * K;
    const float *q = rows->with_q ? rows->q + i * K : k;
    float weighed[CARRY_MAX_DELTA_DIM];
    for (int64_t j = block; j <= i; j++) {
        carry_delta_key_decays(plan, head, i, j, weighed);
        for (int64_t c = 0; c < K; c++) {
            weighed[c] *= rows->k[j * K + c];
        }
        head->nA[i * plan->chunk + j] = carry_delta_dot(k, weighed, K);
        head->P[i * plan->chunk + j] = carry_delta_dot(q, weighed, K);
    }
}

void carry_delta_key_triangles(const carry_delta_plan *plan, const carry_delta_rows *rows, carry_delta_head *head) {
    int64_t C = plan->chunk;
    int64_t K = plan->problem.key;
    for (int64_t block = 0; block < rows->tokens; block += BLOCK) {
        int64_t size = rows->tokens - block < BLOCK ? rows->tokens - block : BLOCK;
        carry_delta_key_factors(plan, rows, head, block, size);
        carry_product product = {
            .m = size, .n = block, .k = K, .count = 1, .a_row = K, .b_row = K, .c_row = C, .b_transposed = true};
        product.b = head->before_k;
        product.a = head->after_k;
        product.c = head->nA + block * C;
        plan->kernels->product(&product);
        product.a = head->after_q;
        product.c = head->P + block * C;
        plan->kernels->product(&product);
        for (int64_t i = block; i < block + size; i++) {
            key_corner(plan, rows, head, block, i);
            for (int64_t j = 0; j < block + size; j++) {
                head->nA[i * C + j] = j < i ? -head->beta[i] * head->nA[i * C + j] : 0.0f;
                head->P[i * C + j] = rows->with_q && j <= i ? plan->scale * head->P[i * C + j] : 0.0f;
            }
        }
    }
}
