/* Linear recurrences and their scans.

       h[t] = A[t] h[t-1] + b[t],   t = 0..T-1,   h[-1] = h0          (forward)
       h[t] = A[t] h[t+1] + b[t],   t = T-1..0,   h[T]  = h0          (reversed)

   A[t] is diagonal (a vector a[t] of n) or dense (n x n); h[t] and b[t] are n x w. Two neighbouring steps combine into
   one:

       (A2, b2) o (A1, b1) = (A2 A1, A2 b1 + b2)

   The algorithms apply this operator in different orders: step by step (sequential), by doubling (hillis_steele), up
   and down a tree (blelloch, cyclic, matmul4/8/16), or chunk by chunk (chunkwise).

   A problem is planned once and run many times:

       carry_scan_problem problem = {.kind = CARRY_SCAN_DENSE, .batch = 8, .steps = 4096, .n = 16, .width = 64};
       carry_scan_plan *plan;
       carry_scan_plan_new(ctx, &plan, &problem, NULL);
       void *workspace = malloc(carry_scan_run_workspace(plan));
       carry_scan_run(plan, &(carry_scan_args){.h = h, .A = A, .b = b}, workspace, carry_scan_run_workspace(plan));
       carry_scan_plan_free(plan);

   Sums are f32 for every storage type; values below the smallest normal f32 (1.2e-38) may become zero. For a fixed
   plan, results do not depend on the number of threads. */
#ifndef CARRY_SCAN_H
#define CARRY_SCAN_H

#include <stdbool.h>

#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum carry_scan_kind { CARRY_SCAN_DIAGONAL, CARRY_SCAN_DENSE } carry_scan_kind;

typedef struct carry_scan_problem {
    carry_scan_kind kind;
    int64_t batch, steps, n, width; /* each at least 1 */
    carry_dtype dtype;              /* type of A, b and h0: f32, bf16 or f16 */
    bool f32_result;                /* h is f32 instead of dtype */
    bool reversed;
    bool backward; /* plan for carry_scan_backward instead of carry_scan_run */
    int device;    /* 0: the CPU; else a GPU, which holds tensors and workspace; work goes to the context's stream */
} carry_scan_problem;

/* The algorithms of a device; NULL past the end. GPUs have lookback in addition to those of the CPU, but not
 * matmul_log.
 */
CARRY_API const char *carry_scan_name(int device, int index);
CARRY_API const char *carry_scan_about(int device, int index);

typedef struct carry_scan_plan carry_scan_plan;

typedef enum carry_plan_effort {
    CARRY_PLAN_ESTIMATE, /* use the cost model, with the measured rates of this machine */
    CARRY_PLAN_MEASURE,  /* time every algorithm that applies, and store the fastest in the wisdom file */
} carry_plan_effort;

typedef struct carry_scan_options {
    size_t size; /* CARRY_INIT */
    carry_plan_effort effort;
    const char *algorithm; /* NULL: chosen by the planner */
    int64_t chunk;         /* steps per chunk, for chunkwise; 0: chosen automatically */
} carry_scan_options;

/* options may be NULL. Free the plan before ctx.
   CARRY_ENOTFOUND: no such algorithm. CARRY_EUNSUPPORTED: the algorithm does not apply to this problem; the message
   gives the reason. CARRY_ESIZE: a size is below 1, or the product of sizes overflows. */
CARRY_API carry_status carry_scan_plan_new(carry_ctx *ctx, carry_scan_plan **plan, const carry_scan_problem *problem,
                                           const carry_scan_options *options);
CARRY_API void carry_scan_plan_free(carry_scan_plan *plan);

/* The chosen algorithm and the reason: "sequential on 2 threads (neon): 41.2 us predicted; next chunkwise 55 us". */
CARRY_API const char *carry_scan_plan_about(const carry_scan_plan *plan);
CARRY_API const char *carry_scan_plan_algorithm(const carry_scan_plan *plan);
CARRY_API double carry_scan_plan_seconds(const carry_scan_plan *plan); /* predicted or measured */

/* Bytes of workspace for the call that the plan is for; may be 0. The caller owns the workspace. */
CARRY_API size_t carry_scan_run_workspace(const carry_scan_plan *plan);
CARRY_API size_t carry_scan_backward_workspace(const carry_scan_plan *plan);

/* Operations of the last run. */
typedef struct carry_scan_counts {
    size_t size;      /* CARRY_INIT */
    int64_t products; /* n x n (dense) or of n-vectors (diagonal); A2 A1 and A b count as one each */
    double flops;     /* additions and multiplications */
} carry_scan_counts;

CARRY_API carry_status carry_scan_counted(const carry_scan_plan *plan, carry_scan_counts *counts);

/* h, b: [batch, T, n, w]; A: [batch, T, n] (diagonal) or [batch, T, n, n] (dense); h0: [batch, n, w], absent: zero.
   Batch and T may have any strides (steps of h must not overlap); each step must be packed. h may be b; otherwise
   nothing may overlap h. Overlap is checked if all tensors are packed; with interleaved views it is up to the caller.
   All checks come before the first write. CARRY_ERANGE: the algorithm (matmul_log) is not valid for these values; h is
   then unspecified. A NaN or infinity in b reaches later steps, never earlier ones or other
   sequences. */
typedef struct carry_scan_args {
    carry_tensor h;
    carry_tensor A, b, h0;
} carry_scan_args;

CARRY_API carry_status carry_scan_run(carry_scan_plan *plan, const carry_scan_args *args, void *workspace,
                                      size_t workspace_bytes);

/* Given dh = dL/dh for every step:
       l[t] = dh[t] + A[t+1]^T l[t+1];   db[t] = l[t];   dA[t] = l[t] h[t-1]^T;   dh0 = A[0]^T l[0]
   For a reversed problem, t+1 and t-1 are exchanged and the last step takes the place of step 0. For a diagonal A,
   dA[t] is the diagonal of that product. h is the result of the run. db may be dh; otherwise outputs must not overlap
   other tensors. dA and dh0 may be absent. */
typedef struct carry_scan_backward_args {
    carry_tensor db; /* shaped as b; of the same type, or f32 */
    carry_tensor dA; /* shaped as A; of the same type, or f32 */
    carry_tensor dh0;
    carry_tensor dh;
    carry_tensor A, h, h0; /* A and h0 as passed to carry_scan_run */
} carry_scan_backward_args;

CARRY_API carry_status carry_scan_backward(carry_scan_plan *plan, const carry_scan_backward_args *args, void *workspace,
                                           size_t workspace_bytes);

/* The specification: the sequential recurrence in float64, from A, b and h0 as stored. h is packed [batch, T, n, w];
   args->h is not used. Slow and simple; every algorithm is compared with it. */
CARRY_API carry_status carry_scan_reference(carry_ctx *ctx, double *h, const carry_scan_problem *problem,
                                            const carry_scan_args *args);

/* The gradients of the reference in float64, packed: dA [batch, T, n(, n)], db [batch, T, n, w], dh0 [batch, n, w]. h
   is the result of carry_scan_reference. Of args, only A, dh and h0 are read. */
CARRY_API carry_status carry_scan_reference_backward(carry_ctx *ctx, double *dA, double *db, double *dh0,
                                                     const carry_scan_problem *problem,
                                                     const carry_scan_backward_args *args, const double *h);

#ifdef __cplusplus
}
#endif
#endif
