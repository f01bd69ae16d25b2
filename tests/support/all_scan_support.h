/* Shared by the tests of All-Scan: problems with seeded numbers, and their results by the definition in f64. */
#ifndef CARRY_TESTS_ALL_SCAN_SUPPORT_H
#define CARRY_TESTS_ALL_SCAN_SUPPORT_H

#include "comm_support.h"

#include <math.h>

#include "core/tensor.h"
#include "scan/all_scan/all_scan.h"

static const carry_all_scan_machine some_machine = {
    .latency = 2e-6, .overhead = 5e-7, .bandwidth = 10e9, .product = 80e-6, .compose = 80e-6, .memory = 10e9};

static inline SUPPORT_UNWATCHED double unit(uint64_t seed, uint64_t high, uint64_t low) { /* -1 to 1 */
    return (double)draw(seed, high, low) / 2147483648.0 - 1.0;
}

/* One rank's part. */
typedef struct part {
    float *M, *W, *Y, *gamma, *L, *initial, *state, *leaving;
    carry_all_scan_role role;
} part;

static inline float *floats(int64_t count) {
    return malloc((size_t)count * sizeof(float));
}

/* Rows and columns of M sum to about 1 at most in absolute value, so that errors do not grow from rank to rank and M S
   stays as large as S: a signed permutation plus a dense part. */
static inline SUPPORT_UNWATCHED void fill_dense(float *M, int64_t key, uint64_t seed, uint64_t stream) {
    for (int64_t i = 0; i < key; i++) {
        for (int64_t j = 0; j < key; j++) {
            const double beside = 0.15 * unit(seed, stream, (uint64_t)(i * key + j)) / (double)key;
            M[i * key + j] = (float)(beside + (j == (i + 1) % key ? (i % 3 ? 0.85 : -0.85) : 0.0));
        }
    }
}

static inline SUPPORT_UNWATCHED part make_part(const carry_all_scan_problem *p, uint64_t seed, int rank) {
    const int64_t state = p->heads * p->key * p->value, factor = p->heads * p->rows * p->key;
    const uint64_t stream = (uint64_t)rank * 8;
    part made = {.L = floats(state), .initial = floats(state), .state = floats(state), .leaving = floats(state)};
    made.M = floats(p->heads * p->key * p->key);
    made.W = floats(factor + 1);
    made.Y = floats(factor + 1);
    made.gamma = floats(p->heads);
    for (int64_t i = 0; i < state; i++) {
        made.L[i] = (float)unit(seed, stream, (uint64_t)i);
        made.initial[i] = (float)unit(seed, stream + 1, (uint64_t)i);
        made.state[i] = made.leaving[i] = NAN;
    }
    for (int64_t head = 0; head < p->heads; head++) {
        if (p->kind == CARRY_ALL_SCAN_DENSE) {
            fill_dense(made.M + head * p->key * p->key, p->key, seed, stream + 2 + ((uint64_t)head << 32));
        }
        made.gamma[head] = (float)(0.55 + 0.1 * unit(seed, stream + 3, (uint64_t)head));
    }
    for (int64_t i = 0; i < p->heads * p->key && p->kind == CARRY_ALL_SCAN_DIAGONAL; i++) {
        made.M[i] = (float)unit(seed, stream + 4, (uint64_t)i);
    }
    const double small = sqrt(0.5 / (double)(p->rows * p->key + 1)); /* W^T Y sums to at most a half */
    for (int64_t i = 0; i < factor; i++) {
        made.W[i] = (float)(small * unit(seed, stream + 5, (uint64_t)i));
        made.Y[i] = (float)(small * unit(seed, stream + 6, (uint64_t)i));
    }
    made.role = CARRY_ALL_SCAN_MAP;
    return made;
}

