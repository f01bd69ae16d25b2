/* Named models and batch sizes: carry train --preset gdn-130m. A preset sets other options, which can still be
   overridden, and the vocabulary of the model, which may be larger than that of the tokenizer. */
#ifndef CARRY_TRAIN_PRESETS_H
#define CARRY_TRAIN_PRESETS_H

#include "train/options.h"

typedef struct carry_train_preset {
    const char *name, *about;
    int64_t vocabulary;
    const char *keys; /* "key value key value ...", of carry_train_keys */
} carry_train_preset;

extern const carry_train_preset carry_train_presets[];                /* NULL name at the end */
const carry_train_preset *carry_train_preset_named(const char *name); /* NULL: none */
/* CARRY_ENOTFOUND lists the existing names. */
carry_status carry_train_preset_apply(carry_ctx *ctx, carry_train_options *options, const char *name);

#endif
