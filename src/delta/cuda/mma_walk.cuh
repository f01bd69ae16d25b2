/* Operations of a warp on its 16 columns of a state (mma.cuh). Results are [16, 64], with tokens as columns. */
#ifndef CARRY_DELTA_MMA_WALK_CUH
#define CARRY_DELTA_MMA_WALK_CUH

#include "delta/cuda/mma.cuh"

namespace DELTA_MMA {

/* The token index of element x of result n. */
__device__ __forceinline__ int token_in(int n, int x) {
    return 8 * n + column_in() + x % 2;
}

template <int D> __device__ __forceinline__ void slice_left(unsigned (&a)[D / 16][4], const float (&S)[D / 8][4]) {
#pragma unroll
    for (int e = 0; e < D / 16; e++) {
        as_left(a[e], S[2 * e], S[2 * e + 1]);
    }
}

/* Multiplies S^T by the rows of all 64 tokens. */
template <int D>
__device__ __forceinline__ void times_tokens(float (&to)[8][4], const unsigned (&a)[D / 16][4], const uint16_t *rows) {
    clear<8>(to);
#pragma unroll
    for (int e = 0; e < D / 16; e++) {
#pragma unroll
        for (int p = 0; p < 4; p++) {
            unsigned b[4];
            load_right<D + 8>(b, rows, 16 * e, 16 * p);
            multiply_two(to[2 * p], to[2 * p + 1], a[e], b);
        }
    }
}

/* S^T += a rows, where a is [16, 16] over the tokens of block c. */
template <int D>
__device__ __forceinline__ void add_tokens(float (&S)[D / 8][4], const unsigned (&a)[4], const uint16_t *rows, int c) {
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        unsigned b[4];
        load_right_t<D + 8>(b, rows, 16 * c, 16 * n);
        multiply_two(S[2 * n], S[2 * n + 1], a, b);
    }
}

/* Multiplies each token of block c of a result by its factor, and packs it as a left operand. */
template <typename F>
__device__ __forceinline__ void weighed(unsigned (&a)[4], const float (&x)[8][4], int c, F factor) {
    float two[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            two[h][i] = x[2 * c + h][i] * factor(token_in(2 * c + h, i));
        }
    }
    as_left(a, two[0], two[1]);
}

/* v - e^G k S, where h is the product of S and k on entry. */
template <int D> __device__ __forceinline__ void right_side(float (&h)[8][4], const prepared &s, const uint16_t *v) {
#pragma unroll
    for (int p = 0; p < 4; p++) {
        unsigned of_v[4];
        load_left_t<D + 8>(of_v, v, 16 * warp_of(), 16 * p);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int n = 2 * p + i / 4, x = i % 4, t = token_in(n, x);
            const unsigned two = of_v[i / 4 * 2 + x / 2];
            h[n][x] = fmaf(-s.fade[t] * s.k_norm[t], h[n][x], x % 2 == 0 ? low_of(two) : high_of(two));
        }
    }
}

/* The first token of block b with a remainder that is NaN in any lane; C if no token has one. */
__device__ __forceinline__ int first_bad(const float (&rest)[8][4], int b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum = fmaf(rest[2 * b + i / 4][i % 4], 0.0f, sum);
    }
    if (!__any_sync(WARP, sum != 0.0f)) {
        return C;
    }
    int first = C;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        const int n = 2 * b + i / 4, at = token_in(n, i % 4);
        first = rest[n][i % 4] * 0.0f != 0.0f && at < first ? at : first;
    }
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
        const int other = __shfl_xor_sync(WARP, first, far);
        first = other < first ? other : first;
    }
    return first;
}

__device__ __forceinline__ int first_bad(const unsigned (&a)[4], int b) {
    float both[8][4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        both[2 * b + i / 4][i % 4] = i % 2 == 0 ? low_of(a[i / 2]) : high_of(a[i / 2]);
    }
    return first_bad(both, b);
}

/* For tokens of block b from `first` on: put_from sets a result to `number`, cut_from sets a left operand to zero. */
__device__ __forceinline__ void put_from(float (&x)[8][4], int b, int first, float number) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float &one = x[2 * b + i / 4][i % 4];
        one = token_in(2 * b + i / 4, i % 4) >= first ? number : one;
    }
}
__device__ __forceinline__ void cut_from(unsigned (&a)[4], int b, int first) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = token_in(2 * b + i / 2, 0);
        a[i] = at >= first ? 0u : at + 1 >= first ? a[i] & 0xffffu : a[i];
    }
}

