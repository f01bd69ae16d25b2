/* The parts of a backward chunk that are specific to a key gate (KDA): decays differ by channel, so the gradients of
   q, k, beta and G are summed channel by channel. With E = e^{G[i]-G[j]} for a channel, n = d(-A)[i,j] and p = scale
   dP[i,j]:

       dq[i] += p k[j] E       dk[i] -= beta[i] n k[j] E       dbeta[i] -= n k[i].(k[j] E)
       dk[j] += (p q[i] - beta[i] n k[i]) E
       dG[i] += q[i] dq[i] + k[i] dk[i];   dG[j] -= k[j] dk[j]   of these parts

   dG is double, as with one gate for each head (backward_chunk.c). Outside of the diagonal blocks, E is split into
   two factors at the block's first token, and the sums are matrix products. */
#include <math.h>

#include "core/context.h"
#include "core/span.h"
#include "delta/backward.h"

#define BLOCK CARRY_DELTA_BLOCK

typedef carry_delta_back_unit unit;

void carry_delta_back_keys_states(const unit *u, int64_t tokens, const float *S, const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t V = plan->problem.value;
    CARRY_SPAN(plan->ctx, "delta", "through states");
    double at_end[CARRY_MAX_DELTA_DIM];
    for (int64_t c = 0; c < K; c++) {
        at_end[c] = (double)(s->heads.end[c] * carry_delta_dot(S + c * V, dS + c * V, V));
    }
    for (int64_t i = 0; i < tokens; i++) {
        float beta = s->heads.beta[i];
        float seen = 0.0f;
        for (int64_t c = 0; c < K; c++) {
            int64_t at = i * K + c;
            float on_R = s->heads.fade[at] * s->by_state[at];
            float on_O = plan->scale * s->heads.fade[at] * s->by_state[tokens * K + at];
            float on_end = s->heads.left[at] * s->by_end[at];
            /* As with one gate for each head (through_states). */
            float beyond = i < tokens - 1 ? s->rows.k[at] * on_end : 0.0f;
            seen += s->rows.k[at] * on_R;
            s->key_dG[at] = (double)(s->rows.q[at] * on_O - beta * s->rows.k[at] * on_R) - (double)beyond;
            at_end[c] += (double)beyond;
            s->dq[at] += on_O;
            s->dk[at] += on_end - beta * on_R;
        }
        s->dbeta[i] = carry_delta_dot(s->gradients + i * V, s->v + i * V, V) - seen;
    }
    for (int64_t c = 0; c < K; c++) {
        s->key_dG[(tokens - 1) * K + c] += at_end[c];
    }
}

/* Adds the terms of tokens before the block to the block's rows, by products with k e^{G[b]-G[j]}. */
static void rows_of_block(const unit *u, int64_t tokens, int64_t block, int64_t size) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t C = plan->chunk;
    float *on_A = s->by_state; /* by_state is free here */
    float *on_P = s->by_state + BLOCK * K;
    carry_product p = {.m = size, .n = K, .k = block, .count = 1, .a_row = C, .b_row = K, .c_row = K};
    p.b = s->heads.before_k;
    p.a = s->by_values + block * C;
    p.c = on_A;
    plan->kernels->product(&p);
    p.a = s->by_values + (tokens + block) * C;
    p.c = on_P;
    plan->kernels->product(&p);
    for (int64_t i = 0; i < size; i++) {
        float beta = s->heads.beta[block + i];
        float on_beta = 0.0f;
        for (int64_t c = 0; c < K; c++) {
            int64_t at = (block + i) * K + c;
            float n = s->heads.after[i * K + c] * on_A[i * K + c];
            float q = plan->scale * s->heads.after[i * K + c] * on_P[i * K + c];
            s->dq[at] += q;
            s->dk[at] -= beta * n;
            s->key_dG[at] += (double)(s->rows.q[at] * q - beta * s->rows.k[at] * n);
            on_beta += s->rows.k[at] * n;
        }
        s->dbeta[block + i] -= on_beta;
    }
}

