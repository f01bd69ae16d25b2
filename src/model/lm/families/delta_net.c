/* DeltaNet of flash-linear-attention: states do not decay, and the widths of heads follow from hidden_size. */
#include <inttypes.h>

#include "core/error.h"
#include "model/lm/families/fla.h"

static const carry_lm_key keys[] = {
    CARRY_LM_FLA_MODEL_KEYS,
    CARRY_LM_FLA_KEY(expand_k, NUMBER),
    CARRY_LM_FLA_KEY(expand_v, NUMBER),
    CARRY_LM_KEY("conv_size", delta.conv_size, SIZE),
    CARRY_LM_KEY("use_gate", delta.use_gate, TRUTH),
    CARRY_LM_KEY("use_short_conv", delta.use_short_conv, TRUTH),
    CARRY_LM_KEY("allow_neg_eigval", delta.allow_neg_eigval, TRUTH),
    CARRY_LM_KEY("use_beta", delta.use_beta, TRUTH),
    CARRY_LM_FLA_KEY(use_output_norm, TRUTH),
    CARRY_LM_KEY("use_delta_rule", delta.use_delta_rule, TRUTH_IF_FALSE),
    CARRY_LM_KEY("qk_activation", delta.qk_activation, ACTIVATION),
    CARRY_LM_FLA_ATTN_KEY,
    CARRY_LM_WRITTEN("qk_norm", MUST_BE_L2, "\"l2\""),
    CARRY_LM_FLA_LAST_KEYS,
};

static void set_defaults(carry_lm_config *c) {
    carry_lm_fla_set_defaults(c);
    c->num_hidden_layers = 24;
    c->delta.heads = 16;
    carry_lm_fla_of(c)->expand_v = 1.0;
}

static carry_status finish(carry_ctx *ctx, carry_lm_config *c) {
    const carry_lm_fla *own = carry_lm_fla_of(c);
    carry_lm_delta_options *d = &c->delta;
    int64_t keys_wide;
    int64_t values_wide;
    CARRY_TRY(carry_lm_fla_finish(ctx, c));
    CARRY_TRY(carry_lm_fla_expand(ctx, &keys_wide, "expand_k", own->expand_k, "hidden_size", c->hidden_size, false));
    CARRY_TRY(carry_lm_fla_expand(ctx, &values_wide, "expand_v", own->expand_v, "hidden_size", c->hidden_size, false));
    if (keys_wide % d->heads != 0 || values_wide % d->heads != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "num_heads is %" PRId64 ", which does not divide the widths %" PRId64 " of keys and %" PRId64
                          " of values",
                          d->heads, keys_wide, values_wide);
    }
    d->gated = false;
    d->value_heads = d->heads;
    d->key = keys_wide / d->heads;
    d->value = values_wide / d->heads;
    return CARRY_OK;
}

const carry_lm_family carry_lm_family_delta_net = {
    .name = "delta_net",
    .about = "DeltaNet of flash-linear-attention",
    .mixers = CARRY_LM_HAS(MIXER_DELTA) | CARRY_LM_HAS(MIXER_ATTENTION),
    .feedforwards = CARRY_LM_HAS(FEEDFORWARD_SWIGLU),
    .architecture = "DeltaNetForCausalLM",
    .keys = keys,
    .set_defaults = set_defaults,
    .finish = finish,
    CARRY_LM_FLA_TENSORS,
};
