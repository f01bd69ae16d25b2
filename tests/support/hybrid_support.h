/* Small models with attention among their layers. */
#ifndef CARRY_TESTS_HYBRID_SUPPORT_H
#define CARRY_TESTS_HYBRID_SUPPORT_H

#include "lm_support.h"

#define HYBRIDS 7

/* Qwen3.5's (tied), OLMo's with and without rotary positions, and flash-linear-attention's: without a window, and with
   one that is shorter than the rows; and products of delta rules, of two steps a token and, without gates, of three. */
static inline carry_lm_config hybrid(int index) {
    static const carry_lm_kind kinds[] = {CARRY_LM_QWEN3_5,           CARRY_LM_OLMO_HYBRID, CARRY_LM_OLMO_HYBRID,
                                          CARRY_LM_GATED_DELTANET,    CARRY_LM_DELTA_NET,   CARRY_LM_GATED_DELTAPRODUCT,
                                          CARRY_LM_GATED_DELTAPRODUCT};
    carry_lm_config c = small(kinds[index]);
    c.num_v_heads = 2;
    c.value_head_dim = index < 3 ? 6 : 0;
    c.num_hidden_layers = 3;
    c.layers_listed = index < 3 ? 3 : 0;
    c.layer[1] = CARRY_LM_MIXER_ATTENTION;
    c.attn_heads = 4;
    c.attn_kv_heads = 2;
    c.attn_head_dim = index == 0 ? 8 : 0;
    c.attn_window = index == 4 ? 7 : 0;
    c.rope_theta = index == 2 ? 0.0 : 100.0;
    c.rotary_factor = index == 0 ? 0.5 : 1.0;
    c.hidden_size = 16;
    c.expand_k = c.expand_v = index == 4 ? 1.0 : 2.0;
    c.tie_word_embeddings = index == 0;
    c.num_householder = index == 6 ? 3 : 2;
    c.use_forget_gate = index != 6;
    c.use_gate = index != 6;
    c.pad_token_id = c.eos_token_id = -1;
    return c;
}

#endif
