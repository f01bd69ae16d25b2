/* The inside of a pass: where the activations of a call lie, and the steps of a layer. */
#ifndef CARRY_MODEL_LM_PASS_H
#define CARRY_MODEL_LM_PASS_H

#include "core/memory.h"
#include "model/lm/lm.h"

/* The activations of one layer that its backward reads. Rows are tokens. */
typedef struct carry_lm_rows {
    carry_tensor x, x2;        /* inputs of mixer and feed-forward, where norms come before them */
    carry_tensor out, out2;    /* outputs of mixer and feed-forward, where norms come after them */
    carry_tensor middle;       /* h between mixer and feed-forward */
    void *mixer, *feedforward; /* the parts' own */
} carry_lm_rows;

/* Gradients of activations, shared by all layers. */
typedef struct carry_lm_back {
    carry_tensor dh, dx; /* of h; of the input of a part */
    carry_tensor dout;   /* of out and out2 */
} carry_lm_back;

/* The parts: mixers, then feed-forwards. NULL past the end. */
enum { CARRY_LM_PARTS = CARRY_LM_MIXERS + CARRY_LM_FEEDFORWARDS };
const carry_lm_part *carry_lm_part_at(int index);

/* A part that some layers have. */
typedef struct carry_lm_opened {
    const carry_lm_part *part; /* NULL: no layer has it */
    void *opened;
    void *rows; /* for all layers, where layers share their memory */
    void *back;
} carry_lm_opened;

struct carry_lm_pass {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_lm_pass_options options;
    int64_t tokens; /* of the whole batch; of a pooled pass: of this call */
    struct carry_lm_factors
        *factors; /* of a pooled pass of a model whose norms add 1 to their weights (lm_factors.c) */
    void *fixed;  /* of a pass with same_bits: memory for carry_fixed_rows_set */
    size_t fixed_bytes;
    int64_t most; /* of a pooled pass: tokens that it was planned for */
    carry_lm_opened part[CARRY_LM_PARTS];
    size_t memory;
    char about[2048];       /* a line of a plan for every kind of part */
    unsigned char *structs; /* the parts' structs of rows and gradients */
    /* Laid out anew in the memory of each call. */
    bool shares;          /* layers use one memory: without backward, and where it does them again */
    carry_lm_rows *layer; /* of each layer */
    carry_tensor *h;      /* what enters each layer, and what leaves the last: all of them one without backward */
    carry_tensor last;    /* the last norm's output */
    carry_tensor last_h, last_x;    /* of each sequence's last token */
    carry_tensor losses, total;     /* of each token, f32; their sum and number, f64 */
    carry_tensor ids, labels, cuts; /* of the call, where the work is done; cuts: for the convolutions, may be absent */
    carry_tensor ones, factor;      /* for norms that multiply by 1 + w: f32, as wide as the widest */
    carry_tensor embedding_factor, residual_factor, logits_factor; /* [hidden_size], f32, all the same; absent: 1 */
    carry_lm_back back;
    struct {
        carry_tensor z, dz; /* A x and its gradient: [tokens, rank] */
        carry_tensor x, dx; /* with dropout: what A reads, and its gradient, as wide as the widest */
        carry_tensor scale; /* [rank], f32, all the same */
    } adapter;              /* of a model with an adapter */
    carry_tensor unread;    /* of a frozen model: memory for small gradients that operators always compute */
    void *scratch;          /* the workspace of whichever operator runs */
    size_t scratch_bytes;
};

/* The ids that a sequence has read, as far as they were in host memory. */
typedef struct carry_lm_state_ids {
    int64_t count;
    uint64_t hash; /* carry_hash_ids */
} carry_lm_state_ids;

struct carry_lm_state {
    carry_ctx *ctx;
    carry_lm *lm;
    int device;
    int64_t batch, layers;
    int64_t *length;                            /* tokens that each sequence has read */
    carry_lm_state_ids *ids;                    /* of each sequence */
    carry_tensor (*part)[CARRY_LM_STATE_PARTS]; /* of each layer: [batch, ...]; data NULL: none */
    carry_lm_state_part (*about)[CARRY_LM_STATE_PARTS];
    void *memory;      /* of the parts that do not grow; those that do have their own */
    int64_t room;      /* tokens that caches have room for, of each sequence */
    carry_dtype dtype; /* of caches */
    int64_t pages;     /* of a pool: its caches are [pages, CARRY_POOL_PAGE, ...]; 0: no pool */
};

/* Places everything in the arena; over NULL it counts. */
void carry_lm_pass_lay_out(carry_lm_pass *pass, carry_arena *arena);
/* One row a token of the pass. */
carry_tensor carry_lm_take(const carry_lm_pass *pass, carry_arena *arena, carry_dtype dtype, int64_t width);
/* Several of them, of width[i] (0: absent): as columns of one array where `joined`, else each its own. */
void carry_lm_take_columns(const carry_lm_pass *pass, carry_arena *arena, bool joined, int count, const int64_t *width,
                           carry_tensor *const *to);

