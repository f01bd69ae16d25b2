/* The delta rule as a dense scan on a GPU: the computations before and after the scan (carry/scan.h). For each value
   head

       S[t] = A[t] S[t-1] + b[t],   A[t] = e^g (I - beta k k^T),   b[t] = beta k v^T,   o[t] = scale S[t]^T q[t]

   A unit is one value head of one batch item; units are numbered item after item. A call handles `count` of them
   from `first` on, and its buffers start at that unit. The plan must be for this GPU; it gives the sizes and
   options. There is no initial state, and sequences are not packed. All work is enqueued on the context's stream. */
#ifndef CARRY_DELTA_DENSE_H
#define CARRY_DELTA_DENSE_H

#include "delta/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_delta_units {
    int64_t first, count;
    float *A;                  /* [count, T, K, K]; 0 for the first token */
    float *S;                  /* [count, T, K, V]: b, and after the scan the states S */
    float *L;                  /* [count, T, K, V]: scale q do^T, and after the scan db */
    float *part_q, *part_k;    /* [B T, HV, K]: for all units */
    float *part_beta, *part_g; /* [B T, HV] */
} carry_delta_units;

/* The kernels of a backend. */
typedef struct carry_delta_dense {
    /* Computes A and b. */
    carry_status (*steps)(const carry_delta_plan *plan, const carry_delta_inputs *in, const carry_delta_units *units);
    /* Computes o from S. */
    carry_status (*outputs)(const carry_delta_plan *plan, const carry_delta_inputs *in, carry_tensor o,
                            const carry_delta_units *units);
    /* Computes L before its scan. */
    carry_status (*seeds)(const carry_delta_plan *plan, const carry_delta_inputs *in, carry_tensor grad_o,
                          const carry_delta_units *units);
    /* Computes dv and the parts of the other gradients from S and L. */
    carry_status (*parts)(const carry_delta_plan *plan, const carry_delta_backward_args *args,
                          const carry_delta_units *units);
    /* Computes the other gradients, once the parts of all units are stored. */
    carry_status (*gradients)(const carry_delta_plan *plan, const carry_delta_backward_args *args,
                              const carry_delta_units *units);
} carry_delta_dense;

/* table.c: returns NULL if this build has no GPU support. */
const carry_delta_dense *carry_delta_dense_on_gpu(void);

#ifdef __cplusplus
}
#endif
#endif