/* Adds the terms of the block's rows to the tokens before the block. */
static void columns_of_block(const unit *u, int64_t tokens, int64_t block, int64_t size) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    int64_t C = plan->chunk;
    float *on_k = s->left_k; /* left_k is free here */
    for (int64_t i = 0; i < size; i++) {
        for (int64_t c = 0; c < K; c++) {
            s->heads.after_k[i * K + c] *= -s->heads.beta[block + i];
            s->heads.after_q[i * K + c] *= plan->scale;
        }
    }
    carry_product p = {.m = block, .n = K, .k = size, .count = 1, .a_row = C, .b_row = K, .base_row = K, .c_row = K};
    p.a_transposed = true;
    p.c = on_k;
    p.a = s->by_values + block * C;
    p.b = s->heads.after_k;
    plan->kernels->product(&p);
    p.base = on_k;
    p.a = s->by_values + (tokens + block) * C;
    p.b = s->heads.after_q;
    plan->kernels->product(&p);
    for (int64_t at = 0; at < block * K; at++) {
        float k = s->heads.before[at] * on_k[at];
        s->dk[at] += k;
        s->key_dG[at] -= (double)(s->rows.k[at] * k);
    }
}

/* Adds the terms of tokens j < i of the same block. */
static void pair_of_block(const unit *u, int64_t tokens, int64_t i, int64_t j) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    float beta = s->heads.beta[i];
    float n = s->by_values[i * plan->chunk + j];
    float p = plan->scale * s->by_values[(tokens + i) * plan->chunk + j];
    float decays[CARRY_MAX_DELTA_DIM];
    const float *q_i = s->rows.q + i * K;
    const float *k_i = s->rows.k + i * K;
    const float *k_j = s->rows.k + j * K;
    float on_beta = 0.0f;
    carry_delta_key_decays(plan, &s->heads, i, j, decays);
    for (int64_t c = 0; c < K; c++) {
        float faded = k_j[c] * decays[c];
        float on_k = (p * q_i[c] - beta * n * k_i[c]) * decays[c];
        s->dq[i * K + c] += p * faded;
        s->dk[i * K + c] -= beta * n * faded;
        s->dk[j * K + c] += on_k;
        const double both = (double)(k_j[c] * on_k);
        s->key_dG[i * K + c] += both;
        s->key_dG[j * K + c] -= both;
        on_beta += k_i[c] * faded;
    }
    s->dbeta[i] -= n * on_beta;
}

void carry_delta_back_keys_triangles(const unit *u, int64_t tokens) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    CARRY_SPAN(plan->ctx, "delta", "through triangles");
    for (int64_t block = 0; block < tokens; block += BLOCK) {
        int64_t size = tokens - block < BLOCK ? tokens - block : BLOCK;
        if (block > 0) {
            carry_delta_key_factors(plan, &s->rows, &s->heads, block, size);
            rows_of_block(u, tokens, block, size);
            columns_of_block(u, tokens, block, size);
        }
        for (int64_t i = block; i < block + size; i++) {
            for (int64_t j = block; j < i; j++) {
                pair_of_block(u, tokens, i, j);
            }
            /* The gradient of q[i].k[i], which does not depend on gates. */
            float p = plan->scale * s->by_values[(tokens + i) * plan->chunk + i];
            for (int64_t c = i * K; c < (i + 1) * K; c++) {
                s->dq[c] += p * s->rows.k[c];
                s->dk[c] += p * s->rows.q[c];
            }
        }
    }
}

/* Computes dg from dG, where G[i] is the sum of the gates of all tokens up to i. The gradient of a gate whose decay is
   0 is 0. */
void carry_delta_back_keys_store(const unit *u, int64_t t, int64_t tokens, int64_t value_head, const float *S,
                                 const float *dS) {
    const carry_delta_plan *plan = u->back->plan;
    carry_delta_back_scratch *s = u->s;
    int64_t K = plan->problem.key;
    if (u->back->args->dg.data == NULL) {
        return;
    }
    for (int64_t i = tokens - 1; i >= 0; i--) {
        for (int64_t c = 0; c < K; c++) {
            double later = i < tokens - 1 ? s->key_dG[(i + 1) * K + c] : 0.0;
            bool erases = expf(s->heads.g[i * K + c]) == 0.0f;
            s->key_dG[i * K + c] = erases ? 0.0 : s->key_dG[i * K + c] + later;
        }
    }
    for (int64_t i = carry_delta_back_first_bad(u, tokens, S); i >= 0; i--) {
        double dg[CARRY_MAX_DELTA_DIM];
        carry_delta_back_gate_between(u, i, tokens, S, dS, dg);
        for (int64_t c = 0; c < K; c++) {
            s->key_dG[i * K + c] = expf(s->heads.g[i * K + c]) == 0.0f ? 0.0 : dg[c];
        }
    }
    float *dg = s->by_end; /* by_end is free here */
    for (int64_t at = 0; at < tokens * K; at++) {
        dg[at] = (float)s->key_dG[at];
    }
    carry_delta_store(plan, &u->back->args->dg, dg, u->sequence->batch, u->sequence->start + t, value_head, tokens, 0,
                      K);
}
