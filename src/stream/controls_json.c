/* The table of controls: each has a key, the accepted values, and functions to read and write it. A new control
   needs its two functions and an entry here, and a field in the state. */
#include "stream/controls_json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"

#define TRANSITION_MOST 1000
#define STEP_MOST 1000
#define KV_BIAS_MOST 1.0
#define NOISE_MOST 2.0

typedef struct control control;
struct control {
    const char *key, *may_be;
    carry_status (*take)(carry_ctx *ctx, const control *c, carry_control_state *state, const carry_json *value);
    void (*put)(const carry_control_state *state, carry_json_text *text); /* NULL: an action, not part of the state */
};

static carry_status wrong(carry_ctx *ctx, const control *c, const carry_json *value) {
    char shown[CARRY_JSON_SHOWN];
    return carry_fail(ctx, CARRY_EARGUMENT, "%s is %s: expected %s", c->key, carry_json_show(shown, value), c->may_be);
}

static bool is_whole(const carry_json *value, int64_t least, int64_t most) {
    return value->kind == CARRY_JSON_NUMBER && value->whole && value->as.number.integer >= least &&
           value->as.number.integer <= most;
}

/* A number too large for a double is parsed as infinity; this refuses it. */
static bool is_number(const carry_json *value) {
    return value->kind == CARRY_JSON_NUMBER && isfinite(value->as.number.value);
}

/* Reads a string or {"text": ..., "weight": ...}. `place` is the prompt's number in the error message. */
static carry_status take_one_prompt(carry_ctx *ctx, const control *c, carry_prompt *prompt, const carry_json *value,
                                    int place) {
    const carry_json *text = value;
    prompt->weight = 1;
    if (value->kind == CARRY_JSON_OBJECT) {
        const carry_json *weight = carry_json_find(value, "weight");
        text = carry_json_find(value, "text");
        if (text == NULL || value->as.inside.count != 1 + (weight != NULL)) {
            return carry_fail(ctx, CARRY_EARGUMENT, "prompt %d has other keys than one text and one weight", place);
        }
        if (weight != NULL && !(is_number(weight) && weight->as.number.value >= 0)) {
            char shown[CARRY_JSON_SHOWN];
            return carry_fail(ctx, CARRY_EARGUMENT, "the weight of prompt %d is %s: expected a number, 0 or more",
                              place, carry_json_show(shown, weight));
        }
        prompt->weight = weight != NULL ? weight->as.number.value : 1;
    }
    if (text->kind != CARRY_JSON_STRING) {
        return wrong(ctx, c, text);
    }
    if (text->as.text.length > CARRY_PROMPT_BYTES) {
        return carry_fail(ctx, CARRY_EARGUMENT, "prompt %d has %zu bytes: at most %d are taken", place,
                          text->as.text.length, CARRY_PROMPT_BYTES);
    }
    memcpy(prompt->text, text->as.text.bytes, text->as.text.length);
    memset(prompt->text + text->as.text.length, 0, sizeof prompt->text - text->as.text.length);
    prompt->length = text->as.text.length;
    return CARRY_OK;
}

static carry_status take_prompts(carry_ctx *ctx, const control *c, carry_control_state *state,
                                 const carry_json *value) {
    if (value->kind == CARRY_JSON_STRING) {
        state->prompts = 1;
        return take_one_prompt(ctx, c, &state->prompt[0], value, 1);
    }
    if (value->kind != CARRY_JSON_ARRAY || value->as.inside.count < 1 || value->as.inside.count > CARRY_PROMPTS) {
        return wrong(ctx, c, value);
    }
    double sum = 0;
    state->prompts = 0;
    for (const carry_json *node = value->as.inside.first; node != NULL; node = node->next) {
        carry_prompt *prompt = &state->prompt[state->prompts++];
        CARRY_TRY(take_one_prompt(ctx, c, prompt, node, state->prompts));
        sum += prompt->weight;
    }
    if (!(sum > 0 && isfinite(sum))) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the weights of the prompts add up to %g: expected a finite sum above 0", sum);
    }
    return CARRY_OK;
}

/* Writes a string that may contain zero bytes, at which carry_json_put_string would stop. */
static void put_text(carry_json_text *text, const char *bytes, size_t length) {
    carry_json_put_raw(text, "\"");
    for (size_t at = 0; at < length;) {
        size_t run = 0;
        while (at + run < length && (unsigned char)bytes[at + run] >= 0x20 && bytes[at + run] != '"' &&
               bytes[at + run] != '\\') {
            run++;
        }
        carry_json_put_raw(text, "%.*s", (int)run, bytes + at);
        at += run;
        if (at < length) {
            carry_json_put_raw(text, "\\u%04x", (unsigned)(unsigned char)bytes[at++]);
        }
    }
    carry_json_put_raw(text, "\"");
}

