/* Models with random weights, made only from a configuration: to measure shapes whose weights are not available.

   Large weights are generated on the device. They are normally distributed with the configuration's initializer_range,
   so generated texts are random; sizes and times are those of the real model. */
#ifndef CARRY_ENGINE_MODEL_RANDOM_H
#define CARRY_ENGINE_MODEL_RANDOM_H

#include "model/lm/lm.h"

/* The names of known shapes; NULL past the end. */
const char *carry_model_random_name(int index);
/* name: one of those, a config.json, or a folder that has one. */
carry_status carry_model_random_config(carry_ctx *ctx, carry_lm_config *config, const char *name);
/* dtype: the type of the products that use the weights. */
carry_status carry_model_random(carry_ctx *ctx, carry_lm **lm, const char *name, int device, carry_dtype dtype,
                                uint64_t seed);
/* The same with matrices quantised in a format of ops/quantised/quantised.h; NULL: not quantised. Their rows repeat. */
carry_status carry_model_random_quantised(carry_ctx *ctx, carry_lm **lm, const char *name, int device,
                                          carry_dtype dtype, const char *format, uint64_t seed);

#endif
