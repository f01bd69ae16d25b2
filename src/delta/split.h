/* A call of the delta rule on a GPU in two parts, for a state that comes from another rank: `pair` computes the map
   S -> M S + L of the tokens, `rest` computes the outputs once the state has arrived. A call handles some heads, so
   that the states of some heads travel while others are computed (ranks_split.c). */
#ifndef CARRY_DELTA_SPLIT_H
#define CARRY_DELTA_SPLIT_H

#include "delta/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The states cover the heads of this part: [batch, value heads, K, V]. If the part has fewer than all heads, batch must
   be 1. */
typedef struct carry_delta_split {
    const carry_delta_forward_args *forward; /* one of the two is NULL; their states are not read */
    const carry_delta_backward_args *backward;
    int64_t first_head, heads; /* of q and k, with all their value heads */
    int sharing;               /* ranks that share the GPU, this one included */
    const float *entering;     /* the entering state (backward: gradient) if it is known when pair is called, or NULL */
    const float *arrived;      /* for rest: the state that was not known before, or NULL */
    const float *states;       /* backward: the states that entered the tokens */
    float *M, *L;              /* pair writes L and, in the forward pass, M */
    float *leaving;  /* rest writes the final state (backward: the gradient of the initial state); may be NULL */
    void *workspace; /* the same memory for pair and rest */
} carry_delta_split;

/* splits: true if the plan's method supports it. split_bytes: the bytes of workspace for `heads` heads. */
bool carry_delta_splits(const carry_delta_plan *plan);
size_t carry_delta_split_bytes(const carry_delta_plan *plan, int64_t heads, int sharing, bool backward);
carry_status carry_delta_split_pair(carry_delta_plan *plan, const carry_delta_split *split);
carry_status carry_delta_split_rest(carry_delta_plan *plan, const carry_delta_split *split);

#ifdef __cplusplus
}
#endif
#endif
