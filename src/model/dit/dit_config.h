/* Reading config.json of a video transformer, for the files in this folder. */
#ifndef CARRY_MODEL_DIT_CONFIG_H
#define CARRY_MODEL_DIT_CONFIG_H

#include "model/dit/dit.h"

/* Writes config.json, replacing path: Wan's keys, and those keys of a causal model that are set. */
carry_status carry_dit_config_write(carry_ctx *ctx, const carry_dit_config *config, const char *path);

#endif
