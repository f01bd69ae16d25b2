/* Small models with attention among their layers. */
#ifndef CARRY_TESTS_HYBRID_SUPPORT_H
#define CARRY_TESTS_HYBRID_SUPPORT_H

#include "lm_support.h"

#include "model/lm/families/hybrid.h"
#include "model/lm/families/kimi.h"

#define HYBRIDS 15

/* With layers of Mamba-2: mamba2 (10), granitemoehybrid (11) with experts in two groups of B and C, and nemotron_h
   (12), whose layers have one part each, with biases. */
static inline carry_lm_config mamba_hybrid(int index) {
    static const carry_lm_family *const families[] = {&carry_lm_family_mamba2, &carry_lm_family_granitemoehybrid,
                                                      &carry_lm_family_nemotron_h};
    carry_lm_config c = carry_lm_config_default(families[index - 10]);
    c.vocab_size = SUPPORT_VOCABULARY;
    c.hidden_size = 16;
    c.norm_eps = 1e-2;
    c.num_hidden_layers = index == 12 ? 4 : 3;
    c.mamba.heads = 4;
    c.mamba.head_dim = 8;
    c.mamba.groups = index == 10 ? 1 : 2;
    c.mamba.state = 6;
    c.mamba.proj_bias = index == 10;
    if (index > 10) {
        c.attention.heads = 4;
        c.attention.kv_heads = 2;
        c.attention.head_dim = 8;
    }
    c.experts.count = 6;
    c.experts.chosen = 2;
    c.experts.width = 10;
    c.experts.shared_width = 8;
    c.squared.width = 20;
    c.squared.bias = index == 12;
    if (index == 11) {
        c.mixer[1] = CARRY_LM_MIXER_ATTENTION;
        carry_lm_hybrid_of(&c)->layers_listed = 3;
        c.tie_word_embeddings = true;
        c.attention.scale = 0.3;
        c.embedding_factor = 2.0;
        c.residual_factor = 0.7;
        c.logits_divisor = 1.5;
    }
    if (index == 12) {
        c.experts.latent = 12;
        c.experts.router.groups = 3;
        c.experts.router.kept_groups = 2;
    }
    return c;
}

/* kimi_linear (13): KDA and latent attention, with a latent of queries and biases. */
static inline carry_lm_config kimi_hybrid(void) {
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_kimi_linear);
    c.vocab_size = SUPPORT_VOCABULARY;
    c.hidden_size = 16;
    c.norm_eps = 1e-2;
    c.num_hidden_layers = 5; /* latent attention in the last */
    c.swiglu.width = 20;
    c.kda.heads = 2;
    c.kda.head_dim = 6;
    c.latent = (carry_lm_latent_options){
        .heads = 3, .plain = 5, .shared = 4, .value = 7, .rank = 8, .query_rank = 9, .bias = true};
    c.experts.count = 6;
    c.experts.chosen = 2;
    c.experts.width = 10;
    return c;
}

/* bailing_hybrid (14): KDA with whole gates and bounded decays, and latent attention with positions and gates. */
static inline carry_lm_config ling_hybrid(void) {
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_bailing_hybrid);
    carry_lm_kimi *own = carry_lm_kimi_of(&c);
    own->head_dim = 6;
    own->group_size = 2;
    own->dense_layers = 1;
    own->theta = 100.0;
    c.vocab_size = SUPPORT_VOCABULARY;
    c.hidden_size = 16;
    c.norm_eps = 1e-2;
    c.num_hidden_layers = 4;
    c.swiglu.width = 20;
    c.latent.heads = 3;
    c.latent.plain = 5;
    c.latent.shared = 4;
    c.latent.value = 7;
    c.latent.rank = 8;
    c.experts.count = 6;
    c.experts.chosen = 2;
    c.experts.width = 10;
    c.experts.router.groups = 3;
    c.experts.router.kept_groups = 2;
    return c;
}

/* Qwen3.5's (tied), OLMo's with and without rotary positions, and flash-linear-attention's: without a window, and with
   one that is shorter than the rows; products of delta rules, of two steps a token and, without gates, of three; and
   Qwen3-Next's, with two heads of values for each head of keys; and, with experts in all layers and in two of three,
   Qwen3.5's and Qwen3-Next's. */
static inline carry_lm_config hybrid(int index) {
    if (index >= 13) {
        return index == 13 ? kimi_hybrid() : ling_hybrid();
    }
    if (index >= 10) {
        return mamba_hybrid(index);
    }
    static const carry_lm_family *const families[] = {&carry_lm_family_qwen3_5,
                                                      &carry_lm_family_olmo_hybrid,
                                                      &carry_lm_family_olmo_hybrid,
                                                      &carry_lm_family_gated_deltanet,
                                                      &carry_lm_family_delta_net,
                                                      &carry_lm_family_gated_deltaproduct,
                                                      &carry_lm_family_gated_deltaproduct,
                                                      &carry_lm_family_qwen3_next,
                                                      &carry_lm_family_qwen3_5_moe,
                                                      &carry_lm_family_qwen3_next};
    const bool from_fla = index >= 3 && index <= 6;
    const bool is_qwen = index == 0 || index >= 7;
    const bool is_next = index == 7 || index == 9;
    carry_lm_config c = from_fla ? small(families[index]) : carry_lm_config_default(families[index]);
    if (from_fla) {
        carry_lm_fla *own = carry_lm_fla_of(&c);
        own->num_v_heads = 2;
        own->expand_k = own->expand_v = index == 4 ? 1.0 : 2.0;
        own->use_forget_gate = index != 6;
    } else {
        carry_lm_hybrid_of(&c)->layers_listed = 3;
        c.vocab_size = SUPPORT_VOCABULARY;
        c.norm_eps = 1e-2;
        c.swiglu.width = 20;
        memset(c.feedforward, index == 8 ? CARRY_LM_FEEDFORWARD_EXPERTS : CARRY_LM_FEEDFORWARD_SWIGLU,
               sizeof c.feedforward);
        c.delta.heads = 2;
        c.delta.value_heads = is_next ? 4 : 2;
        c.delta.key = 5;
        c.delta.value = 6;
    }
    if (index == 8 || index == 9) {
        c.feedforward[0] = c.feedforward[2] = CARRY_LM_FEEDFORWARD_EXPERTS;
        c.experts.count = index == 8 ? 6 : 5;
        c.experts.chosen = index == 8 ? 2 : 3;
        c.experts.width = 10;
        c.experts.shared_width = 8;
        c.experts.router.normalise = index == 8;
    }
    c.num_hidden_layers = 3;
    c.mixer[1] = CARRY_LM_MIXER_ATTENTION;
    c.attention.heads = 4;
    c.attention.kv_heads = 2;
    c.attention.head_dim = is_qwen ? 8 : 0;
    c.attention.bias = index == 8;
    c.attention.window = index == 4 ? 7 : 0;
    c.attention.rope_theta = index == 2 ? 0.0 : 100.0;
    c.attention.rotary_factor = is_qwen ? 0.5 : 1.0;
    c.hidden_size = 16;
    c.tie_word_embeddings = index == 0;
    c.delta.steps = index == 6 ? 3 : 2;
    c.delta.use_gate = index != 6;
    c.pad_token_id = c.eos_token_id = -1;
    return c;
}

#endif
