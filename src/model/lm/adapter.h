/* Low-rank adapters (LoRA): y = W x + scale B (A dropout(x)) for linear maps of the layers; W is frozen.

   A is [rank, in], B [out, rank], scale = alpha / rank, or alpha / sqrt(rank) if the adapter is rank-stabilised. All
   passes of a model, forward and backward, use its adapter; only A and B have gradients, in the adapter's own
   parameters (model/parameters.h), so that an optimizer over them changes nothing else.

   Folders are in PEFT's format: adapter_config.json and adapter_model.safetensors, with the names
   base_model.model.MODULE.lora_A.weight and lora_B.weight. */
#ifndef CARRY_MODEL_LM_ADAPTER_H
#define CARRY_MODEL_LM_ADAPTER_H

#include "model/lm/lm.h"

#define CARRY_ADAPTER_CONFIG "adapter_config.json"
#define CARRY_ADAPTER_WEIGHTS "adapter_model.safetensors"
#define CARRY_ADAPTER_TARGETS 1024 /* bytes of the list of targets */
#define CARRY_ADAPTER_MOST_RANK 4096

typedef struct carry_adapter_options {
    int64_t rank;
    double alpha;
    double dropout; /* fraction of the elements of x that are dropped in training */
    bool is_rank_stabilised;
    char targets[CARRY_ADAPTER_TARGETS]; /* ends of module names, separated by commas; "all-linear": all linear maps */
    uint64_t seed;                       /* of start values and dropout */
} carry_adapter_options;

typedef struct carry_lm_adapter {
    carry_parameters own; /* A and B of each target, layer after layer */
    carry_adapter_options options;
    double scale;
    int64_t *a;     /* [parameters of the model]: the index of A, and B is the next one; -1: the parameter is not a
                       target */
    int64_t *first; /* [layers + 1]: the offset of each layer's first element, then the total number of elements */
    uint64_t draw;  /* seed of the dropout mask; a different number for each training pass */
} carry_lm_adapter;

/* Adds an adapter with start values to a model, which then owns it. A is uniform in +-1/sqrt(in) and B is zero, so the
   model's results do not change at first. CARRY_ENOTFOUND: a target matches no linear map; the message lists those that
   exist. */
carry_status carry_lm_adapter_new(carry_lm *lm, const carry_adapter_options *options);
/* The same from a folder, whose tensors determine rank and targets; dropout and seed are taken from options, unless it
   is NULL. For an adapter of another model the error names the first tensor that does not fit. */
carry_status carry_lm_adapter_load(carry_lm *lm, const char *folder, const carry_adapter_options *options);
carry_status carry_lm_adapter_save(const carry_lm *lm, const char *folder, const char *base);
void carry_lm_adapter_free(carry_lm *lm);

/* W = W + scale B A for the tensors of a folder, computed in f32 and rounded to the type in which the model keeps W.
   Call it after the weights are loaded and before a pass is made. */
carry_status carry_lm_adapter_merge(carry_lm *lm, const char *folder);
/* True if the folder has an adapter and not a model. */
bool carry_lm_adapter_is(const char *folder);

/* Writes a list of the modules that can be targets: the end of each name, once. Returns text. */
const char *carry_lm_adapter_targets(const carry_lm *lm, char *text, size_t size);
/* True if parameter `index` can be a target. */
bool carry_lm_adapter_fits(const carry_lm *lm, int64_t index);

/* The offset and count of a layer's elements in the flat buffers of the adapter. */
void carry_lm_adapter_range(const carry_lm *lm, int64_t layer, int64_t *first, int64_t *count);

/* Internal: makes the adapter of a model, with A and B for each parameter i for which targets[i] is true. Allocates and
   zeroes their weights and gradients. On failure the model has no adapter. */
carry_status carry_lm_adapter_list(carry_lm *lm, const carry_adapter_options *options, const bool *targets);

#endif
