/* Language models: a list of layers between embeddings and a head.

       h = embeddings[ids];  for every layer:  h += mixer(norm(h));  h += feedforward(norm(h))
       logits = lm_head norm(h)

   or with norms after mixer and feed-forward. Every layer names both (part.h).

   Parameters and gradients are model/parameters.h, on one device, where all the work is done. A pass is a plan for
   batches of one shape: it states how much memory a call needs and allocates nothing in it. Model code calls operators
   on tensors and nothing else, so it does not know where they run. */
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
    int64_t embeddings, norm, head;   /* head is embeddings when tied */
    struct carry_lm_adapter *adapter; /* adapter.h; NULL: none */
    double forget;                    /* for init: a factor on the decay rate of heads at the start; 0: 1 */
    int64_t prompted;                 /* tokens of prompts that were read, until it is settled whether to pack */
    bool is_settled;
    void *panels; /* of the layers' weights (lm_packed.c); NULL: packed by every product */
    size_t panel_bytes;
    char *folder;  /* that it was loaded from; NULL: none */
    uint64_t hash; /* carry_lm_hash, once is_hashed */
    bool is_hashed;
} carry_lm;

/* On a device of carry/device.h; 0 is the CPU. The weights of a new model are zero: load or init. The model uses ctx.
 */
carry_status carry_lm_new(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device);
/* The same for weights of a folder, which is compared with the configuration before memory is asked for; NULL: none. */
carry_status carry_lm_new_for(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                              const char *folder);
/* The same for random weights (carry_lm_init_there): the matrices of linear maps are quantised. Their rows repeat.
   narrow: as the type of carry_lm_new_narrow, for experts; CARRY_F32: all others are in f32. */
carry_status carry_lm_new_quantised(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                    const carry_quant_format *format, carry_dtype narrow);
/* The same, for carry_lm_open: mapped where possible. */
carry_status carry_lm_new_mapped(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                 const char *folder);
/* For a model that is only read, with weights in bf16 or f16: experts have no f32 masters. */
carry_status carry_lm_new_narrow(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                 carry_dtype dtype);
void carry_lm_free(carry_lm *lm);
/* Start values, a function of the seed and a parameter's name alone. */
carry_status carry_lm_init(carry_lm *lm, uint64_t seed);
/* The same kinds of values, the normal ones made on the device; they may differ in the last bit from those of init. */
carry_status carry_lm_init_there(carry_lm *lm, uint64_t seed);
carry_status carry_lm_want_gradients(carry_lm *lm); /* allocates and zeroes them */

/* Packs the weights of the layers' products once, for prompts in bf16 through a model that was opened to be read, on a
   CPU with instructions for them (ops/product/kept.h); results have the same bits, but for those of 9 to 24 tokens at
   once. `tokens`, of prompts or of five sequences and more, are to be read: nothing is packed before enough tokens were
   read that it pays, or if memory is short. */
carry_status carry_lm_pack(carry_lm *lm, carry_dtype dtype, int64_t tokens);
void carry_lm_unpack(carry_lm *lm);

carry_tensor carry_lm_weight(const carry_lm *lm, int64_t parameter);
carry_tensor carry_lm_gradient(const carry_lm *lm, int64_t parameter); /* absent: the model is frozen */
/* Elements [*first, *first + *count) of the flat buffers: of a layer, of the embeddings (-1), or of what follows the
   layers (num_hidden_layers). Ranges do not overlap and cover all. */
void carry_lm_range(const carry_lm *lm, int64_t layer, int64_t *first, int64_t *count);

/* A folder as Hugging Face has it: config.json, and model.safetensors or what model.safetensors.index.json lists, in
   f32, bf16 or f16; or the folder of a training run, of which the newest complete step is loaded (file/checkpoint.h).
   Files that differ from the checksums beside them are refused. Wrong shapes, missing and surplus tensors are refused
   by name. A tied lm_head may be there if it is the embeddings. */
carry_status carry_lm_load(carry_ctx *ctx, carry_lm **lm, const char *folder, int device);
/* The same for a model that is only read, as generation and evaluation do: on the CPU matrices in bf16 or f16 stay in
   the mapped file; on a GPU, experts that are in bf16 or f16 have no f32 masters if those would not fit. No gradients.
   The files must not be changed while the model is open. */
carry_status carry_lm_open(carry_ctx *ctx, carry_lm **lm, const char *folder, int device);
/* config.json and model.safetensors, each replaced as a whole, the configuration first. */
carry_status carry_lm_save(const carry_lm *lm, const char *folder, carry_dtype dtype);
/* Weights alone, from a folder into a model that is there. */
carry_status carry_lm_load_weights(carry_lm *lm, const char *folder);

typedef struct carry_lm_pass_options {
    int64_t batch, tokens;
    int64_t sequences; /* > 0: packed, batch being 1 */
    /* > 0: for calls with `places`, batch being 1: of up to `tokens` tokens of up to `pooled` sequences. forward_only
     */
    int64_t pooled;
    int64_t context; /* of such a pass: tokens of one sequence, at most */
    bool same_bits;  /* of such a pass: results of a token do not depend on how its sequence was cut into calls, nor on
                        the other sequences of a call. On the CPU only */
    bool scores;     /* of such a pass: calls may ask for losses */
    carry_dtype dtype; /* of activations: f32, bf16 or f16; weights are f32 */
    bool forward_only; /* no gradients will be asked for: layers share their memory */
    bool recompute;    /* keep only what enters a layer and do its forward again in backward: the same bits */
    const carry_lm_recurrence *recurrence; /* NULL: chunk, or linear without the delta rule */
    const void *recurrence_options;
} carry_lm_pass_options;