/* h[layer] -> h[layer + 1]. again: in backward, up to what backward reads. */
carry_status carry_lm_layer_forward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again);
/* back.dh is the gradient of h[layer + 1] and becomes that of h[layer]; gradients of weights are added. */
carry_status carry_lm_layer_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer);

/* After the layers: logits and the loss; with backward the gradients of what enters the last norm and of what follows
   the layers. counted: labels that count. */
carry_status carry_lm_head(carry_lm_pass *pass, const carry_lm_args *args, int64_t counted);

/* The arguments of a part of a layer, but for x, out, base and their gradients. */
carry_lm_call carry_lm_call_of(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer,
                               const carry_lm_sublayer *own);

/* A slot of the called part: the weight, the weight as products want it (model/parameters.h), the gradient. data NULL
   if the model does not have it. */
carry_tensor carry_lm_w(const carry_lm_call *call, int slot);
carry_tensor carry_lm_product(const carry_lm_call *call, int slot);
carry_tensor carry_lm_dw(const carry_lm_call *call, int slot);
/* The gradient for an operator that always computes it: of a frozen model, memory that nothing reads. */
carry_tensor carry_lm_dw_always(const carry_lm_call *call, int slot);
/* y = W x; dx (+)= dy W and dW += dy^T x. Nothing where the model has no such slot. */
carry_status carry_lm_project(const carry_lm_call *call, int slot, carry_tensor y, carry_tensor x);
carry_status carry_lm_project_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor dy,
                                       carry_tensor x, bool accumulate);
/* The same for several slots of one x, the last being -1; y and dy are by slot. dx is written. rest: the columns of
   the zeros after them; absent: none. */
carry_status carry_lm_project_all(const carry_lm_call *call, const int *slots, const carry_tensor *y, carry_tensor rest,
                                  carry_tensor x);
carry_status carry_lm_project_all_backward(const carry_lm_call *call, const int *slots, carry_tensor dx,
                                           const carry_tensor *dy, carry_tensor rest, carry_tensor x);
/* Those zeros: rows of the weights as products want them, or of the gradients. */
carry_tensor carry_lm_rest(const carry_lm_call *call, bool gradient);
/* With an adapter (adapter.h): y += scale B A x of a slot, after its product; dx += its gradient, and those of A and B.
   Nothing if the slot is not a target. The functions above and below do it; others call it after their own products. */
carry_status carry_lm_adapt(const carry_lm_call *call, int slot, carry_tensor y, carry_tensor x);
carry_status carry_lm_adapt_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor dy,
                                     carry_tensor x);
void carry_lm_adapter_take(carry_lm_pass *pass, carry_arena *arena);
carry_status carry_lm_adapter_begin(carry_lm_pass *pass);
/* Are maps of one x columns of one array? On a GPU one product computes them; an adapter adds to each alone. */
bool carry_lm_joins(const carry_lm_pass *pass);
/* The output of a part: call.out = call.base + W y, for the rows that are read. Nothing if call.out is absent. */
carry_status carry_lm_project_out(const carry_lm_call *call, int slot, carry_tensor y);

/* y = factor x, which may be y; nothing where the factor is absent. */
carry_status carry_lm_scale(carry_lm_pass *pass, carry_tensor y, carry_tensor x, carry_tensor factor);

/* 1 + w of the norms of a pooled pass, each computed once: the model's weights stay as they are while such a pass is
   open. carry_lm_factor gives the one of w, computed at the first call. */
carry_status carry_lm_factors_new(carry_lm_pass *pass);
void carry_lm_factors_free(carry_lm_pass *pass);
carry_status carry_lm_factor(carry_lm_pass *pass, carry_tensor w, carry_tensor *factor);

/* y = norm(x) in the form of the model: times w, or 1 + w. dx is written, or added to. */
carry_status carry_lm_norm(carry_lm_pass *pass, carry_tensor y, carry_tensor x, carry_tensor w);
carry_status carry_lm_norm_backward(carry_lm_pass *pass, carry_tensor dx, carry_tensor dw, carry_tensor dy,
                                    carry_tensor x, carry_tensor w, bool accumulate);

/* Before a call with a state: capacity for its tokens in the caches; and after it. */
carry_status carry_lm_state_reserve(carry_lm_state *state, int64_t tokens, carry_dtype dtype);
void carry_lm_state_advance(carry_lm_state *state, int64_t tokens);
/* The ids of those tokens, [batch, tokens] in host memory. A state that was not given all of its ids is not saved. */
void carry_lm_state_tell(carry_lm_state *state, const int64_t *ids, int64_t tokens);
/* Caches of a model with attention that hold `tokens` of every sequence, in this type. */
carry_status carry_lm_state_fit(carry_lm_state *state, int64_t tokens, carry_dtype dtype);

#endif
