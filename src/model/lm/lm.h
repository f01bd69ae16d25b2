/* Language models: a list of layers between embeddings and a head.

       h = embeddings[ids];  for every layer:  h += mixer(norm(h));  h += feedforward(norm(h))
       logits = lm_head norm(h)

   or with norms after mixer and feed-forward. Every layer names its mixer and its feed-forward (part.h).

   Parameters and gradients are those of model/parameters.h, on one device, where all the work is done. A pass is a plan
   for batches of one shape. It states how much memory the caller must give to a call; a call itself allocates only if
   the caches of a state must grow. Model code calls operators on tensors and nothing else, so it does not know where
   they run. */
#ifndef CARRY_MODEL_LM_H
#define CARRY_MODEL_LM_H

#include "model/lm/feedforward/feedforward.h"
#include "model/lm/mixers/mixer.h"
#include "model/lm/recurrence/recurrence.h"
#include "model/parameters.h"

typedef struct carry_lm_layer {
    bool norms_after; /* h += norm(f(h)); otherwise h += f(norm(h)) */
    carry_lm_sublayer mixer, feedforward;
} carry_lm_layer;

struct carry_lm_adapter;

typedef struct carry_lm {
    carry_ctx *ctx;
    carry_lm_config config;
    carry_parameters own; /* embeddings; layer after layer; norm; lm_head (not when tied) */
    carry_lm_layer *layer;
    int64_t embeddings, norm, head; /* head is embeddings when tied */
    const struct carry_lm *tables;  /* the model whose embeddings and head are used: itself, except for multi-token
                                       heads (lm_heads.h), which have neither */
    int64_t join, join_embedding, join_hidden; /* of multi-token heads: a matrix and two norms */
    struct carry_lm_family *heads_family;      /* of multi-token heads; NULL: none */
    struct carry_lm_adapter *adapter;          /* adapter.h; NULL: none */
    double forget;                             /* used by init: a factor on the heads' initial decay rate; 0 means 1 */
    bool may_train;                            /* weights have f32 masters and are not mapped from files */
    int64_t prompted; /* prompt tokens read so far, counted until carry_lm_pack decides whether to pack */
    bool is_settled;
    void *panels; /* packed weights of the layers (lm_packed.c); NULL: every product packs its own */
    size_t panel_bytes;
    char *folder;  /* the folder it was loaded from, or NULL */
    uint64_t hash; /* carry_lm_hash, once is_hashed */
    bool is_hashed;
} carry_lm;

/* Makes a model on a device of carry/device.h; 0 is the CPU. Its weights are zero until they are loaded or initialised.
   The model uses ctx. */
carry_status carry_lm_new(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device);
/* The same for the weights of a folder, which is compared with the configuration before memory is allocated; NULL: no
   folder. */
carry_status carry_lm_new_for(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                              const char *folder);
/* The same for random weights (carry_lm_init_there) with quantised matrices in the linear maps; their rows repeat.
   Experts have the type `narrow`, as in carry_lm_new_narrow; with CARRY_F32 all other parameters are in f32. */
carry_status carry_lm_new_quantised(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                    const carry_quant_format *format, carry_dtype narrow);
/* The same, for carry_lm_open: weights stay in the mapped files where possible. */
carry_status carry_lm_new_mapped(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                 const char *folder);
/* For a model that is only read, with weights in bf16 or f16: its experts have no f32 masters. */
carry_status carry_lm_new_narrow(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                 carry_dtype dtype);
/* For carry_lm_heads_open: the multi-token heads of a model, loaded from its folder. */
carry_status carry_lm_new_heads(carry_lm *model, carry_lm **made);
void carry_lm_free(carry_lm *lm);
/* Sets the start values, which depend only on the seed and the parameter's name. */
carry_status carry_lm_init(carry_lm *lm, uint64_t seed);
/* Sets start values with the same distributions, but generates the normal ones on the device; they may differ from
   those of carry_lm_init in the last bit. */
carry_status carry_lm_init_there(carry_lm *lm, uint64_t seed);
carry_status carry_lm_want_gradients(carry_lm *lm); /* allocates and zeroes them */

/* Packs the weights of the products of layers and head once, for prompts in bf16, if the model was opened for reading
   on a CPU with instructions for bf16 (ops/product/kept.h). Results have the same bits, except for calls with 9 to 24
   tokens. `tokens` is the number of tokens about to be read, in prompts or in calls of five or more sequences. With AMX
   the first call packs; otherwise the first call by which enough tokens are read for packing to pay. If memory is
   short, nothing is packed. */
carry_status carry_lm_pack(carry_lm *lm, carry_dtype dtype, int64_t tokens);
void carry_lm_unpack(carry_lm *lm);

carry_tensor carry_lm_weight(const carry_lm *lm, int64_t parameter);
carry_tensor carry_lm_gradient(const carry_lm *lm, int64_t parameter); /* absent: the model is frozen */
/* The range [*first, *first + *count) of the flat buffers that belongs to a layer, to the embeddings (layer -1), or to
   the parameters after the layers (layer num_hidden_layers). Ranges do not overlap and together cover all
   parameters. */
