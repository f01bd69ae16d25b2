/* Language models from a folder: tokens in, logits and states out, generation, training.

       carry_llm_open(ctx, &model, folder, NULL);
       carry_llm_state_new(model, &state);
       carry_llm_generate(state, prompt, count, &options, heard, user);     one call of heard for every token

   A folder is as Hugging Face has it: config.json, and model.safetensors or what model.safetensors.index.json lists, in
   f32, bf16 or f16. Models are gated_deltanet, delta_net and gated_deltaproduct of flash-linear-attention, with
   attention layers too, qwen3_5_text, qwen3_5 (its language part) and olmo_hybrid; anything else is refused by name
   before a weight is read. Tokens are numbers: tokenizers are the caller's.

   A model uses its context, and is used by one thread at a time, together with its states. States are freed before
   their model, and a model before its context. Every failure leaves an error message in the context (carry_ctx_error).
 */
#ifndef CARRY_MODEL_PUBLIC_H
#define CARRY_MODEL_PUBLIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_llm carry_llm;
typedef struct carry_llm_state carry_llm_state;

typedef struct carry_llm_options {
    int device;        /* of carry/device.h; 0 is the CPU */
    carry_dtype dtype; /* of activations: f32 (0), bf16 or f16 */
    /* The weights will be changed: they are loaded in f32, and gradients can be asked for. Otherwise the model is only
       read, and on the CPU 16-bit matrices are used where the files are mapped: the files must not be changed meanwhile
       (replacing them is fine). */
    bool trains;
} carry_llm_options;

/* options NULL: on the CPU, in f32, to be read. */
CARRY_API carry_status carry_llm_open(carry_ctx *ctx, carry_llm **made, const char *folder,
                                      const carry_llm_options *options);
CARRY_API void carry_llm_close(carry_llm *model);
CARRY_API int64_t carry_llm_vocabulary(const carry_llm *model);
CARRY_API int64_t carry_llm_parameters(const carry_llm *model); /* their number */
/* config.json and model.safetensors into a folder that is there, in f32, bf16 or f16; transformers and
   flash-linear-attention load it. */
CARRY_API carry_status carry_llm_save(const carry_llm *model, const char *folder, carry_dtype dtype);

/* logits [count, vocabulary], f32 in host memory: after every token of one row, in one pass. */
CARRY_API carry_status carry_llm_logits(carry_llm *model, const int64_t *ids, int64_t count, float *logits);

/* What a model remembers of the tokens it has read: states of the delta rule, keys and values. A new one has read
   nothing. */
CARRY_API carry_status carry_llm_state_new(carry_llm *model, carry_llm_state **made);
CARRY_API void carry_llm_state_free(carry_llm_state *state);
CARRY_API int64_t carry_llm_state_length(const carry_llm_state *state); /* tokens that were read */
CARRY_API carry_status carry_llm_state_clear(carry_llm_state *state);
/* `to` becomes what `from` is; both are of one model. A snapshot, and the way back to it. */
CARRY_API carry_status carry_llm_state_copy(carry_llm_state *to, const carry_llm_state *from);
/* To and from a file; one of another model is refused. */
CARRY_API carry_status carry_llm_state_save(carry_llm_state *state, const char *path);
CARRY_API carry_status carry_llm_state_load(carry_llm_state *state, const char *path);

/* Reads tokens, in pieces of bounded size. logits [vocabulary], f32 in host memory: of the token that comes next; NULL:
   not wanted. */
CARRY_API carry_status carry_llm_read(carry_llm_state *state, const int64_t *ids, int64_t count, float *logits);

typedef struct carry_llm_generation {
    int64_t tokens;     /* at most; 1 or more */
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* only from the k likeliest; 0: all */
    double top_p;       /* only from the likeliest that together have this probability; 0 and 1: all */
    double min_p;       /* only tokens with this times the likeliest's probability; 0: all */
    double repetition;  /* penalty of tokens of this call's prompt and text, as Hugging Face has it; 0 and 1: none */
    uint64_t seed;
    const int64_t *ends; /* tokens that end the text; they are not heard */
    int64_t end_count;
} carry_llm_generation;

/* Reads a prompt of one token or more, then generates. heard gets every token as it comes; false ends the call, which
   is no failure. The state has then read the prompt and the text but for its last token. The same arguments give the
   same tokens. */
CARRY_API carry_status carry_llm_generate(carry_llm_state *state, const int64_t *prompt, int64_t count,
                                          const carry_llm_generation *options, bool (*heard)(void *user, int64_t token),
                                          void *user);

/* One step of AdamW over a batch: ids and labels [batch, tokens]; a label is what its token should be followed by, -100
   does not count. Gradients are of the mean over counted labels, clipped to a norm of `clip` (0: not). loss gets that
   mean before the step. Gradients that are not finite are refused with CARRY_ERANGE, and nothing is changed. The model
   was opened with `trains`. Its moments are kept until it is closed; a batch of another shape is planned anew. */
typedef struct carry_llm_batch {
    int64_t batch, tokens;
    const int64_t *ids, *labels;
    double rate, b1, b2, eps, decay; /* b1, b2, eps 0: 0.9, 0.95 and 1e-8. Decay does not reach A_log and dt_bias */
    double clip;
} carry_llm_batch;
CARRY_API carry_status carry_llm_train_step(carry_llm *model, const carry_llm_batch *batch, double *loss);

#ifdef __cplusplus
}
#endif
#endif
