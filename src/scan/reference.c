/* The specification: the recurrence in float64, step after step. */
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "core/context.h"
#include "scan/check.h"

static void one_step(double *h, const double *before, const carry_scan_problem *p, const carry_tensor *A, int64_t A_at,
                     const carry_tensor *b, int64_t b_at) {
    for (int64_t r = 0; r < p->n; r++) {
        for (int64_t j = 0; j < p->width; j++) {
            double sum = carry_tensor_at(b, b_at + r * p->width + j);
            if (p->kind == CARRY_SCAN_DIAGONAL) {
                sum += carry_tensor_at(A, A_at + r) * before[r * p->width + j];
            } else {
                for (int64_t c = 0; c < p->n; c++) {
                    sum += carry_tensor_at(A, A_at + r * p->n + c) * before[c * p->width + j];
                }
            }
            h[r * p->width + j] = sum;
        }
    }
}

/* Computes l[t] in l, and the two other gradients, for one sequence. h and l are packed [T, n, w]. */
static void gradients_of(const carry_scan_problem *p, int64_t item, const carry_tensor *A, const carry_tensor *h0,
                         const double *h, double *dA, double *l, double *dh0) {
    int64_t size = p->n * p->width;
    bool dense = p->kind == CARRY_SCAN_DENSE;
    int64_t A_size = dense ? p->n * p->n : p->n;
    for (int64_t s = p->steps - 1; s >= 0; s--) {
        int64_t t = p->reversed ? p->steps - 1 - s : s;
        int64_t before = p->reversed ? t + 1 : t - 1;
        double *to = s > 0 ? l + before * size : dh0; /* A[t]^T l[t] is added to this */
        for (int64_t r = 0; r < p->n; r++) {
            for (int64_t j = 0; j < p->width; j++) {
                double here = l[t * size + r * p->width + j];
                for (int64_t c = dense ? 0 : r; c < (dense ? p->n : r + 1); c++) {
                    int64_t at = dense ? r * p->n + c : r;
                    double state = s > 0        ? h[before * size + c * p->width + j]
                                   : h0 != NULL ? carry_tensor_at(h0, item * h0->stride[0] + c * p->width + j)
                                                : 0.0;
                    dA[t * A_size + at] += here * state;
                    to[c * p->width + j] += here * carry_tensor_at(A, item * A->stride[0] + t * A->stride[1] + at);
                }
            }
        }
    }
}

carry_status carry_scan_reference_backward(carry_ctx *ctx, double *dA, double *db, double *dh0,
                                           const carry_scan_problem *problem, const carry_scan_backward_args *args,
                                           const double *h) {
    const carry_tensor A = args->A, g = args->dh;
    const carry_tensor *h0 = args->h0.data != NULL ? &args->h0 : NULL;
    CARRY_TRY(carry_scan_check_problem(ctx, problem));
    CARRY_TRY(carry_scan_check_inputs(ctx, problem, &A, &g, h0));
    int64_t size = problem->n * problem->width;
    int64_t A_size = problem->kind == CARRY_SCAN_DENSE ? problem->n * problem->n : problem->n;
    memset(dA, 0, (size_t)(problem->batch * problem->steps * A_size) * sizeof *dA);
    memset(dh0, 0, (size_t)(problem->batch * size) * sizeof *dh0);
    for (int64_t item = 0; item < problem->batch; item++) {
        double *l = db + item * problem->steps * size;
        for (int64_t t = 0; t < problem->steps; t++) {
            for (int64_t i = 0; i < size; i++) {
                l[t * size + i] = carry_tensor_at(&g, item * g.stride[0] + t * g.stride[1] + i);
            }
        }
        gradients_of(problem, item, &A, h0, h + item * problem->steps * size, dA + item * problem->steps * A_size, l,
                     dh0 + item * size);
    }
    return CARRY_OK;
}

carry_status carry_scan_reference(carry_ctx *ctx, double *h, const carry_scan_problem *problem,
                                  const carry_scan_args *args) {
    const carry_tensor A = args->A, b = args->b;
    const carry_tensor *h0 = args->h0.data != NULL ? &args->h0 : NULL;
    CARRY_TRY(carry_scan_check_problem(ctx, problem));
    CARRY_TRY(carry_scan_check_inputs(ctx, problem, &A, &b, h0));
    int64_t size = problem->n * problem->width;
    double *zero = calloc((size_t)size, sizeof *zero);
    if (zero == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a state of %lld numbers", (long long)size);
    }
    for (int64_t item = 0; item < problem->batch; item++) {
        for (int64_t i = 0; h0 != NULL && i < size; i++) {
            zero[i] = carry_tensor_at(h0, item * h0->stride[0] + i);
        }
        const double *before = zero;
        for (int64_t s = 0; s < problem->steps; s++) {
            int64_t t = problem->reversed ? problem->steps - 1 - s : s;
            double *here = h + (item * problem->steps + t) * size;
            one_step(here, before, problem, &A, item * A.stride[0] + t * A.stride[1], &b,
                     item * b.stride[0] + t * b.stride[1]);
            before = here;
        }
    }
    free(zero);
    return CARRY_OK;
}
