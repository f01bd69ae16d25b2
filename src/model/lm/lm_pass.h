/* The inside of a pass: where the activations of a call lie, and the steps of a layer. */
#ifndef CARRY_MODEL_LM_PASS_H
#define CARRY_MODEL_LM_PASS_H

#include "core/memory.h"
#include "model/lm/lm.h"

/* The activations of one layer that its backward reads. Rows are tokens. */
typedef struct carry_lm_rows {
    carry_tensor x;                       /* attn_norm's output */
    carry_tensor q_in, k_in, v_in;        /* projections, before the convolution */
    carry_tensor before[3];               /* what stands before them, with a halo */
    carry_tensor q, k, v, a, b;           /* the delta rule's inputs */
    carry_tensor z, o, y;                 /* output gate, delta rule's output, after o_norm */
    carry_tensor middle;                  /* h between mixer and MLP */
    carry_tensor x2, gate, up, activated; /* mlp_norm's output and so on */
    void *kept;                           /* the mixer's */
} carry_lm_rows;

/* Gradients on their way, shared by all layers. */
typedef struct carry_lm_back {
    carry_tensor dh, dx, dmiddle_wide; /* of h; of a norm's output; of `activated` */
    carry_tensor dy, dout, dz;         /* of y, o, z */
    carry_tensor dq, dk, dv, dq_in, dk_in, dv_in, da, db;
    carry_tensor dbefore_key, dbefore_value;
    carry_tensor dA_log, ddt_bias;
} carry_lm_back;

struct carry_lm_pass {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_lm_pass_options options;
    int64_t tokens; /* of the whole batch */
    carry_delta_problem problem;
    const carry_lm_mixer *mixer;
    void *mixing;
    size_t memory;
    char about[256];
    /* Laid out anew in the memory of each call. */
    int64_t layers_kept; /* all, or 1 that is shared */
    carry_lm_rows *layer;
    carry_tensor *h;   /* what enters each layer, and what leaves the last: all of them one without backward */
    carry_tensor last; /* the last norm's output */
    carry_tensor last_h, last_x;    /* of each sequence's last token */
    carry_tensor losses, total;     /* of each token, f32; their sum and number, f64 */
    carry_tensor ids, labels, cuts; /* of the call, where the work is done; cuts: for the convolutions, may be absent */
    carry_tensor beta, ones;        /* constants, where the configuration asks for them */
    carry_lm_back back;
    void *scratch; /* the workspace of whichever operator runs */
    size_t scratch_bytes;
};

struct carry_lm_state {
    carry_ctx *ctx;
    int device;
    int64_t batch, layers, slices;
    carry_tensor (*conv)[3]; /* [batch, W-1, channels] of q, k, v; data NULL: no convolution */
    carry_tensor *delta;     /* [batch, HV, K, V], laid out in slices (mixer.h) */
    void *memory;
};

/* Places everything in the arena; over NULL it counts. */
void carry_lm_pass_lay_out(carry_lm_pass *pass, carry_arena *arena);

/* h[layer] -> h[layer + 1]. again: in backward, up to what backward reads. */
carry_status carry_lm_layer_forward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again);
/* back.dh is the gradient of h[layer + 1] and becomes that of h[layer]; gradients of weights are added. */
carry_status carry_lm_layer_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer);

static inline carry_lm_rows *carry_lm_rows_of(carry_lm_pass *pass, int64_t layer) {
    return &pass->layer[pass->layers_kept > 1 ? layer : 0];
}

/* A tensor of rows as the delta rule sees it: [B, T, heads, width], or [B, T, heads] with width 0. */
carry_tensor carry_lm_heads(const carry_lm_pass *pass, carry_tensor rows, int64_t heads, int64_t width);
/* The same as a convolution sees it: [B, T, channels]. */
carry_tensor carry_lm_channels(const carry_lm_pass *pass, carry_tensor rows);
/* [tokens * HV, V]: one row a head. */
carry_tensor carry_lm_by_head(const carry_lm_pass *pass, carry_tensor rows);
/* A layer's weight or gradient; data NULL when the model has none. */
carry_tensor carry_lm_w(const carry_lm_pass *pass, int64_t layer, carry_lm_slot slot);
/* The weight as products want it (model/parameters.h). */
carry_tensor carry_lm_product(const carry_lm_pass *pass, int64_t layer, carry_lm_slot slot);
carry_tensor carry_lm_dw(const carry_lm_pass *pass, int64_t layer, carry_lm_slot slot);
/* What a convolution does after its sum. */
carry_activation carry_lm_activation(const carry_lm_pass *pass, carry_lm_slot slot);

#endif
