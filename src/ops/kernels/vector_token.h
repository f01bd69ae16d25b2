/* One token of the delta rule. Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_TOKEN_H
#define CARRY_OPS_VECTOR_TOKEN_H

/* A block of columns: u is computed first, with sums in registers over all rows; then the rows are written, half of
   the block at a time, since u and o need the registers. With NEON and AVX2 a block of 128 rows takes 32 KiB and stays
   in the first-level cache between the two passes, so that the state is read from further away only once: otherwise
   the bandwidth of the second-level cache would limit this (docs/results/delta.md). */
INLINE void token_see(const int vectors, const carry_delta_token *t, int64_t at, float *u) {
    /* Copies, since the compiler must assume that stores of vectors may change *t. */
    const ptrdiff_t stride = t->stride;
    const int64_t rows = t->rows;
    const float *S = t->S + at;
    const float *factors = t->faded_k;
    vec seen[16];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        seen[v] = (vec){0};
    }
    for (int64_t i = 0; i < rows; i++, S += stride) {
        const float factor = factors[i];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            seen[v] += factor * load(S + v * LANES);
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        keep(u + v * LANES, t->beta * (load(t->v + at + v * LANES) - seen[v]));
    }
}

INLINE void token_write(const int vectors, const carry_delta_token *t, int64_t at, const float *u, ptrdiff_t ahead) {
    const ptrdiff_t stride = t->stride;
    const int64_t rows = t->rows;
    float *S = t->S + at;
    const float *decays = t->decay;
    const float *keys = t->k;
    const float *queries = t->q;
    vec value[8];
    vec sum[8];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        value[v] = load(u + v * LANES);
        sum[v] = (vec){0};
    }
    for (int64_t i = 0; i < rows; i++, S += stride) {
        const float decay = decays[i];
        const float key = keys[i];
        const float query = queries[i];
        UNROLL
        for (int v = 0; v<vectors; v += 16 / LANES> 0 ? 16 / LANES : 1) {
            __builtin_prefetch(S + ahead + v * LANES, 0, 2);
        }
        vec now[8];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            now[v] = decay * load(S + v * LANES) + key * value[v];
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            keep(S + v * LANES, now[v]);
            sum[v] += query * now[v];
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        keep(t->o + at + v * LANES, sum[v]);
    }
}

/* The last columns, fewer than a vector: the loops of the specification. */
static void token_edge(const carry_delta_token *t, int64_t at) {
    for (int64_t j = at; j < t->columns; j++) {
        float seen = 0.0f;
        for (int64_t i = 0; i < t->rows; i++) {
            seen += t->faded_k[i] * t->S[i * t->stride + j];
        }
        float u = t->beta * (t->v[j] - seen);
        float sum = 0.0f;
        for (int64_t i = 0; i < t->rows; i++) {
            float now = t->decay[i] * t->S[i * t->stride + j] + t->k[i] * u;
            t->S[i * t->stride + j] = now;
            sum += t->q[i] * now;
        }
        t->o[j] = sum;
        if (t->u != NULL) {
            t->u[j] = u;
        }
    }
}

static void delta_token(const carry_delta_token *t) {
    float beside[2 * TOKEN_VECTORS * LANES]; /* token_see writes it */
    const int half = TOKEN_VECTORS * LANES;
    int64_t at = 0;
    for (; at + 2 * half <= t->columns; at += 2 * half) {
        /* While a block is written, the next block is prefetched: the columns beside it, or the first columns of the
           next state, which follows this state in memory if several sequences are decoded. A prefetch beyond the last
           state is harmless. */
        ptrdiff_t ahead = at + 4 * half <= t->columns ? 2 * half : t->rows * t->stride - at;
        float *u = t->u != NULL ? t->u + at : &beside[0];
        token_see(2 * TOKEN_VECTORS, t, at, u);
        token_write(TOKEN_VECTORS, t, at, u, ahead);
        token_write(TOKEN_VECTORS, t, at + half, u + half, ahead);
    }
    for (; at + half <= t->columns; at += half) {
        float *u = t->u != NULL ? t->u + at : beside;
        token_see(TOKEN_VECTORS, t, at, u);
        token_write(TOKEN_VECTORS, t, at, u, t->rows * t->stride);
    }
    for (; at + LANES <= t->columns; at += LANES) {
        float *u = t->u != NULL ? t->u + at : beside;
        token_see(1, t, at, u);
        token_write(1, t, at, u, t->rows * t->stride);
    }
    token_edge(t, at);
}

#endif
