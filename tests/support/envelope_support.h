/* Shared by the tests of envelopes: one envelope of every kind, and a result, small and fixed. */
#ifndef CARRY_TESTS_ENVELOPE_SUPPORT_H
#define CARRY_TESTS_ENVELOPE_SUPPORT_H

#include "support.h"

#include <stdbool.h>

#include "stream/envelope.h"

enum { NOOP, INFER_PLAIN, INFER_CROSS, INFER_RECOMPUTE, INFER_FULL, SHUTDOWN, RESULT, EXAMPLES };
static const char *const example_name[EXAMPLES] = {"noop",       "infer",    "infer-cross", "infer-recompute",
                                                   "infer-full", "shutdown", "result"};

#define DIGEST_OF_123456789 INT64_C(-1972151452957542081)

typedef struct example {
    bool is_result;
    carry_envelope envelope;
    carry_result result;
    /* Words are 30 bytes, which need padding; the other tensors have 16 channels and never need it. */
    uint16_t latents[16 * 1 * 3 * 5], context[16 * 2 * 3 * 5], words[3 * 5];
    int64_t step[3];
} example;

/* Makes the example in place: its tensors are views of its own memory. */
static inline void example_make(example *e, int which) {
    const bool has_words = which == INFER_CROSS || which == INFER_FULL;
    const bool has_context = which == INFER_RECOMPUTE || which == INFER_FULL;
    memset(e, 0, sizeof *e);
    e->is_result = which == RESULT;
    for (int i = 0; i < 16 * 3 * 5; i++) { /* numbers that bf16 holds exactly */
        e->latents[i] = carry_bf16_from_f32((float)(i - 100) / 8);
    }
    for (int i = 0; i < 16 * 2 * 3 * 5; i++) {
        e->context[i] = carry_bf16_from_f32((float)(i % 64) / -4);
    }
    for (int i = 0; i < 3 * 5; i++) {
        e->words[i] = carry_bf16_from_f32((float)i);
    }
    const int64_t step[] = {1000, 700, 250};
    memcpy(e->step, step, sizeof step);
    const carry_tensor latents = carry_view_4d(e->latents, CARRY_BF16, 16, 1, 3, 5);
    if (e->is_result) {
        e->result = (carry_result){.version = CARRY_ENVELOPE_VERSION,
                                   .call_id = 5,
                                   .chunk_index = 3,
                                   .cache_epoch = 1,
                                   .observed_generator_calls = 4,
                                   .mesh_start_frame = 9,
                                   .digest = carry_stream_digest(e->latents, sizeof e->latents),
                                   .stage1_ms = 12.5,
                                   .mesh_idle_ms = 0.25,
                                   .latents_out = latents};
        return;
    }
    e->envelope = (carry_envelope){.version = CARRY_ENVELOPE_VERSION,
                                   .action = which == NOOP       ? CARRY_NOOP
                                             : which == SHUTDOWN ? CARRY_SHUTDOWN
                                                                 : CARRY_INFER,
                                   .call_id = 0x0102030405060708,
                                   .chunk_index = which == NOOP || which == SHUTDOWN ? 0 : 3,
                                   .cache_epoch = 1};
    if (e->envelope.action != CARRY_INFER) {
        return;
    }
    e->envelope.height = 3;
    e->envelope.width = 5;
    e->envelope.current_start_frame = 9;
    e->envelope.num_denoise_steps = 3;
    e->envelope.expected_generator_calls = 3 + has_context;
    e->envelope.do_recompute = has_context;
    e->envelope.init_cache = e->envelope.reset_cache = which == INFER_FULL;
    e->envelope.reset_cross_cache = has_words;
    e->envelope.seed = 0xFEDCBA9876543210;
    e->envelope.kv_bias = 0.5F;
    e->envelope.noise_scale = 1.25F;
    e->envelope.conditioning = carry_view_2d(has_words ? e->words : NULL, CARRY_BF16, has_words ? 3 : 0, 5);
    e->envelope.latents_in = latents;
    e->envelope.steps = carry_view_1d(e->step, CARRY_I64, 3);
    if (has_context) {
        e->envelope.context_frames = carry_view_4d(e->context, CARRY_BF16, 16, 2, 3, 5);
    }
}

static inline carry_status example_encode(carry_ctx *ctx, const example *e, void *to, size_t room, size_t *bytes) {
    return e->is_result ? carry_result_encode(ctx, to, room, bytes, &e->result)
                        : carry_envelope_encode(ctx, to, room, bytes, &e->envelope);
}

/* Corrects both CRCs of a changed message, as a hostile peer would. */
static inline void message_seal(unsigned char *message, size_t bytes) {
    for (int which = 0; which < 2; which++) {
        const uint32_t crc = which == 0
                                 ? carry_crc32c(0, message + CARRY_ENVELOPE_HEADER, bytes - CARRY_ENVELOPE_HEADER)
                                 : carry_crc32c(0, message, 28);
        for (int i = 0; i < 4; i++) {
            message[24 + 4 * which + i] = (unsigned char)(crc >> 8 * i);
        }
    }
}

#endif
