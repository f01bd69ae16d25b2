/* The part of a layer without a mixer or without a feed-forward: h does not change, and there is no norm
   (lm_layer.c). */
#include "model/lm/feedforward/feedforward.h"
#include "model/lm/mixers/mixer.h"

static carry_status check(carry_ctx *ctx, carry_lm_config *config) {
    (void)ctx;
    (void)config;
    return CARRY_OK;
}

static carry_lm_parameter describe(const carry_lm_config *config, int slot) {
    (void)config;
    (void)slot;
    return (carry_lm_parameter){0};
}

static int state(const carry_lm_config *config, carry_lm_state_part *parts) {
    (void)config;
    (void)parts;
    return 0;
}

static void take(const struct carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    (void)pass;
    (void)opened;
    (void)arena;
    (void)rows;
}

const carry_lm_part carry_lm_feedforward_none = {.name = "none",
                                                 .about = "layers without a feed-forward",
                                                 .check = check,
                                                 .describe = describe,
                                                 .take = take,
                                                 .take_back = take};
const carry_lm_part carry_lm_mixer_none = {.name = "none",
                                           .about = "layers without a mixer",
                                           .check = check,
                                           .describe = describe,
                                           .state = state,
                                           .take = take,
                                           .take_back = take};