/* Replaces the right side by rest, and computes x = beta rest as left operands of the four blocks. A NaN or infinity of
   a token must not reach earlier tokens through a zero of T or P: from the first such token on, x is zero, and rest is
   NaN except in the block of a token with only its beta NaN or infinite. Returns that token, or C if all are finite. */
__device__ __forceinline__ int solve(float (&rest)[8][4], unsigned (&x)[4][4], const prepared &s) {
    int first = C;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        unsigned a[4], right[4];
#pragma unroll
        for (int c = 0; c < b; c++) {
            negate(a, x[c]);
            load_right<LC>(right, s.A, 16 * c, 16 * b);
            multiply_two(rest[2 * b], rest[2 * b + 1], a, right);
        }
        first = first < C ? first : first_bad(rest, b);
        as_left(a, rest[2 * b], rest[2 * b + 1]);
        if (first < C) {
            cut_from(a, b, first);
        }
        load_right<LB>(right, s.T[b], 0, 0);
        multiply_two(rest[2 * b], rest[2 * b + 1], a, right);
        if (first < C) {
            put_from(rest, b, first, __int_as_float(0x7fffffff));
        }
        weighed(x[b], rest, b, [&](int t) { return s.beta[t]; });
        first = first < C ? first : first_bad(x[b], b); /* beta may be NaN or infinite */
        if (first < C) {
            cut_from(x[b], b, first);
        }
    }
    return first;
}

/* Writes a result as columns of a tile of tokens. */
template <int D> __device__ __forceinline__ void put_columns(uint16_t *tile, const float (&x)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            tile[token_in(n, i) * (D + 8) + 16 * warp_of() + row_in(i / 2)] = to_16(x[n][i]);
        }
    }
}

/* o += (P + rest) x, then NaN from token `first` on. The result overwrites v in a tile of tokens. rest is the rounding
   error of P: without it, the error of outputs is 4e-3 where keys are alike. */
template <int D>
__device__ __forceinline__ void put_outputs(uint16_t *tile, float (&o)[8][4], const unsigned (&x)[4][4],
                                            const uint16_t *P, const uint16_t *rest, int first) {
#pragma unroll
    for (int p = 0; p < BLOCKS; p++) {
#pragma unroll
        for (int c = 0; c <= p; c++) {
            unsigned b[4];
            load_right<LC>(b, P, 16 * c, 16 * p);
            multiply_two(o[2 * p], o[2 * p + 1], x[c], b);
            load_right<LC>(b, rest, 16 * c, 16 * p);
            multiply_two(o[2 * p], o[2 * p + 1], x[c], b);
        }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS && first < C; b++) {
        put_from(o, b, first, __int_as_float(0x7fffffff));
    }
    __syncwarp(); /* every lane has read its v */
    put_columns<D>(tile, o);
}

/* y += P^T dO, where dO is the tile `grad`. Then replaces y with (I + beta A)^-T y, from the last block of tokens to
   the first. `left` receives dv = beta y (of the new y) as left operands. U holds the inverses of the diagonal
   blocks of I + beta A. D is the number of columns of `grad`. */
template <int D>
__device__ __forceinline__ void solve_back(float (&y)[8][4], unsigned (&left)[4][4], const uint16_t *grad,
                                           const uint16_t *P, const uint16_t *A,
                                           const uint16_t (&U)[BLOCKS][BLOCK * LB], const float *beta) {
    unsigned b[4], one[4];
#pragma unroll
    for (int c = 0; c < BLOCKS; c++) {
        load_left_t<D + 8>(one, grad, 16 * warp_of(), 16 * c);
#pragma unroll
        for (int p = 0; p <= c; p++) {
            load_right_t<LC>(b, P, 16 * c, 16 * p);
            multiply_two(y[2 * p], y[2 * p + 1], one, b);
        }
    }
#pragma unroll
    for (int p = BLOCKS - 1; p >= 0; p--) {
#pragma unroll
        for (int c = BLOCKS - 1; c > p; c--) {
            negate(one, left[c]);
            load_right_t<LC>(b, A, 16 * c, 16 * p);
            multiply_two(y[2 * p], y[2 * p + 1], one, b);
        }
        as_left(one, y[2 * p], y[2 * p + 1]);
        load_right_t<LB>(b, U[p], 0, 0);
        multiply_two(y[2 * p], y[2 * p + 1], one, b);
        weighed(left[p], y, p, [&](int at) { return beta[at]; });
    }
}

} // namespace DELTA_MMA

#endif
