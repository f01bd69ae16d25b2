/* Layers with latent attention (MLA):

       c, shared = kv_a x, with c normalised;  q = q_proj x, or q_b(norm(q_a x))
       the key of head h is (K[h] c, shared), its value V[h] c;  out = o_proj of attention

   K[h] and V[h] are rows of kv_b. A query has two parts, q[h] = (p[h], r[h]), and its score with a key is p[h]^T K[h] c
   + r[h]^T shared. It is computed with the query (K[h]^T p[h], r[h]) and the key (c, shared), which is the same for all
   heads; V[h] is applied to the weighted sum of c. So only (c, shared) is cached for a token, and attention has one
   head of keys, which are also the values. With rope_theta, `shared` and r[h] first get rotary positions; with a head
   gate, the output of head h is multiplied by sigmoid(gate[h] x). */
#ifndef CARRY_MODEL_LM_LATENT_H
#define CARRY_MODEL_LM_LATENT_H

#include "model/lm/mixers/attention.h"

#define CARRY_LM_LATENT_EPS 1e-6f /* of both norms */

typedef enum carry_lm_latent_slot {
    CARRY_LM_LATENT_Q,
    CARRY_LM_LATENT_Q_A,
    CARRY_LM_LATENT_Q_NORM,
    CARRY_LM_LATENT_Q_B,
    CARRY_LM_LATENT_KV_A,
    CARRY_LM_LATENT_KV_NORM,
    CARRY_LM_LATENT_KV_B,
    CARRY_LM_LATENT_O,
    CARRY_LM_LATENT_GATE,
    CARRY_LM_LATENT_Q_A_BIAS,
    CARRY_LM_LATENT_KV_A_BIAS,
    CARRY_LM_LATENT_O_BIAS,
    CARRY_LM_LATENT_SLOTS
} carry_lm_latent_slot;

typedef struct carry_lm_latent_rows {
    carry_lm_attention_rows attention; /* q is [n (rank + shared)], k and v are the cached latent */
    carry_tensor q_low_in, q_low, q;   /* q has all heads, before K is applied */
    carry_tensor both, c_in, c;        /* kv_a's output: latent and shared; the latent before and after its norm */
    carry_tensor y;                    /* input of o_proj */
    carry_tensor part, wide, value;    /* one head: `plain`, `rank` and `value` columns */
    carry_tensor turned;               /* with positions: the shared columns of all heads, and of the key */
    carry_tensor gate, opened;         /* with a head gate: its logits, and y times its sigmoid */
} carry_lm_latent_rows;

typedef struct carry_lm_latent_back {
    carry_lm_attention_back attention;
    carry_tensor dy, dq, dq_low, dq_low_in, dboth, dc, dc_in, wide, dgate, dopened;
} carry_lm_latent_back;

/* K[h] or V[h] as rows of kv_b, or of its gradient. */
carry_tensor carry_lm_latent_keys(const carry_lm_call *call, carry_tensor kv_b, int64_t head);
carry_tensor carry_lm_latent_values(const carry_lm_call *call, carry_tensor kv_b, int64_t head);
/* A view of rows of this width, at the start of the memory of `rows`. */
carry_tensor carry_lm_latent_first(carry_tensor rows, int64_t width);
/* A view of [T, n] with one row for each token and head. */
carry_tensor carry_lm_latent_by_head(const carry_lm_call *call, carry_tensor rows);
/* Applies rotary positions to the columns of each of `heads` heads, which start at `first` and are `next` apart, and
   writes them to r->turned. */
carry_status carry_lm_latent_turn(const carry_lm_call *call, carry_tensor from, int64_t first, int64_t next,
                                  int64_t heads, bool inverse);
carry_status carry_lm_latent_backward(const carry_lm_call *call);

#endif
