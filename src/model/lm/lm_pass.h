/* Internals of a pass: the layout of a call's activations in memory, and the steps of a layer. */
#ifndef CARRY_MODEL_LM_PASS_H
#define CARRY_MODEL_LM_PASS_H

#include "core/memory.h"
#include "model/lm/lm.h"
#include "model/lm/lm_fp8.h"

/* The activations of one layer that its backward pass reads. Rows are tokens. */
typedef struct carry_lm_rows {
    carry_tensor x, x2;        /* inputs of mixer and feed-forward, if norms come before them */
    carry_tensor out, out2;    /* outputs of mixer and feed-forward, if norms come after them */
    carry_tensor middle;       /* h between mixer and feed-forward */
    void *mixer, *feedforward; /* structs of the parts */
} carry_lm_rows;

/* Gradients of activations, shared by all layers. */
typedef struct carry_lm_back {
    carry_tensor dh, dx; /* gradients of h, and of the input of a part */
    carry_tensor dout;   /* gradient of out and out2 */
} carry_lm_back;

/* The parts by index: mixers, then feed-forwards. NULL past the end. */
enum { CARRY_LM_PARTS = CARRY_LM_MIXERS + CARRY_LM_FEEDFORWARDS };
const carry_lm_part *carry_lm_part_at(int index);

/* A part and the state of the pass for it. */
typedef struct carry_lm_opened {
    const carry_lm_part *part; /* NULL: no layer has it */
    void *opened;
    void *rows; /* activations for all layers, if layers share their memory */
    void *back;
} carry_lm_opened;

struct carry_lm_pass {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_lm_pass_options options;
    int64_t tokens;                   /* tokens of the whole batch; in a pooled pass, of this call */
    struct carry_lm_factors *factors; /* pooled pass of a model whose norms add 1 to their weights (lm_factors.c) */
    int64_t *first_nan;               /* on the model's device; NULL: no layer has experts (lm_nan.c) */
    void *fixed;                      /* pass with same_bits: memory for carry_fixed_rows_set */
    size_t fixed_bytes;
    int64_t most; /* pooled pass: the maximum number of tokens of a call */
    carry_lm_opened part[CARRY_LM_PARTS];
    size_t memory;
    char about[2048];       /* one line for each kind of part: its plan */
    unsigned char *structs; /* storage of the parts' structs of activations and gradients */
    /* The tensors below are set for each call, in its memory; shares and the arrays layer and h are set once. */
    bool shares;          /* all layers use the same memory: without backward, or if backward recomputes them */
    carry_lm_rows *layer; /* [num_hidden_layers] */
    carry_tensor *h;      /* the input of each layer and the output of the last; without backward all are the same
                             tensor */
    carry_tensor last;    /* the last norm's output */
    carry_tensor joined;  /* for multi-token heads: the input of their matrix */
    carry_tensor last_h, last_x;    /* of each sequence's last token */
    carry_tensor losses, total;     /* losses of the tokens, f32; their sum and their number, f64 */
    carry_tensor ids, labels, cuts; /* inputs of the call on the model's device; cuts is for the convolutions and may be
                                       absent */
    carry_tensor ones, factor;      /* for norms that multiply by 1 + w: f32, with the width of the widest norm */
    carry_tensor embedding_factor, residual_factor, logits_factor; /* [hidden_size], f32, all elements equal; absent:
                                                                      the factor is 1 */
    carry_lm_back back;
    struct {
        carry_tensor z, dz; /* A x and its gradient: [tokens, rank] */
        carry_tensor x, dx; /* with dropout: the input of A and its gradient, with the width of the widest */
        carry_tensor scale; /* [rank], f32, all the same */
        carry_tensor kept;  /* scale A x of every pair, [pairs * most, rank]; absent if layers are computed again */
        int64_t last;       /* the pair, and the data of x, for which z was last computed; -1: none in this call */
        const void *last_x;
    } adapter;           /* for a model with an adapter */
    carry_tensor unread; /* for a frozen model: memory for small gradients that operators always compute */
    carry_lm_fp8_memory fp8;
    void *scratch; /* workspace of the operator that is running */
    size_t scratch_bytes;
};

/* The ids that a sequence has read, if they were in host memory. */
typedef struct carry_lm_state_ids {
    int64_t count;
    uint64_t hash; /* carry_hash_ids */
} carry_lm_state_ids;

