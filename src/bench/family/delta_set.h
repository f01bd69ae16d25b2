/* Sets of inputs and outputs of a delta-rule problem.

   q and k are normal (the op's own l2norm makes them of length 1), v normal, beta = sigmoid of a normal, g = log
   sigmoid of a normal divided by 4: decays around e^-0.2. The state is 0.1 normal.

   Other gates, as real models have them: "mixed" divides by 16 and leaves every fourth head without any decay, g = 0;
   "zero" does so with all heads, which must cost as much. */
#ifndef CARRY_LAB_DELTA_SET_H
#define CARRY_LAB_DELTA_SET_H

#include "carry/delta.h"

typedef struct carry_delta_set {
    carry_tensor q, k, v, beta, g, state, o, final;
    carry_tensor grad_o, dq, dk, dv, dbeta, dg, dstate; /* backward only */
} carry_delta_set;

/* Ranks of one seed have tokens of their own and the same state. What was made so far is freed by carry_delta_set_free
   after a failure too. tokens may be 0. */
carry_status carry_delta_set_new(carry_ctx *ctx, carry_delta_set *set, const carry_delta_problem *problem,
                                 bool backward, uint64_t seed, int rank);
/* On a set of the CPU; gates: "", "mixed" or "zero". */
void carry_delta_set_gates(carry_delta_set *set, const char *gates);
void carry_delta_set_free(carry_ctx *ctx, carry_delta_set *set);

/* The same on a device. What is written, state and final included, then goes from the CPU to the device filled with NaN
   (the state as it is), and from the device to the CPU; nothing is copied when set and host are one. */
carry_status carry_delta_set_upload(carry_ctx *ctx, carry_delta_set *to, carry_delta_set *from, int device);
carry_status carry_delta_set_poison(carry_ctx *ctx, carry_delta_set *set, carry_delta_set *host);
carry_status carry_delta_set_download(carry_ctx *ctx, carry_delta_set *host, carry_delta_set *set);

/* The least that must move: inputs and outputs once; with a state, that is read besides. */
double carry_delta_set_bytes(const carry_delta_problem *problem, bool with_state, bool backward);

/* By how much a result of this type may be off, of the largest value; of a plan for tokens, or for a step. */
double carry_delta_set_bound(const carry_delta_plan *plan, carry_dtype result);

carry_delta_forward_args carry_delta_set_forward(carry_delta_set *set, const carry_delta_problem *problem,
                                                 bool initial);
carry_delta_backward_args carry_delta_set_backward(carry_delta_set *set, const carry_delta_problem *problem,
                                                   bool initial, void *kept);

#endif
