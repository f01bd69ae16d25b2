/* The engine: many texts at once with one model, states that can be forked, rolled back and saved.

       carry_engine_open(ctx, &engine, folder, NULL);
       carry_engine_submit(ctx, engine, &request, &id);            from any thread, as often as needed
       while (carry_engine_step(engine, &is_busy) == CARRY_OK && is_busy) {
           while (carry_engine_next(engine, &event)) { ... }       tokens, text, ends
       }

   All memory for states is allocated when the engine is opened. A request that does not fit waits; at most `queue`
   requests wait, and more are refused. Each step reads one token of every text that is being generated, and pieces of
   prompts beside them. If a cached state covers the beginning of a prompt, that part is not read again; every end event
   tells how many tokens were saved. The text of a request depends only on its prompt, options and seed; other requests
   in the same step can change the last bits of its logits (see same_bits).

   One thread drives an engine: it calls step, run, next and the functions for states. carry_engine_submit and
   carry_engine_cancel may be called from other threads; for error messages, each thread passes its own context. The
   callbacks of requests may submit, cancel and use states; step, run, close and state_roll_back of the same engine are
   refused in them (CARRY_EARGUMENT; close logs the message and does nothing). */
#ifndef CARRY_ENGINE_PUBLIC_H
#define CARRY_ENGINE_PUBLIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "carry/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_engine carry_engine;

/* Begin initialisers of structs with CARRY_INIT (carry/status.h). Fields that are 0 use the defaults in brackets. */
typedef struct carry_engine_options {
    size_t size;            /* CARRY_INIT */
    int device;             /* carry_engine_open only: numbered as in carry/device.h; 0 is the CPU */
    carry_dtype dtype;      /* carry_engine_open only: type of activations, f32 (0), bf16 or f16 */
    int64_t sequences;      /* maximum number of texts generated at once [16] */
    int64_t context;        /* maximum tokens of a prompt and its text together [the model's limit, up to 8,192] */
    int64_t step_tokens;    /* maximum tokens of one step [512 on the CPU, 4,096 on a GPU] */
    int64_t queue;          /* maximum number of waiting requests [1,024] */
    size_t memory;          /* bytes for all states [a quarter of the available memory] */
    bool no_cache;          /* do not reuse cached states: read every prompt from its beginning */
    size_t cache_device;    /* bytes for cached states, beside those of requests [as memory allows] */
    size_t cache_host;      /* bytes for cached states in host memory [none] */
    const char *cache_dir;  /* folder for cached states [none]; a damaged file or unusable folder causes a warning */
    size_t cache_dir_bytes; /* of its files [16 GiB] */
    bool same_bits; /* a request gives the same bits whatever runs beside it and whatever was cached. Supported on the
                       CPU, and for some models on a Hopper GPU, with at most 64 sequences and guesses together
                       (docs/engine.md) */
    /* Speculation: the next tokens of a text are guessed and verified in one step, while at most 8 texts are in
       progress. Greedy or sampled, the text is the same as without guesses, since a guess is accepted only if it equals
       the token that is sampled in its place. "ngram" guesses the tokens that followed the same last tokens earlier in
       the text; "mtp" uses the multi-token heads of a checkpoint (Qwen3.5, Qwen3-Next) [none] */
    const char *draft;
    int64_t draft_tokens; /* guesses per text and step, up to 16 [4; for "mtp" 2] */
    /* Types in which states are stored. kv_type: of the keys and values of attention layers, "f32", "bf16", "f16" or
       "fp8" (8-bit floats with a scale for each token and head); on a GPU, that of the activations or "fp8" [that of
       the activations]. state_type: of the states of recurrent layers, "f32" or "bf16", rounded to the nearest [f32].
       Files of states of other types are refused. */
    const char *kv_type, *state_type;
} carry_engine_options;

/* folder: as for carry_llm_open. With a tokenizer (tokenizer.json, or a vocabulary of bytes), requests may be texts.
   options may be NULL. */
CARRY_API carry_status carry_engine_open(carry_ctx *ctx, carry_engine **engine, const char *folder,
                                         const carry_engine_options *options);
