/* Shared by the files of generation. */
#ifndef CARRY_ENGINE_GENERATE_INSIDE_H
#define CARRY_ENGINE_GENERATE_INSIDE_H

#include "engine/generate.h"
#include "engine/decoded.h"

typedef struct carry_generation {
    carry_ctx *ctx;
    const carry_model *model;
    const carry_prompt *prompts;
    int64_t count, batch;
    const carry_generate_options *options;
    carry_engine_options engine; /* those of options, or defaults */
    carry_continuation *results;
    carry_encoder *encoder; /* NULL without a tokenizer */
    bool stopped;           /* the callback of options returned false */
} carry_generation;

/* Encodes a prompt into `ids`, replacing its contents; an empty prompt becomes the start token. *is_empty: there is no
   text before the generated one. */
carry_status carry_generation_encode(const carry_generation *g, int64_t number, carry_ids *ids, bool *is_empty);
carry_status carry_generation_keep_id(carry_ctx *ctx, carry_ids *ids, uint32_t id);
/* The number of equal prompts before this one: each gets its own random numbers, and the first gets those that it would
   have alone. */
uint64_t carry_generation_stream(const carry_generation *g, int64_t prompt);
/* Adds a token to a text and its ids. *is_stopped: the text ended with a stop text. */
carry_status carry_generation_take(const carry_generation *g, int64_t prompt, carry_decoded *text, int64_t token,
                                   bool *is_stopped);
/* Ends a text and calls the callback. */
void carry_generation_end(carry_generation *g, int64_t prompt, carry_decoded *text, carry_ending ending);

/* Runs the generation through the engine. */
carry_status carry_generate_together(carry_generation *g);

#endif