void carry_lm_range(const carry_lm *lm, int64_t layer, int64_t *first, int64_t *count);

/* Loads a folder in the format of Hugging Face: config.json, and model.safetensors or the files that
   model.safetensors.index.json lists, in f32, bf16, f16 or quantised (file/quantised.h); or a .gguf file. For the
   folder of a training run it loads the newest complete step (file/checkpoint.h). A file that does not match its
   checksum is refused. A missing, surplus or wrongly shaped tensor is an error that names it. A tied lm_head is
   accepted if it equals the embeddings. */
carry_status carry_lm_load(carry_ctx *ctx, carry_lm **lm, const char *folder, int device);
/* The same for a model that is only read, for generation and evaluation. On the CPU, matrices in bf16, in f16 or in
   quantised blocks stay in the mapped file (carry_parameters_map); on a GPU, experts in bf16 or f16 have no f32 masters
   if those would not fit. There are no gradients. The files must not be changed while the model is open. */
carry_status carry_lm_open(carry_ctx *ctx, carry_lm **lm, const char *folder, int device);
/* Writes the configuration first, then model.safetensors; each file is replaced as a whole. */
carry_status carry_lm_save(const carry_lm *lm, const char *folder, carry_dtype dtype);
/* Loads only the weights of a folder, into an existing model. */
carry_status carry_lm_load_weights(carry_lm *lm, const char *folder);

typedef struct carry_lm_pass_options {
    int64_t batch, tokens;
    int64_t sequences; /* > 0: number of packed sequences; batch is then 1 */
    /* > 0: a pooled pass, for calls with `places`; batch is 1. A call has up to `tokens` tokens of up to `pooled`
       sequences. Needs forward_only */
    int64_t pooled;
    int64_t context; /* pooled pass: the maximum length of a sequence in tokens */
    bool same_bits;  /* CPU only. Pooled pass: a token's results do not depend on how its sequence was split into calls,
                        nor on the other sequences of a call. Other passes: forward_only; a token's results have the
                        bits of such a pooled pass (layers with the delta rule or attention) */
    bool scores;     /* pooled pass: calls may ask for losses */
    bool f8_caches;  /* pooled pass: keys and values are 8-bit floats */
    carry_dtype dtype; /* type of the activations: f32, bf16 or f16; weights are f32 */
    bool forward_only; /* no gradients will be computed: all layers use the same memory */
    bool recompute;    /* keep only each layer's input, and repeat its forward pass in backward; results have the same
                          bits */
    const carry_lm_recurrence *recurrence; /* NULL: chunk, or linear for a model without the delta rule */
    const void *recurrence_options;
    const struct carry_lm_fp8 *fp8; /* products in 8-bit floats in calls with backward (lm_fp8.h); NULL: none */
} carry_lm_pass_options;

typedef struct carry_lm_pass carry_lm_pass;
typedef struct carry_lm_state carry_lm_state;
struct carry_lm_places;

/* The pass uses lm and is freed before it. */
carry_status carry_lm_pass_new(carry_lm *lm, carry_lm_pass **made, const carry_lm_pass_options *options);
void carry_lm_pass_free(carry_lm_pass *pass);
size_t carry_lm_pass_memory(const carry_lm_pass *pass); /* bytes a call needs: activations and workspace */
/* Allocates that memory on the model's device; if the device has too little, the message says what would fit.
   carry_lm_pass_give frees it. */
carry_status carry_lm_pass_take(const carry_lm_pass *pass, void **memory);
void carry_lm_pass_give(const carry_lm_pass *pass, void *memory);
const char *carry_lm_pass_about(const carry_lm_pass *pass);

/* Absent tensors have data NULL. cu_seqlens and cuts are in host memory, where they are checked. ids and labels are in
   host memory too, or on the model's device if they were checked before (carry_check_ids, carry_check_targets); then a
   call only adds work to the device's stream, and may be recorded. logits and total are on the model's device. */
