/* The list of presets. */
#include "train/presets.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/nearest.h"

const carry_train_preset carry_train_presets[] = {
    {"gdn-130m", "Gated DeltaNet, 141 M parameters: 12 layers, hidden 768, 6 heads of 128; 8 x 4096 tokens", 32000,
     "type gated_deltanet hidden 768 layers 12 heads 6 head-dim 128 batch 8 length 4096 dtype bf16"},
    {"gdn-130m-128k", "gdn-130m with a vocabulary of 128,256: 289 M parameters, and the logits are the largest product",
     128256, "type gated_deltanet hidden 768 layers 12 heads 6 head-dim 128 batch 8 length 4096 dtype bf16"},
    {"gdn-1b", "Gated DeltaNet, 1.0 G parameters: 16 layers, hidden 2048, 16 heads of 128; 8 x 4096 tokens, recomputed",
     32000,
     "type gated_deltanet hidden 2048 layers 16 heads 16 head-dim 128 batch 8 length 4096 dtype bf16 recompute true"},
    {"deltanet-13m", "DeltaNet, 13.5 M parameters: 6 layers, hidden 256, 8 heads of 32; 32 x 2048 tokens", 16384,
     "type delta_net hidden 256 layers 6 heads 8 head-dim 32 batch 32 length 2048 dtype bf16"},
    {0},
};

const carry_train_preset *carry_train_preset_named(const char *name) {
    for (const carry_train_preset *at = carry_train_presets; at->name != NULL; at++) {
        if (strcmp(at->name, name) == 0) {
            return at;
        }
    }
    return NULL;
}

carry_status carry_train_preset_apply(carry_ctx *ctx, carry_train_options *options, const char *name) {
    const carry_train_preset *preset = carry_train_preset_named(name);
    char keys[256];
    char *rest = NULL;
    if (preset == NULL) {
        char hint[CARRY_NEAREST_HINT];
        return carry_fail(
            ctx, CARRY_ENOTFOUND, "preset '%.40s': expected gdn-130m, gdn-130m-128k, gdn-1b or deltanet-13m%s", name,
            carry_nearest_among(hint, name,
                                (const char *const[]){"gdn-130m", "gdn-130m-128k", "gdn-1b", "deltanet-13m", NULL}));
    }
    (void)snprintf(keys, sizeof keys, "%s", preset->keys);
    for (char *key = strtok_r(keys, " ", &rest); key != NULL; key = strtok_r(NULL, " ", &rest)) {
        const char *value = strtok_r(NULL, " ", &rest);
        CARRY_TRY(carry_keys_set(ctx, carry_train_keys, options, key, value));
    }
    return CARRY_OK;
}
