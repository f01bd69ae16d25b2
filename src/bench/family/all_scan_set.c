/* Inputs of All-Scan problems, and the float64 definition of what they do to a state. */
#include "bench/family/all_scan_set.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/family/capacity.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"

#define SIZES "h, k, v or r"

enum { GAMMA, KEYS, BETA, DECAYS, INTERCEPT, INITIAL, STREAMS };

static carry_status make(carry_ctx *ctx, carry_tensor *tensor, int rank, const int64_t *shape) {
    size_t bytes;
    if (!carry_size_product(&bytes, shape, rank, sizeof(float))) {
        return carry_fail(ctx, CARRY_ESIZE, "the problem is larger than memory can be: reduce " SIZES);
    }
    CARRY_TRY(carry_check_capacity(ctx, (double)bytes, SIZES));
    *tensor = carry_view(carry_aligned_new(bytes), CARRY_F32, rank, shape);
    if (tensor->data == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce " SIZES,
                          1e-9 * (double)bytes);
    }
    memset(tensor->data, 0, bytes);
    return CARRY_OK;
}

static float dot(const float *a, const float *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return (float)sum;
}

/* For one head: normalizes the keys k[t], the rows of W, to length 1, and computes the rows of Y:
   Y[t] = beta[t] (k[t] - sum over s < t of <k[t], k[s]> Y[s]). */
static void fill_factors(float *W, float *Y, const float *beta, int64_t rows, int64_t key) {
    for (int64_t t = 0; t < rows; t++) {
        float *k = W + t * key;
        float *y = Y + t * key;
        const float length = sqrtf(dot(k, k, key));
        for (int64_t i = 0; i < key; i++) {
            k[i] = length > 0.0f ? k[i] / length : 0.0f;
            y[i] = k[i];
        }
        for (int64_t s = 0; s < t; s++) {
            const float along = dot(k, W + s * key, key);
            for (int64_t i = 0; i < key; i++) {
                y[i] -= along * Y[s * key + i];
            }
        }
        for (int64_t i = 0; i < key; i++) {
            y[i] *= beta[t];
        }
    }
}

/* M = gamma (I - W^T Y) for one head. */
static void multiply_out(float *M, const float *W, const float *Y, float gamma, int64_t rows, int64_t key) {
    for (int64_t i = 0; i < key; i++) {
        float *row = M + i * key;
        row[i] = 1.0f;
        for (int64_t t = 0; t < rows; t++) {
            for (int64_t j = 0; j < key; j++) {
                row[j] -= W[t * key + i] * Y[t * key + j];
            }
        }
        for (int64_t j = 0; j < key; j++) {
            row[j] *= gamma;
        }
    }
}

static carry_status make_factors(carry_ctx *ctx, carry_all_scan_args *args, const carry_all_scan_problem *p,
                                 int64_t rows, uint64_t seed, uint64_t stream) {
    const int64_t shape[] = {p->heads, rows, p->key};
    carry_tensor beta = {0};
    CARRY_TRY(make(ctx, &args->W, 3, shape));
    CARRY_TRY(make(ctx, &args->Y, 3, shape));
    CARRY_TRY(make(ctx, &args->gamma, 1, shape));
    CARRY_TRY(make(ctx, &beta, 2, shape));
    carry_status status = carry_random_normal(ctx, args->W, seed, stream + KEYS, 0.0f, 1.0f);
    status = status == CARRY_OK ? carry_random_uniform(ctx, beta, seed, stream + BETA, 0.0f, 1.0f) : status;
    status = status == CARRY_OK ? carry_random_uniform(ctx, args->gamma, seed, stream + GAMMA, 0.8f, 1.0f) : status;
    for (int64_t head = 0; status == CARRY_OK && head < p->heads; head++) {
        const int64_t at = head * rows * p->key;
        fill_factors((float *)args->W.data + at, (float *)args->Y.data + at, (float *)beta.data + head * rows, rows,
                     p->key);
    }
    free(beta.data);
    return status;
}

static void free_factors(carry_all_scan_args *args) {
    free(args->W.data);
    free(args->Y.data);
    free(args->gamma.data);
    args->W = args->Y = args->gamma = (carry_tensor){0};
}

static carry_status make_dense(carry_ctx *ctx, carry_all_scan_args *args, const carry_all_scan_problem *p,
                               uint64_t seed, uint64_t stream) {
    const int64_t shape[] = {p->heads, p->key, p->key};
    const int64_t rows = p->key < CARRY_ALL_SCAN_KEYS ? p->key : CARRY_ALL_SCAN_KEYS;
    CARRY_TRY(make(ctx, &args->M, 3, shape));
    const carry_status status = make_factors(ctx, args, p, rows, seed, stream);
    for (int64_t head = 0; status == CARRY_OK && head < p->heads; head++) {
        const int64_t at = head * rows * p->key;
        multiply_out((float *)args->M.data + head * p->key * p->key, (const float *)args->W.data + at,
                     (const float *)args->Y.data + at, ((const float *)args->gamma.data)[head], rows, p->key);
    }
    free_factors(args); /* the dense kind does not take the factors */
    return status;
}

