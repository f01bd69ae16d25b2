/* Layers of Mamba-2:

       z, xbc, dt = in_proj u, where u is the layer's input;  x, B, C = silu(conv(xbc))
       y = state space layer (x, B, C, dt) (ops/ssm.h);  out = out_proj(norm by groups (y silu(z)))

   The state of a sequence is the last conv_size - 1 inputs of the convolution, and the states of all heads. */
#ifndef CARRY_MODEL_LM_MAMBA_H
#define CARRY_MODEL_LM_MAMBA_H

#include "model/lm/lm_pass.h"
#include "ops/ssm.h"

typedef enum carry_lm_mamba_slot {
    CARRY_LM_MAMBA_Z, /* this slot and the next two are rows of in_proj */
    CARRY_LM_MAMBA_XBC,
    CARRY_LM_MAMBA_DT,
    CARRY_LM_MAMBA_Z_BIAS,
    CARRY_LM_MAMBA_XBC_BIAS,
    CARRY_LM_MAMBA_DT_PROJ_BIAS,
    CARRY_LM_MAMBA_CONV,
    CARRY_LM_MAMBA_CONV_BIAS,
    CARRY_LM_MAMBA_DT_BIAS,
    CARRY_LM_MAMBA_A_LOG,
    CARRY_LM_MAMBA_D,
    CARRY_LM_MAMBA_NORM,
    CARRY_LM_MAMBA_OUT,
    CARRY_LM_MAMBA_OUT_BIAS,
    CARRY_LM_MAMBA_SLOTS
} carry_lm_mamba_slot;

typedef struct carry_lm_mamba_rows {
    carry_tensor z, xbc_in, dt;    /* maps of x */
    carry_tensor sum, xbc;         /* output of the convolution, before and after silu */
    carry_tensor y, gated, normed; /* output of the state space layer; times silu(z); after the norm */
    carry_tensor out;              /* input of out_proj: `normed` times the norm's weight; the same as `normed` with one
                                      group */
} carry_lm_mamba_rows;

typedef struct carry_lm_mamba_back {
    carry_tensor dout, dnormed, dgated, dy, dz, dxbc, dsum, dxbc_in, ddt;
} carry_lm_mamba_back;

/* A view with one row for each group: [tokens G, width / G]. */
carry_tensor carry_lm_mamba_groups(const carry_lm_pass *pass, carry_tensor rows);
/* Rows as [B, T, columns]. */
carry_tensor carry_lm_mamba_tokens(const carry_lm_pass *pass, carry_tensor rows);
carry_ssm_args carry_lm_mamba_ssm(const carry_lm_call *call);

carry_status carry_lm_mamba_backward(const carry_lm_call *call);

#endif
