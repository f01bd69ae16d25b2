/* A mixture of experts:

       out = sum over the chosen experts e of w[e] down[e] f[e](x) + shared(x)

   f[e](x) is silu(gate[e] x) * up[e] x, or relu(up[e] x)^2. A router chooses the experts of each token and their
   weights (ops/experts.h). The shared expert is a feed-forward of the same form that every token uses, with or without
   a gate. With a latent width, a linear map of x is the experts' input, and another maps their sum back. The maps of
   the shared expert without a gate, and the latent maps, may have a bias. */
#ifndef CARRY_MODEL_LM_EXPERTS_H
#define CARRY_MODEL_LM_EXPERTS_H

#include "model/lm/feedforward/feedforward.h"
#include "model/lm/lm_pass.h"

typedef enum carry_lm_experts_slot {
    CARRY_LM_EXPERTS_ROUTER,
    CARRY_LM_EXPERTS_BIAS,
    CARRY_LM_EXPERTS_UP, /* with gates: for each expert the rows of the gate, then those of up */
    CARRY_LM_EXPERTS_DOWN,
    CARRY_LM_EXPERTS_SHARED_GATE,
    CARRY_LM_EXPERTS_SHARED_UP,
    CARRY_LM_EXPERTS_SHARED_DOWN,
    CARRY_LM_EXPERTS_SHARED_SCALE,
    CARRY_LM_EXPERTS_LATENT_IN,
    CARRY_LM_EXPERTS_LATENT_OUT,
    CARRY_LM_EXPERTS_SHARED_UP_BIAS,
    CARRY_LM_EXPERTS_SHARED_DOWN_BIAS,
    CARRY_LM_EXPERTS_LATENT_IN_BIAS,
    CARRY_LM_EXPERTS_LATENT_OUT_BIAS,
    CARRY_LM_EXPERTS_SLOTS
} carry_lm_experts_slot;

/* Outputs of up and of the activation: for experts (a row for each pair of token and expert) or for the shared expert
   (a row for each token). */
typedef struct carry_lm_units {
    carry_tensor both;            /* on a GPU: gate and up as columns of one array */
    carry_tensor gate, up;        /* backward overwrites them with their gradients; without gates only up exists */
    carry_tensor active, squared; /* input of down; without gates, relu(up) and its square */
} carry_lm_units;

typedef struct carry_lm_experts_rows {
    carry_tensor logits, weights, chosen, pair, place, offsets;
    carry_tensor latent; /* with a latent width: input of the experts, and sum of their outputs */
    carry_tensor sum;
    carry_tensor x, y; /* a row for each pair of token and expert: input and output of the expert */
    carry_lm_units own, shared;
    carry_tensor shared_out, scale; /* output of the shared expert; its gate before the sigmoid */
} carry_lm_experts_rows;

typedef struct carry_lm_experts_back {
    carry_tensor dlogits, dweights;
    carry_tensor dactive, dshared; /* gradients of the input of down, for experts and for the shared expert */
    carry_tensor dlatent, dsum;
    carry_tensor dout, dscale; /* gradients of the shared expert's output and of its gate */
} carry_lm_experts_back;

/* The rows that a call computes. They are the first rows of the activations, and belong to rows call->first, ... of
   x. */
carry_tensor carry_lm_experts_first(const carry_lm_call *call, carry_tensor rows, bool pairs);
/* The rows of gate (which = 0) or up (1) of W [E, 2 width, n]. */
carry_tensor carry_lm_experts_half(carry_tensor W, int64_t width, int which);
/* The slots of the shared expert that map x, with or without those of its gate; the list ends with -1. */
const int *carry_lm_experts_shared(const carry_lm_units *shared);
carry_status carry_lm_experts_backward(const carry_lm_call *call);

#endif