static carry_status make_transition(carry_ctx *ctx, carry_all_scan_args *args, const carry_all_scan_problem *p,
                                    uint64_t seed, uint64_t stream) {
    const int64_t diagonal[] = {p->heads, p->key};
    switch (p->kind) {
    case CARRY_ALL_SCAN_DENSE:
        return make_dense(ctx, args, p, seed, stream);
    case CARRY_ALL_SCAN_FACTORS:
        return make_factors(ctx, args, p, p->rows, seed, stream);
    case CARRY_ALL_SCAN_DIAGONAL:
        break;
    }
    CARRY_TRY(make(ctx, &args->M, 2, diagonal));
    return carry_random_uniform(ctx, args->M, seed, stream + DECAYS, 0.8f, 1.0f);
}

carry_status carry_all_scan_set_new(carry_ctx *ctx, carry_all_scan_set *set, const carry_all_scan_problem *p,
                                    bool initial, uint64_t seed, int rank) {
    const int64_t state[] = {p->heads, p->key, p->value};
    const uint64_t stream = (uint64_t)rank * STREAMS;
    carry_all_scan_args *args = &set->args;
    *set = (carry_all_scan_set){.args = {.role = CARRY_ALL_SCAN_MAP}};
    CARRY_TRY(make(ctx, &args->state, 3, state));
    CARRY_TRY(make(ctx, &args->leaving, 3, state));
    CARRY_TRY(make(ctx, &args->L, 3, state));
    CARRY_TRY(carry_random_normal(ctx, args->L, seed, stream + INTERCEPT, 0.0f, 1.0f));
    if (initial) {
        CARRY_TRY(make(ctx, &args->initial, 3, state));
        CARRY_TRY(carry_random_normal(ctx, args->initial, seed, stream + INITIAL, 0.0f, 1.0f));
    }
    return make_transition(ctx, args, p, seed, stream);
}

void carry_all_scan_set_free(carry_all_scan_set *set) {
    carry_all_scan_args *args = &set->args;
    free(args->state.data);
    free(args->leaving.data);
    free(args->L.data);
    free(args->initial.data);
    free(args->M.data);
    free_factors(args);
    *set = (carry_all_scan_set){0};
}

double carry_all_scan_set_bytes(const carry_all_scan_problem *p) {
    const double heads = (double)p->heads, key = (double)p->key;
    const double map = p->kind == CARRY_ALL_SCAN_DENSE      ? key * key
                       : p->kind == CARRY_ALL_SCAN_DIAGONAL ? key
                                                            : 2.0 * (double)p->rows * key + 1.0;
    return sizeof(float) * heads * (map + 3.0 * key * (double)p->value);
}

/* to += factor * from, for vectors of `value` numbers. */
static void add_row(double *to, double factor, const double *from, int64_t value) {
    for (int64_t v = 0; v < value; v++) {
        to[v] += factor * from[v];
    }
}

/* to = gamma (S - W^T (Y S)) for one head, one row of W and Y at a time. */
static void apply_factors(double *to, const double *S, const carry_all_scan_args *args, int64_t head,
                          const carry_all_scan_problem *p, double *row) {
    const float *W = (const float *)args->W.data + head * p->rows * p->key;
    const float *Y = (const float *)args->Y.data + head * p->rows * p->key;
    const double gamma = (double)((const float *)args->gamma.data)[head];
    for (int64_t k = 0; k < p->key; k++) {
        add_row(to + k * p->value, gamma, S + k * p->value, p->value);
    }
    for (int64_t t = 0; t < p->rows; t++) {
        memset(row, 0, (size_t)p->value * sizeof *row);
        for (int64_t k = 0; k < p->key; k++) {
            add_row(row, (double)Y[t * p->key + k], S + k * p->value, p->value);
        }
        for (int64_t k = 0; k < p->key; k++) {
            add_row(to + k * p->value, -gamma * (double)W[t * p->key + k], row, p->value);
        }
    }
}

void carry_all_scan_set_apply(double *leaving, const double *entering, const carry_all_scan_set *set,
                              const carry_all_scan_problem *p, double *row) {
    const carry_all_scan_args *args = &set->args;
    const float *M = args->M.data;
    const float *L = args->L.data;
    for (int64_t i = 0; i < p->heads * p->key * p->value; i++) {
        leaving[i] = (double)L[i];
    }
    for (int64_t head = 0; head < p->heads; head++) {
        const double *S = entering + head * p->key * p->value;
        double *to = leaving + head * p->key * p->value;
        if (p->kind == CARRY_ALL_SCAN_FACTORS) {
            apply_factors(to, S, args, head, p, row);
            continue;
        }
        for (int64_t i = 0; i < p->key; i++) {
            if (p->kind == CARRY_ALL_SCAN_DIAGONAL) {
                add_row(to + i * p->value, (double)M[head * p->key + i], S + i * p->value, p->value);
                continue;
            }
            for (int64_t j = 0; j < p->key; j++) {
                add_row(to + i * p->value, (double)M[(head * p->key + i) * p->key + j], S + j * p->value, p->value);
            }
        }
    }
}
