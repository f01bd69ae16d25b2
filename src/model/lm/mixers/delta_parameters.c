/* The delta rule's layers: keys of config.json, parameters and state. */
#include "model/lm/mixers/delta.h"

enum {
    GATED = CARRY_LM_IN(GATED_DELTANET),
    DELTA = CARRY_LM_IN(DELTA_NET),
    PRODUCT = CARRY_LM_IN(GATED_DELTAPRODUCT), /* shares these keys */
    FLA = GATED | DELTA,
    QWEN = CARRY_LM_IN(QWEN3_5),
    OLMO = CARRY_LM_IN(OLMO_HYBRID),
    HF = QWEN | OLMO
};

#define FIELD CARRY_LM_FIELD
#define KEY CARRY_LM_KEY
#define WORD CARRY_LM_WORD

const carry_lm_key carry_lm_delta_keys[] = {
    FIELD(num_heads, SIZE, FLA | PRODUCT),
    FIELD(num_v_heads, SIZE_OR_NULL, GATED | PRODUCT),
    FIELD(head_dim, SIZE, GATED | PRODUCT),
    FIELD(expand_k, NUMBER, DELTA),
    FIELD(expand_v, NUMBER, FLA | PRODUCT),
    FIELD(conv_size, SIZE, FLA | PRODUCT),
    FIELD(use_gate, TRUTH, FLA),
    FIELD(use_short_conv, TRUTH, FLA | PRODUCT),
    FIELD(allow_neg_eigval, TRUTH, FLA | PRODUCT),
    FIELD(use_beta, TRUTH, DELTA),
    FIELD(use_output_norm, TRUTH, DELTA),
    FIELD(use_delta_rule, TRUTH, FLA),
    FIELD(qk_activation, ACTIVATION, DELTA),
    WORD("qk_norm", MUST_BE_L2, DELTA),
    WORD("output_gate_activation", MUST_BE_SILU, GATED | PRODUCT),
    WORD("conv_bias", MUST_BE_OFF, FLA | PRODUCT),
    WORD("attn_mode", READ_OVER, FLA | PRODUCT),
    KEY("linear_num_key_heads", num_heads, SIZE, QWEN),
    KEY("linear_num_value_heads", num_v_heads, SIZE, QWEN),
    KEY("linear_key_head_dim", head_dim, SIZE, QWEN),
    KEY("linear_value_head_dim", value_head_dim, SIZE, QWEN),
    KEY("linear_num_key_heads", num_heads, SIZE_OR_NULL, OLMO),
    KEY("linear_num_value_heads", num_v_heads, SIZE_OR_NULL, OLMO),
    KEY("linear_key_head_dim", head_dim, SIZE_OR_NULL, OLMO),
    KEY("linear_value_head_dim", value_head_dim, SIZE_OR_NULL, OLMO),
    KEY("linear_conv_kernel_dim", conv_size, SIZE, HF),
    KEY("linear_allow_neg_eigval", allow_neg_eigval, TRUTH, OLMO),
    WORD("linear_use_gate", MUST_BE_ON, OLMO),
    WORD("linear_a_log_min", READ_OVER, OLMO), /* of start values there */
    WORD("linear_a_log_max", READ_OVER, OLMO),
    WORD("linear_dt_min", READ_OVER, OLMO),
    WORD("linear_dt_max", READ_OVER, OLMO),
    WORD("linear_dt_init_floor", READ_OVER, OLMO),
    WORD("mamba_ssm_dtype", READ_OVER, QWEN),
    CARRY_LM_LAST_KEY,
};

