/* The float64 reference of the delta rule over ranks. */
#include "bench/family/delta_ranks_reference.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "bench/collective.h"

#define TAG (CARRY_MAX_COMM_TAGS - 1)

carry_status carry_delta_ranks_reference_new(carry_ctx *ctx, carry_delta_ranks_reference *r, const carry_delta_set *set,
                                             bool backward) {
    const size_t outputs = (size_t)carry_tensor_count(&set->o) + 1; /* a rank may have no tokens */
    const size_t states = (size_t)carry_tensor_count(&set->state);
    if (r->is_made) {
        return CARRY_OK;
    }
    carry_delta_ranks_reference_free(r);
    r->o[0] = calloc(outputs, sizeof(double));
    r->o[1] = backward ? calloc(outputs, sizeof(double)) : NULL;
    r->v = backward ? calloc(outputs, sizeof(float)) : NULL;
    r->entering = calloc(states, sizeof(double));
    r->leaving = calloc(states, sizeof(double));
    r->state = calloc(states, sizeof(float));
    const bool lacks = backward && (r->o[1] == NULL || r->v == NULL);
    if (lacks || r->o[0] == NULL || r->entering == NULL || r->leaving == NULL || r->state == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
    }
    return CARRY_OK;
}

void carry_delta_ranks_reference_free(carry_delta_ranks_reference *r) {
    free(r->o[0]);
    free(r->o[1]);
    free(r->entering);
    free(r->leaving);
    free(r->state);
    free(r->v);
    *r = (carry_delta_ranks_reference){0};
}

static carry_status run_once(carry_comm *comm, carry_delta_ranks_reference *r, double *o, carry_delta_set *s,
                             const carry_delta_problem *problem, bool initial) {
    const int rank = carry_comm_rank(comm);
    const size_t states = (size_t)carry_tensor_count(&s->state);
    const float *given = s->state.data;
    carry_status status = CARRY_OK;
    for (size_t i = 0; i < states; i++) {
        r->entering[i] = initial ? (double)given[i] : 0.0;
    }
    if (rank > 0) {
        CARRY_TRY(carry_recv(comm, r->entering, states * sizeof(double), rank - 1, TAG));
    }
    if (problem->tokens > 0) {
        for (size_t i = 0; i < states; i++) {
            r->state[i] = (float)r->entering[i];
        }
        carry_tensor entering = carry_view(r->state, CARRY_F32, 4, s->state.shape);
        carry_delta_forward_args args = carry_delta_set_forward(s, problem, initial);
        args.initial_state = entering;
        status = carry_delta_reference(carry_comm_ctx(comm), o, r->leaving, problem, &args);
    } else {
        memcpy(r->leaving, r->entering, states * sizeof(double));
    }
    if (rank + 1 < carry_comm_size(comm)) {
        CARRY_TRY(carry_send(comm, r->leaving, states * sizeof(double), rank + 1, TAG));
    }
    return carry_collective_agree(comm, status);
}

/* Runs the reference twice, with v moved by plus and minus a permutation of grad_o. */
static carry_status run_sides(carry_comm *comm, carry_delta_ranks_reference *r, carry_delta_set *s,
                              const carry_delta_problem *problem, bool initial) {
    const int64_t size = carry_tensor_count(&s->v);
    float *v = s->v.data;
    const float *along = s->grad_o.data;
    carry_status status = CARRY_OK;
    memcpy(r->v, v, (size_t)size * sizeof *v);
    for (int side = 0; side < 2 && status == CARRY_OK; side++) {
        for (int64_t i = 0; i < size; i++) {
            v[i] = r->v[i] + (side == 0 ? 1.0f : -1.0f) * along[CARRY_DELTA_RANKS_ALONG(i, size)];
        }
        status = run_once(comm, r, r->o[side], s, problem, initial);
    }
    memcpy(v, r->v, (size_t)size * sizeof *v);
    return status;
}

carry_status carry_delta_ranks_reference_run(carry_comm *comm, carry_delta_ranks_reference *r, carry_delta_set *s,
                                             const carry_delta_problem *problem, bool initial) {
    if (r->is_made) {
        return CARRY_OK;
    }
    CARRY_TRY(r->o[1] != NULL ? run_sides(comm, r, s, problem, initial)
                              : run_once(comm, r, r->o[0], s, problem, initial));
    r->is_made = true;
    return CARRY_OK;
}