typedef struct carry_lm_pass carry_lm_pass;
typedef struct carry_lm_state carry_lm_state;
struct carry_lm_places;

/* The pass uses lm and is freed before it. */
carry_status carry_lm_pass_new(carry_lm *lm, carry_lm_pass **made, const carry_lm_pass_options *options);
void carry_lm_pass_free(carry_lm_pass *pass);
size_t carry_lm_pass_memory(const carry_lm_pass *pass); /* bytes a call needs: activations and workspace */
/* That memory, on the model's device; the message of a device with too little says what would fit. And back. */
carry_status carry_lm_pass_take(const carry_lm_pass *pass, void **memory);
void carry_lm_pass_give(const carry_lm_pass *pass, void *memory);
const char *carry_lm_pass_about(const carry_lm_pass *pass);

/* Absent tensors have data NULL. cu_seqlens and cuts are in host memory, where they are checked. So are ids and labels,
   or they are on the model's device and were checked before (carry_check_ids, carry_check_targets): then a call puts
   work into the device's stream and nothing else, and may be recorded. logits and total are on the model's device. */
typedef struct carry_lm_args {
    carry_tensor ids;    /* [B, T], i64 */
    carry_tensor labels; /* [B, T], i64: what each token should be followed by; -100 does not count. Absent: no loss */
    carry_tensor cu_seqlens; /* [sequences + 1], i64, where packed */
    carry_tensor cuts;     /* for the convolutions, where tokens are split over ranks: cu_seqlens of this rank's tokens,
                              with     an empty first sequence when one starts at its first token. Absent: cu_seqlens */
    carry_tensor logits;   /* gets [B, T, vocab], or [B, vocab] with last_logits; of the pass's type. May be absent */
    bool last_logits;      /* only those of each sequence's last token */
    bool backward;         /* adds to the gradients */
    float scale;           /* of the gradient of every counted token's loss; 0: one over their number, for the mean */
    carry_lm_state *state; /* continues from it and leaves it after the last token. Not with backward, nor packed */
    /* Sequences whose states are in a pool (places.h); for a pass with `pooled`. ids are [1, rows of the call]; logits,
       with last_logits, are of the rows that places lists. */
    const struct carry_lm_places *places;
    carry_tensor losses; /* [rows of the call], f32, on the model's device: of each label, 0 where it is -100. With
                            places and labels, and a pass with `scores` */
    double *loss;        /* the sum over counted tokens, which is waited for; NULL: not wanted */
    carry_tensor total;  /* [2], f64, on the model's device: the same and the number of tokens are added to it, without
                            a wait. May be absent */
    int64_t *counted;
    /* Called in backward when a range of the gradients is complete: what follows the layers, the layers from the last
       to the first, the embeddings. A failure ends the call. NULL: not wanted. */
    carry_status (*ready)(void *user, int64_t first, int64_t count);
    void *user;
    bool begun; /* carry_lm_begin was called: nothing of this call reads host memory, so it can be recorded */
} carry_lm_args;

/* Forward and, if asked for, backward. memory: carry_lm_pass_memory bytes of any alignment; nothing in it is needed
   afterwards. Results do not depend on the number of threads. */
carry_status carry_lm_run(carry_lm_pass *pass, const carry_lm_args *args, void *memory, size_t bytes);

/* The start of a call: reserves capacity in the caches and uploads the inputs of the host. For a call with `begun`,
   after an earlier call of the pass with the same memory. */
carry_status carry_lm_begin(carry_lm_pass *pass, const carry_lm_args *args);

/* The states of `batch` sequences: for every layer what its mixer has of one, such as the last conv_size - 1 inputs of
   each convolution and the state of the delta rule, in f32, or the keys and values of all tokens, in the activations'
   type. A new one is zero: nothing was read. Caches grow with the tokens that are read. */
carry_status carry_lm_state_new(carry_lm *lm, carry_lm_state **made, int64_t batch);
/* A pool for calls with `places`: the parts of fixed size have a row for each of `slots` sequences; those that grow are
   [pages, CARRY_POOL_PAGE, ...] of this type, one page number for all layers. */
carry_status carry_lm_pool_new(carry_lm *lm, carry_lm_state **made, int64_t slots, int64_t pages, carry_dtype dtype);
void carry_lm_state_free(carry_lm_state *state);
int64_t carry_lm_state_length(const carry_lm_state *state, int64_t sequence); /* tokens that were read */
carry_status carry_lm_state_clear(carry_lm_state *state, int64_t sequence);
/* Sequence `to` of state becomes sequence `from` of other; both are of the same model, and may be the same. */
carry_status carry_lm_state_copy(carry_lm_state *state, int64_t to, const carry_lm_state *other, int64_t from);

/* A hash of the configuration and all weights, which tells models apart: the same on every device. It is computed once
   for a model of carry_lm_open, whose weights do not change. */
carry_status carry_lm_hash(carry_lm *lm, uint64_t *hash);

/* One sequence to and from a file (file/state_file.h). Loading refuses a damaged file, the state of another model, and
   any part of another type or shape, before anything of the state is changed. A snapshot in memory is
   carry_lm_state_copy into another state, and going back to it is the same the other way. */
carry_status carry_lm_state_save(carry_lm_state *state, int64_t sequence, const char *path);
carry_status carry_lm_state_load(carry_lm_state *state, int64_t sequence, const char *path);

#endif
