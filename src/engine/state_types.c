/* Types of keys and values and of states, by name. */
#include "engine/state_types.h"

#include <string.h>

#include "core/context.h"

typedef struct named {
    const char *name;
    carry_dtype dtype;
} named;

/* Integers of 8 bits are not offered for states: their rounding errors add up, since a state is read, changed and
   stored for every token. */
static const named kv_types[] = {{"f32", CARRY_F32}, {"bf16", CARRY_BF16}, {"f16", CARRY_F16}, {"fp8", CARRY_F8}};
static const named state_types[] = {{"f32", CARRY_F32}, {"bf16", CARRY_BF16}};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const named *find(const named *list, int count, const char *text) {
    for (int i = 0; i < count; i++) {
        if (strcmp(list[i].name, text) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

bool carry_state_types_is_kv(const char *text) {
    return find(kv_types, COUNT(kv_types), text) != NULL;
}

bool carry_state_types_is_state(const char *text) {
    return find(state_types, COUNT(state_types), text) != NULL;
}

const char *carry_state_types_name(carry_dtype dtype) {
    return dtype == CARRY_F8 ? "fp8" : carry_dtype_name(dtype);
}

carry_lm_pool_types carry_state_types_of_pool(const carry_state_types *types, carry_dtype activations,
                                              int64_t sequences) {
    return (carry_lm_pool_types){
        .activations = activations, .caches = types->kv, .states = types->state, .sequences = sequences};
}

carry_status carry_state_types_parse(carry_state_types *types, const carry_lm *lm, carry_dtype activations,
                                     const char *kv_type, const char *state_type) {
    *types = (carry_state_types){.kv = activations, .state = CARRY_F32};
    const named *kv = kv_type != NULL ? find(kv_types, COUNT(kv_types), kv_type) : NULL;
    const named *state = state_type != NULL ? find(state_types, COUNT(state_types), state_type) : NULL;
    if (kv_type != NULL && kv == NULL) {
        return carry_fail(lm->ctx, CARRY_EARGUMENT, "kv_type '%.20s': expected " CARRY_STATE_TYPES_KV, kv_type);
    }
    if (state_type != NULL && state == NULL) {
        return carry_fail(lm->ctx, CARRY_EARGUMENT, "state_type '%.20s': expected " CARRY_STATE_TYPES_STATE,
                          state_type);
    }
    types->kv = kv != NULL ? kv->dtype : types->kv;
    types->state = state != NULL ? state->dtype : types->state;
    const carry_lm_pool_types pool = carry_state_types_of_pool(types, activations, 1);
    return carry_lm_pool_types_check(lm, &pool);
}