typedef struct carry_lm_args {
    carry_tensor ids; /* [B, T], i64 */
    carry_tensor
        labels; /* [B, T], i64: the token that should follow each token; -100 is not counted. Absent: no loss */
    carry_tensor cu_seqlens; /* [sequences + 1], i64, where packed */
    carry_tensor cuts;   /* for the convolutions, where tokens are split over ranks: cu_seqlens of this rank's tokens,
                            with an empty first sequence if one starts at its first token. Absent: cu_seqlens is used */
    carry_tensor logits; /* output, in the pass's type: [B, T, vocab], or [B, vocab] with last_logits. May be absent */
    bool last_logits;    /* compute the logits of each sequence's last token only */
    bool backward;       /* adds to the gradients */
    float scale;         /* factor on the gradient of every counted token's loss; 0: one over their number, which
                            gives the mean */
    carry_lm_state *state; /* the call continues from it and updates it. Not with backward, nor with packed sequences */
    /* Sequences whose states are in a pool (places.h), for a pooled pass. ids are then [1, rows of the call]; with
       last_logits, logits are those of the rows that `places` lists as wanted. */
    const struct carry_lm_places *places;
    carry_tensor losses; /* output, [rows of the call], f32, on the model's device: the loss of each label, 0 where it
                            is -100. Needs places, labels, and a pass with `scores` */
    carry_tensor normed; /* output for calls with places, [rows of the call, hidden_size], in the pass's type: the last
                            norm of every row. May be absent */
    carry_tensor before; /* for multi-token heads (lm_heads.h), of the same shape: the hidden state of the token before
                            each. Without logits and `normed`, only keys and values are computed */
    double *loss;        /* output: the sum of the loss over counted tokens; the call waits for it. NULL: not wanted */
    carry_tensor total;  /* [2], f64, on the model's device: the call adds the sum of the loss and the number of counted
                            tokens, without waiting. May be absent */
    int64_t *counted;
    /* Called in backward when a range of the gradients is complete: first the parameters after the layers, then the
       layers from last to first, then the embeddings. A failure ends the call. NULL: not wanted. */
    carry_status (*ready)(void *user, int64_t first, int64_t count);
    void *user;
    bool begun; /* carry_lm_begin was called: this call does not read host memory, so it can be recorded */
} carry_lm_args;

/* Runs the forward pass and, if args ask for it, the backward pass. memory has carry_lm_pass_memory bytes of any
   alignment and may be reused afterwards. Results do not depend on the number of threads. */
carry_status carry_lm_run(carry_lm_pass *pass, const carry_lm_args *args, void *memory, size_t bytes);
/* For a model with experts, after logits or a loss that are not finite: gets the first layer in which the scores of a
   router were NaN since the last call, and the row of the token in the pass; -1: none were. Waits for the pass. A pass
   on the CPU without gradients or a pool fails by itself with this place. */
carry_status carry_lm_router_nan(const carry_lm_pass *pass, int64_t *layer, int64_t *row);
/* Fails with this place, if there is one: for a pass on a GPU whose results the caller waits for. */
carry_status carry_lm_router_check(const carry_lm_pass *pass);

/* Starts a call: reserves capacity in the caches and uploads the inputs from the host. Use it before a call with
   `begun`, after an earlier call of the pass with the same memory. */
carry_status carry_lm_begin(carry_lm_pass *pass, const carry_lm_args *args);

/* Makes the states of `batch` sequences: for each layer the state of its mixer, such as the last conv_size - 1 inputs
   of each convolution and the state of the delta rule, in f32, or the keys and values of all tokens, in the
   activations' type. A new state is zero: no token was read. Caches grow with the tokens that are read. */
carry_status carry_lm_state_new(carry_lm *lm, carry_lm_state **made, int64_t batch);
/* The types of a pool. caches: of keys and values; activations on the CPU may be f32, bf16, f16 or f8_e4m3 (ops/f8.h),
   and on a GPU the type of the activations or f8_e4m3. states: of the states of recurrences, f32 or bf16; a state in
   bf16 is rounded to the nearest, ties to even, after every call, and with same_bits after every token. Other parts of
   fixed size, such as inputs of convolutions, are f32. */
typedef struct carry_lm_pool_types {
    carry_dtype activations, caches, states;
    int64_t sequences; /* maximum number of sequences in a call */
} carry_lm_pool_types;
/* CARRY_EUNSUPPORTED names a type that the model's device does not support. */
carry_status carry_lm_pool_types_check(const carry_lm *lm, const carry_lm_pool_types *types);
/* Makes a pool for calls with `places`. State parts of fixed size have a row for each of `slots` sequences; those that
   grow are [pages, CARRY_POOL_PAGE, ...] of this type, and a page has the same number in all layers. */
carry_status carry_lm_pool_new(carry_lm *lm, carry_lm_state **made, int64_t slots, int64_t pages,
                               const carry_lm_pool_types *types);
void carry_lm_state_free(carry_lm_state *state);
int64_t carry_lm_state_length(const carry_lm_state *state, int64_t sequence); /* tokens that were read */
carry_status carry_lm_state_clear(carry_lm_state *state, int64_t sequence);
/* Copies sequence `from` of `other` to sequence `to` of `state`. Both states belong to the same model, and may be the
   same. */
carry_status carry_lm_state_copy(carry_lm_state *state, int64_t to, const carry_lm_state *other, int64_t from);

/* Computes a hash of the configuration and all weights, which identifies a model. It is the same on every device,
   unless one keeps matrices quantised and the other decodes them (carry_parameters_hash). For a model of carry_lm_open,
   whose weights do not change, it is computed once. */
carry_status carry_lm_hash(carry_lm *lm, uint64_t *hash);

/* Writes one sequence to a file and reads it back (file/state_file.h). A damaged file, the state of another model, or a
   part of another type or shape is refused before the state is changed. To make a snapshot in memory, use
   carry_lm_state_copy to another state; to restore it, copy it back. */
carry_status carry_lm_state_save(carry_lm_state *state, int64_t sequence, const char *path);
carry_status carry_lm_state_load(carry_lm_state *state, int64_t sequence, const char *path);

#endif
