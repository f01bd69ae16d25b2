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
    bool stopped;           /* by the callback of options */
} carry_generation;

/* The tokens of a prompt, in place of those in `ids`: the start token for an empty one. *is_empty: nothing is before
   the text. */
carry_status carry_generation_encode(const carry_generation *g, int64_t number, carry_ids *ids, bool *is_empty);
carry_status carry_generation_keep_id(carry_ctx *ctx, carry_ids *ids, uint32_t id);
/* How many of the same prompt came before: each gets random numbers of its own, and the first the ones it has alone. */
uint64_t carry_generation_stream(const carry_generation *g, int64_t prompt);
/* A token of a text: into its ids and text. *is_stopped: the text ends with a stop text. */
carry_status carry_generation_take(const carry_generation *g, int64_t prompt, carry_decoded *text, int64_t token,
                                   bool *is_stopped);
/* The end of a text; the callback is called. */
void carry_generation_end(carry_generation *g, int64_t prompt, carry_decoded *text, carry_ending ending);

/* Through the engine. */
carry_status carry_generate_together(carry_generation *g);

#endif
