/* Layers with softmax attention:

       q, k, v = proj x;  o = causal attention (q, k, v);  out = o_proj(o sigmoid(gate))

   Before attention, q and k are normalised and get rotary positions; the options (options.h) may leave out both. The
   gate is optional too: q_proj has the gate of each head next to its q. All four maps may have a bias.

   Heads of q share heads of k and v. Documents of a packed row do not attend to each other, nor do sequences of a
   batch. The state of a sequence is its values and its keys, the latter with rotary positions applied. */
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
    CARRY_LM_ATTENTION_Q_BIAS, /* of the four maps, in this order */
    CARRY_LM_ATTENTION_K_BIAS,
    CARRY_LM_ATTENTION_V_BIAS,
    CARRY_LM_ATTENTION_O_BIAS,
    CARRY_LM_ATTENTION_SLOTS
} carry_lm_attention_slot;

typedef struct carry_lm_attention {
    float *turns;       /* on the CPU: cosines and sines of the positions, [tokens, rotary / 2, 2] */
    carry_tensor table; /* the same on the model's device */
    int64_t *positions; /* on a GPU, which computes the table from them: [tokens], in host memory */
    carry_tensor positions_there;
    float *rates;    /* [rotary / 2]: radians a position */
    int64_t *starts; /* pass with gradients, not packed: the first row of each sequence, [batch + 1] */
    const char *plan;
    bool steps;     /* a pass of one token on a device with a kernel for steps. Its work can be recorded, since it reads
                       the number of tokens read so far from `lengths` */
    carry_ctx *ctx; /* for a pooled pass, and for every pass on a GPU: */
    int device;
    float *rates_there;   /* [rotary / 2], on the model's device */
    carry_tensor lengths; /* [batch], on the device: the number of tokens that each sequence has read, if `steps` */
    size_t scratch;
} carry_lm_attention;

typedef struct carry_lm_attention_rows {
    carry_tensor both;             /* q_proj's output, if it contains a gate */
    carry_tensor q_in, k_in, gate; /* before the norm */
    carry_tensor q, k, v, o, lse;  /* inputs and outputs of attention; lse is [H, T] for each document, one after the
                                      other */
    carry_tensor open, y;          /* sigmoid(gate), and the input of o_proj */
} carry_lm_attention_rows;

typedef struct carry_lm_attention_back {
    carry_tensor dy, d_o, dgate;
    carry_tensor dq, dk, dv, dq_in, dk_in, dboth;
} carry_lm_attention_back;

/* heads: rows of [tokens, heads D] as attention needs them, [tokens, heads, D]. norm_rows: the same as the norm of q
   and k needs them, with one row for each head or for all heads. */
carry_tensor carry_lm_attention_heads(const carry_lm_pass *pass, carry_tensor rows);
carry_tensor carry_lm_attention_norm_rows(const carry_lm_pass *pass, carry_tensor rows);
/* Gets the first row and the number of rows of document `index` of a call; false past the last. */
bool carry_lm_attention_document(const carry_lm_pass *pass, const carry_lm_args *args, int64_t index, int64_t *first,
                                 int64_t *count);
/* True if a step of generation on the model's device can be recorded. */
bool carry_lm_attention_records(const carry_lm *lm, int64_t batch, carry_dtype dtype);
/* The arguments of attention for `count` rows of a call, starting at `first`. */
carry_attention_args carry_lm_attention_args(const carry_lm_pass *pass, const carry_lm_attention_rows *rows,
                                             int64_t first, int64_t count);

/* The rotation of each pair of elements in radians per position: [rotary / 2]. */
void carry_lm_attention_rates(const carry_lm_config *config, float *rates);

/* For mixers whose structs of activations and gradients begin with those of attention. open and close manage its
   resources; attend computes o from q, k and v, for all documents, states and pools; its backward starts from d_o. The
   first part of the state holds the keys and the second the values; a state with a single part holds both in it
   (latent.h). */
carry_status carry_lm_attention_open(carry_lm_pass *pass, void **opened);
void carry_lm_attention_close(void *opened);
void carry_lm_attention_take_once(const carry_lm_pass *pass, void *opened, carry_arena *arena);
/* Computes the rotation of every token. Positions start at 0 in each document, or continue after the tokens that the
   state has read. */
carry_status carry_lm_attention_begin(carry_lm_pass *pass, void *opened, const carry_lm_args *args);
carry_status carry_lm_attend(const carry_lm_call *call);
carry_status carry_lm_attend_backward(const carry_lm_call *call);

carry_status carry_lm_attention_check(carry_ctx *ctx, carry_lm_config *config);
extern const char *const carry_lm_attention_names[];
carry_lm_parameter carry_lm_attention_describe(const carry_lm_config *config, int slot);
int carry_lm_attention_state(const carry_lm_config *config, carry_lm_state_part *parts);
carry_status carry_lm_attention_backward(const carry_lm_call *call);

#endif
