/* ranks_split.c: calls of a plan over ranks whose `split` is set. */
#ifndef CARRY_DELTA_RANKS_SPLIT_H
#define CARRY_DELTA_RANKS_SPLIT_H

#include "delta/ranks.h"

typedef struct carry_delta_ranks_call {
    const carry_delta_forward_args *forward; /* one of the two is NULL */
    const carry_delta_backward_args *backward;
    carry_all_scan_role role;
    float *kept_states, *M; /* in the kept memory, or NULL */
} carry_delta_ranks_call;

bool carry_delta_ranks_split_bytes(const carry_delta_ranks_plan *plan, size_t *bytes); /* false: overflow */
carry_status carry_delta_ranks_split_run(carry_delta_ranks_plan *plan, const carry_delta_ranks_call *call,
                                         void *workspace, size_t bytes);

#endif
