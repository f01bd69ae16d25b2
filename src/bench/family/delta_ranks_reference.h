/* The delta rule over ranks in float64: the expected results of a rank's part of a sequence.

   Each rank waits for the state that enters its tokens, runs the recurrence, and sends its final state on. The
   entering state is rounded to f32, the type that the reference takes. */
#ifndef CARRY_LAB_DELTA_RANKS_REFERENCE_H
#define CARRY_LAB_DELTA_RANKS_REFERENCE_H

#include "carry/comm.h"
#include "bench/family/delta_set.h"

typedef struct carry_delta_ranks_reference {
    double *o[2];    /* outputs; for backward, those with v moved in one direction and in the other */
    double *leaving; /* the state after this rank's tokens */
    double *entering;
    float *state, *v;
    bool is_made;
} carry_delta_ranks_reference;

/* v[i] is moved by this element of grad_o: any direction works except grad_o itself, which weights the outputs. */
#define CARRY_DELTA_RANKS_ALONG(i, size) (((i)*7 + 3) % (size))

/* Allocates the memory, unless the reference is already computed. */
carry_status carry_delta_ranks_reference_new(carry_ctx *ctx, carry_delta_ranks_reference *reference,
                                             const carry_delta_set *set, bool backward);
/* Computes the reference. A collective on the first call; later calls do nothing. */
carry_status carry_delta_ranks_reference_run(carry_comm *comm, carry_delta_ranks_reference *reference,
                                             carry_delta_set *set, const carry_delta_problem *problem, bool initial);
void carry_delta_ranks_reference_free(carry_delta_ranks_reference *reference);

#endif
