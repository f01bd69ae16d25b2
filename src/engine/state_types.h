/* The types in which the engine stores states: keys and values of attention, and states of recurrences. */
#ifndef CARRY_ENGINE_STATE_TYPES_H
#define CARRY_ENGINE_STATE_TYPES_H

#include "carry/engine.h"
#include "model/lm/lm.h"

typedef struct carry_state_types {
    carry_dtype kv;    /* of keys and values: f32, bf16, f16 or CARRY_F8 */
    carry_dtype state; /* f32 or bf16 */
} carry_state_types;

/* Parses the options of these names in carry/engine.h; NULL is the default. The message names the option, its value and
   what is expected; CARRY_EUNSUPPORTED if the model's device does not support the type. */
carry_status carry_state_types_parse(carry_state_types *types, const carry_lm *lm, carry_dtype activations,
                                     const char *kv_type, const char *state_type);
/* True if the text is a type of keys and values, or of states. */
bool carry_state_types_is_kv(const char *text);
bool carry_state_types_is_state(const char *text);
/* "fp8", or the name of another type. */
const char *carry_state_types_name(carry_dtype dtype);
carry_lm_pool_types carry_state_types_of_pool(const carry_state_types *types, carry_dtype activations,
                                              int64_t sequences);

#define CARRY_STATE_TYPES_KV "f32, bf16, f16 or fp8"
#define CARRY_STATE_TYPES_STATE "f32 or bf16"

#endif