static void put_prompts(const carry_control_state *state, carry_json_text *text) {
    for (int i = 0; i < state->prompts; i++) {
        carry_json_put_raw(text, "%s{\"text\": ", i == 0 ? "[" : ", ");
        put_text(text, state->prompt[i].text, state->prompt[i].length);
        carry_json_put_raw(text, ", \"weight\": ");
        carry_json_put_double(text, state->prompt[i].weight);
        carry_json_put_raw(text, "}");
    }
    carry_json_put_raw(text, "]");
}

static carry_status take_transition(carry_ctx *ctx, const control *c, carry_control_state *state,
                                    const carry_json *value) {
    if (!is_whole(value, 0, TRANSITION_MOST)) {
        return wrong(ctx, c, value);
    }
    state->transition = value->as.number.integer;
    return CARRY_OK;
}

static void put_transition(const carry_control_state *state, carry_json_text *text) {
    carry_json_put_raw(text, "%" PRId64, state->transition);
}

static carry_status take_seed(carry_ctx *ctx, const control *c, carry_control_state *state, const carry_json *value) {
    if (!is_whole(value, 0, INT64_MAX)) {
        return wrong(ctx, c, value);
    }
    state->seed = (uint64_t)value->as.number.integer;
    return CARRY_OK;
}

static void put_seed(const carry_control_state *state, carry_json_text *text) {
    carry_json_put_raw(text, "%" PRIu64, state->seed);
}

static carry_status take_steps(carry_ctx *ctx, const control *c, carry_control_state *state, const carry_json *value) {
    if (value->kind != CARRY_JSON_ARRAY || value->as.inside.count < 1 || value->as.inside.count > CARRY_CONTROL_STEPS) {
        return wrong(ctx, c, value);
    }
    state->steps = 0;
    for (const carry_json *node = value->as.inside.first; node != NULL; node = node->next) {
        const int64_t most = state->steps == 0 ? STEP_MOST : state->step[state->steps - 1] - 1;
        if (!is_whole(node, 1, most)) {
            return wrong(ctx, c, node);
        }
        state->step[state->steps++] = node->as.number.integer;
    }
    return CARRY_OK;
}

static void put_steps(const carry_control_state *state, carry_json_text *text) {
    for (int i = 0; i < state->steps; i++) {
        carry_json_put_raw(text, "%s%" PRId64, i == 0 ? "[" : ", ", state->step[i]);
    }
    carry_json_put_raw(text, "]");
}

static carry_status take_kv_bias(carry_ctx *ctx, const control *c, carry_control_state *state,
                                 const carry_json *value) {
    /* Envelopes store this value as f32, where it must not round to 0. */
    if (!is_number(value) || (float)value->as.number.value <= 0 || value->as.number.value > KV_BIAS_MOST) {
        return wrong(ctx, c, value);
    }
    state->kv_bias = value->as.number.value;
    return CARRY_OK;
}

static void put_kv_bias(const carry_control_state *state, carry_json_text *text) {
    carry_json_put_double(text, state->kv_bias);
}

static carry_status take_noise(carry_ctx *ctx, const control *c, carry_control_state *state, const carry_json *value) {
    if (!is_number(value) || value->as.number.value < 0 || value->as.number.value > NOISE_MOST) {
        return wrong(ctx, c, value);
    }
    state->noise = value->as.number.value;
    return CARRY_OK;
}

static void put_noise(const carry_control_state *state, carry_json_text *text) {
    carry_json_put_double(text, state->noise);
}

static carry_status take_cut(carry_ctx *ctx, const control *c, carry_control_state *state, const carry_json *value) {
    if (value->kind != CARRY_JSON_BOOL) {
        return wrong(ctx, c, value);
    }
    state->cuts += value->truth;
    return CARRY_OK;
}

static carry_status take_pause(carry_ctx *ctx, const control *c, carry_control_state *state, const carry_json *value) {
    if (value->kind != CARRY_JSON_BOOL) {
        return wrong(ctx, c, value);
    }
    state->paused = value->truth;
    return CARRY_OK;
}

static void put_pause(const carry_control_state *state, carry_json_text *text) {
    carry_json_put_raw(text, "%s", state->paused ? "true" : "false");
}

static carry_status take_lora(carry_ctx *ctx, const control *c, carry_control_state *state, const carry_json *value) {
    if (!is_whole(value, 0, INT64_MAX)) {
        return wrong(ctx, c, value);
    }
    if (value->as.number.integer > state->loras) {
        return carry_fail(ctx, CARRY_EARGUMENT, "lora is %" PRId64 ": the stream has %" PRId64 " LoRA files (--lora)",
                          value->as.number.integer, state->loras);
    }
    state->lora = value->as.number.integer;
    return CARRY_OK;
}

static void put_lora(const carry_control_state *state, carry_json_text *text) {
    carry_json_put_raw(text, "%" PRId64, state->lora);
}

