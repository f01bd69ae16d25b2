/* The engine: many texts at once with one model, states that can be forked, rolled back and saved.

       carry_engine_open(ctx, &engine, folder, NULL);
       carry_engine_submit(ctx, engine, &request, &id);            from any thread, as often as needed
       while (carry_engine_step(engine, &is_busy) == CARRY_OK && is_busy) {
           while (carry_engine_next(engine, &event)) { ... }       tokens, text, ends
       }

   All memory for states is taken when the engine is opened. A request that does not fit waits; at most `queue` requests
   wait, and more are refused. Each step reads one token of every text that is being written and pieces of prompts
   beside them. Prompts that begin like earlier ones are not read again as far as a cached state has them; every end
   tells how many tokens were saved. The text of a request depends on its prompt, options and seed alone; other requests
   beside it can change the last bits of its logits (see same_bits).

   One thread drives an engine: it calls step, run, next and the functions of states. carry_engine_submit and
   carry_engine_cancel may be called from other threads; each passes a context of its own for error messages. */
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

/* Begin initialisers of structs with CARRY_INIT (carry/status.h). Fields that are 0 have the defaults in brackets. */
typedef struct carry_engine_options {
    size_t size;            /* CARRY_INIT */
    int device;             /* of carry_engine_open: as in carry/device.h; 0 is the CPU */
    carry_dtype dtype;      /* of carry_engine_open: of activations, f32 (0), bf16 or f16 */
    int64_t sequences;      /* texts at once, at most [16] */
    int64_t context;        /* tokens of a prompt and its text, at most [those of the model, up to 8,192] */
    int64_t step_tokens;    /* tokens of one step, at most [512 on the CPU, 4,096 on a GPU] */
    int64_t queue;          /* requests that wait, at most [1,024] */
    size_t memory;          /* bytes of all states [a quarter of the memory that is available] */
    bool no_cache;          /* read every prompt from its beginning */
    size_t cache_device;    /* bytes of cached states beside the requests [as memory allows] */
    size_t cache_host;      /* bytes of cached states in host memory [none] */
    const char *cache_dir;  /* folder for cached states [none]: a damaged file or an unusable folder costs a warning */
    size_t cache_dir_bytes; /* of its files [16 GiB] */
    bool same_bits; /* a request gives the same bits whatever runs beside it and whatever was cached. On the CPU; on
                       a Hopper GPU for some models, with at most 64 sequences and guesses together (docs/engine.md) */
    /* Speculation: guesses of the next tokens of a text, verified in one step while up to 8 texts are under way. The
       text is the one without guesses, greedy or sampled, since a guess is accepted only if it is the token that is
       sampled in its place. "ngram" guesses what came after the last tokens earlier in the text [none] */
    const char *draft;
    int64_t draft_tokens; /* guesses of a text in a step, up to 16 [4] */
} carry_engine_options;

/* A folder as carry_llm_open accepts it. With a tokenizer (tokenizer.json, or a vocabulary of bytes), requests may be
   texts. options may be NULL. */
CARRY_API carry_status carry_engine_open(carry_ctx *ctx, carry_engine **engine, const char *folder,
                                         const carry_engine_options *options);
/* Over a model that is open already and stays so. Its device and dtype count. */
CARRY_API carry_status carry_engine_new(carry_llm *model, carry_engine **engine, const carry_engine_options *options);
/* Requests under way end without events; states are dropped. Cached states are written to cache_dir. */
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
    int64_t token; /* -1: this event is the end */
    double logprob;
    int top_count; /* with `logprobs`: the likeliest tokens, best first */
    const int32_t *top_tokens;
    const float *top_logprobs;
    const char *text; /* UTF-8 that has become certain: whole characters, nothing of a stop text. "" if none */
    size_t text_bytes;
    /* Of an end: */
    carry_engine_reason reason;
    carry_status status;
    const char *message; /* "" without a failure */
    int64_t prompt_tokens, cached_tokens, tokens;
    double first_s, seconds;                 /* from the submission: to the first token, to the end */
    uint64_t state;                          /* with `keep_state`: the state after prompt and text; 0: none */
    int64_t drafted_tokens, accepted_tokens; /* guesses, and those of them that are part of the text */
} carry_engine_event;

