/* Attention layers: options, parameters and state. */
#include <inttypes.h>

#include "core/error.h"
#include "model/lm/mixers/attention.h"

#define CARRY_ATTENTION_MAX_DIM 256 /* carry/attention.h */

const char *const carry_lm_attention_names[] = {
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.q_norm.weight",
    "self_attn.k_norm.weight", "self_attn.o_proj.weight", "self_attn.q_proj.bias",   "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",   "self_attn.o_proj.bias"};

carry_status carry_lm_attention_check(carry_ctx *ctx, carry_lm_config *c) {
    carry_lm_attention_options *a = &c->attention;
    CARRY_TRY(carry_lm_check_size(ctx, "the number of attention heads", a->heads, CARRY_LM_MAX_WIDTH));
    a->kv_heads = a->kv_heads != 0 ? a->kv_heads : a->heads;
    a->head_dim = a->head_dim != 0 ? a->head_dim : c->hidden_size / a->heads;
    CARRY_TRY(carry_lm_check_size(ctx, "the number of heads of keys", a->kv_heads, CARRY_LM_MAX_WIDTH));
    CARRY_TRY(carry_lm_check_size(ctx, "the width of an attention head", a->head_dim, CARRY_ATTENTION_MAX_DIM));
    if (a->heads % a->kv_heads != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "attention has %" PRId64 " heads and %" PRId64 " heads of keys, which must divide them",
                          a->heads, a->kv_heads);
    }
    CARRY_TRY(carry_lm_check_size(ctx, "the width of all attention heads", a->heads * a->head_dim, CARRY_LM_MAX_WIDTH));
    a->rotary = 0;
    if (a->rope_theta != 0.0) {
        CARRY_TRY(carry_lm_check_number(ctx, "rope_theta", a->rope_theta, 1e15));
        CARRY_TRY(carry_lm_check_number(ctx, "partial_rotary_factor", a->rotary_factor, 1.0));
        a->rotary = (int64_t)((double)a->head_dim * a->rotary_factor);
        if (a->rotary < 2 || a->rotary % 2 != 0) {
            return carry_fail(ctx, CARRY_ESIZE,
                              "rotary positions of %" PRId64 " of the %" PRId64
                              " elements of a head: the number must be even and at least 2",
                              a->rotary, a->head_dim);
        }
    }
    return CARRY_OK;
}

static carry_lm_parameter bias_of(const carry_lm_config *c, int64_t width) {
    return (carry_lm_parameter){.rank = c->attention.bias ? 1 : 0, .shape = {width}, .start = CARRY_LM_ZEROS};
}

carry_lm_parameter carry_lm_attention_describe(const carry_lm_config *c, int slot) {
    const int64_t width = c->attention.heads * c->attention.head_dim;
    const int64_t key_width = c->attention.kv_heads * c->attention.head_dim;
    carry_lm_parameter norm = {.rank = c->attention.qk_norm != CARRY_LM_NO_QK_NORM ? 1 : 0,
                               .shape = {c->attention.head_dim},
                               .decays = true,
                               .start = c->norm_plus_one ? CARRY_LM_ZEROS : CARRY_LM_ONES};
    switch ((carry_lm_attention_slot)slot) {
    case CARRY_LM_ATTENTION_Q:
        return carry_lm_matrix(c->attention.gate ? 2 * width : width, c->hidden_size);
    case CARRY_LM_ATTENTION_K:
    case CARRY_LM_ATTENTION_V:
        return carry_lm_matrix(key_width, c->hidden_size);
    case CARRY_LM_ATTENTION_Q_NORM:
    case CARRY_LM_ATTENTION_K_NORM:
        if (c->attention.qk_norm == CARRY_LM_NORM_WIDTH) {
            norm.shape[0] = slot == CARRY_LM_ATTENTION_Q_NORM ? width : key_width;
        }
        return norm;
    case CARRY_LM_ATTENTION_O:
        return carry_lm_matrix(c->hidden_size, width);
    case CARRY_LM_ATTENTION_Q_BIAS:
        return bias_of(c, c->attention.gate ? 2 * width : width);
    case CARRY_LM_ATTENTION_K_BIAS:
    case CARRY_LM_ATTENTION_V_BIAS:
        return bias_of(c, key_width);
    case CARRY_LM_ATTENTION_O_BIAS:
        return bias_of(c, c->hidden_size);
    case CARRY_LM_ATTENTION_SLOTS:
        break;
    }
    return (carry_lm_parameter){0};
}

int carry_lm_attention_state(const carry_lm_config *c, carry_lm_state_part *parts) {
    parts[0] = parts[1] = (carry_lm_state_part){
        .rank = 3, .shape = {0, c->attention.kv_heads, c->attention.head_dim}, .slices = 1, .grows = true};
    return 2;
}
