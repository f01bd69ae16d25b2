/* Small models for tests on a GPU: with heads that the bf16 kernels support, so that steps are recorded and the
   decoding kernels are used. */
#ifndef CARRY_TESTS_GPU_MODEL_SUPPORT_H
#define CARRY_TESTS_GPU_MODEL_SUPPORT_H

#include "hybrid_support.h"

#include "carry/device.h"

/* Three layers, the second with attention. */
static inline carry_lm_config gpu_config(int64_t vocabulary, int64_t width) {
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_qwen3_5);
    carry_lm_hybrid_of(&c)->layers_listed = 3;
    c.vocab_size = vocabulary;
    c.hidden_size = 256;
    c.num_hidden_layers = 3;
    c.mixer[1] = CARRY_LM_MIXER_ATTENTION;
    memset(c.feedforward, CARRY_LM_FEEDFORWARD_SWIGLU, sizeof c.feedforward);
    c.swiglu.width = width;
    c.delta.heads = 4;
    c.delta.value_heads = 8;
    c.delta.key = c.delta.value = 128;
    c.attention.heads = 4;
    c.attention.kv_heads = 2;
    c.attention.head_dim = 256;
    c.attention.rope_theta = 10000.0;
    c.attention.rotary_factor = 0.25;
    c.pad_token_id = c.eos_token_id = -1;
    return c;
}

/* The same layers with experts: `chosen` of 12 for each token. */
static inline carry_lm_config gpu_config_experts(int64_t vocabulary, int64_t chosen) {
    const carry_lm_config dense = gpu_config(vocabulary, 0);
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_qwen3_5_moe);
    carry_lm_hybrid_of(&c)->layers_listed = 3;
    c.vocab_size = dense.vocab_size;
    c.hidden_size = dense.hidden_size;
    c.num_hidden_layers = dense.num_hidden_layers;
    c.delta = dense.delta;
    c.attention = dense.attention;
    c.mixer[1] = CARRY_LM_MIXER_ATTENTION;
    memset(c.feedforward, CARRY_LM_FEEDFORWARD_EXPERTS, sizeof c.feedforward);
    c.experts.count = 12;
    c.experts.chosen = chosen;
    c.experts.width = 72;
    c.experts.shared_width = 40;
    c.pad_token_id = c.eos_token_id = -1;
    return c;
}

/* A model whose weights are exact in bf16, so that devices differ only by the rounding of activations. */
static inline carry_lm *gpu_rounded_model(carry_ctx *ctx, carry_lm_config config) {
    carry_lm *lm = model_scaled(ctx, config, 3.0f);
    for (int64_t i = 0; i < lm->own.count; i++) {
        uint32_t bits;
        memcpy(&bits, &lm->own.weights[i], sizeof bits);
        bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
        memcpy(&lm->own.weights[i], &bits, sizeof bits);
    }
    return lm;
}

static inline carry_lm *gpu_moved_to(carry_ctx *ctx, const carry_lm *lm, int device) {
    carry_lm *there;
    assert_ok(ctx, carry_lm_new(ctx, &there, &lm->config, device));
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *from = &lm->own.parameter[i];
        assert_ok(ctx, carry_parameters_upload(&there->own, there->own.weights, there->own.parameter[i].offset,
                                               lm->own.weights + from->offset, from->count));
    }
    return there;
}

#endif
