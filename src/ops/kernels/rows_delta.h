/* The loops over rows of a backward chunk of the delta rule (delta/backward_chunk.c has the maths). Part of
   rows_loops.h. */
#ifndef CARRY_OPS_ROWS_DELTA_H
#define CARRY_OPS_ROWS_DELTA_H

typedef double sixteen_doubles __attribute__((vector_size(CARRY_UNIT_ROWS * 8), aligned(8), may_alias));

INLINE_ROWS float delta_dot(const float *a, const float *b, int64_t count) {
    sixteen part = {0};
    float sum = 0.0f;
    int64_t i = 0;
    for (; i + CARRY_UNIT_ROWS <= count; i += CARRY_UNIT_ROWS) {
        part += SIXTEEN(a + i) * SIXTEEN(b + i);
    }
    for (; i < count; i++) {
        sum += a[i] * b[i];
    }
    for (int lane = 0; lane < CARRY_UNIT_ROWS; lane++) {
        sum += part[lane];
    }
    return sum;
}

static double rows_delta_states(const carry_delta_states *s) {
    const int64_t K = s->key;
    double at_end = 0.0;
    for (int64_t i = 0; i < K; i++) {
        at_end += (double)(s->end * delta_dot(s->S + i * s->value, s->dS + i * s->value, s->value));
    }
    for (int64_t i = 0; i < s->tokens; i++) {
        const float *on_R = s->on_R + i * K;
        const float *on_O = s->on_O + i * K;
        const float *on_end = s->on_end + i * K;
        const float *k = s->k + i * K;
        float *dq = s->dq + i * K;
        float *dk = s->dk + i * K;
        const float fade = s->fade[i];
        const float faded = s->beta[i] * fade;
        const float scaled = s->scale * fade;
        const float left = s->left[i];
        const float seen = delta_dot(k, on_R, K);
        const float beyond = i < s->tokens - 1 ? left * delta_dot(k, on_end, K) : 0.0f;
        s->dbeta[i] = delta_dot(s->dR + i * s->value, s->v + i * s->value, s->value) - fade * seen;
        s->dG[i] = (double)(scaled * delta_dot(s->q + i * K, on_O, K) - faded * seen) - (double)beyond;
        at_end += (double)beyond;
        INDEPENDENT
        for (int64_t j = 0; j < K; j++) {
            dq[j] += scaled * on_O[j];
            dk[j] += left * on_end[j] - faded * on_R[j];
        }
    }
    return at_end;
}

static void rows_delta_triangles(const carry_delta_triangles *t) {
    for (int64_t i = 0; i < t->tokens; i++) {
        const int64_t at = i * t->stride;
        const float *dnA = t->dnA + at;
        const float *dP = t->dP + at;
        const float *nA = t->nA + at;
        const float *P = t->P + at;
        const float *D = t->D + at;
        const float *kk = t->kk + at;
        float *on_kk = t->on_kk + at;
        float *on_qk = t->on_qk + at;
        double *dG = t->dG;
        const float beta = t->beta[i];
        const float scale = t->scale;
        sixteen_doubles rows = {0};
        sixteen betas = {0};
        int64_t j = 0;
        for (; j + CARRY_UNIT_ROWS <= i; j += CARRY_UNIT_ROWS) {
            const sixteen inner = SIXTEEN(dnA + j) * SIXTEEN(D + j);
            const sixteen both = SIXTEEN(dP + j) * SIXTEEN(P + j) + SIXTEEN(dnA + j) * SIXTEEN(nA + j);
            const sixteen_doubles wide = __builtin_convertvector(both, sixteen_doubles);
            rows += wide;
            betas -= inner * SIXTEEN(kk + j);
            *(sixteen_doubles *)(void *)(dG + j) -= wide;
            SIXTEEN_TO(on_kk + j) -= inner * beta;
            SIXTEEN_TO(on_qk + j) += SIXTEEN(dP + j) * SIXTEEN(D + j) * scale;
        }
        double row = 0.0;
        float on_beta = 0.0f;
        for (; j < i; j++) {
            const float inner = dnA[j] * D[j];
            const double both = (double)(dP[j] * P[j] + dnA[j] * nA[j]);
            row += both;
            on_beta -= inner * kk[j];
            dG[j] -= both;
            on_kk[j] -= inner * beta;
            on_qk[j] += dP[j] * D[j] * scale;
        }
        for (int lane = 0; lane < CARRY_UNIT_ROWS; lane++) {
            row += rows[lane];
            on_beta += betas[lane];
        }
        on_qk[i] += dP[i] * scale;
        dG[i] += row;
        t->dbeta[i] += on_beta;
    }
}

static void rows_unit_rows_backward(float *dy, const float *y, const float *norms, int64_t rows, int64_t size) {
    for (int64_t i = 0; i < rows; i++) {
        const float along = delta_dot(y + i * size, dy + i * size, size);
        const float norm = norms[i];
        INDEPENDENT
        for (int64_t j = 0; j < size; j++) {
            dy[i * size + j] = norm * (dy[i * size + j] - along * y[i * size + j]);
        }
    }
}

#endif