/* Uses a model that is already open and must stay open. Its device and dtype are used. */
CARRY_API carry_status carry_engine_new(carry_llm *model, carry_engine **engine, const carry_engine_options *options);
/* Requests in progress end without events, and states are dropped. Cached states are written to cache_dir. */
CARRY_API void carry_engine_close(carry_engine *engine);

typedef enum carry_engine_reason {
    CARRY_REASON_NONE,    /* the event is not an end */
    CARRY_REASON_LENGTH,  /* `tokens` were generated */
    CARRY_REASON_END,     /* a token that ends texts */
    CARRY_REASON_STOP,    /* a stop text */
    CARRY_REASON_CONTEXT, /* the context is full */
    CARRY_REASON_CANCELLED,
    CARRY_REASON_FAILED, /* status and message tell why */
} carry_engine_reason;
CARRY_API const char *carry_engine_reason_name(carry_engine_reason reason); /* "length" */

typedef struct carry_engine_event {
    size_t size; /* CARRY_INIT */
    uint64_t request;
    void *user;
    int64_t token; /* -1: this event is the end of the request */
    double logprob;
    int top_count; /* with `logprobs`: the number of likeliest tokens, which are listed best first */
    const int32_t *top_tokens;
    const float *top_logprobs;
    const char *text; /* newly completed UTF-8 text: whole characters, without any part of a stop text; may be "" */
    size_t text_bytes;
    /* Of an end: */
    carry_engine_reason reason;
    carry_status status;
    const char *message; /* "" without a failure */
    int64_t prompt_tokens, cached_tokens, tokens;
    double first_s, seconds; /* seconds from submission to the first token, and to the end */
    uint64_t state; /* with `keep_state`: the state after prompt and text; 0: none, as for a request that failed or was
                       cancelled before its whole prompt was read */
    int64_t drafted_tokens, accepted_tokens; /* guesses, and the accepted ones among them */
    int64_t stop;                            /* with CARRY_REASON_STOP: the index of the stop text */
    int64_t text_before; /* of a token: bytes of the text before it, also those that are held back so far */
} carry_engine_event;

typedef struct carry_engine_request {
    size_t size;        /* CARRY_INIT */
    const int64_t *ids; /* the prompt as tokens, */
    int64_t id_count;
    const char *text; /* or as text of any bytes; needs a tokenizer */
    size_t text_bytes;
    bool is_rendered;   /* text is a rendered chat: the tokenizer adds no tokens before it */
    int64_t tokens;     /* maximum number of tokens to generate. 0: only read the prompt, for keep_state */
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 0 and 1: all */
    double min_p;       /* 0: all */
    double repetition;  /* penalty for tokens in prompt and text; 0 and 1: none */
    uint64_t seed;
    int logprobs; /* how many of the likeliest tokens to report, up to 20; 0: only the token itself; below 0: nothing */
    const int64_t *ends; /* tokens that end the text; NULL: those of the model */
    int64_t end_count;
    bool ignore_ends;         /* no token ends the text */
    const char *const *stops; /* texts that end the text and are not part of it; needs a tokenizer */
    int64_t stop_count;
    uint64_t state;  /* a state from which the prompt continues, and which is not changed; 0: none */
    bool keep_state; /* keep the final state, which the caller drops */
    bool no_cache;   /* neither use nor add cached states */
    /* Called by the driving thread for each event, instead of carry_engine_next. Returning false cancels the
       request. */
    bool (*on_event)(void *user, const carry_engine_event *event);
    void *user;
    double frequency, presence; /* subtracted from a token's logit: for each occurrence in the text, and once */
    const int64_t *bias_ids;    /* tokens to whose logits `biases` are added */
    const float *biases;
    int64_t bias_count;
    /* Constrained sampling: called by the driving thread before each token is sampled. last: the previous token of the
       text, or -1 at the start. The function clears the bits of tokens in `allowed` that may not follow (bit i % 32 of
       word i / 32 is token i, including the tokens that end the text). If it returns false or clears all bits, the
       request fails. */
    bool (*constrain)(void *constraint, int64_t last, uint32_t *allowed);
    void *constraint;
    /* Constraints on the text, which ends with CARRY_REASON_END when it is complete; a text that ends earlier matches
       as far as it goes. Set at most one of the two, and not together with `constrain`. They need a tokenizer.
       docs/engine.md lists the supported features. Others fail with CARRY_EUNSUPPORTED and the name of the feature, or
       with CARRY_ESIZE and the limit that is exceeded. */
    const char *regex;       /* a regular expression for the whole text */
    const char *json_schema; /* a JSON schema; {"type": "object"} allows any object */
    /* The id of an earlier request with the same prompt [none]. While both are in progress the prompt is read once, and
       each request continues from a copy of the state. The texts are the same as without it. */
    uint64_t same_prompt;
} carry_engine_request;

