/* Shared by the tests of carry/nn.h: arrays of every type with the same numbers in float64 beside them, contexts of 1,
   2 and 3 threads, and gradients of a float64 function by differences. */
#ifndef CARRY_TESTS_NN_SUPPORT_H
#define CARRY_TESTS_NN_SUPPORT_H

#include "support.h"

#include <math.h>

#include "core/tensor.h"

enum { CTXS = 3 };
static carry_ctx *ctxs[CTXS];
static void *kept[4096];
static int kept_count;
static uint64_t streams;

/* The step of loops over all contexts: with few cases, only those of 1 and 3 threads. */
static inline int ctxs_step(void) {
    return support_cases(1, 2);
}

static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};

static inline int open_contexts(void **state) {
    (void)state;
    for (int i = 0; i < CTXS; i++) {
        ctxs[i] = support_ctx(i + 1, NULL, NULL);
    }
    return 0;
}

static inline int close_contexts(void **state) {
    (void)state;
    for (int i = 0; i < CTXS; i++) {
        carry_ctx_free(ctxs[i]);
    }
    return 0;
}

static inline void *keep(void *memory) {
    assert_non_null(memory);
    assert_in_range(kept_count, 0, 4095);
    kept[kept_count++] = memory;
    return memory;
}

static inline int free_kept(void **state) {
    (void)state;
    while (kept_count > 0) {
        free(kept[--kept_count]);
    }
    return 0;
}

/* A tensor and its numbers in float64, after rounding to its type. */
typedef struct array {
    carry_tensor t;
    double *v;
    int64_t count;
} array;

static inline SUPPORT_UNWATCHED void read_back(array *a) {
    for (int64_t i = 0; i < a->count; i++) {
        a->v[i] = carry_tensor_at(&a->t, i);
    }
}

/* All bytes 255: NaN in every type. */
static inline array poisoned(carry_dtype dtype, int rank, const int64_t *shape) {
    array a = {.t = carry_view(NULL, dtype, rank, shape)};
    a.count = carry_tensor_count(&a.t);
    size_t bytes = (size_t)a.count * carry_dtype_size(dtype);
    a.t.data = keep(malloc(bytes + 8));
    a.v = keep(calloc((size_t)a.count + 1, sizeof *a.v));
    memset(a.t.data, 255, bytes);
    return a;
}

static inline array random_array(carry_dtype dtype, int rank, const int64_t *shape, float low, float high) {
    array a = poisoned(dtype, rank, shape);
    assert_ok(ctxs[0], carry_random_uniform(ctxs[0], a.t, 20, streams++, low, high));
    read_back(&a);
    return a;
}

static inline array copy_of(const array *a) {
    array b = poisoned(a->t.dtype, a->t.rank, a->t.shape);
    memcpy(b.t.data, a->t.data, (size_t)a->count * carry_dtype_size(a->t.dtype));
    read_back(&b);
    return b;
}

static const carry_tensor absent = {.data = NULL};

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

/* Half a unit in the last place, relative. */
static inline SUPPORT_UNWATCHED double rounding(carry_dtype dtype) {
    return dtype == CARRY_F32 ? 0x1p-24 : dtype == CARRY_BF16 ? 0x1p-8 : 0x1p-11;
}

/* Compares each element to its type's rounding, plus `bound` for errors of f32 before it. Numbers below f16's normal
   ones are 2^-24 apart. */
static inline SUPPORT_UNWATCHED void assert_near(const char *what, const array *got, const double *want, double bound) {
    double u = rounding(got->t.dtype);
    double least = got->t.dtype == CARRY_F16 ? 0x1p-25 : 0.0;
    for (int64_t i = 0; i < got->count; i++) {
        double have = carry_tensor_at(&got->t, i);
        double allowed = u * (fabs(want[i]) + bound) + bound + least;
        if (!(fabs(have - want[i]) <= allowed)) {
            fail_msg("%s (%s)[%lld] is %.9g where %.9g is expected, %.3g apart of %.3g allowed", what,
                     carry_dtype_name(got->t.dtype), (long long)i, have, want[i], fabs(have - want[i]), allowed);
        }
    }
}

/* The same bits for every number of threads: `first` is the result of one thread. */
static inline void assert_same(const char *what, const array *got, const array *first) {
    if (memcmp(got->t.data, first->t.data, (size_t)got->count * carry_dtype_size(got->t.dtype)) != 0) {
        fail_msg("%s depends on the number of threads, or has other bits than its emulation", what);
    }
}

/* Compares got[i] with (loss(x + h e_i) - loss(x - h e_i)) / 2h for every step-th element of x, or a seventh of them.
   With h = 1e-5 in float64 the difference is off by h^2 and 1e-16/h of the loss: 1e-9 here. */
typedef double (*loss_function)(const void *problem);

static inline SUPPORT_UNWATCHED void assert_gradient(const char *what, const array *got, array *x, int64_t step,
                                                     loss_function loss, const void *problem, double bound) {
    const double h = 1e-5;
    double u = rounding(got->t.dtype);
    for (int64_t i = 0; i < x->count; i += step * support_cases(1, 7)) {
        double saved = x->v[i];
        x->v[i] = saved + h;
        double above = loss(problem);
        x->v[i] = saved - h;
        double below = loss(problem);
        x->v[i] = saved;
        double want = (above - below) / (2.0 * h);
        double have = carry_tensor_at(&got->t, i);
        double allowed = u * fabs(want) + bound + 1e-8 + 0x1p-24 * (got->t.dtype == CARRY_F16);
        if (!(fabs(have - want) <= allowed)) {
            fail_msg("%s (%s)[%lld] is %.9g where %.9g is expected, %.3g apart of %.3g allowed", what,
                     carry_dtype_name(got->t.dtype), (long long)i, have, want, fabs(have - want), allowed);
        }
    }
}

static inline SUPPORT_UNWATCHED double sigmoid64(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static inline SUPPORT_UNWATCHED double activate64(double x, carry_activation activation) {
    switch (activation) {
    case CARRY_NO_ACTIVATION:
        return x;
    case CARRY_SILU:
        return x * sigmoid64(x);
    case CARRY_RELU:
        return x > 0.0 ? x : 0.0;
    case CARRY_ELU:
        return x > 0.0 ? x : expm1(x);
    case CARRY_SIGMOID:
        return sigmoid64(x);
    case CARRY_GELU:
        return x / 2.0 * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
    return NAN;
}

#endif
