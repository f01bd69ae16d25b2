/* Families: the architectures of language models, identified by the model_type of their config.json.

   A family is one file that exports one const struct, and one line of CARRY_LM_FAMILY_LIST. It lists the keys of
   config.json with their defaults, translates them into the parts of layers (part.h) and their options, and names the
   tensors in files. docs/adding-a-model.md has the steps. */
#ifndef CARRY_MODEL_LM_FAMILY_H
#define CARRY_MODEL_LM_FAMILY_H

#include "model/lm/feedforward/feedforward.h"
#include "model/lm/mixers/mixer.h"

/* X(name): carry_lm_family_name. */
/* clang-format off */
#define CARRY_LM_FAMILY_LIST(X) \
    X(gated_deltanet) X(delta_net) X(qwen3_5) X(qwen3_next) X(olmo_hybrid) X(gated_deltaproduct) \
    X(qwen3_5_moe) X(mamba2) X(granitemoehybrid) X(nemotron_h) X(kimi_linear) X(bailing_hybrid)
/* clang-format on */

/* Other names of tensors in files, and tensors that are ignored. Lists end with NULL. */
typedef struct carry_lm_file_names {
    const char *prefix;              /* in place of "model." */
    const char *const (*renamed)[2]; /* {end of a name in the model, end of it in the file}; NULL: none */
    const char *const (*pieces)[2];  /* {end of a name in the model, end of the name of one of its pieces in the file}:
                                        pieces are consecutive rows, and '#' stands for the number of an expert */
    const char *const (*ignored)[2]; /* {beginning of a name in the file, the name of that part of the model} */
} carry_lm_file_names;

/* A tensor in files that has the rows of several slots in groups, one group for each key head. Every group has an equal
   share of the rows of each slot. In memory the rows of a slot are adjacent. */
typedef struct carry_lm_grouped {
    const char *name;           /* as in the names of slots; NULL: end of the list */
    int slot[CARRY_ROW_BLOCKS]; /* in the order of the file */
    int slots;
} carry_lm_grouped;

typedef struct carry_lm_family {
    const char *name;  /* its model_type: "gated_deltanet" */
    const char *about; /* its published models */
    unsigned mixers;   /* the parts that its layers may have: CARRY_LM_HAS of each, without NONE */
    unsigned feedforwards;
    const char *architecture; /* its class: "GatedDeltaNetForCausalLM" */
    const char *wrapper;      /* the model_type of a multimodal model whose text_config belongs to this family; NULL:
                                 none */
    const carry_lm_key *keys; /* in the order in which they are written; the list ends with key NULL */
    /* Sets the values of missing keys; all other fields of the configuration are zero. */
    void (*set_defaults)(carry_lm_config *config);
    /* Sets the parts of every layer and their options from the keys; called again after a change. */
    carry_status (*finish)(carry_ctx *ctx, carry_lm_config *config);
    /* Turns the configuration of a model into that of its multi-token heads (lm_heads.h); NULL: not supported. */
    void (*set_heads)(carry_lm_config *config);

    const char *prefix;                        /* prefix of the layers' tensors, before "layers.N."; NULL: "model." */
    const char *embeddings;                    /* the name of their tensor */
    const char *norm;                          /* name of the last norm's tensor; NULL: "model.norm.weight" */
    const char *norms[2][2];                   /* names of the norms of mixer and feed-forward, after model.layers.N.:
                                                  for norms before them, and after them */
    const char *const *mixer[CARRY_LM_MIXERS]; /* names of slots; NULL: the part's own */
    const char *const *feedforward[CARRY_LM_FEEDFORWARDS];
    const carry_lm_grouped *grouped;  /* grouped tensors of the delta rule; NULL: none */
    const carry_lm_file_names *files; /* NULL: none */
} carry_lm_family;

#define CARRY_LM_HAS(part) (1u << CARRY_LM_##part)

#define X(name) extern const carry_lm_family carry_lm_family_##name;
CARRY_LM_FAMILY_LIST(X)
#undef X

/* carry_lm_family_at returns the family with this index, or NULL past the end. carry_lm_family_of returns the family
   whose name or wrapper is this model_type, or NULL. */
const carry_lm_family *carry_lm_family_at(int index);
const carry_lm_family *carry_lm_family_of(const carry_json *model_type);

/* A row of `carry list families`; it is the same in every build. */
typedef struct carry_lm_family_row {
    char mixers[64], feedforwards[64]; /* names of parts: "delta, attention" */
    bool on_cuda;                      /* every part has kernels for NVIDIA GPUs */
    bool trains;                       /* every part has gradients */
} carry_lm_family_row;
carry_lm_family_row carry_lm_family_describe(const carry_lm_family *family);

/* Keys of all families: sizes, which come first; tokens and others; keys that are ignored or must be off. */
#define CARRY_LM_SIZE_KEYS                                                                        \
    CARRY_LM_KEY("vocab_size", vocab_size, SIZE), CARRY_LM_KEY("hidden_size", hidden_size, SIZE), \
        CARRY_LM_KEY("num_hidden_layers", num_hidden_layers, SIZE)
#define CARRY_LM_TOKEN_KEYS                                                                                   \
    CARRY_LM_KEY("initializer_range", initializer_range, NUMBER),                                             \
        CARRY_LM_KEY("max_position_embeddings", max_position_embeddings, SIZE),                               \
        CARRY_LM_KEY("bos_token_id", bos_token_id, TOKEN), CARRY_LM_KEY("eos_token_id", eos_token_id, TOKEN), \
        CARRY_LM_KEY("pad_token_id", pad_token_id, TOKEN)
#define CARRY_LM_IGNORED_KEYS                                                                      \
    CARRY_LM_WORD("is_encoder_decoder", MUST_BE_OFF),                                              \
        {"quantization_config", CARRY_LM_OTHER, 0, carry_lm_config_read_quantised, NULL, NULL},    \
        CARRY_LM_WORD("model_type", READ_OVER), CARRY_LM_WORD("architectures", READ_OVER),         \
        CARRY_LM_WORD("auto_map", READ_OVER), CARRY_LM_WORD("use_cache", READ_OVER),               \
        CARRY_LM_WORD("transformers_version", READ_OVER), CARRY_LM_WORD("dtype", READ_OVER),       \
        CARRY_LM_WORD("torch_dtype", READ_OVER), CARRY_LM_WORD("output_hidden_states", READ_OVER), \
        CARRY_LM_WORD("output_attentions", READ_OVER), CARRY_LM_WORD("return_dict", READ_OVER),    \
        CARRY_LM_WORD("chunk_size_feed_forward", READ_OVER), CARRY_LM_WORD("id2label", READ_OVER), \
        CARRY_LM_WORD("label2id", READ_OVER), CARRY_LM_WORD("problem_type", READ_OVER),            \
        CARRY_LM_WORD("_name_or_path", READ_OVER)

#endif
