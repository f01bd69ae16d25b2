/* Options of the parts of layers in a configuration. A family sets them from its keys; `check` of a part checks them
   and fills in the derived values. */
#ifndef CARRY_MODEL_LM_OPTIONS_H
#define CARRY_MODEL_LM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/nn.h"
#include "ops/experts.h"

/* mixers/delta.c and mixers/deltaproduct.c */
typedef struct carry_lm_delta_options {
    int64_t heads, value_heads; /* number of heads of q and k; number of heads of v */
    int64_t key, value;         /* K and V: the widths of one head */
    int64_t steps;              /* deltaproduct: steps of the delta rule for each token */
    int64_t conv_size;
    bool use_gate, use_short_conv, allow_neg_eigval;
    bool use_beta;                  /* without it beta is 1, or 2 with allow_neg_eigval */
    bool use_delta_rule;            /* false: gated linear attention (recurrence/recurrence.h) */
    bool gated;                     /* the states decay */
    carry_activation qk_activation; /* CARRY_ELU is elu(x) + 1 */
    double norm_eps;                /* of the output norm */
    int64_t key_width, value_width; /* derived: total width of all heads: heads K, value_heads V */
} carry_lm_delta_options;

/* The norm of q and k in attention: none, of each head, or of all heads together. */
typedef enum carry_lm_qk_norm { CARRY_LM_NO_QK_NORM, CARRY_LM_NORM_HEADS, CARRY_LM_NORM_WIDTH } carry_lm_qk_norm;

/* mixers/attention.c */
typedef struct carry_lm_attention_options {
    int64_t heads, kv_heads, head_dim; /* kv_heads 0: equal to heads; head_dim 0: hidden_size / heads */
    int64_t window;                    /* number of keys that a token attends to, including its own; 0: all */
    double rope_theta;                 /* 0: no rotary positions */
    double rotary_factor;              /* fraction of a head's elements that get rotary positions */
    carry_lm_qk_norm qk_norm;
    bool gate;      /* outputs are o sigmoid(gate); q_proj has the gate of each head next to its q */
    bool bias;      /* the maps of q, k, v and the output have one */
    double scale;   /* of scores; 0: head_dim^-1/2 */
    int64_t rotary; /* derived: number of elements of a head that get rotary positions */
} carry_lm_attention_options;

/* feedforward/swiglu.c */
typedef struct carry_lm_swiglu_options {
    int64_t width; /* between up and down */
} carry_lm_swiglu_options;

/* mixers/mamba.c */
typedef struct carry_lm_mamba_options {
    int64_t heads, head_dim; /* of x */
    int64_t groups, state;   /* groups of heads that share B and C; the width of a state */
    int64_t conv_size;
    bool conv_bias, proj_bias; /* the convolution has a bias; both projections have one */
    double step_min, step_max; /* limits of the steps */
    double norm_eps;
    int64_t width, channels; /* derived: total width of the heads; channels of the convolution */
} carry_lm_mamba_options;

/* mixers/kda.c */
typedef struct carry_lm_kda_options {
    int64_t heads, head_dim; /* the same for q, k and v */
    int64_t conv_size;
    bool whole_gates; /* the gates of decay and of output are one matrix each, not a product of two of rank head_dim */
    double bound;     /* if not 0, decays are bound * sigmoid(exp(A_log) (a + dt_bias)) instead of using softplus */
    double norm_eps;
    int64_t width; /* derived: of all heads */
} carry_lm_kda_options;

/* mixers/latent.c; the options of attention are derived */
typedef struct carry_lm_latent_options {
    int64_t heads;
    int64_t plain, shared; /* elements of a key that each head has for itself, and elements that all heads share */
    int64_t value;         /* of a head */
    int64_t rank;          /* width of the latent of keys and values */
    int64_t query_rank;    /* width of the latent of queries; 0: queries have none */
    double rope_theta;     /* rotary positions of the shared elements, in neighbouring pairs; 0: no positions */
    bool head_gate;        /* the output of each head is multiplied by sigmoid(gate x) */
    bool bias;             /* of q_a, kv_a and o; q_proj, q_b and kv_b have none */
    int64_t width;         /* derived: width of a token's row in the cache, rank + shared */
} carry_lm_latent_options;

/* feedforward/squared.c */
typedef struct carry_lm_squared_options {
    int64_t width;
    bool bias;
} carry_lm_squared_options;

/* feedforward/experts.c */
typedef struct carry_lm_experts_options {
    int64_t count, chosen; /* number of experts of a layer, and number chosen for each token */
    int64_t width;         /* width of an expert, between up and down */
    int64_t shared_width;  /* width of the expert that all tokens use; 0: no such expert */
    int64_t latent;        /* width of the experts' inputs and outputs, with a map before and one after; 0: hidden_size,
                              without maps */
    bool gated;            /* silu(gate x) * up x; otherwise relu(up x)^2 */
    bool shared_gate;      /* the shared expert's output is multiplied by sigmoid(gate x) */
    bool bias;             /* added to scores when choosing experts, not to their weights; not trained */
    bool map_bias;         /* the shared expert's maps and the latent maps have a bias; single experts have none */
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