/* Checks the request, copies it and queues it. CARRY_ERANGE: a token id outside the vocabulary. CARRY_ESIZE: the
   request is longer than the context or the memory allows, or the queue is full. */
CARRY_API carry_status carry_engine_submit(carry_ctx *ctx, carry_engine *engine, const carry_engine_request *request,
                                           uint64_t *id);
/* Ends a request at its next step; its end event follows. Unknown ids and requests that have ended are ignored. */
CARRY_API void carry_engine_cancel(carry_engine *engine, uint64_t id);

/* Runs one step. is_busy: requests are waiting or in progress. */
CARRY_API carry_status carry_engine_step(carry_engine *engine, bool *is_busy);
CARRY_API carry_status carry_engine_run(carry_engine *engine); /* until no request is left */
/* Waits until there is a request or a cancellation, for at most `seconds`. Returns false if nothing arrived. */
CARRY_API bool carry_engine_wait(carry_engine *engine, double seconds);
/* Takes the next event. Returns false if no event is waiting. Pointers in it are valid until the next call. */
CARRY_API bool carry_engine_next(carry_engine *engine, carry_engine_event *event);

/* States, identified by the number from an end event or from the functions below. CARRY_ENOTFOUND: no state has this
   number. On failure the state is unchanged. */
CARRY_API carry_status carry_engine_state_length(carry_engine *engine, uint64_t state, int64_t *tokens);
CARRY_API carry_status carry_engine_state_fork(carry_engine *engine, uint64_t state, uint64_t *made);
/* Removes the last tokens from a state, at most 16. The result is exact. */
CARRY_API carry_status carry_engine_state_roll_back(carry_engine *engine, uint64_t state, int64_t tokens);
/* Save and load one file with a hash of every tensor. Damaged files and states of other models are refused. */
CARRY_API carry_status carry_engine_state_save(carry_engine *engine, uint64_t state, const char *path);
CARRY_API carry_status carry_engine_state_load(carry_engine *engine, uint64_t *made, const char *path);
/* Moves a state to host memory, which frees device memory; its next use moves it back. Rolling it back then reads its
   tokens again. */
CARRY_API carry_status carry_engine_state_to_host(carry_engine *engine, uint64_t state);
/* Moves a state to another engine, which must have the same model and type and be driven by the same thread; the device
   may differ. *made is its number there. The state is dropped here. */
CARRY_API carry_status carry_engine_state_move(carry_engine *engine, uint64_t state, carry_engine *to, uint64_t *made);
CARRY_API carry_status carry_engine_state_drop(carry_engine *engine, uint64_t state);
/* Adds a copy of the state to the cached prefixes: prompts that begin with its tokens continue from it. CARRY_ESIZE: it
   does not fit. CARRY_EUNSUPPORTED: the engine has no_cache or same_bits; with same_bits only states of prompts are
   cached. */
CARRY_API carry_status carry_engine_state_cache(carry_engine *engine, uint64_t state);

typedef struct carry_engine_stats {
    size_t size; /* CARRY_INIT */
    int64_t waiting, active, states;
    int64_t slots, free_slots, pages, free_pages;
    int64_t steps, requests, finished, cancelled, failed; /* since the start */
    int64_t prompt_tokens, cached_tokens, tokens;
    int64_t snapshots, host_snapshots, file_snapshots; /* cached states */
    size_t cache_device, cache_host, cache_dir;        /* their bytes */
    int64_t drafted_tokens, accepted_tokens;           /* guesses, and the accepted ones among them */
} carry_engine_stats;
CARRY_API void carry_engine_statistics(carry_engine *engine, carry_engine_stats *stats);

CARRY_API int64_t carry_engine_context(const carry_engine *engine);
CARRY_API int64_t carry_engine_vocabulary(const carry_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
