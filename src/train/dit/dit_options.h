/* The options for training a video transformer. */
#ifndef CARRY_TRAIN_DIT_OPTIONS_H
#define CARRY_TRAIN_DIT_OPTIONS_H

#include "model/dit/dit.h"
#include "train/keys.h"
#include "train/schedule.h"

#define CARRY_DIT_TRAIN_PATH 4096

/* 0 and "" mean not given: the value of the configuration is used. */
typedef struct carry_dit_train_options {
    char config[32], model[CARRY_DIT_TRAIN_PATH]; /* a name; a folder with the initial weights */
    int64_t dim, layers, heads, ffn;
    int64_t size, chunk, window, chunks; /* pixels; frames of a chunk; frames of the window; chunks of a video */
    double speed, shift;
    int64_t batch, steps;
    double rate, final_rate, clip, decay, beta1, beta2, average;
    int64_t warmup, seed;
    double past_noise, changes, unnamed;
    int64_t own_past;
    char out[CARRY_DIT_TRAIN_PATH], dtype[8];
    int64_t save_every, keep, log_every, eval_every;
} carry_dit_train_options;

extern const carry_train_key carry_dit_train_keys[];

carry_dit_train_options carry_dit_train_default(void);
/* Fails for options that no run supports, before files and folders are touched. */
carry_status carry_dit_train_check(carry_ctx *ctx, const carry_dit_train_options *options, int ranks);
/* Gets the configuration of the model that the options ask for. */
carry_status carry_dit_train_config(carry_ctx *ctx, carry_dit_config *config, const carry_dit_train_options *options);

#endif
