/* Layers with the delta rule:

       q, k, v = f(conv(proj x));  o = delta rule (q, k, v, beta(b_proj x), g(a_proj x));
       out = o_proj(head-wise norm(o) silu(g_proj x))

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
    carry_tensor beta, ones; /* constants, where the configuration asks for them */
    char about[448];         /* of a plan, with the name of its method */
} carry_lm_delta;

typedef struct carry_lm_delta_rows {
    carry_tensor q_in, k_in, v_in; /* projections, before the convolution */
    carry_tensor before[3];        /* the tokens before them, with a halo */
    carry_tensor q, k, v, a, b;    /* the delta rule's inputs */
    carry_tensor z, o, y;          /* output gate, delta rule's output, after o_norm */
    carry_tensor rest;             /* columns of zeros after the projections of x, on a GPU */
    void *kept;                    /* the method's */
} carry_lm_delta_rows;

typedef struct carry_lm_delta_back {
    carry_tensor dy, dout, dz; /* of y, o, z */
    carry_tensor dq, dk, dv, dq_in, dk_in, dv_in, da, db;
    carry_tensor dbefore_key, dbefore_value;
    carry_tensor dA_log, ddt_bias;
    carry_tensor rest, zeros; /* columns of zeros after dq_in to db, on a GPU; and where they come from */
} carry_lm_delta_back;

/* Opens a method for a pass; for a pooled one as places.h needs it. The problem's sizes may be changed. */
carry_status carry_lm_open_recurrence(carry_lm_pass *pass, void **opened, const carry_lm_recurrence *method,
                                      carry_delta_problem *problem);

/* A tensor of rows as the delta rule sees it: [B, T, heads, width], or [B, T, heads] with width 0. */
carry_tensor carry_lm_heads(const carry_lm_pass *pass, carry_tensor rows, int64_t heads, int64_t width);
/* The same as a convolution sees it: [B, T, channels]. */
carry_tensor carry_lm_channels(const carry_lm_pass *pass, carry_tensor rows);
/* [tokens * HV, V]: one row a head. */
carry_tensor carry_lm_by_head(const carry_lm_pass *pass, carry_tensor rows);
/* The slots that map the input of the layer, in the order of memory; the last is -1. */
const int *carry_lm_delta_maps(const carry_lm_pass *pass);
/* The activation after a convolution's sum. */
carry_activation carry_lm_activation(const carry_lm_pass *pass, int slot);

carry_status carry_lm_delta_check(carry_ctx *ctx, carry_lm_config *config);
extern const char *const carry_lm_delta_names[];
carry_lm_parameter carry_lm_delta_describe(const carry_lm_config *config, int slot);
int carry_lm_delta_state(const carry_lm_config *config, carry_lm_state_part *parts);
double carry_lm_delta_multiplications(const carry_lm_config *config);
carry_status carry_lm_delta_backward(const carry_lm_call *call);

#endif
