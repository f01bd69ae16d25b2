/* Layers of Kimi delta attention (KDA):

       q, k, v = silu(conv(proj x));  a = f_b f_a x + dt_bias
       g = -exp(A_log) softplus(a), or bound sigmoid(exp(A_log) a) if `bound` of the options is not 0
       o = delta rule (q, k, v, sigmoid(b_proj x), g);  out = o_proj(head-wise norm(o) sigmoid(g_b g_a x))

   g has one value for each channel of a key. With whole_gates (options.h), f_b and g_b are applied to x itself.
   The state of a sequence has the same parts as that of a layer with the delta rule (mixers/delta_parameters.c). */
#ifndef CARRY_MODEL_LM_KDA_H
#define CARRY_MODEL_LM_KDA_H

#include "model/lm/lm_pass.h"

typedef enum carry_lm_kda_slot {
    CARRY_LM_KDA_Q,
    CARRY_LM_KDA_K,
    CARRY_LM_KDA_V,
    CARRY_LM_KDA_F_A,
    CARRY_LM_KDA_F_B,
    CARRY_LM_KDA_BETA,
    CARRY_LM_KDA_G_A,
    CARRY_LM_KDA_G_B,
    CARRY_LM_KDA_A_LOG,
    CARRY_LM_KDA_DT_BIAS,
    CARRY_LM_KDA_Q_CONV,
    CARRY_LM_KDA_K_CONV,
    CARRY_LM_KDA_V_CONV,
    CARRY_LM_KDA_NORM,
    CARRY_LM_KDA_O,
    CARRY_LM_KDA_SLOTS
} carry_lm_kda_slot;

typedef struct carry_lm_kda {
    carry_delta_problem problem;
    void *recurrence;
} carry_lm_kda;

typedef struct carry_lm_kda_rows {
    carry_tensor in[3], qkv[3];        /* before and after the convolutions */
    carry_tensor f_low, f, g;          /* g is f32 */
    carry_tensor beta;                 /* logits */
    carry_tensor gate_low, gate, open; /* open: sigmoid(gate) */
    carry_tensor o, normed, y;
    void *kept;
} carry_lm_kda_rows;

typedef struct carry_lm_kda_back {
    carry_tensor dy, dnormed, dout, dqkv[3], din[3], dg, df, df_low, dbeta, dgate, dgate_low;
} carry_lm_kda_back;

/* Views of rows. heads: [B, T, heads, head_dim], or [B, T, heads] if not wide; channels: [B, T, channels]; by_head: one
   row for each head. */
carry_tensor carry_lm_kda_heads(const carry_lm_pass *pass, carry_tensor rows, bool wide);
carry_tensor carry_lm_kda_channels(const carry_lm_pass *pass, carry_tensor rows);
carry_tensor carry_lm_kda_by_head(const carry_lm_pass *pass, carry_tensor rows);
/* A view of A_log or its gradient as [heads]; in files it has more indices. */
carry_tensor carry_lm_kda_rates(carry_tensor A_log);
carry_status carry_lm_kda_backward(const carry_lm_call *call);

#endif
