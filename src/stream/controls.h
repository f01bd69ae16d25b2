/* The controls of a running stream: prompts, seed, steps, cuts, pause, KV bias, noise, LoRA.

   Written by any thread (the server's), read once a chunk by stage 0. One table of keys (controls_json.c) serves the
   command line, REST, WebSocket messages and what is remembered for a restart. */
#ifndef CARRY_STREAM_CONTROLS_H
#define CARRY_STREAM_CONTROLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "core/json_write.h"

#define CARRY_PROMPT_BYTES 4096 /* of one prompt; what is longer is refused, not cut */
#define CARRY_PROMPTS 8
#define CARRY_CONTROL_STEPS 16

typedef struct carry_prompt {
    char text[CARRY_PROMPT_BYTES + 1];
    size_t length;
    double weight; /* finite, 0 or more; a prompt's share of the conditioning is weight over the sum */
} carry_prompt;

typedef struct carry_control_state {
    carry_prompt prompt[CARRY_PROMPTS];
    int prompts;        /* at least 1 */
    int64_t transition; /* chunks over which a new prompt comes in; 0: at once */
    uint64_t seed;
    int64_t step[CARRY_CONTROL_STEPS]; /* falling, 1 to 1000 */
    int steps;
    double kv_bias; /* above 0, up to 1 */
    double noise;   /* 0 to 2 */
    int64_t lora;   /* 0: none; else one of `loras` */
    int64_t loras;  /* that were given; does not change */
    bool paused;
    uint64_t cuts;           /* hard cuts asked for so far */
    uint64_t prompt_version; /* grows with every change of prompts */
} carry_control_state;

typedef struct carry_controls carry_controls;
/* start NULL: the default. It is refused by the same rules and messages as what is applied later. */
carry_status carry_controls_new(carry_ctx *ctx, carry_controls **made, const carry_control_state *start);
void carry_controls_free(carry_controls *controls);
/* The limits of the model: its words (vocabulary.h; "": all) and its first level (0: any). Steps that begin far below
   it are refused from here on. Call it before other threads have the controls. */
void carry_controls_set_model(carry_controls *controls, const char *words, int64_t first_level);
/* Fails when steps begin below three quarters of the level that the model was trained to begin at: a chunk starts as
   noise of that level, and what is left of it would be shown. */
carry_status carry_control_check_level(carry_ctx *ctx, const carry_control_state *state, int64_t first_level);
/* Which words of the prompts the model does not know, and those that it knows, in an error message; "" when it knows
 * all. */
#define CARRY_CONTROL_NOTE 6144
void carry_controls_note(carry_controls *controls, char note[CARRY_CONTROL_NOTE]);
carry_control_state carry_control_default(void);

/* Snapshot; one at a time may wait for a change of `paused` or a cut, up to seconds. A change since the last wait ends
   it at once: none is missed between reading and waiting. */
void carry_controls_read(carry_controls *controls, carry_control_state *state);
void carry_controls_wait(carry_controls *controls, double seconds);
double carry_controls_prompts_changed(carry_controls *controls); /* when that was, by carry_seconds; 0: never */

/* {"prompt": "..." or [{"text": "...", "weight": 1}, ...], "transition": 4, "seed": 1, "steps": [1000, 500],
   "cut": true, "pause": false, "kv_bias": 0.5, "noise": 1, "lora": 0}: all or nothing. On refusal an error message
   (what, its value and what it may be; UTF-8 on one line) is in why and nothing changed. Unknown keys are refused by
   name. */
carry_status carry_controls_apply(carry_controls *controls, const char *json, size_t length, char *why,
                                  size_t why_size);
/* The state in the same words: applied, it changes nothing. (A cut is an act, and not in it.) */
void carry_controls_write(carry_controls *controls, carry_json_text *text);
/* The table: keys in order, and what each may be (may_be may be NULL); NULL past the end. */
const char *carry_control_key(int index, const char **may_be);

#endif
