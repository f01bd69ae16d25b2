/* Converts control states to and from JSON: the table of keys. */
#ifndef CARRY_STREAM_CONTROLS_JSON_H
#define CARRY_STREAM_CONTROLS_JSON_H

#include "core/json.h"
#include "stream/controls.h"

/* Applies the object to the state. If the object is refused, the state is partly changed, so callers pass a copy. */
carry_status carry_control_take(carry_ctx *ctx, carry_control_state *state, const carry_json *object);
void carry_control_put(const carry_control_state *state, carry_json_text *text);
/* Refuses a state that JSON cannot express: numbers that are not finite, values outside the limits. */
carry_status carry_control_check(carry_ctx *ctx, const carry_control_state *state);
bool carry_control_same_prompts(const carry_control_state *a, const carry_control_state *b);

#endif
