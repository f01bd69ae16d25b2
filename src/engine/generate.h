/* Continues several texts at once with a model.

   Prompts are requests of the engine (engine/scheduler.h): every step gives one token to each active text and reads
   pieces of prompts as well; when a text ends, the next prompt takes its place. A text depends on model, prompt and
   options, not on the other texts (except for the last bits of the logits, since the order of sums may depend on the
   number of texts). A prompt that is given twice gets different random numbers each time. */
#ifndef CARRY_ENGINE_GENERATE_H
#define CARRY_ENGINE_GENERATE_H

#include "carry/engine.h"
#include "engine/sample.h"
#include "engine/model_folder.h"

typedef struct carry_prompt {
    const char *text; /* any bytes; may be empty only if the model has a start token */
    size_t length;
    bool bare;           /* do not add the tokens that the tokenizer puts around a text: for a rendered chat */
    const uint32_t *ids; /* its tokens, instead of text; required for a model without a tokenizer */
    size_t id_count;
} carry_prompt;

typedef enum carry_ending {
    CARRY_UNDER_WAY,
    CARRY_ENDED_BY_LENGTH,
    CARRY_ENDED_BY_TOKEN, /* the end of the text */
    CARRY_ENDED_BY_STOP,
    CARRY_INTERRUPTED, /* interrupted, or never begun */
} carry_ending;
const char *carry_ending_name(carry_ending ending); /* "length" */

typedef struct carry_continuation {
    char *text; /* UTF-8, with U+FFFD for invalid bytes; without prompt, end token and stop text */
    size_t length, room;
    size_t settled; /* number of bytes that can no longer be part of a stop text */
    carry_ids ids;  /* the tokens, without the one that ended it */
    int64_t prompt_tokens, tokens;
    int64_t cached_tokens; /* tokens of the prompt that were not read, because a cached state had them */
    int64_t drafted_tokens, accepted_tokens; /* number of guesses, and of accepted guesses */
    double seconds, first; /* seconds from the start of the prompt to the end, and to the first token */
    carry_ending ending;
} carry_continuation;

typedef struct carry_generate_options {
    carry_sampling sampling;
    int64_t tokens;           /* at most, for each prompt */
    carry_dtype dtype;        /* type of activations, and of the weights in products; 0 is f32 */
    const char *const *stops; /* a text ends before the first of these; empty ones are ignored */
    int stop_count;
    const char *regex, *json_schema; /* as in carry/engine.h; NULL: none */
    const char *state_load;          /* file of a state from which every prompt continues; NULL: prompts start texts */
    const char *state_save; /* file for the state after the text, for a single prompt; NULL: not saved. It does not
                               include an end token */
    /* Sizes and caches of the engine; NULL: defaults. A context of 0 means: long enough for the prompts and texts. Its
       device and dtype are not used: they are those of the model and `dtype` above. */
    const carry_engine_options *engine;
    /* Called after every token of a text; returning false stops everything. May be NULL. */
    bool (*heard)(void *user, int64_t prompt);
    void *user;
} carry_generate_options;

/* results: one for each prompt, initially zero; the caller frees them, also after a failure. */
carry_status carry_generate(carry_ctx *ctx, const carry_model *model, const carry_prompt *prompts, int64_t count,
                            const carry_generate_options *options, carry_continuation *results);
void carry_continuation_free(carry_continuation *continuation);

#endif
