/* A small model over bytes, with its tokenizer. */
#ifndef CARRY_TESTS_TEXT_MODEL_SUPPORT_H
#define CARRY_TESTS_TEXT_MODEL_SUPPORT_H

#include "lm_support.h"

#include "engine/model_folder.h"

static inline carry_lm_config byte_config(int64_t vocabulary) {
    carry_lm_config config = small(&carry_lm_family_gated_deltanet);
    config.vocab_size = vocabulary;
    return config;
}

/* With 256 tokens the model has no end token, with more it has one. */
static inline carry_model byte_model(carry_ctx *ctx, int64_t vocabulary) {
    static const char *const added[] = {CARRY_END_OF_TEXT};
    carry_model m = {.start = -1, .end = -1, .other_end = -1, .folder = "here"};
    m.lm = model(ctx, byte_config(vocabulary));
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &m.tokenizer, added, vocabulary > 256));
    m.end = m.start = carry_tokenizer_end(m.tokenizer);
    return m;
}

#endif