static inline void free_part(part *made) {
    float *const all[] = {made->M, made->W, made->Y, made->gamma, made->L, made->initial, made->state, made->leaving};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

/* Arguments with only the tensors that the part's role reads. */
static inline carry_all_scan_args args_of(const carry_all_scan_problem *p, const part *made, bool initial,
                                          bool leaving) {
    const bool maps = made->role == CARRY_ALL_SCAN_MAP;
    carry_all_scan_args args = {.role = made->role};
    args.state = carry_view_3d(made->state, CARRY_F32, p->heads, p->key, p->value);
    if (leaving) {
        args.leaving = carry_view_3d(made->leaving, CARRY_F32, p->heads, p->key, p->value);
    }
    if (initial) {
        args.initial = carry_view_3d(made->initial, CARRY_F32, p->heads, p->key, p->value);
    }
    if (made->role != CARRY_ALL_SCAN_PASS) {
        args.L = carry_view_3d(made->L, CARRY_F32, p->heads, p->key, p->value);
    }
    if (maps && p->kind == CARRY_ALL_SCAN_DENSE) {
        args.M = carry_view_3d(made->M, CARRY_F32, p->heads, p->key, p->key);
    } else if (maps && p->kind == CARRY_ALL_SCAN_DIAGONAL) {
        args.M = carry_view_2d(made->M, CARRY_F32, p->heads, p->key);
    } else if (maps) {
        args.W = carry_view_3d(made->W, CARRY_F32, p->heads, p->rows, p->key);
        args.Y = carry_view_3d(made->Y, CARRY_F32, p->heads, p->rows, p->key);
        args.gamma = carry_view_1d(made->gamma, CARRY_F32, p->heads);
    }
    return args;
}

/* Entry i, j of the map of one head, transposed if the problem says so. */
static inline SUPPORT_UNWATCHED double entry(const carry_all_scan_problem *p, const part *made, int64_t head, int64_t i,
                                             int64_t j) {
    if (p->kind == CARRY_ALL_SCAN_DIAGONAL) {
        return i == j ? made->M[head * p->key + i] : 0.0;
    }
    const int64_t row = p->transposed ? j : i, column = p->transposed ? i : j;
    if (p->kind == CARRY_ALL_SCAN_DENSE) {
        return made->M[(head * p->key + row) * p->key + column];
    }
    double sum = row == column;
    for (int64_t r = 0; r < p->rows; r++) {
        sum -= (double)made->W[(head * p->rows + r) * p->key + row] * made->Y[(head * p->rows + r) * p->key + column];
    }
    return made->gamma[head] * sum;
}

/* out = the state that leaves the part if S enters it. */
static inline SUPPORT_UNWATCHED void leave(const carry_all_scan_problem *p, const part *made, double *out,
                                           const double *S) {
    const int64_t state = p->key * p->value;
    for (int64_t head = 0; head < p->heads; head++) {
        for (int64_t i = 0; i < p->key; i++) {
            for (int64_t c = 0; c < p->value; c++) {
                const int64_t at = head * state + i * p->value + c;
                out[at] = made->role == CARRY_ALL_SCAN_PASS ? S[at] : made->L[at];
            }
            for (int64_t j = 0; j < p->key && made->role == CARRY_ALL_SCAN_MAP; j++) {
                const double m = entry(p, made, head, i, j);
                for (int64_t c = 0; c < p->value && m != 0.0; c++) {
                    out[head * state + i * p->value + c] += m * S[head * state + j * p->value + c];
                }
            }
        }
    }
}

/* Computes the state that enters a rank and the one that leaves it; returns the largest magnitude on the way. */
static inline SUPPORT_UNWATCHED double reference(const carry_all_scan_problem *p, const part *parts, int ranks,
                                                 int rank, bool initial, double *enters, double *leaves) {
    const int64_t state = p->heads * p->key * p->value;
    double largest = 1.0; /* L and initial are below */
    const int first = p->reversed ? ranks - 1 : 0, step = p->reversed ? -1 : 1;
    for (int64_t i = 0; i < state; i++) {
        leaves[i] = initial ? parts[first].initial[i] : 0.0;
    }
    for (int r = first;; r += step) {
        memcpy(enters, leaves, (size_t)state * sizeof *enters);
        leave(p, &parts[r], leaves, enters);
        for (int64_t i = 0; i < state; i++) {
            largest = fabs(leaves[i]) > largest ? fabs(leaves[i]) : largest;
        }
        if (r == rank) {
            return largest;
        }
    }
}

#endif
