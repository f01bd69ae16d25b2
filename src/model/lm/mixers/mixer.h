/* Mixers: the part of a layer that moves information between tokens, such as the delta rule or attention.

   Every layer of a model names its mixer. A mixer owns its parameters (its slots), its keys of config.json, its
   activations and gradients in a pass, and its state in generation. The model owns the rest: norms, MLPs, embeddings,
   loss. Each mixer is one file that exports one const struct, and one line of CARRY_LM_MIXER_LIST.

   A pass opens a mixer once for all the layers that have it. Only open allocates. */
#ifndef CARRY_MODEL_LM_MIXER_H
#define CARRY_MODEL_LM_MIXER_H

#include "core/memory.h"
#include "model/lm/config.h"
#include "model/parameters.h"

/* The mixers. X(NAME, name): CARRY_LM_MIXER_NAME in a configuration, carry_lm_mixer_name here. */
#define CARRY_LM_MIXER_LIST(X) X(DELTA, delta) X(ATTENTION, attention) X(DELTAPRODUCT, deltaproduct)

#define CARRY_LM_SLOTS 16 /* parameters of a mixer, at most */
#define CARRY_LM_STATE_PARTS 4

typedef enum carry_lm_start {
    CARRY_LM_NORMAL,     /* N(0, initializer_range) */
    CARRY_LM_ONES,       /* norms */
    CARRY_LM_DECAY_RATE, /* log U(0, 16) */
    CARRY_LM_STEP_BIAS,  /* the inverse softplus of exp U(log 0.001, log 0.1) */
    CARRY_LM_ZEROS,      /* norms that add 1 to their weight */
} carry_lm_start;

typedef carry_parameter carry_lm_parameter; /* start is a carry_lm_start */

/* A matrix [out, in] of a linear layer. */
carry_lm_parameter carry_lm_matrix(int64_t out, int64_t in);

struct carry_lm_pass;
struct carry_lm_args;

/* A layer of a call. */
typedef struct carry_lm_mixer_call {
    struct carry_lm_pass *pass;
    const struct carry_lm_args *args;
    int64_t layer;
    void *opened;          /* by open */
    void *rows;            /* of the layer, from its forward to its backward */
    void *back;            /* gradients on their way, shared by the layers */
    carry_tensor x;        /* what enters: [tokens, hidden_size] */
    carry_tensor out;      /* forward: what leaves, like x; */
    carry_tensor base;     /* what it is added to, like out; absent: nothing */
    carry_tensor dout, dx; /* backward: the gradient of out; that of x, which is written */
} carry_lm_mixer_call;

/* A part of the state of one sequence. */
typedef struct carry_lm_state_part {
    int rank;
    int64_t shape[4];
    int64_t slices; /* all sequences of a slice lie together: [slices][batch, shape / slices] */
    bool grows;     /* shape[0] counts tokens that were read: a cache, in the activations' type. Others are f32 */
} carry_lm_state_part;

typedef struct carry_lm_mixer {
    const char *name, *about;
    const carry_lm_key *keys; /* of config.json; the last has key NULL */
    int slots;
    /* The name of a slot's tensor below model.layers.N., and what it is like; rank 0: this model has none. Slots with
       the same name, one after the other, are consecutive rows of one tensor. */
    const char *(*key)(const carry_lm_config *config, int slot);
    carry_lm_parameter (*describe)(const carry_lm_config *config, int slot);
    /* Slots that map what enters, neighbours in the list: on a GPU they lie in memory in this order, so that one
       product makes all of them, with zeros after them up to whole rows. The last is -1; NULL: as they are listed. */
    const int *together;
    /* Its state; returns the number of parts. */
    int (*state)(const carry_lm_config *config, carry_lm_state_part *parts);

    carry_status (*open)(struct carry_lm_pass *pass, void **opened);
    void (*close)(void *opened);
    const char *(*plan)(const void *opened); /* one line: what will run and why */
    /* Bytes of workspace for an operator of forward or backward. */
    size_t (*scratch)(const struct carry_lm_pass *pass, const void *opened);
    size_t rows_size, back_size; /* of the structs that the next two fill in */
    void (*take)(const struct carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows);
    void (*take_back)(const struct carry_lm_pass *pass, void *opened, carry_arena *arena, void *back);
    /* Tensors that all layers of a call share: placed before the layers' own, and filled in once a call. May be NULL.
     */
    void (*take_once)(const struct carry_lm_pass *pass, void *opened, carry_arena *arena);
    carry_status (*begin)(struct carry_lm_pass *pass, void *opened, const struct carry_lm_args *args);
    carry_status (*forward)(const carry_lm_mixer_call *call);
    carry_status (*backward)(const carry_lm_mixer_call *call);
} carry_lm_mixer;

#define X(NAME, name) extern const carry_lm_mixer carry_lm_mixer_##name;
CARRY_LM_MIXER_LIST(X)
#undef X

enum {
#define X(NAME, name) CARRY_LM_MIXER_##NAME,
    CARRY_LM_MIXER_LIST(X)
#undef X
        CARRY_LM_MIXERS
};

/* NULL past the end. */
const carry_lm_mixer *carry_lm_mixer_at(int index);

#endif