const char *carry_lm_delta_key(const carry_lm_config *c, int slot) {
    static const char *const fla[] = {"attn.q_proj.weight",   "attn.k_proj.weight",   "attn.v_proj.weight",
                                      "attn.a_proj.weight",   "attn.b_proj.weight",   "attn.g_proj.weight",
                                      "attn.A_log",           "attn.dt_bias",         "attn.q_conv1d.weight",
                                      "attn.k_conv1d.weight", "attn.v_conv1d.weight", "attn.o_norm.weight",
                                      "attn.o_proj.weight"};
    static const char *const qwen[] = {"linear_attn.in_proj_qkv.weight",
                                       "linear_attn.in_proj_qkv.weight",
                                       "linear_attn.in_proj_qkv.weight",
                                       "linear_attn.in_proj_a.weight",
                                       "linear_attn.in_proj_b.weight",
                                       "linear_attn.in_proj_z.weight",
                                       "linear_attn.A_log",
                                       "linear_attn.dt_bias",
                                       "linear_attn.conv1d.weight",
                                       "linear_attn.conv1d.weight",
                                       "linear_attn.conv1d.weight",
                                       "linear_attn.norm.weight",
                                       "linear_attn.out_proj.weight"};
    static const char *const olmo[] = {
        "linear_attn.q_proj.weight", "linear_attn.k_proj.weight", "linear_attn.v_proj.weight",
        "linear_attn.a_proj.weight", "linear_attn.b_proj.weight", "linear_attn.g_proj.weight",
        "linear_attn.A_log",         "linear_attn.dt_bias",       "linear_attn.conv1d.weight",
        "linear_attn.conv1d.weight", "linear_attn.conv1d.weight", "linear_attn.o_norm.weight",
        "linear_attn.o_proj.weight"};
    return (c->kind == CARRY_LM_QWEN3_5 ? qwen : c->kind == CARRY_LM_OLMO_HYBRID ? olmo : fla)[slot];
}

carry_lm_parameter carry_lm_delta_describe(const carry_lm_config *c, int slot) {
    const int64_t d = c->hidden_size;
    const carry_lm_parameter none = {0};
    carry_lm_parameter conv = {
        .rank = c->use_short_conv ? 3 : 0, .shape = {c->key_width, 1, c->conv_size}, .decays = true};
    carry_lm_parameter head = {.rank = c->gated ? 1 : 0, .shape = {c->value_heads}, .start = CARRY_LM_DECAY_RATE};
    switch ((carry_lm_delta_slot)slot) {
    case CARRY_LM_Q_PROJ:
    case CARRY_LM_K_PROJ:
        return carry_lm_matrix(c->key_width, d);
    case CARRY_LM_V_PROJ:
        return carry_lm_matrix(c->value_width, d);
    case CARRY_LM_A_PROJ:
        return c->gated ? carry_lm_matrix(c->value_heads, d) : none;
    case CARRY_LM_B_PROJ:
        return c->gated || c->use_beta ? carry_lm_matrix(c->value_heads, d) : none;
    case CARRY_LM_G_PROJ:
        return c->use_gate ? carry_lm_matrix(c->value_width, d) : none;
    case CARRY_LM_A_LOG:
        return head;
    case CARRY_LM_DT_BIAS:
        head.start = CARRY_LM_STEP_BIAS;
        return head;
    case CARRY_LM_Q_CONV:
    case CARRY_LM_K_CONV:
        return conv;
    case CARRY_LM_V_CONV:
        conv.shape[0] = c->value_width;
        return conv;
    case CARRY_LM_O_NORM:
        return (carry_lm_parameter){.rank = 1, .shape = {c->value}, .decays = true, .start = CARRY_LM_ONES};
    case CARRY_LM_O_PROJ:
        return carry_lm_matrix(d, c->value_width);
    case CARRY_LM_DELTA_SLOTS:
        break;
    }
    return none;
}

/* The tails of the convolutions of q, k and v (shape 0 without), and the state of the delta rule. */
int carry_lm_delta_state(const carry_lm_config *c, carry_lm_state_part *parts) {
    const int64_t before = c->use_short_conv ? c->conv_size - 1 : 0;
    const int64_t channels[] = {c->key_width, c->key_width, c->value_width};
    for (int i = 0; i < 3; i++) {
        parts[i] = (carry_lm_state_part){.rank = 2, .shape = {before, channels[i]}, .slices = 1};
    }
    parts[3] = (carry_lm_state_part){
        .rank = 3, .shape = {c->value_heads, c->key, c->value}, .slices = carry_lm_recurrence_slices(c->value)};
    return 4;
}

/* A head and token: k^T S, the outer product into S, q^T S. */
double carry_lm_delta_multiplications(const carry_lm_config *c) {
    return 3.0 * (double)c->value_heads * (double)(c->key * c->value);
}
