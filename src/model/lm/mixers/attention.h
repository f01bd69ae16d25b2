/* Layers with softmax attention:

       q, k, v = proj x, q and k normalised and turned by their positions; o = causal attention (q, k, v);
       out = o_proj(o sigmoid(gate)), the gate, where there is one, beside each head of q in q_proj

   Heads of q share heads of k and v. Documents of a packed row, and sequences of a batch, do not see each other. The
   state of a sequence is its keys, turned, and values. */
#ifndef CARRY_MODEL_LM_ATTENTION_H
#define CARRY_MODEL_LM_ATTENTION_H

#include "carry/attention.h"
#include "model/lm/lm_pass.h"

typedef enum carry_lm_attention_slot {
    CARRY_LM_ATTENTION_Q,
    CARRY_LM_ATTENTION_K,
    CARRY_LM_ATTENTION_V,
    CARRY_LM_ATTENTION_Q_NORM,
    CARRY_LM_ATTENTION_K_NORM,
    CARRY_LM_ATTENTION_O,
    CARRY_LM_ATTENTION_SLOTS
} carry_lm_attention_slot;

typedef struct carry_lm_attention {
    float *turns;       /* in host memory: [tokens, rotary / 2, 2] */
    carry_tensor table; /* the same, where the work is done */
    float *rates;       /* [rotary / 2]: radians a position */
    int64_t *starts;    /* of a pass with gradients that is not packed: first rows of the sequences, [batch + 1] */
    const char *plan;
    bool steps;     /* a pass of one token on a device that has steps of attention: nothing in it depends on how */
    carry_ctx *ctx; /* of a pooled pass: */
    int device;
    float *rates_there;   /* [rotary / 2], on its device */
    carry_tensor lengths; /* many tokens were read, which is in these, [batch], on the device */
    size_t scratch;
} carry_lm_attention;

typedef struct carry_lm_attention_rows {
    carry_tensor both;             /* q_proj's output, where a gate is in it */
    carry_tensor q_in, k_in, gate; /* before the norm */
    carry_tensor q, k, v, o, lse;  /* of attention; lse [H, T] of each document, one after the other */
    carry_tensor open, y;          /* sigmoid(gate), and what enters o_proj */
} carry_lm_attention_rows;

typedef struct carry_lm_attention_back {
    carry_tensor dy, d_o, dgate;
    carry_tensor dq, dk, dv, dq_in, dk_in, dboth;
} carry_lm_attention_back;

/* The rows of [tokens, heads D] as attention sees them, or as a norm of the model's kind does. */
carry_tensor carry_lm_attention_heads(const carry_lm_pass *pass, carry_tensor rows);
carry_tensor carry_lm_attention_norm_rows(const carry_lm_pass *pass, carry_tensor rows);
/* Document `index` of a call: its first row and number of rows; false past the last. */
bool carry_lm_attention_document(const carry_lm_pass *pass, const carry_lm_args *args, int64_t index, int64_t *first,
                                 int64_t *count);
/* Can a step of generation on the model's device be recorded? */
bool carry_lm_attention_records(const carry_lm *lm, int64_t batch, carry_dtype dtype);
/* The arguments of attention for `count` rows of a call from `first` on. */
carry_attention_args carry_lm_attention_args(const carry_lm_pass *pass, const carry_lm_attention_rows *rows,
                                             int64_t first, int64_t count);

/* Radians a position, of each pair of elements that is turned: [rotary / 2]. */
void carry_lm_attention_rates(const carry_lm_config *config, float *rates);

/* For mixers whose rows and gradients begin with those of attention: open and close what it needs; attention over all
   documents, states and pools, from q, k and v to o; and back, from d_o. Where the state has no second part, the first
   has the values too. */
carry_status carry_lm_attention_open(carry_lm_pass *pass, void **opened);
void carry_lm_attention_close(void *opened);
void carry_lm_attention_take_once(const carry_lm_pass *pass, void *opened, carry_arena *arena);
/* The turns of every token: positions count from the start of its document, or go on where the state stands. */
carry_status carry_lm_attention_begin(carry_lm_pass *pass, void *opened, const carry_lm_args *args);
carry_status carry_lm_attend(const carry_lm_call *call);
carry_status carry_lm_attend_backward(const carry_lm_call *call);

carry_status carry_lm_attention_check(carry_ctx *ctx, carry_lm_config *config);
extern const char *const carry_lm_attention_names[];
carry_lm_parameter carry_lm_attention_describe(const carry_lm_config *config, int slot);
int carry_lm_attention_state(const carry_lm_config *config, carry_lm_state_part *parts);
carry_status carry_lm_attention_backward(const carry_lm_call *call);

#endif
