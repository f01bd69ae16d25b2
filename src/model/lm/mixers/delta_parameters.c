/* Layers with the delta rule: options, parameters and state. */
#include <inttypes.h>

#include "core/error.h"
#include "model/lm/mixers/delta.h"

#define MAX_CONV 16
#define MAX_VALUE ((int64_t)8 * CARRY_MAX_DELTA_DIM) /* of a value head; wide heads use slices (recurrence.h) */

const char *const carry_lm_delta_names[] = {
    "attn.q_proj.weight",   "attn.k_proj.weight", "attn.v_proj.weight", "attn.a_proj.weight",   "attn.b_proj.weight",
    "attn.g_proj.weight",   "attn.A_log",         "attn.dt_bias",       "attn.q_conv1d.weight", "attn.k_conv1d.weight",
    "attn.v_conv1d.weight", "attn.o_norm.weight", "attn.o_proj.weight"};

carry_status carry_lm_delta_check(carry_ctx *ctx, carry_lm_config *c) {
    carry_lm_delta_options *d = &c->delta;
    CARRY_TRY(carry_lm_check_size(ctx, "num_heads", d->heads, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "num_v_heads", d->value_heads, CARRY_LM_MAX_WIDTH));
    if (d->value_heads % d->heads != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "num_v_heads is %" PRId64 " and num_heads is %" PRId64 ": it must be a multiple of it",
                          d->value_heads, d->heads);
    }
    CARRY_TRY(carry_lm_check_size(ctx, "the width of a key's head", d->key, CARRY_MAX_DELTA_DIM));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of a value's head", d->value, MAX_VALUE));
    d->key_width = d->heads * d->key;
    d->value_width = d->value_heads * d->value;
    CARRY_TRY(carry_lm_check_size(ctx, "the width of all keys", d->key_width, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of all values", d->value_width, CARRY_LM_MAX_WIDTH));
    return d->use_short_conv ? carry_lm_check_size(ctx, "conv_size", d->conv_size, MAX_CONV) : CARRY_OK;
}

carry_lm_parameter carry_lm_delta_describe(const carry_lm_config *c, int slot) {
    const int64_t d = c->hidden_size;
    const carry_lm_parameter none = {0};
    carry_lm_parameter conv = {
        .rank = c->delta.use_short_conv ? 3 : 0, .shape = {c->delta.key_width, 1, c->delta.conv_size}, .decays = true};
    carry_lm_parameter head = {
        .rank = c->delta.gated ? 1 : 0, .shape = {c->delta.value_heads}, .start = CARRY_LM_DECAY_RATE};
    switch ((carry_lm_delta_slot)slot) {
    case CARRY_LM_Q_PROJ:
    case CARRY_LM_K_PROJ:
        return carry_lm_matrix(c->delta.key_width, d);
    case CARRY_LM_V_PROJ:
        return carry_lm_matrix(c->delta.value_width, d);
    case CARRY_LM_A_PROJ:
        return c->delta.gated ? carry_lm_matrix(c->delta.value_heads, d) : none;
    case CARRY_LM_B_PROJ:
        return c->delta.gated || c->delta.use_beta ? carry_lm_matrix(c->delta.value_heads, d) : none;
    case CARRY_LM_G_PROJ:
        return c->delta.use_gate ? carry_lm_matrix(c->delta.value_width, d) : none;
    case CARRY_LM_A_LOG:
        return head;
    case CARRY_LM_DT_BIAS:
        head.start = CARRY_LM_STEP_BIAS;
        return head;
    case CARRY_LM_Q_CONV:
    case CARRY_LM_K_CONV:
        return conv;
    case CARRY_LM_V_CONV:
        conv.shape[0] = c->delta.value_width;
        return conv;
    case CARRY_LM_O_NORM:
        return (carry_lm_parameter){.rank = 1, .shape = {c->delta.value}, .decays = true, .start = CARRY_LM_ONES};
    case CARRY_LM_O_PROJ:
        return carry_lm_matrix(d, c->delta.value_width);
    case CARRY_LM_DELTA_SLOTS:
        break;
    }
    return none;
}

/* The state: the last inputs of the convolutions of q, k and v (shape 0 without convolutions), and the state of the
   delta rule. */
int carry_lm_delta_state(const carry_lm_config *c, carry_lm_state_part *parts) {
    const int64_t before = c->delta.use_short_conv ? c->delta.conv_size - 1 : 0;
    const int64_t channels[] = {c->delta.key_width, c->delta.key_width, c->delta.value_width};
    for (int i = 0; i < 3; i++) {
        parts[i] = (carry_lm_state_part){.rank = 2, .shape = {before, channels[i]}, .slices = 1};
    }
    parts[3] = (carry_lm_state_part){.rank = 3,
                                     .shape = {c->delta.value_heads, c->delta.key, c->delta.value},
                                     .slices = carry_lm_recurrence_slices(c->delta.value),
                                     .narrows = true};
    return 4;
}

/* For each head and token: k^T S, the outer product that is added to S, and q^T S. */
double carry_lm_delta_multiplications(const carry_lm_config *c) {
    return 3.0 * (double)c->delta.value_heads * (double)(c->delta.key * c->delta.value);
}
