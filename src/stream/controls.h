/* The controls of a running stream: prompts, seed, steps, cuts, pause, KV bias, noise, LoRA.

   Any thread (usually the server's) may write them; stage 0 reads them before each chunk, and again if the prompts
   change while a chunk is denoised. One table of keys
   (controls_json.c) serves the command line, REST, WebSocket messages and the state saved for a restart. */
#ifndef CARRY_STREAM_CONTROLS_H
#define CARRY_STREAM_CONTROLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "core/json_write.h"

#define CARRY_PROMPT_BYTES 4096 /* limit of one prompt; a longer one is refused, not cut */
#define CARRY_PROMPTS 8
#define CARRY_CONTROL_STEPS 16

typedef struct carry_prompt {
    char text[CARRY_PROMPT_BYTES + 1];
    size_t length;
    double weight; /* finite, 0 or more; a prompt's share of the conditioning is its weight over the sum of weights */
} carry_prompt;

typedef struct carry_control_state {
    carry_prompt prompt[CARRY_PROMPTS];
    int prompts;        /* at least 1 */
    int64_t transition; /* number of chunks over which a new prompt is blended in; 0: at once */
    uint64_t seed;
    int64_t step[CARRY_CONTROL_STEPS]; /* falling, 1 to 1000 */
    int steps;
    double kv_bias; /* above 0, up to 1 */
    double noise;   /* 0 to 2 */
    int64_t lora;   /* index of the active LoRA, 1 to `loras`; 0: no LoRA */
    int64_t loras;  /* number of LoRAs given at the start; constant */
    bool paused;
    uint64_t cuts;           /* hard cuts requested so far */
    uint64_t prompt_version; /* grows with every change of prompts */
} carry_control_state;

typedef struct carry_controls carry_controls;
/* start: the initial state, checked by the same rules as later changes; NULL: the default. */
carry_status carry_controls_new(carry_ctx *ctx, carry_controls **made, const carry_control_state *start);
void carry_controls_free(carry_controls *controls);
/* Sets the limits of the model: its words (vocabulary.h; "": all words are known) and its first noise level (0: no
   limit). From here on, steps that begin far below that level are refused. Call it before other threads use the
   controls. */
void carry_controls_set_model(carry_controls *controls, const char *words, int64_t first_level);
/* Fails when the steps begin below three quarters of the noise level that the model was trained to begin at: a chunk
   starts as noise of that level, and the rest of the noise would stay visible. */
carry_status carry_control_check_level(carry_ctx *ctx, const carry_control_state *state, int64_t first_level);
/* Writes a message that lists the words of the prompts that the model does not know, and the words that it knows; ""
   when it knows all of them. */
#define CARRY_CONTROL_NOTE 6144
void carry_controls_note(carry_controls *controls, char note[CARRY_CONTROL_NOTE]);
carry_control_state carry_control_default(void);

/* carry_controls_read copies the state. carry_controls_wait waits up to `seconds` for a change of `paused` or for a
   cut; one thread at a time may wait. It returns at once if there was a change since the last wait, so no change is
   missed between reading and waiting. */
void carry_controls_read(carry_controls *controls, carry_control_state *state);
void carry_controls_wait(carry_controls *controls, double seconds);
/* Time of the last change of prompts, by carry_seconds; 0: never. */
double carry_controls_prompts_changed(carry_controls *controls);

/* {"prompt": "..." or [{"text": "...", "weight": 1}, ...], "transition": 4, "seed": 1, "steps": [1000, 500], "cut":
   true, "pause": false, "kv_bias": 0.5, "noise": 1, "lora": 0}. Applies all keys or none. If a key or value is
   refused, nothing changes and `why` has a message of one line of UTF-8 with the key, its value and the accepted
   values. Unknown keys are refused by name. */
carry_status carry_controls_apply(carry_controls *controls, const char *json, size_t length, char *why,
                                  size_t why_size);
/* Writes the state as JSON with the same keys; applying that text changes nothing. A cut is an action, not state,
   and is not written. */
void carry_controls_write(carry_controls *controls, carry_json_text *text);
/* The name of key number `index` in the table, or NULL past the end. *may_be receives the accepted values; may_be
   may be NULL. */
const char *carry_control_key(int index, const char **may_be);

#endif
