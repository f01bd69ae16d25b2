/* Parts of a layer: mixers, which move information between tokens, and feed-forwards, which work on each token alone.

   Every layer names its mixer and its feed-forward. A part owns its options (options.h), its parameters (its slots),
   its activations and gradients in a pass, and, if it is a mixer, its state in generation. The model owns the rest:
   norms, embeddings, loss. Each part is one file that exports one const struct, and one line of CARRY_LM_MIXER_LIST
   (mixers/mixer.h) or of CARRY_LM_FEEDFORWARD_LIST (feedforward/feedforward.h).

   A pass opens a part once for all the layers that have it. Only open allocates. */
#ifndef CARRY_MODEL_LM_PART_H
#define CARRY_MODEL_LM_PART_H

#include "core/memory.h"
#include "model/lm/config.h"
#include "model/parameters.h"

#define CARRY_LM_SLOTS 16 /* maximum number of parameters of a part */
#define CARRY_LM_STATE_PARTS 4

typedef enum carry_lm_start {
    CARRY_LM_NORMAL,     /* N(0, initializer_range) */
    CARRY_LM_ONES,       /* norms */
    CARRY_LM_DECAY_RATE, /* log U(0, 16) */
    CARRY_LM_STEP_BIAS,  /* the inverse softplus of exp(U), U uniform in [log 0.001, log 0.1] */
    CARRY_LM_ZEROS,      /* for norms that add 1 to their weight */
} carry_lm_start;

typedef carry_parameter carry_lm_parameter; /* start is a carry_lm_start */

/* A matrix [out, in] of a linear layer. */
carry_lm_parameter carry_lm_matrix(int64_t out, int64_t in);

struct carry_lm_pass;
struct carry_lm_args;
struct carry_lm_part;

/* A slot of a part: rows of a parameter. */
typedef struct carry_lm_slot {
    int64_t parameter;   /* -1: not in the model */
    int64_t first, rows; /* rows 0: all of it */
} carry_lm_slot;

/* A part of a layer, with its norm. */
typedef struct carry_lm_sublayer {
    const struct carry_lm_part *part;
    int kind;     /* index for carry_lm_part_at */
    int64_t norm; /* index of the norm's parameter */
    carry_lm_slot slot[CARRY_LM_SLOTS];
    int64_t rest, rest_rows; /* on a GPU: the offset of the padding zeros after its maps in the flat buffers, and their
                                number of rows */
} carry_lm_sublayer;

/* The arguments of one call of a part for a layer. Tensors have a row for each token of the pass. */
typedef struct carry_lm_call {
    struct carry_lm_pass *pass;
    const struct carry_lm_args *args;
    int64_t layer;
    const carry_lm_sublayer *own;
    void *opened;          /* the result of open */
    void *rows;            /* activations of the layer, kept from forward to backward */
    void *back;            /* gradients of activations, shared by all layers */
    int64_t first, count;  /* the rows of `out` that are read; a feed-forward computes only those */
    carry_tensor x;        /* input: [tokens, hidden_size] */
    carry_tensor out;      /* forward: output, like x; absent: compute only the activations that backward reads */
    carry_tensor base;     /* forward: added to the output; absent: nothing */
    carry_tensor dout, dx; /* backward: the gradient of out; the gradient of x, which is overwritten */
} carry_lm_call;

/* A part of the state of one sequence. */
typedef struct carry_lm_state_part {
    int rank;
    int64_t shape[4];
    int64_t slices; /* the state is split into slices, and the sequences are adjacent within each: [slices][batch, shape
                       / slices] */
    bool grows;     /* a cache: shape[0] is the number of tokens read, and its type is that of the activations or, in a
                       pool, that of carry_lm_pool_types. Other parts are f32, unless they narrow */
    bool narrows;   /* the state of a recurrence, which a pool may store in bf16 (carry_lm_pool_types) */
    bool is_scale;  /* scales of 8-bit keys or values in a pool, which have a byte for each token and head */
} carry_lm_state_part;

typedef struct carry_lm_part {
    const char *name, *about;
    bool cpu_only; /* one of its operators has no CUDA implementation */
    /* Checks the part's options and fills in the derived ones. CARRY_EUNSUPPORTED and CARRY_ESIZE name the option. */
    carry_status (*check)(carry_ctx *ctx, carry_lm_config *config);
    int slots;
    /* The names of the slots' tensors after model.layers.N., unless the family has other names. Consecutive slots with
       the same name are consecutive rows of one tensor. */
    const char *const *names;
    carry_lm_parameter (*describe)(const carry_lm_config *config, int slot); /* rank 0: not in this model */
    /* Slots that map x, adjacent in the list. On a GPU they are stored in this order, so that one product computes all
       of them, followed by zeros up to whole rows. The list ends with -1; NULL: the order of the slots. */
    const int *together;
    /* Describes the state of a mixer and returns its number of parts. NULL for a feed-forward. */
    int (*state)(const carry_lm_config *config, carry_lm_state_part *parts);
    /* Multiplications for one token in forward, except those by a matrix of the part; NULL: 0. */
    double (*multiplications)(const carry_lm_config *config);

    /* open, close and plan: either all three are NULL or none is. */
    carry_status (*open)(struct carry_lm_pass *pass, void **opened);
    void (*close)(void *opened);
    const char *(*plan)(const void *opened); /* one line: the method that will run, and why */
    /* Bytes of workspace that the operators of forward and backward need. NULL: 0. */
    size_t (*scratch)(const struct carry_lm_pass *pass, const void *opened);
    size_t rows_size, back_size; /* sizes of the structs that the next two functions fill in */
    void (*take)(const struct carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows);
    void (*take_back)(const struct carry_lm_pass *pass, void *opened, carry_arena *arena, void *back);
    /* Tensors that all layers of a call share: take_once places them before the layers' own, and begin fills them in
       once for each call. May be NULL. */
    void (*take_once)(const struct carry_lm_pass *pass, void *opened, carry_arena *arena);
    carry_status (*begin)(struct carry_lm_pass *pass, void *opened, const struct carry_lm_args *args);
    carry_status (*forward)(const carry_lm_call *call);
    carry_status (*backward)(const carry_lm_call *call);
} carry_lm_part;

#endif
