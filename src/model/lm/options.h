/* Options of the parts of layers, as a configuration has them. A family sets them from its keys; `check` of a part
   checks them and fills in the derived values. */
#ifndef CARRY_MODEL_LM_OPTIONS_H
#define CARRY_MODEL_LM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/nn.h"
#include "ops/experts.h"

/* mixers/delta.c and mixers/deltaproduct.c */
typedef struct carry_lm_delta_options {
    int64_t heads, value_heads; /* of q and k; of v */
    int64_t key, value;         /* K and V: the widths of one head */
    int64_t steps;              /* deltaproduct: steps of the delta rule a token */
    int64_t conv_size;
    bool use_gate, use_short_conv, allow_neg_eigval;
    bool use_beta;                  /* without it beta is 1, or 2 with allow_neg_eigval */
    bool use_delta_rule;            /* false: gated linear attention (recurrence/recurrence.h) */
    bool gated;                     /* the states decay */
    carry_activation qk_activation; /* CARRY_ELU is elu(x) + 1 */
    double norm_eps;                /* of the output norm */
    int64_t key_width, value_width; /* derived, of all heads: heads K, value_heads V */
} carry_lm_delta_options;

/* The norm of q and k in attention: none, of each head, or of all heads together. */
typedef enum carry_lm_qk_norm { CARRY_LM_NO_QK_NORM, CARRY_LM_NORM_HEADS, CARRY_LM_NORM_WIDTH } carry_lm_qk_norm;

/* mixers/attention.c */
typedef struct carry_lm_attention_options {
    int64_t heads, kv_heads, head_dim; /* 0: as many as heads; hidden_size / heads */
    int64_t window;                    /* keys that a token sees, itself among them; 0: all */
    double rope_theta;                 /* 0: no rotary positions */
    double rotary_factor;              /* the part of a head that is turned */
    carry_lm_qk_norm qk_norm;
    bool gate;      /* o sigmoid(gate), the gate beside each head of q */
    double scale;   /* of scores; 0: head_dim^-1/2 */
    int64_t rotary; /* derived: elements of a head that are turned */
} carry_lm_attention_options;

/* feedforward/swiglu.c */
typedef struct carry_lm_swiglu_options {
    int64_t width; /* between up and down */
} carry_lm_swiglu_options;

/* mixers/mamba.c */
typedef struct carry_lm_mamba_options {
    int64_t heads, head_dim; /* of x */
    int64_t groups, state;   /* of B and C: heads of a group share them; the width of a state */
    int64_t conv_size;
    bool conv_bias, proj_bias; /* of the convolution; of both projections */
    double step_min, step_max; /* limits of the steps */
    double norm_eps;
    int64_t width, channels; /* derived: of all heads; of the convolution */
} carry_lm_mamba_options;

/* mixers/kda.c */
typedef struct carry_lm_kda_options {
    int64_t heads, head_dim; /* of q, k and v alike */
    int64_t conv_size;
    bool whole_gates; /* the gates of decay and output are one matrix each, not two of rank head_dim */
    double bound;     /* not 0: decays are bound * sigmoid(exp(A_log) (a + dt_bias)), not softplus */
    double norm_eps;
    int64_t width; /* derived: of all heads */
} carry_lm_kda_options;

/* mixers/latent.c; the options of attention are derived */
typedef struct carry_lm_latent_options {
    int64_t heads;
    int64_t plain, shared; /* of a key: elements of its own, and those that all heads share */
    int64_t value;         /* of a head */
    int64_t rank;          /* of the latent of keys and values */
    int64_t query_rank;    /* of that of queries; 0: none */
    double rope_theta;     /* the shared elements are turned in neighbouring pairs; 0: they are not */
    bool head_gate;        /* the output of each head is multiplied by sigmoid(gate x) */
    int64_t width;         /* derived: of the cached row of a token, rank + shared */
} carry_lm_latent_options;

/* feedforward/squared.c */
typedef struct carry_lm_squared_options {
    int64_t width;
    bool bias;
} carry_lm_squared_options;

/* feedforward/experts.c */
typedef struct carry_lm_experts_options {
    int64_t count, chosen; /* experts of a layer, and of a token */
    int64_t width;         /* of an expert, between up and down */
    int64_t shared_width;  /* of the expert that all tokens have; 0: none */
    int64_t latent;        /* width of what experts read and write, between two maps; 0: hidden_size, without maps */
    bool gated;            /* silu(gate x) * up x; otherwise relu(up x)^2 */
    bool shared_gate;      /* the shared expert's output is multiplied by sigmoid(gate x) */
    bool bias;             /* added to scores for the choice alone; not trained */
    carry_router router;
} carry_lm_experts_options;

/* The fields of a configuration. */
#define CARRY_LM_OPTIONS                  \
    carry_lm_delta_options delta;         \
    carry_lm_attention_options attention; \
    carry_lm_swiglu_options swiglu;       \
    carry_lm_experts_options experts;     \
    carry_lm_mamba_options mamba;         \
    carry_lm_kda_options kda;             \
    carry_lm_latent_options latent;       \
    carry_lm_squared_options squared

#endif
