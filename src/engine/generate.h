/* Continuing several texts at once with a model.

   Prompts are requests of the engine (engine/scheduler.h): every step gives one token to each active text and reads
   pieces of prompts beside them, and when a text ends, the next prompt takes its place. A text is a function of model,
   prompt and options, and does not depend on the other texts (except the last bits of the logits, since the order of
   sums may depend on the number of texts). The same prompt given twice gets two texts. */
#ifndef CARRY_ENGINE_GENERATE_H
#define CARRY_ENGINE_GENERATE_H

#include "carry/engine.h"
#include "engine/sample.h"
#include "engine/model_folder.h"

typedef struct carry_prompt {
    const char *text; /* any bytes; an empty one needs a model with a start */
    size_t length;
    bool bare;           /* without the tokens that the tokenizer puts around a text: a rendered chat */
    const uint32_t *ids; /* its tokens, instead of a text; a model without a tokenizer needs them */
    size_t id_count;
} carry_prompt;

typedef enum carry_ending {
    CARRY_UNDER_WAY,
    CARRY_ENDED_BY_LENGTH,
    CARRY_ENDED_BY_TOKEN, /* the end of the text */
    CARRY_ENDED_BY_STOP,
    CARRY_INTERRUPTED, /* or never begun */
} carry_ending;
const char *carry_ending_name(carry_ending ending); /* "length" */

typedef struct carry_continuation {
    char *text; /* UTF-8, with U+FFFD for other bytes; without prompt, end token and stop text */
    size_t length, room;
    size_t settled; /* of them, those that can no longer turn out to be the stop text */
    carry_ids ids;  /* the tokens, without the one that ended it */
    int64_t prompt_tokens, tokens;
    int64_t cached_tokens; /* of the prompt, those that another prompt's reading had left a state of */
    int64_t drafted_tokens, accepted_tokens; /* guesses, and those of them that are part of the text */
    double seconds, first;                   /* from the start of the prompt: to the end, to the first token */
    carry_ending ending;
} carry_continuation;

typedef struct carry_generate_options {
    carry_sampling sampling;
    int64_t tokens;           /* at most, for each prompt */
    carry_dtype dtype;        /* of activations, and of the weights that they are multiplied with; 0 is f32 */
    const char *const *stops; /* a text ends before any of these; empty ones are ignored */
    int stop_count;
    const char *regex, *json_schema; /* as in carry/engine.h; NULL: none */
    const char *state_load; /* a file of a state that every prompt goes on from; NULL: none, prompts start texts */
    const char
        *state_save; /* where the state after the text goes, of one prompt; NULL: nowhere. Without an end token */
    /* Sizes and caches of the engine; NULL: defaults. A context of 0 is as long as the prompts and texts need. Device
       and dtype are those of the model and of these options. */
    const carry_engine_options *engine;
    /* Called after every token of a text; false stops everything. May be NULL. */
    bool (*heard)(void *user, int64_t prompt);
    void *user;
} carry_generate_options;

/* results: one for each prompt, zero at first; freed by the caller, after a failure too. */
carry_status carry_generate(carry_ctx *ctx, const carry_model *model, const carry_prompt *prompts, int64_t count,
                            const carry_generate_options *options, carry_continuation *results);
void carry_continuation_free(carry_continuation *continuation);

#endif