struct carry_lm_state {
    carry_ctx *ctx;
    carry_lm *lm;
    int device;
    int64_t batch, layers;
    int64_t *length;                            /* number of tokens that each sequence has read */
    carry_lm_state_ids *ids;                    /* of each sequence */
    carry_tensor (*part)[CARRY_LM_STATE_PARTS]; /* parts of each layer: [batch, ...]; data NULL: the layer has no such
                                                   part */
    carry_lm_state_part (*about)[CARRY_LM_STATE_PARTS];
    void *memory;              /* memory of the parts of fixed size; parts that grow have their own */
    int64_t room;              /* capacity of the caches, in tokens of each sequence */
    carry_dtype dtype;         /* of caches */
    int64_t pages;             /* of a pool, whose caches are [pages, CARRY_POOL_PAGE, ...]; 0: not a pool */
    carry_lm_pool_types types; /* of a pool; dtype is that of its caches */
    /* A pool with states in bf16 (wide_states.h), on its device: f32 memory for the states of a group of one layer, and
       the numbers 0 to sequences - 1. */
    float *wide;
    int32_t *wide_slots;
    void **ring; /* [layers]: rings of a pool (mixers/rings.h), or NULL */
};

/* Places all tensors of a call in the arena; if the arena's memory is NULL, only counts the bytes. */
void carry_lm_pass_lay_out(carry_lm_pass *pass, carry_arena *arena);
/* Takes a tensor with one row for each token of the pass. */
carry_tensor carry_lm_take(const carry_lm_pass *pass, carry_arena *arena, carry_dtype dtype, int64_t width);
/* Takes `count` tensors with one row for each token and width[i] columns (0: absent). If `joined`, they are columns of
   one array, else separate arrays. */
void carry_lm_take_columns(const carry_lm_pass *pass, carry_arena *arena, bool joined, int count, const int64_t *width,
                           carry_tensor *const *to);

/* Computes h[layer + 1] from h[layer]. again: called from backward; computes only the activations that backward
   reads. */
carry_status carry_lm_layer_forward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer, bool again);
/* On entry back.dh is the gradient of h[layer + 1]; on return it is that of h[layer]. Gradients of weights are
   added. */
carry_status carry_lm_layer_backward(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer);

/* After the layers: computes logits and the loss; with backward also the gradient of the last norm's input and those of
   the parameters after the layers. counted: the number of labels that count. */
carry_status carry_lm_head(carry_lm_pass *pass, const carry_lm_args *args, int64_t counted);

/* The arguments of a part of a layer, except x, out, base and their gradients. */
carry_lm_call carry_lm_call_of(carry_lm_pass *pass, const carry_lm_args *args, int64_t layer,
                               const carry_lm_sublayer *own);

/* A slot of the part that is called: the weight, the weight as input of a product (model/parameters.h), and its
   gradient. data is NULL if the model does not have the slot. */
carry_tensor carry_lm_w(const carry_lm_call *call, int slot);
carry_tensor carry_lm_product(const carry_lm_call *call, int slot);
carry_tensor carry_lm_dw(const carry_lm_call *call, int slot);
/* The gradient, for an operator that always computes it; for a frozen model, memory that is never read. */
carry_tensor carry_lm_dw_always(const carry_lm_call *call, int slot);
/* y = W x; dx (+)= dy W and dW += dy^T x. They do nothing if the model does not have the slot. */
carry_status carry_lm_project(const carry_lm_call *call, int slot, carry_tensor y, carry_tensor x);
carry_status carry_lm_project_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor dy,
                                       carry_tensor x, bool accumulate);
/* The same for several slots with the same input x; the list ends with -1; y and dy are indexed by slot. dx is
   overwritten. rest: the columns of the padding zeros after them, or absent. */
carry_status carry_lm_project_all(const carry_lm_call *call, const int *slots, const carry_tensor *y, carry_tensor rest,
                                  carry_tensor x);
carry_status carry_lm_project_all_backward(const carry_lm_call *call, const int *slots, carry_tensor dx,
                                           const carry_tensor *dy, carry_tensor rest, carry_tensor x);
/* The padding zeros: rows of the weights as products use them, or of the gradients. */
carry_tensor carry_lm_rest(const carry_lm_call *call, bool gradient);
/* With an adapter (adapter.h): y += scale B A x for a slot, after its product; and backward: adds to dx and to the
   gradients of A and B. They do nothing if the slot is not a target. carry_lm_project and carry_lm_project_all, their
   backward functions, and carry_lm_project_out call them; other code calls them after its own products. */
carry_status carry_lm_adapt(const carry_lm_call *call, int slot, carry_tensor y, carry_tensor x);
carry_status carry_lm_adapt_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor dy,
                                     carry_tensor x);
