/* One sequence in f32, and the operator (A2, b2) o (A1, b1) on many of its elements at once. */
#ifndef CARRY_SCAN_ELEMENT_H
#define CARRY_SCAN_ELEMENT_H

#include "scan/algorithm.h"

typedef struct carry_scan_item {
    const carry_scan_work *work;
    const float *A; /* step s at A + s*A_step */
    ptrdiff_t A_step;
    float *h; /* first holds b, finally the result; step s at h + s*h_step */
    ptrdiff_t h_step;
    const float *h0; /* [n, w]; zeros if the caller gave none */
    bool has_h0;
    bool threaded; /* solve may use several threads */
    carry_arena arena;
    int64_t products;
    double flops;
    int64_t refused_step; /* set with `refused` by an algorithm that cannot handle the values; otherwise -1 */
    float refused;
} carry_scan_item;

/* A run of elements: element i at data + i*next. */
typedef struct carry_run {
    float *data;
    ptrdiff_t next;
} carry_run;

static inline carry_run carry_run_from(const float *data, ptrdiff_t next) {
    return (carry_run){(float *)(uintptr_t)data, next};
}

/* y[i] = base[i] + A[i] x[i] for i < count; base may be y. */
void carry_scan_apply(carry_scan_item *item, int64_t count, carry_run y, carry_run base, carry_run A, carry_run x);
/* C[i] = A2[i] A1[i] for i < count: the step of A1 followed by that of A2. */
void carry_scan_compose(carry_scan_item *item, int64_t count, carry_run C, carry_run A2, carry_run A1);

/* Calls solve once for each sequence of the batch: on all threads at once if there are at least as many sequences as
   threads, else one after the other with item->threaded set. Each call has item_bytes of workspace. */
carry_status carry_scan_each_item(carry_scan_work *work, size_t item_bytes, void (*solve)(carry_scan_item *item));

/* The workspace that carry_scan_each_item needs if solve uses item_bytes. */
bool carry_scan_items_workspace(const carry_scan_shape *shape, int threads, size_t item_bytes, size_t *bytes);

/* For cost functions: the seconds of `levels` rounds with the given numbers of products A A (compositions) and A x
   (applications) for each sequence. */
double carry_scan_items_cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads,
                             double compositions, double applications, double levels);

#endif
