/* Sets of inputs and outputs of a delta-rule problem.

   q and k are normal (the operator's own l2norm scales them to length 1; without it, their length is about 1), v is
   normal, beta is the sigmoid of a normal, and g is a quarter of the log sigmoid of a normal, which gives decays around
   e^-0.2. The state is 0.1 normal.

   Other gates, as in real models: "mixed" takes a sixteenth instead of a quarter and sets g = 0, no decay, in every
   fourth head; "zero" sets g = 0 in all heads, which must not take longer. */
#ifndef CARRY_LAB_DELTA_SET_H
#define CARRY_LAB_DELTA_SET_H

#include "carry/delta.h"

typedef struct carry_delta_set {
    carry_tensor q, k, v, beta, g, state, o, final;
    carry_tensor grad_o, dq, dk, dv, dbeta, dg, dstate; /* backward only */
} carry_delta_set;

/* Makes a set on the CPU. Ranks with the same seed have different tokens and the same state. carry_delta_set_free
   frees the tensors, also after a failure here. tokens may be 0. */
carry_status carry_delta_set_new(carry_ctx *ctx, carry_delta_set *set, const carry_delta_problem *problem,
                                 bool backward, uint64_t seed, int rank);
/* Sets the gates of a set on the CPU: "", "mixed" or "zero". */
void carry_delta_set_gates(carry_delta_set *set, const char *gates);
void carry_delta_set_free(carry_ctx *ctx, carry_delta_set *set);

/* upload makes the same set on a device. poison fills the host's outputs with NaN and copies them, and the state
   unchanged, to the device; download copies outputs and state back. Nothing is copied if set and host are the same. */
carry_status carry_delta_set_upload(carry_ctx *ctx, carry_delta_set *to, carry_delta_set *from, int device);
carry_status carry_delta_set_poison(carry_ctx *ctx, carry_delta_set *set, carry_delta_set *host);
carry_status carry_delta_set_download(carry_ctx *ctx, carry_delta_set *host, carry_delta_set *set);

/* The minimum number of bytes moved: inputs and outputs once, plus the state read, if there is one. */
double carry_delta_set_bytes(const carry_delta_problem *problem, bool with_state, bool backward);

/* The error bound of a result of this type, relative to the largest value, for a plan for tokens or for a step. */
double carry_delta_set_bound(const carry_delta_plan *plan, carry_dtype result);

carry_delta_forward_args carry_delta_set_forward(carry_delta_set *set, const carry_delta_problem *problem,
                                                 bool initial);
carry_delta_backward_args carry_delta_set_backward(carry_delta_set *set, const carry_delta_problem *problem,
                                                   bool initial, void *kept);

#endif