void carry_lm_adapter_take(carry_lm_pass *pass, carry_arena *arena);
carry_status carry_lm_adapter_begin(carry_lm_pass *pass);
/* For a pass with same_bits: checks that its layers allow it, and allocates memory for products in blocks of a fixed
   number of rows. */
carry_status carry_lm_open_fixed(carry_lm_pass *pass);
/* True if the maps of one x are columns of one array, so that one product computes them all: on a GPU, without an
   adapter (which adds to each map separately). */
bool carry_lm_joins(const carry_lm_pass *pass);
/* The output of a part: call.out = call.base + W y, for the rows that are read. Does nothing if call.out is absent. */
carry_status carry_lm_project_out(const carry_lm_call *call, int slot, carry_tensor y);
/* Its gradients: dx = W^T dout, and dW += dout^T x. */
carry_status carry_lm_project_out_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor x);
/* Adds the bias in a slot to every row of y; add_bias_out: to the rows of call.out that are read. backward: adds the
   columns' sums of dy to its gradient. They do nothing if the model does not have the slot. */
carry_status carry_lm_add_bias(const carry_lm_call *call, int slot, carry_tensor y);
carry_status carry_lm_add_bias_out(const carry_lm_call *call, int slot);
carry_status carry_lm_add_bias_backward(const carry_lm_call *call, int slot, carry_tensor dy);

/* first_nan: for a model with experts. router: the router of a call, which stores in it where scores are NaN. */
carry_status carry_lm_nan_new(carry_lm_pass *pass);
void carry_lm_nan_free(carry_lm_pass *pass);
carry_router carry_lm_nan_router(const carry_lm_call *call);

/* y = factor x; x and y may be the same. Does nothing if the factor is absent. */
carry_status carry_lm_scale(carry_lm_pass *pass, carry_tensor y, carry_tensor x, carry_tensor factor);

/* factors: memory for 1 + w of all norms of a pooled pass, each computed once, since the model's weights do not change
   while such a pass is open. carry_lm_factor returns 1 + w. In a pooled pass it computes it at the first call for w, in
   other passes at every call. */
carry_status carry_lm_factors_new(carry_lm_pass *pass);
void carry_lm_factors_free(carry_lm_pass *pass);
carry_status carry_lm_factor(carry_lm_pass *pass, carry_tensor w, carry_tensor *factor);

/* y = norm(x), multiplied by w or 1 + w as the model needs. In backward, dx is written or added to. */
carry_status carry_lm_norm(carry_lm_pass *pass, carry_tensor y, carry_tensor x, carry_tensor w);
carry_status carry_lm_norm_backward(carry_lm_pass *pass, carry_tensor dx, carry_tensor dw, carry_tensor dy,
                                    carry_tensor x, carry_tensor w, bool accumulate);

/* A state whose parts of fixed size have these types. */
carry_status carry_lm_state_make(carry_lm *lm, carry_lm_state **made, int64_t batch, const carry_lm_pool_types *types);
/* The number of elements of a part for one sequence, and the type of a part of fixed size. */
int64_t carry_lm_state_part_count(const carry_lm_state_part *about);
carry_dtype carry_lm_state_fixed_type(const carry_lm_state_part *about, const carry_lm_pool_types *types);
/* A part at `data`, with a row for each sequence. */
carry_tensor carry_lm_state_part_on(const carry_lm_state *state, void *data, const carry_lm_state_part *about,
                                    carry_dtype dtype);
/* Describes the parts of a layer of a pool: those of its mixer, and scales of caches in 8 bits, at index 2 for part 0
   and 3 for part 1. */
void carry_lm_pool_describe(const carry_lm *lm, int64_t layer, const carry_lm_pool_types *types,
                            carry_lm_state_part about[CARRY_LM_STATE_PARTS]);
carry_dtype carry_lm_pool_part_type(const carry_lm_state_part *about, const carry_lm_pool_types *types);

/* For calls with a state. reserve, before a call, makes space in the caches for its tokens; advance, after it, counts
   them as read. */
carry_status carry_lm_state_reserve(carry_lm_state *state, int64_t tokens, carry_dtype dtype);
void carry_lm_state_advance(carry_lm_state *state, int64_t tokens);
/* Records the ids of the call's tokens, [batch, tokens] in host memory. A state that does not have all of its ids
   cannot be saved. */
void carry_lm_state_tell(carry_lm_state *state, const int64_t *ids, int64_t tokens);
/* Makes the caches of a model with attention large enough for `tokens` of every sequence, in this type. */
carry_status carry_lm_state_fit(carry_lm_state *state, int64_t tokens, carry_dtype dtype);

#endif
