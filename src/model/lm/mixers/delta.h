/* Layers with the delta rule:

       q, k, v = f(conv(proj x));  beta = sigmoid(b_proj x);  g = -exp(A_log) softplus(a_proj x + dt_bias)
       o = delta rule (q, k, v, beta, g);  out = o_proj(head-wise norm(o) silu(g_proj x))

   f is an activation. The options (options.h) may leave out conv, beta (then 1), g (then 0) and the factor silu(g_proj
   x); with allow_neg_eigval beta is doubled.

   The recurrence itself is computed by a method of recurrence/recurrence.h. */
#ifndef CARRY_MODEL_LM_DELTA_H
#define CARRY_MODEL_LM_DELTA_H

#include "model/lm/lm_pass.h"

typedef enum carry_lm_delta_slot {
    CARRY_LM_Q_PROJ,
    CARRY_LM_K_PROJ,
    CARRY_LM_V_PROJ,
    CARRY_LM_A_PROJ,
    CARRY_LM_B_PROJ,
    CARRY_LM_G_PROJ,
    CARRY_LM_A_LOG,
    CARRY_LM_DT_BIAS,
    CARRY_LM_Q_CONV,
    CARRY_LM_K_CONV,
    CARRY_LM_V_CONV,
    CARRY_LM_O_NORM,
    CARRY_LM_O_PROJ,
    CARRY_LM_DELTA_SLOTS
} carry_lm_delta_slot;

typedef struct carry_lm_delta {
    carry_delta_problem problem;
    const carry_lm_recurrence *method;
    void *recurrence;
    carry_tensor beta, ones; /* constant tensors, if the configuration needs them */
    char about[448];         /* text about the plan, with the name of its method */
} carry_lm_delta;

typedef struct carry_lm_delta_rows {
    carry_tensor q_in, k_in, v_in; /* projections, before the convolution */
    carry_tensor before[3];        /* with a halo: the tokens before this rank's first */
    carry_tensor q, k, v, a, b;    /* the delta rule's inputs */
    carry_tensor z, o, y;          /* output gate; the delta rule's output; the same after o_norm */
    carry_tensor rest;             /* on a GPU: the padding columns of zeros after the projections of x */
    void *kept;                    /* memory of the recurrence method */
} carry_lm_delta_rows;

typedef struct carry_lm_delta_back {
    carry_tensor dy, dout, dz; /* gradients of y, o, z */
    carry_tensor dq, dk, dv, dq_in, dk_in, dv_in, da, db;
    carry_tensor dbefore_key, dbefore_value;
    carry_tensor dA_log, ddt_bias;
    carry_tensor rest, zeros; /* on a GPU: the padding columns after dq_in to db; the zeros that are copied to them */
} carry_lm_delta_back;

/* Opens a recurrence method for a pass, with support for pools (places.h) if the pass is pooled. It may change the
   sizes in *problem. */
carry_status carry_lm_open_recurrence(carry_lm_pass *pass, void **opened, const carry_lm_recurrence *method,
                                      carry_delta_problem *problem);

/* A tensor of rows as the delta rule needs it: [B, T, heads, width], or [B, T, heads] if width is 0. */
carry_tensor carry_lm_heads(const carry_lm_pass *pass, carry_tensor rows, int64_t heads, int64_t width);
/* The same as a convolution needs it: [B, T, channels]. */
carry_tensor carry_lm_channels(const carry_lm_pass *pass, carry_tensor rows);
/* The same as [tokens * HV, V]: one row for each head. */
carry_tensor carry_lm_by_head(const carry_lm_pass *pass, carry_tensor rows);
/* The slots that map the layer's input, in their order in memory; the list ends with -1. */
const int *carry_lm_delta_maps(const carry_lm_pass *pass);
/* The activation after the convolution of a slot. */
carry_activation carry_lm_activation(const carry_lm_pass *pass, int slot);

carry_status carry_lm_delta_check(carry_ctx *ctx, carry_lm_config *config);
extern const char *const carry_lm_delta_names[];
carry_lm_parameter carry_lm_delta_describe(const carry_lm_config *config, int slot);
int carry_lm_delta_state(const carry_lm_config *config, carry_lm_state_part *parts);
double carry_lm_delta_multiplications(const carry_lm_config *config);
carry_status carry_lm_delta_backward(const carry_lm_call *call);

#endif
