/* Language models: load from a folder, compute logits and states, generate, train.

       carry_llm_open(ctx, &model, folder, NULL);
       carry_llm_state_new(model, &state);
       carry_llm_generate(state, prompt, count, &options);     calls options.on_token for every token

   The folder has the format of Hugging Face: config.json, and model.safetensors or the files that
   model.safetensors.index.json lists, in f32, bf16 or f16. Supported model types are gated_deltanet, delta_net and
   gated_deltaproduct of flash-linear-attention, including those with attention layers, qwen3_5_text, qwen3_5 (language
   part only) and olmo_hybrid. Any other type is refused by name before weights are read. Tokens are ids: tokenization
   is up to the caller.

   A model uses its context. Only one thread at a time may use a model and its states. Free states before their model,
   and a model before its context. Every failure leaves an error message in the context (carry_ctx_error). */
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
    size_t size;       /* CARRY_INIT */
    int device;        /* numbered as in carry/device.h; 0 is the CPU */
    carry_dtype dtype; /* type of activations: f32 (0), bf16 or f16 */
    /* Open for training: weights are loaded in f32 and can be changed. Otherwise the model is read-only, and on the CPU
       16-bit matrices are used directly from the mapped files, so the files must not be modified while the model is
       open (replacing them is fine). */
    bool trains;
} carry_llm_options;

/* options NULL: on the CPU, in f32, read-only. The folder of a training run means its newest complete step. Files that
   differ from the checksums that `carry train` wrote beside them are refused. CARRY_EUNSUPPORTED if this build or
   machine has no such device. */
CARRY_API carry_status carry_llm_open(carry_ctx *ctx, carry_llm **model, const char *folder,
                                      const carry_llm_options *options);
CARRY_API void carry_llm_close(carry_llm *model);
CARRY_API const char *carry_llm_folder(const carry_llm *model); /* the loaded folder: of a run, its step-N */
CARRY_API int64_t carry_llm_vocabulary(const carry_llm *model);
CARRY_API int64_t carry_llm_parameters(const carry_llm *model); /* the number of parameters */
/* The tokens that end a text of this model, as `carry generate` uses them: eos_token_id of config.json and of
   generation_config.json, and if the folder has a tokenizer.json, its end-of-text token and the eos_token of
   tokenizer_config.json. A tokenizer that this build cannot read is left out with a warning. Writes at most `capacity`
   ids and returns their total number, which may be 0. The first call reads the files. */
CARRY_API int64_t carry_llm_ends(carry_llm *model, int64_t *ends, int64_t capacity);
/* Writes config.json and model.safetensors, in f32, bf16 or f16, into an existing folder, which transformers and
   flash-linear-attention can load. */
CARRY_API carry_status carry_llm_save(const carry_llm *model, const char *folder, carry_dtype dtype);

/* logits [count, vocabulary], f32 in host memory: the logits after every token of one sequence, in one pass. */
CARRY_API carry_status carry_llm_logits(carry_llm *model, const int64_t *ids, int64_t count, float *logits);

/* A model's memory of the tokens it has read: states of the delta rule, keys and values. A new state has read no
   tokens. */
CARRY_API carry_status carry_llm_state_new(carry_llm *model, carry_llm_state **state);
CARRY_API void carry_llm_state_free(carry_llm_state *state);
CARRY_API int64_t carry_llm_state_length(const carry_llm_state *state); /* the number of tokens read */
CARRY_API carry_status carry_llm_state_clear(carry_llm_state *state);
/* Copies a state to another one of the same model: takes a snapshot, or restores one. */
CARRY_API carry_status carry_llm_state_copy(carry_llm_state *to, const carry_llm_state *from);
/* Write to and read from a file. A damaged file, and one saved from another model, is refused; the state is then
   unchanged. */
CARRY_API carry_status carry_llm_state_save(carry_llm_state *state, const char *path);
CARRY_API carry_status carry_llm_state_load(carry_llm_state *state, const char *path);

/* Reads tokens, in pieces of bounded size. logits [vocabulary], f32 in host memory, receives the logits of the next
   token; it may be NULL. */
CARRY_API carry_status carry_llm_read(carry_llm_state *state, const int64_t *ids, int64_t count, float *logits);

typedef struct carry_llm_generation {
    size_t size;        /* CARRY_INIT */
    int64_t tokens;     /* maximum number of tokens to generate, at least 1 */
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* sample from the k likeliest tokens; 0: from all */
    double top_p;       /* sample from the likeliest tokens whose probabilities add up to this; 0 and 1: from all */
    double min_p;       /* sample from tokens at least min_p times as probable as the likeliest; 0: from all */
    double repetition;  /* penalty for tokens already in the prompt or text, as in Hugging Face; 0 and 1: none */
    uint64_t seed;
    const int64_t *ends; /* tokens that end the text; on_token is not called for them */
    int64_t end_count;
    /* Called with every token as it is generated. If it returns false, the call ends with CARRY_OK. NULL: not called.
     */
    bool (*on_token)(void *user, int64_t token);
    /* Called between the pieces in which a long prompt is read. If it returns false, the call ends with CARRY_OK after
       that piece, before any token. NULL: not called. */
    bool (*proceed)(void *user);
    void *user; /* passed to on_token and proceed */
} carry_llm_generation;

/* Reads a prompt of at least one token, then generates. Afterwards the state has read the prompt and the text except
   its last token. The same arguments give the same tokens.

   on_token and proceed may use the model and its other states. Functions that would change the state of this call fail
   with CARRY_EARGUMENT. carry_llm_state_free of this state and carry_llm_close of the model end the text and take
   effect when the call returns. */
CARRY_API carry_status carry_llm_generate(carry_llm_state *state, const int64_t *prompt, int64_t count,
                                          const carry_llm_generation *options);

/* One AdamW step on a batch: ids and labels [batch, tokens]. A label is the id that should follow its token; labels of
   -100 are ignored. The loss is the mean over the other labels, before the step. Gradients are clipped to a norm of
   `clip` (0: no clipping). If they are not finite, the call fails with CARRY_ERANGE and changes nothing. The model must
   have been opened with `trains`. Its optimizer moments are kept until it is closed; a batch of another shape needs new
   plans. */
typedef struct carry_llm_batch {
    size_t size; /* CARRY_INIT */
    int64_t batch, tokens;
    const int64_t *ids, *labels;
    double rate, b1, b2, eps, decay; /* b1, b2, eps 0: 0.9, 0.95 and 1e-8. A_log and dt_bias do not decay */
    double clip;
} carry_llm_batch;
CARRY_API carry_status carry_llm_train_step(carry_llm *model, const carry_llm_batch *batch, double *loss);

#ifdef __cplusplus
}
#endif
#endif
