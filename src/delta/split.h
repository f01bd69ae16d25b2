/* A call of the delta rule on a GPU in two parts, around a state that comes from another rank: `pair` makes of the
   tokens the map S -> M S + L that they are, `rest` the outputs, once the state is there. Some heads at a time, so that
   the states of some travel while others are computed (ranks_split.c). */
#ifndef CARRY_DELTA_SPLIT_H
#define CARRY_DELTA_SPLIT_H

#include "delta/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* States are those of the heads of this part, [batch, value heads, K, V]; with fewer than all heads, of a batch of 1.
 */
typedef struct carry_delta_split {
    const carry_delta_forward_args *forward; /* one of the two is NULL; their states are not looked at */
    const carry_delta_backward_args *backward;
    int64_t first_head, heads; /* of q and k, with all their value heads */
    int sharing;               /* ranks that share the GPU, this one included */
    const float *entering;     /* known when pair is called (backward a gradient), or NULL */
    const float *arrived;      /* for rest: the state that was not known then, or NULL */
    const float *states;       /* backward: those that entered the tokens */
    float *M, *L;              /* pair writes them; M forward only */
    float *leaving;            /* rest: the final state, backward the gradient of the first one; NULL: not wanted */
    void *workspace;           /* the same for both */
} carry_delta_split;

/* True if the plan's method supports it; bytes of a workspace for `heads` heads. */
bool carry_delta_splits(const carry_delta_plan *plan);
size_t carry_delta_split_bytes(const carry_delta_plan *plan, int64_t heads, int sharing, bool backward);
carry_status carry_delta_split_pair(carry_delta_plan *plan, const carry_delta_split *split);
carry_status carry_delta_split_rest(carry_delta_plan *plan, const carry_delta_split *split);

#ifdef __cplusplus
}
#endif
#endif
