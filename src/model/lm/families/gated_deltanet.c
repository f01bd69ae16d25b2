/* Gated DeltaNet of flash-linear-attention. */
#include "model/lm/families/fla.h"

static const carry_lm_key keys[] = {
    CARRY_LM_FLA_MODEL_KEYS,
    CARRY_LM_FLA_KEY(num_v_heads, SIZE_OR_NULL),
    CARRY_LM_FLA_KEY(head_dim, SIZE),
    CARRY_LM_FLA_KEY(expand_v, NUMBER),
    CARRY_LM_KEY("conv_size", delta.conv_size, SIZE),
    CARRY_LM_KEY("use_gate", delta.use_gate, TRUTH),
    CARRY_LM_KEY("use_short_conv", delta.use_short_conv, TRUTH),
    CARRY_LM_KEY("allow_neg_eigval", delta.allow_neg_eigval, TRUTH),
    CARRY_LM_KEY("use_delta_rule", delta.use_delta_rule, TRUTH_IF_FALSE),
    CARRY_LM_FLA_ATTN_KEY,
    CARRY_LM_WORD("output_gate_activation", MUST_BE_SILU),
    CARRY_LM_FLA_LAST_KEYS,
};

static void set_defaults(carry_lm_config *c) {
    carry_lm_fla_set_defaults(c);
    c->num_hidden_layers = 21;
    c->delta.heads = 6;
    c->delta.use_gate = true;
    carry_lm_fla_of(c)->head_dim = 256;
    carry_lm_fla_of(c)->expand_v = 2.0;
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    c->delta.gated = true;
    return carry_lm_fla_finish_gated(ctx, c);
}

const carry_lm_family carry_lm_family_gated_deltanet = {
    .name = "gated_deltanet",
    .about = "Gated DeltaNet of flash-linear-attention",
    .mixers = CARRY_LM_HAS(MIXER_DELTA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "GatedDeltaNetForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    CARRY_LM_FLA_TENSORS,
};