static const control table[] = {
    {"prompt", "a text of up to 4096 bytes, or a list of 1 to 8 of them, or of {\"text\": ..., \"weight\": 0 or more}",
     take_prompts, put_prompts},
    {"transition", "a whole number of chunks, 0 to 1000", take_transition, put_transition},
    {"seed", "a whole number from 0 to 9223372036854775807", take_seed, put_seed},
    {"steps", "a list of 1 to 16 whole numbers that fall, from at most 1000 to at least 1", take_steps, put_steps},
    {"cut", "true or false", take_cut, NULL},
    {"pause", "true or false", take_pause, put_pause},
    {"kv_bias", "a number above 0, up to 1", take_kv_bias, put_kv_bias},
    {"noise", "a number from 0 to 2", take_noise, put_noise},
    {"lora", "the number of a LoRA file, from 1 on in the order of --lora, or 0 for none", take_lora, put_lora},
};
enum { CONTROLS = sizeof table / sizeof table[0] };
_Static_assert(CARRY_PROMPT_BYTES == 4096 && CARRY_PROMPTS == 8 && CARRY_CONTROL_STEPS == 16, "the messages say so");

const char *carry_control_key(int index, const char **may_be) {
    if (index < 0 || index >= CONTROLS) {
        return NULL;
    }
    if (may_be != NULL) {
        *may_be = table[index].may_be;
    }
    return table[index].key;
}

static int find(const carry_json *member) {
    int found = 0;
    while (found < CONTROLS && !(strlen(table[found].key) == member->key_length &&
                                 memcmp(table[found].key, member->key, member->key_length) == 0)) {
        found++;
    }
    return found;
}

carry_status carry_control_take(carry_ctx *ctx, carry_control_state *state, const carry_json *object) {
    bool seen[CONTROLS] = {false};
    if (object->kind != CARRY_JSON_OBJECT) {
        char shown[CARRY_JSON_SHOWN];
        return carry_fail(ctx, CARRY_EARGUMENT, "the controls are %s: expected an object such as {\"pause\": true}",
                          carry_json_show(shown, object));
    }
    for (const carry_json *member = object->as.inside.first; member != NULL; member = member->next) {
        const int which = find(member);
        if (which == CONTROLS) {
            return carry_fail(
                ctx, CARRY_EARGUMENT,
                "'%.40s' is not a control: expected prompt, transition, seed, steps, cut, pause, kv_bias, "
                "noise and lora",
                member->key);
        }
        if (seen[which]) {
            return carry_fail(ctx, CARRY_EARGUMENT, "%s is given twice", table[which].key);
        }
        seen[which] = true;
        CARRY_TRY(table[which].take(ctx, &table[which], state, member));
    }
    return CARRY_OK;
}

void carry_control_put(const carry_control_state *state, carry_json_text *text) {
    const char *before = "{";
    for (int i = 0; i < CONTROLS; i++) {
        if (table[i].put != NULL) {
            carry_json_put_raw(text, "%s\"%s\": ", before, table[i].key);
            table[i].put(state, text);
            before = ", ";
        }
    }
    carry_json_put_raw(text, "}");
}

carry_status carry_control_check(carry_ctx *ctx, const carry_control_state *state) {
    if (state->prompts < 1 || state->prompts > CARRY_PROMPTS || state->steps < 1 ||
        state->steps > CARRY_CONTROL_STEPS || state->seed > INT64_MAX) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the controls start with %d prompts, %d steps and seed %" PRIu64
                          ": 1 to %d, 1 to %d, and up to %" PRId64 " are taken",
                          state->prompts, state->steps, state->seed, CARRY_PROMPTS, CARRY_CONTROL_STEPS, INT64_MAX);
    }
    for (int i = 0; i < state->prompts; i++) {
        if (state->prompt[i].length > CARRY_PROMPT_BYTES || !isfinite(state->prompt[i].weight)) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "prompt %d has %zu bytes and weight %g: up to %d bytes, and a weight of 0 or more, are "
                              "taken",
                              i + 1, state->prompt[i].length, state->prompt[i].weight, CARRY_PROMPT_BYTES);
        }
    }
    if (state->lora < 0 || state->loras < 0 || state->lora > state->loras) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the controls start with LoRA %" PRId64 " of %" PRId64, state->lora,
                          state->loras);
    }
    if (!isfinite(state->kv_bias) || !isfinite(state->noise)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "kv_bias and noise are %g and %g: expected numbers", state->kv_bias,
                          state->noise);
    }
    return CARRY_OK;
}

bool carry_control_same_prompts(const carry_control_state *a, const carry_control_state *b) {
    bool same = a->prompts == b->prompts;
    for (int i = 0; same && i < a->prompts; i++) {
        const carry_prompt *p = &a->prompt[i];
        const carry_prompt *q = &b->prompt[i];
        same = p->length == q->length && p->weight == q->weight && memcmp(p->text, q->text, p->length) == 0;
    }
    return same;
}