typedef struct carry_engine_request {
    size_t size;        /* CARRY_INIT */
    const int64_t *ids; /* the prompt as tokens, */
    int64_t id_count;
    const char *text; /* or as text: any bytes; needs a tokenizer */
    size_t text_bytes;
    bool is_rendered;   /* text: a rendered chat, before which the tokenizer puts no tokens */
    int64_t tokens;     /* the most to generate. 0: only read the prompt, with keep_state */
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 0 and 1: all */
    double min_p;       /* 0: all */
    double repetition;  /* penalty of tokens in prompt and text; 0 and 1: none */
    uint64_t seed;
    int logprobs;        /* likeliest tokens to report, up to 20; 0: only that of the token; below 0: nothing */
    const int64_t *ends; /* tokens that end the text; NULL: those of the model */
    int64_t end_count;
    bool ignore_ends;         /* no token ends the text */
    const char *const *stops; /* texts that end it; they are not part of it. Needs a tokenizer */
    int64_t stop_count;
    uint64_t state;  /* a state that the prompt goes on from; it remains. 0: none */
    bool keep_state; /* keep the state at the end; the caller drops it */
    bool no_cache;   /* use no cached state and leave none */
    /* Called by the driving thread for each event instead of carry_engine_next; false cancels the request. */
    bool (*on_event)(void *user, const carry_engine_event *event);
    void *user;
    double frequency, presence; /* subtracted from the logit of a token: for each time it is in the text, and once */
    const int64_t *bias_ids;    /* tokens whose logits get these added */
    const float *biases;
    int64_t bias_count;
    /* Constrained sampling: called by the driving thread before each token is sampled. last: the token of the text
       before it, -1 at the start. Clears the bits of tokens in `allowed` that may not follow (bit i % 32 of word i / 32
       is token i; the tokens that end the text are among them). Returning false, or clearing all, fails the request. */
    bool (*constrain)(void *constraint, int64_t last, uint32_t *allowed);
    void *constraint;
    /* The text matches, as far as it goes; it ends with CARRY_REASON_END where it is complete. At most one of both, and
       without `constrain`. Needs a tokenizer. docs/engine.md has what is supported; the rest is refused by name, with
       CARRY_EUNSUPPORTED, or with CARRY_ESIZE and the bound that it exceeds. */
    const char *regex;       /* a regular expression for the whole text */
    const char *json_schema; /* a JSON schema; {"type": "object"} allows any object */
    /* A request that was submitted before, with the same prompt [none]: while both are under way the prompt is read
       once, and each goes on from a copy of the state. The texts are those without it. */
    uint64_t same_prompt;
} carry_engine_request;

/* Checks the request, copies it and puts it into the queue. CARRY_ERANGE: a token id outside the vocabulary.
   CARRY_ESIZE: longer than the context or the memory allows, or the queue is full. */
CARRY_API carry_status carry_engine_submit(carry_ctx *ctx, carry_engine *engine, const carry_engine_request *request,
                                           uint64_t *id);
/* Ends a request at its next step; its end event follows. Unknown and ended requests are ignored. */
CARRY_API void carry_engine_cancel(carry_engine *engine, uint64_t id);

/* One step. is_busy: requests are waiting or under way. */
CARRY_API carry_status carry_engine_step(carry_engine *engine, bool *is_busy);
CARRY_API carry_status carry_engine_run(carry_engine *engine); /* until no request is left */
/* Waits until there is a request or a cancellation, `seconds` at most. Returns false if none came. */
CARRY_API bool carry_engine_wait(carry_engine *engine, double seconds);
/* Takes the next event. Returns false if no event is waiting. Pointers in it are valid until the next call. */
CARRY_API bool carry_engine_next(carry_engine *engine, carry_engine_event *event);

/* States, by the number in an end event or of the functions below. CARRY_ENOTFOUND: no state has this number. Failures
   leave the state as it was. */
CARRY_API carry_status carry_engine_state_length(carry_engine *engine, uint64_t state, int64_t *tokens);
CARRY_API carry_status carry_engine_state_fork(carry_engine *engine, uint64_t state, uint64_t *made);
/* Forgets the last tokens, 16 at most; exact. */
CARRY_API carry_status carry_engine_state_roll_back(carry_engine *engine, uint64_t state, int64_t tokens);
/* One file with a hash of every tensor. Damaged files and states of other models are refused. */
CARRY_API carry_status carry_engine_state_save(carry_engine *engine, uint64_t state, const char *path);
CARRY_API carry_status carry_engine_state_load(carry_engine *engine, uint64_t *made, const char *path);
/* Moves a state to host memory, where it takes no memory of the device; its next use moves it back. Rolling back then
   reads its tokens again. */
CARRY_API carry_status carry_engine_state_to_host(carry_engine *engine, uint64_t state);
/* Moves a state to another engine of the same model and type, on any device, that the same thread drives: *made there.
   Here it is dropped. */
CARRY_API carry_status carry_engine_state_move(carry_engine *engine, uint64_t state, carry_engine *to, uint64_t *made);
CARRY_API carry_status carry_engine_state_drop(carry_engine *engine, uint64_t state);
/* Puts a copy of the state among the cached prefixes: prompts that begin with its tokens go on from there. CARRY_ESIZE:
   it does not fit. CARRY_EUNSUPPORTED: no_cache, or same_bits, where cached states are those of prompts. */
CARRY_API carry_status carry_engine_state_cache(carry_engine *engine, uint64_t state);

typedef struct carry_engine_stats {
    size_t size; /* CARRY_INIT */
    int64_t waiting, active, states;
    int64_t slots, free_slots, pages, free_pages;
    int64_t steps, requests, finished, cancelled, failed; /* since the start */
    int64_t prompt_tokens, cached_tokens, tokens;
    int64_t snapshots, host_snapshots, file_snapshots; /* cached states */
    size_t cache_device, cache_host, cache_dir;        /* their bytes */
    int64_t drafted_tokens, accepted_tokens;           /* guesses, and those that were right */
} carry_engine_stats;
CARRY_API void carry_engine_statistics(carry_engine *engine, carry_engine_stats *stats);

CARRY_API int64_t carry_engine_context(const carry_engine *engine);
CARRY_API int64_t carry_engine_vocabulary(const carry_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
