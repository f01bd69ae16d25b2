/* Layers with attention: named here, and refused so far. */
#include "core/error.h"
#include "model/lm/lm_pass.h"

static const carry_lm_key keys[] = {
    CARRY_LM_WORD("attn", MUST_BE_OFF, CARRY_LM_IN(GATED_DELTANET) | CARRY_LM_IN(DELTA_NET)), CARRY_LM_LAST_KEY};

static int state(const carry_lm_config *config, carry_lm_state_part *parts) {
    (void)config;
    (void)parts;
    return 0;
}

static carry_status open_attention(carry_lm_pass *pass, void **opened) {
    *opened = NULL;
    return carry_fail(pass->ctx, CARRY_EUNSUPPORTED, "layers with attention are not supported");
}

const carry_lm_layer_mixer carry_lm_layer_attention = {
    .name = "attention", .about = "softmax attention", .keys = keys, .state = state, .open = open_attention};
