/* Shared by the tests of attention: tensors [rows, H, D] in four layouts with NaN in the gaps, runs of keys, and a call
   with all its arguments. */
#ifndef CARRY_TESTS_ATTENTION_SUPPORT_H
#define CARRY_TESTS_ATTENTION_SUPPORT_H

#include "nn_support.h"

#include "attention/attention.h"

enum { LAYOUTS = 4 };

/* A tensor inside memory that is all NaN. 0: packed; 1: heads outermost; 2: rows and heads with gaps; 3: the same with
   rows in reverse order. */
typedef struct placed {
    carry_tensor t;
    unsigned char *memory;
    size_t bytes;
} placed;

static inline placed place(carry_dtype type, int64_t rows, int64_t heads, int64_t dim, int layout) {
    int64_t wide = layout >= 2 ? dim + 3 : dim;
    placed p = {.t = carry_view_3d(NULL, type, rows, heads, dim)};
    p.t.stride[1] = layout == 1 ? rows * dim : wide;
    p.t.stride[0] = layout == 1 ? dim : heads * wide + (layout >= 2 ? 5 : 0);
    size_t item = carry_dtype_size(type);
    p.bytes = (size_t)(rows * (heads * wide + 5) + 8) * item;
    p.memory = keep(malloc(p.bytes));
    memset(p.memory, 255, p.bytes);
    p.t.data = p.memory;
    if (layout == 3 && rows > 0) {
        p.t.data = p.memory + (size_t)((rows - 1) * p.t.stride[0]) * item;
        p.t.stride[0] = -p.t.stride[0];
    }
    return p;
}

static inline SUPPORT_UNWATCHED int64_t index_of(const carry_tensor *t, int64_t row, int64_t head, int64_t d) {
    return row * t->stride[0] + head * t->stride[1] + d;
}

static inline SUPPORT_UNWATCHED double value(const carry_tensor *t, int64_t row, int64_t head, int64_t d) {
    return carry_tensor_at(t, index_of(t, row, head, d));
}

static inline SUPPORT_UNWATCHED void set_value(const carry_tensor *t, int64_t row, int64_t head, int64_t d, float x) {
    int64_t at = index_of(t, row, head, d);
    if (t->dtype == CARRY_F32) {
        ((float *)t->data)[at] = x;
    } else {
        ((uint16_t *)t->data)[at] = t->dtype == CARRY_BF16 ? carry_bf16_from_f32(x) : carry_f16_from_f32(x);
    }
}

static inline SUPPORT_UNWATCHED placed random_placed(carry_dtype type, int64_t rows, int64_t heads, int64_t dim,
                                                     int layout, float size) {
    placed p = place(type, rows, heads, dim, layout);
    array a = random_array(CARRY_F32, 3, SHAPE(rows, heads, dim), -size, size);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t d = 0; d < dim; d++) {
                set_value(&p.t, r, h, d, (float)a.v[(r * heads + h) * dim + d]);
            }
        }
    }
    return p;
}

/* Compares each element with `want`, packed [rows, H, D]. */
static inline SUPPORT_UNWATCHED void assert_placed_near(const char *what, const carry_tensor *got, const double *want,
                                                        double bound) {
    double u = rounding(got->dtype);
    double least = got->dtype == CARRY_F16 ? 0x1p-25 : 0.0;
    for (int64_t i = 0; i < got->shape[0] * got->shape[1] * got->shape[2]; i++) {
        int64_t d = i % got->shape[2];
        int64_t h = i / got->shape[2] % got->shape[1];
        int64_t r = i / got->shape[2] / got->shape[1];
        double have = value(got, r, h, d);
        double allowed = u * (fabs(want[i]) + bound) + bound + least;
        if (!(fabs(have - want[i]) <= allowed)) {
            fail_msg(
                "%s (%s)[%lld, %lld, %lld] of [%lld, %lld, %lld] is %.9g where %.9g is expected, %.3g apart of %.3g "
                "allowed",
                what, carry_dtype_name(got->dtype), (long long)r, (long long)h, (long long)d, (long long)got->shape[0],
                (long long)got->shape[1], (long long)got->shape[2], have, want[i], fabs(have - want[i]), allowed);
        }
    }
}

/* Fails if bytes between the elements differ from those that `place` wrote. Overwrites the elements with the same byte
   and then checks all bytes. */
static inline SUPPORT_UNWATCHED void assert_gaps_untouched(const char *what, const placed *p) {
    size_t item = carry_dtype_size(p->t.dtype);
    for (int64_t r = 0; r < p->t.shape[0]; r++) {
        for (int64_t h = 0; h < p->t.shape[1]; h++) {
            memset((unsigned char *)p->t.data + index_of(&p->t, r, h, 0) * (int64_t)item, 255,
                   (size_t)p->t.shape[2] * item);
        }
    }
    for (size_t i = 0; i < p->bytes; i++) {
        if (p->memory[i] != 255) {
            fail_msg("%s was written between its elements, at byte %zu", what, i);
        }
    }
}

/* Sets of runs over S rows; some rows are in no run. */
enum { RUN_SETS = 5 };

static inline int some_runs(carry_key_run run[CARRY_MAX_KEY_RUNS], int set, int64_t S) {
    int64_t third = S / 3;
    switch (set) {
    case 1: /* a ring that wraps */
        run[0] = (carry_key_run){.first = S - third, .count = third};
        run[1] = (carry_key_run){.first = 0, .count = S - third};
        return 2;
    case 2: /* a smaller bias in the middle, and the last row is not seen */
        run[0] = (carry_key_run){.first = 0, .count = third, .bias = 0.25f};
        run[1] = (carry_key_run){.first = third, .count = third, .bias = -0.6931472f};
        run[2] = (carry_key_run){.first = 2 * third, .count = S - 2 * third - (S > 1), .bias = 3.0f};
        return 3;
    case 3: /* an empty run, one with no weight, an empty one, then the rest */
        run[0] = (carry_key_run){.first = S, .count = 0, .bias = 1.0f};
        run[1] = (carry_key_run){.first = 0, .count = third, .bias = -INFINITY};
        run[2] = (carry_key_run){.first = third, .count = 0};
        run[3] = (carry_key_run){.first = third, .count = S - third, .bias = -5.0f};
        return 4;
    case 4: { /* the most runs allowed, with one row each if there are enough rows */
        int runs = S < CARRY_MAX_KEY_RUNS ? (int)S : CARRY_MAX_KEY_RUNS;
        for (int i = 0; i < runs; i++) {
            run[i] = (carry_key_run){.first = runs - 1 - i, .count = 1, .bias = 0.01f * (float)i};
        }
        run[0].count = S - (runs - 1);
        return runs;
    }
    default:
        return 0;
    }
}

/* Workspace of `bytes` bytes, filled with 255, as is the byte after it: a write past the end shows. */
static inline void *workspace_of(size_t bytes) {
    unsigned char *memory = keep(aligned_alloc(64, (bytes + 64) / 64 * 64 + 64));
    memset(memory, 255, bytes + 1);
    return memory;
}

#endif
